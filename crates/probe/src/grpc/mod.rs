//! `grpc`: calls `grpc.health.v1.Health/Check` over HTTP/2, plaintext or TLS, with the rules of the kubelet's prober (KEP-2727,
//! KEP-4939, `pkg/probe/grpc/grpc.go`).
//!
//! Only `SERVING` succeeds. The message says whether a server sent nothing, did not answer the call, or has no health
//! service.
//!
//! The call is made with h2 rather than through a `tonic::transport::Channel`: that spawns tasks which outlive a dropped run,
//! and its reading of a reply panics on a malformed `grpc-status-details-bin` (`Status::from_header_map`, tonic 0.14.9),
//! which any pod may send. Messages are prost's, codes tonic's.

mod health;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Bytes;
use leadsman_core::podprobe::{CannotProbe, Outcome, Scheme};
use percent_encoding::percent_decode;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Code;

use crate::connection::{HttpConnection, HttpVersions};
use crate::dial::Dial;
use crate::message::{MAX_OUTPUT, lossy_text};
use crate::socket::{EarlyEnd, connect_timed_out, connect_within, error_chain, http2_error};
use crate::time_limit::TimeLimit;

/// Most bytes of a response's headers, after decompression.
const MAX_HEAD: u32 = 16 * 1024;

/// Whom a probe calls, and how.
#[derive(Clone, Copy)]
pub(crate) struct HealthCheck<'a> {
    pub(crate) address: SocketAddr,
    /// Empty asks about the server as a whole.
    pub(crate) service: &'a str,
    /// [`Scheme::H2c`], or [`Scheme::Https`] with whatever certificate the server has.
    pub(crate) scheme: Scheme,
}

/// Runs a probe once.
pub(crate) async fn run<D: Dial>(
    check: HealthCheck<'_>,
    limit: TimeLimit<'_>,
    dialer: &D,
) -> Result<Outcome, CannotProbe> {
    let HealthCheck {
        address, scheme, ..
    } = check;
    // Outside of the timeout, so that its end can tell how far the run has come.
    let mut connection = None;
    let mut is_accepted = false;
    let timeout = limit.timeout;
    let checked = limit
        .await_output(pin!(async {
            let stream = connect_within(dialer, address).await?;
            is_accepted = true;
            let opened = HttpConnection::new(stream, scheme, HttpVersions::Http2, address)
                .await
                .map_err(|error| {
                    EarlyEnd::Failed(format!(
                        "TLS handshake with {address}: {}",
                        error_chain(&error)
                    ))
                })?;
            // The clients of gRPC insist on it too: a server that negotiates nothing may speak HTTP/1.1.
            if scheme == Scheme::Https && !opened.has_chosen_http2() {
                return Err(EarlyEnd::Failed(format!(
                    "TLS handshake with {address}: the server does not choose HTTP/2 (ALPN \"h2\")"
                )));
            }
            call(connection.insert(opened), check, timeout).await
        }))
        .await;
    match (checked, connection) {
        (Some(called), connection) => {
            if let Some(connection) = connection {
                connection.close().await;
            }
            called.map_or_else(EarlyEnd::into_result, |status| Ok(judge(status)))
        }
        (None, Some(connection)) if connection.has_received() => {
            Ok(Outcome::Failed(call_timed_out(address, timeout)))
        }
        // A server of HTTP/2 sends its settings without being asked (RFC 9113, 3.4), so silence means another
        // protocol.
        (None, Some(_)) => Ok(Outcome::Failed(format!(
            "connecting to {address}: the port accepts, but no HTTP/2 server answered within {timeout:?}"
        ))),
        (None, None) if is_accepted => Ok(Outcome::Failed(format!(
            "TLS handshake with {address}: not finished within {timeout:?}"
        ))),
        (None, None) => Ok(Outcome::Failed(connect_timed_out(address, timeout))),
    }
}

/// The message for a call that was not answered in time.
fn call_timed_out(address: SocketAddr, timeout: Duration) -> String {
    format!("health check call to {address}: no answer within {timeout:?}")
}

fn judge(status: i32) -> Outcome {
    if status == health::SERVING {
        Outcome::Succeeded("service healthy".to_owned())
    } else {
        let name = health::serving_status_name(status);
        Outcome::Failed(format!("service unhealthy (responded with {name:?})"))
    }
}

/// Calls the service over a connection, which is left to be closed; returns the serving status.
async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut HttpConnection<S>,
    check: HealthCheck<'_>,
    timeout: Duration,
) -> Result<i32, EarlyEnd> {
    let address = check.address;
    let broken = |error: h2::Error| {
        EarlyEnd::Failed(format!(
            "health check call to {address}: {}",
            http2_error(&error)
        ))
    };
    let (sender, connection) = Builder::new()
        // No server has anything to push to a health check (RFC 9113, 8.4).
        .enable_push(false)
        .max_header_list_size(MAX_HEAD)
        .handshake::<_, Bytes>(connection)
        .await
        .map_err(broken)?;
    let work = pin!(async {
        let request = request(check, timeout)?;
        let reply = send(sender, request, health::frame_request(check.service)).await;
        reply.map_err(broken)?.serving_status(address, timeout)
    });
    match select(connection, work).await {
        // How the connection ended reaches the work too.
        Either::Left((_, work)) => work.await,
        Either::Right((status, _)) => status,
    }
}

