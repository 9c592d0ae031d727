//! `httpGet`: GET with the rules of the kubelet's prober (`pkg/probe/http/http.go`).
//!
//! A new connection for each request, no proxy, no compression; HTTP/1.1, over TLS HTTP/2 where the server prefers it, and
//! without TLS HTTP/2 where the probe asks for it (KEP-5999). A
//! status from 200 to 399 succeeds. A redirect is followed if it names the host that it came from (`RedirectChecker`), which
//! is the pod's address whatever the `Host` header says; a name is never resolved. At most 10 KiB of a body is read, and none
//! of a failed response's is shown. A body that ends early is requested again, twice, and is a failure then,
//! as is a request that a server of HTTP/2 has not processed.
//!
//! | module | holds |
//! |---|---|
//! | `url` | what a path and a `Location` come to |
//! | `request` | the headers |
//! | `exchange` | HTTP/1.1 or HTTP/2 over a connection |

mod exchange;
mod request;
#[cfg(test)]
mod tests;
mod url;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use http::header::LOCATION;
use http::{Response, StatusCode};
use leadsman_core::podprobe::{CannotProbe, HttpGet, Outcome};

use crate::connection::HttpConnection;
use crate::dial::Dial;
use crate::message::{MAX_OUTPUT, lossy_text, truncate_message};
use crate::socket::{EarlyEnd, connect_timed_out, connect_within, error_chain};
use crate::time_limit::TimeLimit;
use exchange::{ResponseBody, exchange_request};
use url::{HttpUrl, Redirect};

/// Requests of one attempt, the first included: the kubelet stops at the tenth redirect (`RedirectChecker`,
/// `pkg/probe/http/http.go`), as Go's client does.
const MAX_REQUESTS: usize = 10;

/// How often a response whose body ends early is requested: the kubelet repeats a probe whose body could not be read, and no
/// other (`maxProbeRetries`, `pkg/kubelet/prober/prober.go`). Its client of HTTP/2 repeats what a server has not processed, as
/// often as there is time for. All attempts share the probe's timeout.
const MAX_ATTEMPTS: usize = 3;

/// Requests of all attempts together: each may cost a handshake of TLS, and a server may redirect nine times and then break
/// the body off. So all redirects are followed once, or a short chain three times.
const MAX_REQUESTS_OF_RUN: usize = MAX_REQUESTS + MAX_ATTEMPTS - 1;

/// Runs a probe once.
pub(crate) async fn run<D: Dial>(
    get: &HttpGet,
    ip: IpAddr,
    limit: TimeLimit<'_>,
    dialer: &D,
) -> Result<Outcome, CannotProbe> {
    let mut progress = RunProgress {
        address: SocketAddr::new(ip, get.port.get()),
        phase: HttpPhase::Connecting,
        requests_left: MAX_REQUESTS_OF_RUN,
    };
    let attempt = attempt(get, ip, dialer, &mut progress);
    let ended = limit.await_output(pin!(attempt)).await;
    match ended {
        Some(Ok((outcome, connection))) => {
            connection.close().await;
            Ok(outcome)
        }
        // The connection was dropped: only a target that passes is spared a reset.
        Some(Err(stop)) => stop.into_result(),
        None => Ok(Outcome::Failed(progress.timed_out(limit.timeout))),
    }
}

/// How far a run has come, for the message of a timeout.
struct RunProgress {
    address: SocketAddr,
    phase: HttpPhase,
    requests_left: usize,
}

#[derive(Clone, Copy)]
enum HttpPhase {
    Connecting,
    Handshaking,
    Requesting,
    Reading,
}

impl RunProgress {
    fn timed_out(&self, timeout: Duration) -> String {
        let address = self.address;
        match self.phase {
            HttpPhase::Connecting => connect_timed_out(address, timeout),
            HttpPhase::Handshaking => {
                format!("TLS handshake with {address}: not finished within {timeout:?}")
            }
            HttpPhase::Requesting => format!("GET from {address}: no response within {timeout:?}"),
            HttpPhase::Reading => {
                format!("GET from {address}: the response did not end within {timeout:?}")
            }
        }
    }

    /// The end of a run whose connection failed.
    fn broken(&self, error: &dyn std::error::Error) -> EarlyEnd {
        EarlyEnd::Failed(self.broken_message(error))
    }

    fn broken_message(&self, error: &dyn std::error::Error) -> String {
        let address = self.address;
        let what = match self.phase {
            HttpPhase::Handshaking => "TLS handshake with",
            _ => "GET from",
        };
        format!("{what} {address}: {}", error_chain(error))
    }
}

/// The step that follows a response.
enum AfterResponse {
    /// Another request follows.
    Follow { to: HttpUrl, same_scheme: bool },
    /// The run is over.
    Finished(Outcome),
    /// The body ended early, or the server did not process the request, for this reason.
    AskAgain(String),
}

/// The attempts of a run, up to the response that counts. Its connection is still to be closed.
async fn attempt<D: Dial>(
    get: &HttpGet,
    ip: IpAddr,
    dialer: &D,
    progress: &mut RunProgress,
) -> Result<(Outcome, HttpConnection<D::Stream>), EarlyEnd> {
    let mut message = String::new();
    // Each attempt begins with the probe's own URL, whatever redirects the one before has followed.
    for _ in 0..MAX_ATTEMPTS {
        match follow(get, ip, dialer, progress).await? {
            Ok(judged) => return Ok(judged),
            Err(reason) => message = reason,
        }
    }
    Err(EarlyEnd::Failed(message))
}

