//! The loop that watches and writes the Lease as the elector decides, and publishes leadership.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Resource;
use kube::api::{GetParams, PostParams};
use kube::core::Request;
use kube::core::request::Error as BuildError;
use leadsman_process::reply::{Disposition, RetryCause, Verb};
use leadsman_process::watch;
use leadsman_process::{ApiServer, ReadinessCheck, clock};
use tokio_util::sync::CancellationToken;

use super::elector::{Elector, ElectorAction, LeaseReply, LeaseRequest};
use super::leadership::Leadership;
use super::report::{LeadershipObserver, LeadershipReport};
use super::watch::{LeaseEvent, describe_lease_failure, watch_lease};

/// How long the release of the Lease may delay the end of the process.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// The deadline of a request on the Lease. A third of the Lease's duration counts if it is less, so that another
/// attempt fits.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The Lease, and the candidate for it.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// `holderIdentity` of this candidate. No other process may ever have the same one, a restart of this one included.
    pub identity: String,
    /// The duration of the Lease. It is renewed after each third of it.
    pub duration_seconds: u16,
    /// Field manager of the writes.
    pub field_manager: String,
}

/// A process that wants to lead.
pub struct LeaseCandidate<O> {
    server: ApiServer,
    lease: LeaseClient,
    elector: Elector,
    leadership: watch::Sender<Leadership>,
    report: LeadershipReport<O>,
    random: fastrand::Rng,
}

/// The two steps of a clean shutdown.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// First step: the Lease is renewed if this candidate holds it, but not taken any more.
    pub stop_taking: CancellationToken,
    /// Second step: the Lease is released, and leadership ends.
    pub release: CancellationToken,
}

/// How to send a request on the Lease.
#[derive(Clone)]
struct LeaseClient {
    namespace: String,
    name: String,
    field_manager: String,
    timeout: Duration,
}

impl<O: LeadershipObserver> LeaseCandidate<O> {
    /// A candidate that has not begun. `check` passes while the Lease can be watched, and written if it has to be.
    pub fn new(
        server: ApiServer,
        config: LeaseConfig,
        check: ReadinessCheck,
        observer: O,
        mut random: fastrand::Rng,
    ) -> Self {
        let LeaseConfig {
            namespace,
            name,
            identity,
            duration_seconds,
            field_manager,
        } = config;
        tracing::info!(
            identity,
            lease = format!("{namespace}/{name}"),
            duration_seconds,
            "starting leader election"
        );
        let duration = Duration::from_secs(duration_seconds.into());
        Self {
            elector: Elector::new(name.clone(), identity, duration_seconds, random.fork()),
            server,
            lease: LeaseClient {
                namespace,
                name,
                field_manager,
                timeout: REQUEST_TIMEOUT.min(duration / 3),
            },
            leadership: watch::Sender::new(Leadership::Unknown),
            report: LeadershipReport::new(check, observer),
            random,
        }
    }

    /// The leadership of this candidate, with its changes.
    pub fn subscribe_to_leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Takes part in the election until the Lease has been released. If the future is dropped, the Lease expires.
    pub async fn take_part(mut self, shutdown: Shutdown) {
        let mut events = watch_lease(
            self.server.clone(),
            &self.lease.namespace,
            &self.lease.name,
            self.random.fork(),
        );
        let mut request: BoxFuture<'static, Completed> = pending().boxed();
        let (mut stops_taking, mut release_deadline) = (false, None);
        loop {
            let wake = match self.elector.next_action(clock::monotonic(), clock::now()) {
                ElectorAction::Send(next) => {
                    let lease = self.lease.clone();
                    request = lease.send_request(self.server.clone(), next).boxed();
                    continue;
                }
                // Finished without a release: a standby that is to stop waits to be told that its writes have ended.
                ElectorAction::Finished if release_deadline.is_some() => break,
                ElectorAction::Finished => None,
                ElectorAction::Wait(until) => until,
            };
            // Leadership is published before each wait, since a term also ends by time alone.
            self.publish_leadership();
            tokio::select! {
                // The end first, which comes once. The events come last: whoever writes the Lease without a pause delays
                // neither a reply nor a renewal.
                biased;
                () = shutdown.stop_taking.cancelled(), if !stops_taking => {
                    stops_taking = true;
                    self.elector.stop_taking();
                }
                () = shutdown.release.cancelled(), if release_deadline.is_none() => {
                    release_deadline = Some(clock::monotonic() + RELEASE_TIMEOUT);
                    self.report.log_release();
                    self.elector.begin_release();
                }
                () = clock::sleep_until(release_deadline) => break,
                completed = &mut request => {
                    // A future that has ended must not be polled again.
                    request = pending().boxed();
                    self.on_reply(completed);
                }
                () = clock::sleep_until(wake) => {}
                Some(event) = events.next() => self.on_event(event),
            }
        }
        self.publish_leadership();
    }

