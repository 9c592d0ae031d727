//! The loop that follows and writes the Lease as the elector says, and tells the rest of the manager.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Resource;
use kube::api::{GetParams, PostParams};
use kube::core::Request as ApiRequest;
use kube::core::request::Error as BuildError;
use leadsman_process::reply::{Cause, Disposition, Verb};
use leadsman_process::{ApiServer, Condition, clock};
use tokio::sync::watch;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::elector::{Answer, Elector, Request, Step};
use super::leadership::Leadership;
use super::shown::Shown;
use super::sights::{Sighting, sights, why_not};
use super::{LEASE, LEASE_NAMESPACE};
use crate::metrics::Metrics;

/// An end does not wait longer for the Lease to be given back.
const RELEASE: Duration = Duration::from_secs(3);

/// One who stands for leadership.
pub(crate) struct Candidate {
    elector: Elector,
    server: ApiServer,
    deadline: Duration,
    told: watch::Sender<Leadership>,
    shown: Shown,
}

/// What ends it.
#[derive(Clone, Debug, Default)]
pub(crate) struct End {
    /// The Lease is kept but not taken.
    pub(crate) keep: CancellationToken,
    /// The Lease is given back.
    pub(crate) release: CancellationToken,
}

impl Candidate {
    /// A candidate, installed in this namespace, for the Lease, of so many seconds.
    pub(crate) fn new(
        server: ApiServer,
        namespace: &str,
        seconds: u16,
        condition: Condition,
        metrics: Metrics,
    ) -> Self {
        let mut random = fastrand::Rng::new();
        // With the namespace, so that a second install is told from a second replica.
        let identity = format!("{namespace}/{}_{:016x}", host(), random.u64(..));
        tracing::info!(
            identity,
            namespace,
            lease = LEASE,
            "starting leader election"
        );
        // A request that hangs must leave time for another.
        let third = Duration::from_secs(seconds.into()) / 3;
        Self {
            elector: Elector::new(LEASE, identity, seconds, random),
            server,
            deadline: third.min(Duration::from_secs(5)),
            told: watch::Sender::new(Leadership::Standby),
            shown: Shown::new(namespace, condition, metrics),
        }
    }

    /// What it has come to.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.told.subscribe()
    }

    /// Stands until the Lease is given back.
    pub(crate) async fn run(mut self, end: End) {
        let mut sights = sights(self.server.clone(), LEASE_NAMESPACE, LEASE);
        let mut exchange: BoxFuture<'static, Replied> = pending().boxed();
        let (mut keeps, mut releases) = (false, None);
        loop {
            let wake = match self.elector.next(clock::monotonic(), clock::now()) {
                Step::Send(request) => {
                    exchange = send(self.server.clone(), request, self.deadline).boxed();
                    continue;
                }
                Step::Over if releases.is_some() => break,
                Step::Over => None,
                Step::Wait(until) => until,
            };
            self.tell();
            tokio::select! {
                replied = &mut exchange => {
                    exchange = pending().boxed();
                    self.replied(replied);
                }
                Some(event) = sights.next() => self.watched(event),
                () = end.keep.cancelled(), if !keeps => {
                    keeps = true;
                    self.elector.keep();
                }
                () = end.release.cancelled(), if releases.is_none() => {
                    releases = Some(clock::monotonic() + RELEASE);
                    self.shown.gives_back();
                    self.elector.release();
                }
                () = at(wake) => {}
                () = at(releases) => break,
            }
        }
        self.tell();
    }

    fn watched(&mut self, event: Sighting) {
        match event {
            Sighting::Seen(sight) => self.elector.saw(sight, clock::monotonic()),
            Sighting::Follows => self.shown.watch_failed(None),
            Sighting::Failed(disposition) => {
                let reason = reason("list or watch", &disposition);
                tracing::debug!(reason, "watch of the Lease failed, retrying");
                self.shown.watch_failed(Some(reason));
            }
        }
    }

    fn replied(&mut self, (answer, disposition): Replied) {
        let failed = matches!(answer, Answer::Failed { .. } | Answer::Refused);
        let now = clock::monotonic();
        self.elector.answered(answer, now);
        let reason = failed.then(|| reason("take or renew", &disposition));
        if let Some(reason) = &reason
            && self.elector.leadership(now).term().is_some()
        {
            // It leads all the same, for as long as the Lease lasts.
            tracing::warn!(reason, "renewing the Lease failed, retrying");
        } else {
            self.shown.request_failed(reason);
        }
    }

    /// Tells of what has changed.
    fn tell(&mut self) {
        let now = self.elector.leadership(clock::monotonic());
        self.shown.show(now, &self.elector);
        self.told.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }
}

fn reason(what: &str, disposition: &Disposition) -> String {
    why_not(what, LEASE_NAMESPACE, LEASE, disposition)
}

/// What came of a request, and what the API server said.
type Replied = (Answer, Disposition);

async fn send(server: ApiServer, request: Request, deadline: Duration) -> Replied {
    let (verb, built) = match built(&request) {
        Ok(built) => built,
        Err(error) => {
            let reason = error.to_string();
            return (Answer::Refused, Disposition::Refused { reason });
        }
    };
    let reply = server.ask(verb, built, deadline).await;
    answer(&request, reply.disposition, &reply.body)
}

fn built(request: &Request) -> Result<(Verb, http::Request<Vec<u8>>), BuildError> {
    let leases = ApiRequest::new(Lease::url_path(&(), Some(LEASE_NAMESPACE)));
    let params = PostParams {
        field_manager: Some(LEASE.to_owned()),
        ..PostParams::default()
    };
    let body = |lease: &Lease| serde_json::to_vec(lease).map_err(BuildError::SerializeBody);
    Ok(match request {
        Request::Look => (Verb::Get, leases.get(LEASE, &GetParams::default())?),
        Request::Create(lease) => (Verb::Create, leases.create(&params, body(lease)?)?),
        Request::Replace(lease) => {
            let replace = leases.replace(LEASE, &params, body(lease)?)?;
            (Verb::Update, replace)
        }
    })
}

fn answer(request: &Request, disposition: Disposition, body: &[u8]) -> Replied {
    let answer = match (request, &disposition) {
        (_, Disposition::Done) => match serde_json::from_slice(body).map(Box::new) {
            Ok(lease) if matches!(request, Request::Look) => Answer::Shown(Some(lease)),
            Ok(lease) => Answer::Written(lease),
            Err(error) => {
                let reason = format!("cannot be read: {error}");
                let unreadable = Disposition::Refused { reason };
                return (Answer::Failed { after: None }, unreadable);
            }
        },
        (Request::Look, Disposition::Gone { .. }) => Answer::Shown(None),
        (
            Request::Create(_) | Request::Replace(_),
            Disposition::AlreadyExists { .. }
            | Disposition::Gone { .. }
            | Disposition::Retry {
                cause: Cause::Conflict,
                ..
            },
        ) => Answer::Outrun,
        // It fails until somebody does something about it.
        (
            _,
            Disposition::Refused { .. }
            | Disposition::Retry {
                cause: Cause::NoRight | Cause::Denied | Cause::NoSuchKind,
                ..
            },
        ) => Answer::Refused,
        (_, Disposition::Retry { after, .. }) => Answer::Failed { after: *after },
        _ => Answer::Failed { after: None },
    };
    (answer, disposition)
}

/// The name of the pod, in one.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name.to_owned()
    }
}

/// Until then; without a time for ever.
pub(crate) async fn at(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
