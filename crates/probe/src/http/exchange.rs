//! One request and its response over a connection, in the version of HTTP that was negotiated.

use std::error::Error;
use std::net::IpAddr;
use std::pin::pin;

use futures::future::{Either, select};
use h2::{Reason, RecvStream};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leadsman_core::podprobe::Scheme;
use leadsman_core::podprobe::node::MAX_CONNECTIONS;
use tokio::io::{AsyncRead, AsyncWrite};

use super::url::HttpUrl;
use super::{AfterResponse, HttpPhase, RunProgress, judge, request};
use crate::connection::HttpConnection;
use crate::socket::{EarlyEnd, http2_error};

/// Most bytes of a response's headers.
const MAX_HEAD: u32 = 16 * 1024;

/// Most bytes that a run holds while its server stalls: the head as received and as decoded, the window of HTTP/2 (RFC
/// 9113, 6.9.2), a handshake message of TLS (64 KiB at most in rustls) with a record in either direction, the message.
const MAX_HELD: usize = 2 * MAX_HEAD as usize + (64 + 64 + 2 * 17 + 10) * 1024;
const _: () = assert!(
    MAX_CONNECTIONS * MAX_HELD <= 64 * 1024 * 1024,
    "all runs of a node take half of the agent's memory at most, which is 128 MiB in the chart"
);

/// Most headers of a response over HTTP/1.1. hyper allocates room for all of them with each response, hence not as many as
/// fit in the bytes.
const MAX_HEADERS: usize = 1024;

/// Why a body ended early.
pub(super) type BodyError = Box<dyn Error + Send + Sync>;

/// A response's body.
pub(super) enum ResponseBody {
    Http1(Incoming),
    Http2(RecvStream),
}

impl ResponseBody {
    /// The next chunk; none at the end.
    pub(super) async fn next_chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        match self {
            Self::Http1(body) => loop {
                match body.frame().await?.map(hyper::body::Frame::into_data) {
                    Ok(Ok(data)) => return Some(Ok(data)),
                    // Trailers.
                    Ok(Err(_)) => {}
                    Err(error) => return Some(Err(error.into())),
                }
            },
            // All that is read of a body fits into the initial window of 64 KiB (RFC 9113, 6.9.2): none is released.
            Self::Http2(stream) => Some(stream.data().await?.map_err(Into::into)),
        }
    }
}

/// Sends one request and judges its response. The connection is borrowed, so that it can be closed in order afterwards.
pub(super) async fn exchange_request<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut HttpConnection<S>,
    request: Request<Empty<Bytes>>,
    url: &HttpUrl,
    ip: IpAddr,
    progress: &mut RunProgress,
) -> Result<AfterResponse, EarlyEnd> {
    if url.scheme == Scheme::H2c || connection.has_chosen_http2() {
        // Large and rare: boxed, so that not every run has room for it.
        Box::pin(over_http2(connection, request, url, ip, progress)).await
    } else {
        over_http1(connection, request, url, ip, progress).await
    }
}

async fn over_http1<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut HttpConnection<S>,
    request: Request<Empty<Bytes>>,
    url: &HttpUrl,
    ip: IpAddr,
    progress: &mut RunProgress,
) -> Result<AfterResponse, EarlyEnd> {
    let handshake = http1::Builder::new()
        // Go writes and reads them so: a server that works with the kubelet works here.
        .title_case_headers(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .max_buf_size(MAX_HEAD as usize)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(connection))
        .await;
    let (mut sender, connection) = handshake.map_err(|error| progress.broken(&error))?;
    // The connection is driven beside the request, by this task alone: nothing outlives the run.
    let work = pin!(async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| progress.broken(&error))?;
        progress.phase = HttpPhase::Reading;
        judge(response.map(ResponseBody::Http1), url, ip, progress).await
    });
    // How the connection ends reaches the work too; its own result adds nothing.
    match select(connection, work).await {
        Either::Left((_, work)) => work.await,
        Either::Right((next, _)) => next,
    }
}

async fn over_http2<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut HttpConnection<S>,
    request: Request<Empty<Bytes>>,
    url: &HttpUrl,
    ip: IpAddr,
    progress: &mut RunProgress,
) -> Result<AfterResponse, EarlyEnd> {
    // The request is built only now: the handshake of TLS decides in which version it is sent.
    let request = request::for_http2(request, url.scheme).map_err(EarlyEnd::Failed)?;
    let address = progress.address;
    let message = |error: &h2::Error| format!("GET from {address}: {}", http2_error(error));
    let handshake = h2::client::Builder::new()
        // Responses that a server pushes are no answer to a probe (RFC 9113, 8.4).
        .enable_push(false)
        .max_header_list_size(MAX_HEAD)
        .handshake::<_, Bytes>(connection)
        .await;
    let (sender, connection) = handshake.map_err(|error| EarlyEnd::Failed(message(&error)))?;
    let work = pin!(async {
        let sent = async { sender.ready().await?.send_request(request, true)?.0.await };
        match sent.await {
            Ok(response) => {
                progress.phase = HttpPhase::Reading;
                judge(response.map(ResponseBody::Http2), url, ip, progress).await
            }
            Err(error) if is_unprocessed(&error) => Ok(AfterResponse::AskAgain(message(&error))),
            Err(error) => Err(EarlyEnd::Failed(message(&error))),
        }
    });
    match select(connection, work).await {
        Either::Left((_, work)) => work.await,
        Either::Right((next, _)) => next,
    }
}

/// Whether the server has said that the request was not processed and may be sent again (RFC 9113, 8.7). Go's client sends it
/// again in the same cases, `PROTOCOL_ERROR` included (`canRetryError`, `golang.org/x/net/http2/transport.go`, golang/go#47635).
fn is_unprocessed(error: &h2::Error) -> bool {
    match error.reason() {
        Some(Reason::NO_ERROR) => error.is_remote() && error.is_go_away(),
        Some(Reason::REFUSED_STREAM | Reason::PROTOCOL_ERROR) => {
            error.is_remote() && error.is_reset()
        }
        _ => false,
    }
}
