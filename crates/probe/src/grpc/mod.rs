//! `grpc`: asks `grpc.health.v1.Health/Check` over plaintext HTTP/2, with the rules of the kubelet's prober
//! (`pkg/probe/grpc`).
//!
//! Only `SERVING` succeeds. A server that does not answer at all is told apart from one that does not answer the call, and
//! both from one without the health service.

mod health;
mod status;
#[cfg(test)]
mod tests;
mod wire;

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Bytes;
use leadsman_core::podprobe::{CannotProbe, Outcome};

use crate::message::MAX_OUTPUT;
use crate::socket::{Stop, chain, dial, not_connected, part};
use status::Status;
use wire::Wire;

/// Most bytes of a response's head, after decompression.
const MAX_HEAD: u32 = 16 * 1024;

/// One run.
pub(crate) async fn run(
    address: SocketAddr,
    service: &str,
    timeout: Duration,
) -> Result<Outcome, CannotProbe> {
    let mut wire = None;
    let checked = tokio::time::timeout(timeout, async {
        let wire = wire.insert(Wire::new(dial(address).await?));
        call(wire, address, service, timeout).await
    })
    .await;
    match (checked, wire) {
        (Ok(called), wire) => {
            if let Some(wire) = wire {
                part(wire.into_stream()).await;
            }
            called.map_or_else(Stop::into_result, |status| Ok(judge(status)))
        }
        (Err(_), Some(wire)) if wire.heard() => Ok(Outcome::Failed(not_answered(address, timeout))),
        (Err(_), Some(_)) => Ok(Outcome::Failed(format!(
            "connecting to {address}: the port accepts, but no HTTP/2 server answered within {timeout:?}"
        ))),
        (Err(_), None) => Ok(Outcome::Failed(not_connected(address, timeout))),
    }
}

fn not_answered(address: SocketAddr, timeout: Duration) -> String {
    format!("health check call to {address}: no answer within {timeout:?}")
}

fn judge(status: i32) -> Outcome {
    if status == health::SERVING {
        Outcome::Succeeded("service healthy".to_owned())
    } else {
        let name = health::status_name(status);
        Outcome::Failed(format!("service unhealthy (responded with {name:?})"))
    }
}

/// The call over a connection, which is left ready to be parted from.
async fn call(
    wire: &mut Wire,
    address: SocketAddr,
    service: &str,
    timeout: Duration,
) -> Result<i32, Stop> {
    let broken = |error: h2::Error| Stop::Failed(broken(address, &error));
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .max_header_list_size(MAX_HEAD)
        .handshake::<_, Bytes>(wire)
        .await
        .map_err(broken)?;
    let work = pin!(async {
        let request = request(address, timeout)?;
        let answer = ask(sender, request, health::request(service)).await;
        answer.map_err(broken)?.judge(address, timeout)
    });
    match select(connection, work).await {
        // How the connection ended reaches the work.
        Either::Left((_, work)) => work.await,
        Either::Right((answer, _)) => answer,
    }
}

/// The words for a connection that broke.
fn broken(address: SocketAddr, error: &h2::Error) -> String {
    let error_chain = chain(error);
    if error.is_go_away() && error.is_library() {
        format!("health check call to {address}: the answer is not HTTP/2: {error_chain}")
    } else {
        format!("health check call to {address}: {error_chain}")
    }
}

fn request(address: SocketAddr, timeout: Duration) -> Result<Request<()>, Stop> {
    Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("http://{address}{}", health::PATH))
        .header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header(TE, HeaderValue::from_static("trailers"))
        .header(USER_AGENT, HeaderValue::from_static(crate::USER_AGENT))
        .header("grpc-timeout", grpc_timeout(timeout))
        .body(())
        .map_err(|error| Stop::Failed(format!("malformed address: {error}")))
}

/// A time as gRPC writes it, of at most eight digits.
fn grpc_timeout(timeout: Duration) -> String {
    const MAX: u128 = 99_999_999;
    match timeout.as_millis() {
        millis @ ..=MAX => format!("{millis}m"),
        _ => format!("{}S", u128::from(timeout.as_secs()).min(MAX)),
    }
}

/// What came back.
struct Answer {
    http_status: StatusCode,
    /// From headers or trailers.
    status: Option<Status>,
    message: Vec<u8>,
    /// There is more of it than anybody wants.
    too_long: bool,
}

/// Sends the request and reads its answer.
async fn ask(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    message: Vec<u8>,
) -> Result<Answer, h2::Error> {
    let (response, mut stream) = sender.ready().await?.send_request(request, false)?;
    stream.send_data(Bytes::from(message), true)?;
    let (head, body) = Response::into_parts(response.await?);
    let mut answer = Answer {
        http_status: head.status,
        status: Status::of(&head.headers),
        message: Vec::new(),
        too_long: false,
    };
    if answer.status.is_none() && head.status == StatusCode::OK {
        read(body, &mut answer).await?;
    }
    Ok(answer)
}

/// Reads message and trailers; of a message that is too long only its beginning.
async fn read(mut body: RecvStream, answer: &mut Answer) -> Result<(), h2::Error> {
    while let Some(data) = body.data().await {
        let data = data?;
        answer.message.extend_from_slice(&data);
        if answer.message.len() > MAX_OUTPUT {
            answer.too_long = true;
            return Ok(());
        }
    }
    answer.status = body.trailers().await?.as_ref().and_then(Status::of);
    Ok(())
}

impl Answer {
    /// The serving status in an answer, or the words for why there is none.
    fn judge(self, address: SocketAddr, timeout: Duration) -> Result<i32, Stop> {
        let words = match self.status {
            _ if self.too_long => format!("the answer is longer than {MAX_OUTPUT} bytes"),
            None if self.http_status != StatusCode::OK => {
                format!("HTTP status {} in place of gRPC", self.http_status.as_u16())
            }
            None => "the answer has no grpc-status".to_owned(),
            Some(Status { code: 0, .. }) => match health::status(&self.message) {
                Ok(status) => return Ok(status),
                Err(malformed) => malformed.to_string(),
            },
            Some(status) if status.code == status::UNIMPLEMENTED => format!(
                "the server does not implement the gRPC health protocol (grpc.health.v1.Health): {}",
                status.message
            ),
            Some(status) if status.code == status::DEADLINE_EXCEEDED => {
                return Err(Stop::Failed(not_answered(address, timeout)));
            }
            Some(status) => status.words(),
        };
        Err(Stop::Failed(format!(
            "health check call to {address}: {words}"
        )))
    }
}