    fn on_event(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Observed(state) => self.elector.observe_state(state, clock::monotonic()),
            LeaseEvent::Following => self.report.set_watch_failure(None),
            LeaseEvent::Failed(disposition) => {
                let reason = self.lease.describe_failure("list or watch", &disposition);
                tracing::debug!(reason, "watch of the Lease failed, retrying");
                self.report.set_watch_failure(Some(reason));
            }
        }
    }

    fn on_reply(&mut self, (reply, disposition): Completed) {
        let failed = matches!(reply, LeaseReply::Failed { .. } | LeaseReply::Refused);
        let now = clock::monotonic();
        // The elector first: whether this still leads decides how loud the failure is.
        self.elector.on_reply(reply, now);
        let reason = failed.then(|| self.lease.describe_failure("take or renew", &disposition));
        if let Some(reason) = &reason
            && self.elector.leadership_at(now).term_number().is_some()
        {
            // The leader still leads as long as the Lease lasts.
            tracing::warn!(reason, "renewing the Lease failed, retrying");
        } else {
            self.report.set_request_failure(reason);
        }
    }

    /// Publishes leadership if it has changed.
    fn publish_leadership(&mut self) {
        let now = self.elector.leadership_at(clock::monotonic());
        self.report.log_changes(now, &self.elector);
        self.leadership.send_if_modified(|published| {
            let changed = *published != now;
            *published = now;
            changed
        });
    }
}

/// The outcome of a request, for the elector and for the log.
type Completed = (LeaseReply, Disposition);

impl LeaseClient {
    async fn send_request(self, server: ApiServer, request: LeaseRequest) -> Completed {
        let (verb, built) = match self.build_request(&request) {
            Ok(built) => built,
            Err(error) => {
                let reason = error.to_string();
                return (LeaseReply::Refused, Disposition::Refused { reason });
            }
        };
        let reply = server.send_request(verb, built, self.timeout).await;
        interpret_reply(&request, reply.disposition, &reply.body)
    }

    fn build_request(
        &self,
        request: &LeaseRequest,
    ) -> Result<(Verb, http::Request<Vec<u8>>), BuildError> {
        let leases = Request::new(Lease::url_path(&(), Some(&self.namespace)));
        let params = PostParams {
            field_manager: Some(self.field_manager.clone()),
            ..PostParams::default()
        };
        let body = |lease: &Lease| serde_json::to_vec(lease).map_err(BuildError::SerializeBody);
        Ok(match request {
            LeaseRequest::Get => (Verb::Get, leases.get(&self.name, &GetParams::default())?),
            LeaseRequest::Create(lease) => (Verb::Create, leases.create(&params, body(lease)?)?),
            LeaseRequest::Replace(lease) => {
                let replace = leases.replace(&self.name, &params, body(lease)?)?;
                (Verb::Update, replace)
            }
        })
    }

    fn describe_failure(&self, action: &str, disposition: &Disposition) -> String {
        describe_lease_failure(action, &self.namespace, &self.name, disposition)
    }
}

fn interpret_reply(request: &LeaseRequest, disposition: Disposition, body: &[u8]) -> Completed {
    let reply = match (request, &disposition) {
        (_, Disposition::Done) => match serde_json::from_slice(body).map(Box::new) {
            Ok(lease) if matches!(request, LeaseRequest::Get) => LeaseReply::Read(Some(lease)),
            Ok(lease) => LeaseReply::Written(lease),
            Err(error) => {
                let reason = format!("the reply cannot be decoded: {error}");
                let unreadable = Disposition::Refused { reason };
                // No refusal: the write may have been carried out, so it is soon tried again.
                return (LeaseReply::Failed { retry_after: None }, unreadable);
            }
        },
        (LeaseRequest::Get, Disposition::Gone { .. }) => LeaseReply::Read(None),
        (
            LeaseRequest::Create(_) | LeaseRequest::Replace(_),
            Disposition::AlreadyExists { .. }
            | Disposition::Gone { .. }
            | Disposition::Retry {
                cause: RetryCause::Conflict,
                ..
            },
        ) => LeaseReply::Conflict,
        // The request fails until somebody changes something.
        (
            _,
            Disposition::Refused { .. }
            | Disposition::TooLarge { .. }
            | Disposition::Retry {
                cause: RetryCause::NoRight | RetryCause::Denied | RetryCause::NoSuchKind,
                ..
            },
        ) => LeaseReply::Refused,
        (_, Disposition::Retry { after, .. }) => LeaseReply::Failed {
            retry_after: *after,
        },
        _ => LeaseReply::Failed { retry_after: None },
    };
    (reply, disposition)
}
