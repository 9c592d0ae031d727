//! `httpGet`: GET with the rules of the kubelet's prober (`pkg/probe/http`).
//!
//! A connection of its own for each request, no proxy, no compression; HTTP/1.1, and over TLS HTTP/2 where the server prefers
//! it. A status from 200 to 399 succeeds. A redirect is followed where it names the host it came from, which is the pod's
//! address whatever the `Host` header says; a name is never resolved. At most 10 KiB of a body is read, and none of a failed
//! response's is shown. A body that breaks off before that is asked for again, twice, and is a failure then.

mod exchange;
mod link;
mod place;
mod request;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::header::LOCATION;
use http::{Response, StatusCode};
use leadsman_core::podprobe::{CannotProbe, HttpGet, Outcome};

use crate::message::{MAX_OUTPUT, bounded, bounded_text};
use crate::socket::{Stop, chain, dial, not_connected};
use exchange::{Body, exchange};
use link::Link;
use place::{Place, Redirect};

/// Requests of one attempt, the first included: Go's client stops at the tenth redirect.
const MAX_REQUESTS: usize = 10;

/// How often a body that breaks off is asked for: `maxProbeRetries` of the kubelet (`pkg/kubelet/prober/prober.go`), which
/// repeats a probe whose body could not be read, and no other. All attempts share the probe's one timeout.
const MAX_ATTEMPTS: usize = 3;

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
    match tokio::time::timeout(timeout, attempt(get, ip, &mut progress)).await {
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

    /// The end of a run whose connection broke.
    fn broken(&self, error: &dyn std::error::Error) -> Stop {
        Stop::Failed(self.broken_message(error))
    }

    fn broken_message(&self, error: &dyn std::error::Error) -> String {
        let address = self.address;
        let what = match self.step {
            Step::Handshaking => "TLS handshake with",
            _ => "GET from",
        };
        format!("{what} {address}: {}", chain(error))
    }
}

/// What follows from a response.
enum Next {
    Follow {
        place: Place,
        relative: bool,
    },
    Judged(Outcome),
    /// The body ended before its end. The message says how.
    BrokeOff(String),
}

/// The attempts of a run, up to the response that counts. Its connection is still to be parted from.
async fn attempt(
    get: &HttpGet,
    ip: IpAddr,
    progress: &mut Progress,
) -> Result<(Outcome, Link), Stop> {
    let mut message = String::new();
    for _ in 0..MAX_ATTEMPTS {
        match follow(get, ip, progress).await? {
            Ok(judged) => return Ok(judged),
            Err(broke_off) => message = broke_off,
        }
    }
    Err(Stop::Failed(message))
}

/// The requests of an attempt, up to the response that counts, or the message for a body that broke off.
async fn follow(
    get: &HttpGet,
    ip: IpAddr,
    progress: &mut Progress,
) -> Result<Result<(Outcome, Link), String>, Stop> {
    let mut host = request::host_header(&get.headers);
    let versions = request::versions(&get.headers);
    let mut here = Place::of(get);
    for _ in 0..MAX_REQUESTS {
        let address = SocketAddr::new(ip, here.port.get());
        let request =
            request::build(&here.path, &get.headers, host, address).map_err(Stop::Failed)?;
        progress.address = address;
        progress.step = Step::Connecting;
        let stream = dial(address).await?;
        progress.step = Step::Handshaking;
        let mut link = Link::new(stream, here.scheme, versions, address)
            .await
            .map_err(|error| progress.broken(&error))?;
        progress.step = Step::Requesting;
        match exchange(&mut link, request, &here, ip, progress).await? {
            Next::Judged(outcome) => return Ok(Ok((outcome, link))),
            Next::BrokeOff(message) => return Ok(Err(message)),
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

/// What a response means.
async fn judge(
    response: Response<Body>,
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
    let body = match read(response.into_body()).await {
        Ok(body) => body,
        Err(error) => return Ok(Next::BrokeOff(progress.broken_message(&*error))),
    };
    let message = match remark {
        None => body,
        Some(remark) => bounded(format!("{remark}, response body: {body}")),
    };
    Ok(Next::Judged(Outcome::Succeeded(message)))
}

/// Where a response redirects to, if it does.
fn redirect(response: &Response<Body>, here: &Place, ip: IpAddr) -> Option<Redirect> {
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
async fn read(mut body: Body) -> Result<String, exchange::BodyError> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_OUTPUT {
        match body.data().await.transpose()? {
            None => break,
            Some(data) => bytes.extend_from_slice(&data),
        }
    }
    Ok(bounded_text(&[&bytes]))
}