fn request(check: HealthCheck<'_>, timeout: Duration) -> Result<Request<()>, EarlyEnd> {
    let scheme = match check.scheme {
        Scheme::Https => "https",
        Scheme::Http | Scheme::H2c => "http",
    };
    Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("{scheme}://{}{}", check.address, health::PATH))
        .header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header(TE, HeaderValue::from_static("trailers"))
        .header(USER_AGENT, HeaderValue::from_static(crate::USER_AGENT))
        .header("grpc-timeout", grpc_timeout(timeout))
        .body(())
        .map_err(|error| EarlyEnd::Failed(format!("malformed address: {error}")))
}

/// A timeout as gRPC writes it ("gRPC over HTTP2", Timeout): at most eight digits and a unit.
fn grpc_timeout(timeout: Duration) -> String {
    const MAX: u128 = 99_999_999;
    match timeout.as_millis() {
        millis @ ..=MAX => format!("{millis}m"),
        _ => format!("{}S", u128::from(timeout.as_secs()).min(MAX)),
    }
}

/// The reply to a call.
struct GrpcReply {
    http_status: StatusCode,
    /// Whether the content type is gRPC's.
    is_grpc: bool,
    /// The status from headers or trailers.
    status: Option<GrpcStatus>,
    message: Vec<u8>,
    /// Whether reading stopped at [`MAX_OUTPUT`].
    too_long: bool,
}

/// How a call ended: `grpc-status` and `grpc-message`.
struct GrpcStatus {
    code: Code,
    message: String,
}

impl GrpcStatus {
    /// The status in headers or trailers, if there is one. Of a malformed message the readable parts are kept.
    fn read(map: &HeaderMap) -> Option<Self> {
        let code = Code::from_bytes(map.get("grpc-status")?.as_bytes());
        let encoded = map
            .get("grpc-message")
            .map_or(&b""[..], HeaderValue::as_bytes);
        let message: Vec<u8> = percent_decode(encoded).collect();
        Some(Self {
            code,
            message: lossy_text(&[&message]),
        })
    }
}

/// Sends the request and reads its reply.
async fn send(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    message: Vec<u8>,
) -> Result<GrpcReply, h2::Error> {
    let (response, mut stream) = sender.ready().await?.send_request(request, false)?;
    stream.send_data(Bytes::from(message), true)?;
    let (head, body) = Response::into_parts(response.await?);
    let mut reply = GrpcReply {
        http_status: head.status,
        is_grpc: head.headers.get(CONTENT_TYPE).is_some_and(is_of_grpc),
        // Most errors are a reply of headers alone (`Trailers-Only` in "gRPC over HTTP2").
        status: GrpcStatus::read(&head.headers),
        message: Vec::new(),
        too_long: false,
    };
    // Clients of gRPC go by the content type, whatever the status of HTTP (`operateHeaders`,
    // `internal/transport/http2_client.go` of grpc-go).
    if reply.status.is_none() && (reply.is_grpc || head.status == StatusCode::OK) {
        read_body(body, &mut reply).await?;
    }
    Ok(reply)
}

/// Whether a content type is `application/grpc`, with a subtype or parameters at most (`ContentSubtype`,
/// `internal/grpcutil/method.go` of grpc-go).
fn is_of_grpc(content_type: &HeaderValue) -> bool {
    match content_type.as_bytes().strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
        None => false,
    }
}

/// Reads message and trailers; of a message that is too long only the start.
async fn read_body(mut body: RecvStream, reply: &mut GrpcReply) -> Result<(), h2::Error> {
    while let Some(data) = body.data().await {
        let data = data?;
        // No capacity is released: all that is read fits into the initial window of 64 KiB (RFC 9113, 6.9.2).
        reply.message.extend_from_slice(&data);
        if reply.message.len() > MAX_OUTPUT {
            reply.too_long = true;
            return Ok(());
        }
    }
    reply.status = body.trailers().await?.as_ref().and_then(GrpcStatus::read);
    Ok(())
}

impl GrpcReply {
    /// The serving status, or why there is none. The codes that matter are those of the kubelet's prober.
    fn serving_status(self, address: SocketAddr, timeout: Duration) -> Result<i32, EarlyEnd> {
        let reason = match self.status {
            _ if self.too_long => format!("the answer is longer than {MAX_OUTPUT} bytes"),
            None if self.http_status != StatusCode::OK => {
                format!("HTTP status {} in place of gRPC", self.http_status.as_u16())
            }
            None => "the answer has no grpc-status".to_owned(),
            Some(GrpcStatus { code, message }) => match code {
                Code::Ok if !self.is_grpc => {
                    "the answer's content type is not application/grpc".to_owned()
                }
                Code::Ok => match health::serving_status(&self.message) {
                    Ok(status) => return Ok(status),
                    Err(malformed) => malformed.to_string(),
                },
                Code::Unimplemented => format!(
                    "the server does not implement the gRPC health protocol (grpc.health.v1.Health): {message}"
                ),
                // A server that keeps `grpc-timeout` answers just before our own deadline, so both have one message.
                Code::DeadlineExceeded => {
                    return Err(EarlyEnd::Failed(call_timed_out(address, timeout)));
                }
                code if message.is_empty() => format!("{code:?}"),
                code => format!("{code:?}: {message}"),
            },
        };
        Err(EarlyEnd::Failed(format!(
            "health check call to {address}: {reason}"
        )))
    }
}
