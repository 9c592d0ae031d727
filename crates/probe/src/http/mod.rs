//! `httpGet`: GET with the rules of the kubelet's prober (`pkg/probe/http`).
//!
//! HTTP/1.1 over a connection of its own, no proxy, no compression. A status from 200 to 399 succeeds. A redirect is followed
//! where it names the host it came from, which is the pod's address whatever the `Host` header says; a name is never
//! resolved. At most 10 KiB of a body is read, and none of a failed response's is shown.

mod link;
mod place;
mod request;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use http::header::LOCATION;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leadsman_core::podprobe::{CannotProbe, HttpGet, Outcome};

use crate::message::{MAX_OUTPUT, bounded, bounded_text};
use crate::socket::{Stop, chain, dial, not_connected};
use link::Link;
use place::{Place, Redirect};

/// Requests of one run, the first included: Go's client stops at the tenth redirect.
const MAX_REQUESTS: usize = 10;

/// Most bytes of a response's head.
const MAX_HEAD: usize = 64 * 1024;

/// One run.
pub(crate) async fn run(
    get: &HttpGet,
    ip: IpAddr,
    timeout: Duration,
) -> Result<Outcome, CannotProbe> {
    let mut progress = Progress {
        address: SocketAddr::new(ip, get.port.get()),
        step: Step::Connecting,
    };
    match tokio::time::timeout(timeout, follow(get, ip, &mut progress)).await {
        Ok(Ok((outcome, link))) => {
            link.part().await;
            Ok(outcome)
        }
        Ok(Err(stop)) => stop.into_result(),
        Err(_) => Ok(Outcome::Failed(progress.timed_out(timeout))),
    }
}

/// How far a run has come, for the words when time is up.
struct Progress {
    address: SocketAddr,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Connecting,
    Handshaking,
    Requesting,
    Reading,
}

impl Progress {
    fn timed_out(&self, timeout: Duration) -> String {
        let address = self.address;
        match self.step {
            Step::Connecting => not_connected(address, timeout),
            Step::Handshaking => {
                format!("TLS handshake with {address}: not finished within {timeout:?}")
            }
            Step::Requesting => format!("GET from {address}: no response within {timeout:?}"),
            Step::Reading => {
                format!("GET from {address}: the response did not end within {timeout:?}")
            }
        }
    }

    /// The words for a connection that broke.
    fn broken(&self, error: &dyn std::error::Error) -> Stop {
        let address = self.address;
        let what = match self.step {
            Step::Handshaking => "TLS handshake with",
            _ => "GET from",
        };
        Stop::Failed(format!("{what} {address}: {}", chain(error)))
    }
}

/// What follows from a response.
enum Next {
    Follow { place: Place, relative: bool },
    Judged(Outcome),
}

/// The requests of a run, up to the response that counts. Its connection is still to be parted from.
async fn follow(
    get: &HttpGet,
    ip: IpAddr,
    progress: &mut Progress,
) -> Result<(Outcome, Link), Stop> {
    let mut host = request::host_header(&get.headers);
    let mut here = Place::of(get);
    for _ in 0..MAX_REQUESTS {
        let address = SocketAddr::new(ip, here.port.get());
        let request =
            request::build(&here.path, &get.headers, host, address).map_err(Stop::Failed)?;
        progress.address = address;
        progress.step = Step::Connecting;
        let stream = dial(address).await?;
        progress.step = Step::Handshaking;
        let mut link = Link::new(stream, here.scheme, address)
            .await
            .map_err(|error| progress.broken(&error))?;
        progress.step = Step::Requesting;
        match exchange(&mut link, request, &here, ip, progress).await? {
            Next::Judged(outcome) => return Ok((outcome, link)),
            Next::Follow { place, relative } => {
                link.part().await;
                here = place;
                if !relative {
                    host = None;
                }
            }
        }
    }
    Err(Stop::Failed(format!(
        "GET from {}: stopped after {MAX_REQUESTS} redirects",
        progress.address
    )))
}

/// One request and what its response means. The connection is borrowed, so that it can be parted from.
async fn exchange(
    link: &mut Link,
    request: Request<Empty<Bytes>>,
    here: &Place,
    ip: IpAddr,
    progress: &mut Progress,
) -> Result<Next, Stop> {
    let handshake = http1::Builder::new()
        .title_case_headers(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(link))
        .await;
    let (mut sender, connection) = handshake.map_err(|error| progress.broken(&error))?;
    let work = pin!(async {
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| progress.broken(&error))?;
        progress.step = Step::Reading;
        judge(response, here, ip, progress).await
    });
    // How the connection ends reaches the work; its own word adds nothing.
    match select(connection, work).await {
        Either::Left((_, work)) => work.await,
        Either::Right((next, _)) => next,
    }
}

/// What a response means.
async fn judge(
    response: Response<Incoming>,
    here: &Place,
    ip: IpAddr,
    progress: &Progress,
) -> Result<Next, Stop> {
    let status = response.status();
    if !(200..400).contains(&status.as_u16()) {
        let words = format!("HTTP probe failed with statuscode: {}", status.as_u16());
        return Ok(Next::Judged(Outcome::Failed(words)));
    }
    let remark = match redirect(&response, here, ip) {
        None if status.is_success() => None,
        None => Some(format!(
            "status {} names nothing to follow",
            status.as_u16()
        )),
        Some(Redirect::Here { place, relative }) => return Ok(Next::Follow { place, relative }),
        Some(Redirect::Elsewhere(host)) => Some(format!("redirect to {host:?} not followed")),
        Some(Redirect::Malformed) => {
            let words = format!("GET from {}: malformed Location", progress.address);
            return Err(Stop::Failed(words));
        }
    };
    let body = read(response.into_body()).await;
    let body = body.map_err(|error| progress.broken(&error))?;
    let message = match remark {
        None => body,
        Some(remark) => bounded(format!("{remark}, response body: {body}")),
    };
    Ok(Next::Judged(Outcome::Succeeded(message)))
}

/// Where a response redirects to, if it does.
fn redirect(response: &Response<Incoming>, here: &Place, ip: IpAddr) -> Option<Redirect> {
    match response.status() {
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            let location = response.headers().get(LOCATION)?.as_bytes();
            (!location.is_empty()).then(|| here.resolve(ip, location))
        }
        _ => None,
    }
}

/// The body as text, as far as it is wanted.
async fn read(mut body: Incoming) -> Result<String, hyper::Error> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_OUTPUT {
        match body.frame().await.transpose()? {
            None => break,
            Some(frame) => {
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
    Ok(bounded_text(&[&bytes]))
}