/// The requests of an attempt, up to the response that counts; or why another attempt is due.
async fn follow<D: Dial>(
    get: &HttpGet,
    ip: IpAddr,
    dialer: &D,
    progress: &mut RunProgress,
) -> Result<Result<(Outcome, HttpConnection<D::Stream>), String>, EarlyEnd> {
    let mut host = request::host_header(&get.headers);
    let versions = request::http_versions(&get.headers);
    let mut url = HttpUrl::from_probe(get);
    for _ in 0..MAX_REQUESTS.min(progress.requests_left) {
        progress.requests_left -= 1;
        let address = SocketAddr::new(ip, url.port.get());
        let request = request::build_request(&url.path, &get.headers, host, address)
            .map_err(EarlyEnd::Failed)?;
        progress.address = address;
        progress.phase = HttpPhase::Connecting;
        let stream = connect_within(dialer, address).await?;
        progress.phase = HttpPhase::Handshaking;
        let mut connection = HttpConnection::new(stream, url.scheme, versions, address)
            .await
            .map_err(|error| progress.broken(&error))?;
        progress.phase = HttpPhase::Requesting;
        match exchange_request(&mut connection, request, &url, ip, progress).await? {
            AfterResponse::Finished(outcome) => return Ok(Ok((outcome, connection))),
            AfterResponse::AskAgain(message) => return Ok(Err(message)),
            AfterResponse::Follow { to, same_scheme } => {
                // A connection of its own for each request, as the kubelet's transport has (`DisableKeepAlives`,
                // `pkg/probe/http/http.go`).
                connection.close().await;
                url = to;
                // Go's client does the same (`net/http/client.go`): the probe's `Host` goes along
                // with relative redirects only.
                if !same_scheme {
                    host = None;
                }
            }
        }
    }
    let address = progress.address;
    Err(EarlyEnd::Failed(if progress.requests_left == 0 {
        format!("GET from {address}: stopped after {MAX_REQUESTS_OF_RUN} requests")
    } else {
        format!("GET from {address}: stopped after {MAX_REQUESTS} redirects")
    }))
}

/// Judges a response, and reads its body if it succeeded.
async fn judge(
    response: Response<ResponseBody>,
    url: &HttpUrl,
    ip: IpAddr,
    progress: &RunProgress,
) -> Result<AfterResponse, EarlyEnd> {
    let status = response.status();
    if !(200..400).contains(&status.as_u16()) {
        // The kubelet's words, without the body, which must not be shown to whoever reads events
        // (`DoHTTPProbe`, `pkg/probe/http/http.go`, issue.k8s.io/99425).
        let message = format!("HTTP probe failed with statuscode: {}", status.as_u16());
        return Ok(AfterResponse::Finished(Outcome::Failed(message)));
    }
    let remark = match redirect(&response, url, ip) {
        // The probe has succeeded here (200 to 399, `pkg/probe/http/http.go`); only its message is
        // left to find.
        None if status.is_success() => None,
        None => Some(format!(
            "status {} names nothing to follow",
            status.as_u16()
        )),
        Some(Redirect::SameHost { to, same_scheme }) => {
            return Ok(AfterResponse::Follow { to, same_scheme });
        }
        Some(Redirect::OtherHost(host)) => Some(format!("redirect to {host:?} not followed")),
        // A failure to Go's client as well (`failed to parse Location header`, `net/http/client.go`).
        Some(Redirect::Malformed) => {
            let message = format!("GET from {}: malformed Location", progress.address);
            return Err(EarlyEnd::Failed(message));
        }
        // A failure to the kubelet as well: there its transport verifies the certificate, by the node's authorities and for the
        // pod's address (`h2cTransport`, `pkg/probe/http/http.go`).
        Some(Redirect::ToTls) => {
            let address = progress.address;
            let message =
                format!("GET from {address}: redirect to https, and HTTP2 is without TLS");
            return Err(EarlyEnd::Failed(message));
        }
    };
    let body = match read(response.into_body()).await {
        Ok(body) => body,
        Err(error) => return Ok(AfterResponse::AskAgain(progress.broken_message(&*error))),
    };
    let message = match remark {
        None => body,
        Some(remark) => truncate_message(format!("{remark}, response body: {body}")),
    };
    Ok(AfterResponse::Finished(Outcome::Succeeded(message)))
}

/// The redirect of a response, if it is one.
fn redirect(response: &Response<ResponseBody>, url: &HttpUrl, ip: IpAddr) -> Option<Redirect> {
    match response.status() {
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            let location = response.headers().get(LOCATION)?.as_bytes();
            // A response without a `Location` counts as it is, as in Go's client
            // (`net/http/client.go`, golang/go#17773).
            (!location.is_empty()).then(|| url.resolve_redirect(ip, location))
        }
        _ => None,
    }
}

/// The body as text, up to [`MAX_OUTPUT`].
async fn read(mut body: ResponseBody) -> Result<String, exchange::BodyError> {
    let mut bytes = Vec::new();
    // The rest of the body is not read: the connection is closed instead.
    while bytes.len() < MAX_OUTPUT {
        match body.next_chunk().await.transpose()? {
            None => break,
            Some(next_chunk) => bytes.extend_from_slice(&next_chunk),
        }
    }
    Ok(lossy_text(&[&bytes]))
}
