//! Webhooks that are served without a socket, to callers within the same process: a simulation has neither sockets nor
//! threads. What a caller meets is what a connection would meet: nobody that listens, no certificate, an answer, or a
//! connection that breaks because the process has ended.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use leadsman_process::{clock, watch};
use rustls::sign::CertifiedKey;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certificate::{BundleError, check_server};
use crate::endpoint::Endpoints;
use crate::server::{FINISH, Server};
use crate::webhook::{ReviewResult, Terms, Webhook};

/// The end of the process that serves.
pub struct InProcessServer(watch::Sender<Option<Arc<Serving>>>);

/// The end of those who call. Clones call the same server.
#[derive(Clone)]
pub struct InProcessCaller(watch::Receiver<Option<Arc<Serving>>>);

struct Serving {
    endpoints: Arc<Endpoints>,
    certificate: watch::Receiver<Option<Arc<CertifiedKey>>>,
    /// The calls that are being answered.
    calls: TaskTracker,
    /// Cancelled when the process has ended, whatever is still being answered.
    gone: CancellationToken,
}

/// Why a call is not answered.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens, or not any more.
    #[error("connection refused")]
    Refused,
    /// The server has no certificate yet.
    #[error("the TLS handshake failed: the server has no certificate")]
    NoCertificate,
    /// The caller does not trust the certificate.
    #[error("the TLS handshake failed: {0}")]
    Untrusted(BundleError),
    /// The process ended before it had answered.
    #[error("the connection broke before the answer")]
    Broken,
    /// The path is none.
    #[error("no path: {0}")]
    Path(http::Error),
}

/// Both ends of a server that does not serve yet.
pub fn serve_in_process() -> (InProcessServer, InProcessCaller) {
    let (sender, receiver) = watch::channel(None);
    (InProcessServer(sender), InProcessCaller(receiver))
}

impl InProcessCaller {
    /// Posts a body to a path with its query, such as `/NAME/fail?timeout=10s`, as a client that trusts any certificate.
    pub async fn call(
        &self,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), CallError> {
        let serving = self.connect()?;
        if serving.certificate.borrow().is_none() {
            return Err(CallError::NoCertificate);
        }
        let request = Request::post(path)
            .body(Full::from(body))
            .map_err(CallError::Path)?;
        let _answering = serving.calls.token();
        let answer = async {
            let response = serving.endpoints.respond_counted(request, || {}).await;
            let (head, body) = response.into_parts();
            let Ok(body) = body.collect().await;
            (head.status, body.to_bytes().to_vec())
        };
        tokio::select! {
            // First: who has ended sends nothing any more. It is never ready before that.
            biased;
            () = serving.gone.cancelled() => Err(CallError::Broken),
            answer = answer => Ok(answer),
        }
    }

    /// Checks the certificate of the server as a client does that trusts this CA bundle, calls the server by this name, and
    /// has this time of day.
    pub fn check_certificate(
        &self,
        name: &str,
        bundle: &[u8],
        now: Timestamp,
    ) -> Result<(), CallError> {
        let serving = self.connect()?;
        let certificate = serving
            .certificate
            .borrow()
            .clone()
            .ok_or(CallError::NoCertificate)?;
        check_server(&certificate, name, bundle, now).map_err(CallError::Untrusted)
    }

    fn connect(&self) -> Result<Arc<Serving>, CallError> {
        let known = self.0.borrow().clone();
        let serving = known.filter(|serving| !serving.gone.is_cancelled());
        serving.ok_or(CallError::Refused)
    }
}

impl Server {
    /// Serves until the process stops, and then until all calls are answered.
    pub(crate) async fn serve_callers(self, door: InProcessServer) {
        let calls = TaskTracker::new();
        let gone = CancellationToken::new();
        let _ended = gone.clone().drop_guard();
        door.0.send_replace(Some(Arc::new(Serving {
            endpoints: Arc::clone(&self.endpoints),
            certificate: self.certificate.clone(),
            calls: calls.clone(),
            gone,
        })));
        self.drain_connections().await;
        door.0.send_replace(None);
        calls.close();
        let _late = timeout(FINISH, calls.wait()).await;
    }
}

impl Webhook {
    /// The answer to a body at once, by the snapshot that there is; none if the body has no uid.
    pub fn answer_body(&self, body: &[u8]) -> Option<Vec<u8>> {
        let terms = Terms {
            slot: None,
            tag: None,
            fails: false,
            deadline: clock::monotonic() + Duration::from_secs(10),
            may_wait: false,
        };
        match self.answers.answer_review(body, terms) {
            ReviewResult::Now(answer) => answer.body,
            ReviewResult::Outdated(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use leadsman_process::{Metrics, Readiness};
    use tokio::time::Instant;

    use super::*;
    use crate::certificate::publish::CertificatePublisher;
    use crate::certificate::tests::{YEAR, names, time};
    use crate::certificate::{CaBundle, Certificate, KeySource, issue_certificate};
    use crate::metrics::AdmissionMetrics;
    use crate::server::CONNECTIONS;
    use crate::webhook::WebhookCalls;
    use crate::webhook::tests::{echo, pod_review};

    const NAME: &str = "leadsman-webhook.leadsman-system.svc";
    const PATH: &str = "/echo.leadsman.test?timeout=10s";

    fn server() -> (Server, CertificatePublisher) {
        let check = Readiness::default().add_check("webhook certificates", "not read");
        let metrics = AdmissionMetrics::new(&Metrics::default());
        let publisher = CertificatePublisher::new(metrics.clone(), check);
        let draining = CancellationToken::new();
        let (_, calls) = watch::channel(WebhookCalls::default());
        let server = Server {
            endpoints: Arc::new(Endpoints::new(vec![echo(calls)], metrics, draining.clone())),
            certificate: publisher.subscribe_to_certificate(),
            shutdown: CancellationToken::new(),
            draining,
            absent_since: watch::Sender::new(None::<Instant>).subscribe(),
            connections: CONNECTIONS,
        };
        (server, publisher)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_meets_what_a_connection_would_meet() {
        let (server, publisher) = server();
        let shutdown = server.shutdown.clone();
        let (door, caller) = serve_in_process();
        let review = || pod_review("a", &serde_json::json!({}));
        let refused = caller.call(PATH, review()).await;
        assert!(matches!(refused, Err(CallError::Refused)), "not begun");

        let serving = tokio::spawn(server.serve_callers(door));
        tokio::task::yield_now().await;
        let no_certificate = caller.call(PATH, review()).await;
        assert!(matches!(no_certificate, Err(CallError::NoCertificate)));

        let now = time("2026-01-01T00:00:00Z");
        let mut keys = KeySource::Seeded(fastrand::Rng::with_seed(7));
        let issued = issue_certificate(&names(&[NAME]), now, YEAR, &mut keys).unwrap();
        let certificate = Certificate::from_pem(&issued.pem).unwrap();
        publisher.publish_certificate(&certificate, CaBundle::Pem(issued.ca.clone()));
        let (status, answer) = caller.call(PATH, review()).await.unwrap();
        assert_eq!(status, StatusCode::OK);
        assert!(String::from_utf8(answer).unwrap().contains("JSONPatch"));
        let (status, _) = caller.call("/other.leadsman.test", review()).await.unwrap();
        assert_eq!(status, StatusCode::NOT_FOUND);

        let check = |name, bundle: &[u8], at| caller.check_certificate(name, bundle, at);
        check(NAME, &issued.ca, now).unwrap();
        for wrong in [
            check("other.svc", &issued.ca, now),
            check(NAME, b"", now),
            check(NAME, &issued.ca, now + 2 * YEAR),
        ] {
            assert!(matches!(wrong, Err(CallError::Untrusted(_))), "{wrong:?}");
        }

        shutdown.cancel();
        let began = clock::monotonic();
        serving.await.unwrap();
        assert!(
            clock::monotonic() - began >= Duration::from_secs(1),
            "it drains"
        );
        let ended = caller.call(PATH, review()).await;
        assert!(matches!(ended, Err(CallError::Refused)), "ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_killed_answers_nobody() {
        let (server, _publisher) = server();
        let (door, caller) = serve_in_process();
        let serving = tokio::spawn(server.serve_callers(door));
        tokio::task::yield_now().await;
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        let killed = caller.call(PATH, Vec::new()).await;
        assert!(matches!(killed, Err(CallError::Refused)));
    }

    #[test]
    fn a_seed_makes_the_same_certificate_each_time() {
        let pem = |seed| {
            let mut keys = KeySource::Seeded(fastrand::Rng::with_seed(seed));
            let now = time("2026-01-01T00:00:00Z");
            let issued = issue_certificate(&names(&[NAME]), now, YEAR, &mut keys).unwrap();
            issued.pem
        };
        assert_eq!(pem(7), pem(7));
        assert_ne!(pem(7), pem(8));
    }
}
