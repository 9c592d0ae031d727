//! The loop that follows and writes the Lease as the elector says, and tells the rest of the manager.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use leadsman_process::{Condition, clock};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::LEASE;
use super::elector::{Answer, Elector, Request, Step};
use super::leadership::Leadership;
use super::shown::Shown;
use super::sights::{Sighting, sights, why_not};
use crate::metrics::Metrics;

/// An end does not wait longer for the Lease to be given back.
const RELEASE: Duration = Duration::from_secs(3);

/// One who stands for leadership.
pub(crate) struct Candidate {
    elector: Elector,
    leases: Api<Lease>,
    namespace: String,
    patience: Duration,
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
    /// A candidate for the Lease in this namespace, of so many seconds.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        seconds: u16,
        condition: Condition,
        metrics: Metrics,
    ) -> Self {
        let mut random = fastrand::Rng::new();
        let identity = format!("{}_{:016x}", host(), random.u64(..));
        tracing::info!(
            identity,
            namespace,
            lease = LEASE,
            "standing for leadership"
        );
        // A request that hangs must leave time for another.
        let third = Duration::from_secs(seconds.into()) / 3;
        Self {
            elector: Elector::new(LEASE, identity, seconds, random),
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            patience: third.min(Duration::from_secs(5)),
            told: watch::Sender::new(Leadership::Standby),
            shown: Shown::new(condition, metrics),
        }
    }

    /// What it has come to.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.told.subscribe()
    }

    /// Stands until the Lease is given back.
    pub(crate) async fn run(mut self, end: End) {
        let mut sights = sights(self.leases.clone(), LEASE);
        let mut exchange: BoxFuture<'static, Replied> = pending().boxed();
        let (mut keeps, mut releases) = (false, None);
        loop {
            let wake = match self.elector.next(clock::monotonic(), clock::now()) {
                Step::Send(request) => {
                    exchange = send(self.leases.clone(), request, self.patience).boxed();
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
            Ok(sight) => {
                self.elector.saw(sight, clock::monotonic());
                self.shown.condition.ready();
            }
            Err(error) => {
                let reason = self.reason("look for", &error);
                self.shown.condition.not_ready(reason);
            }
        }
    }

    fn replied(&mut self, (answer, error): Replied) {
        let failed = matches!(answer, Answer::Failed | Answer::Refused);
        let now = clock::monotonic();
        self.elector.answered(answer, now);
        let Some(error) = error else {
            if !failed {
                self.shown.condition.ready();
            }
            return;
        };
        let reason = self.reason("take or renew", &error);
        if self.elector.leadership(now).term().is_some() {
            tracing::warn!(reason, "trying again to renew the Lease");
        } else {
            self.shown.condition.not_ready(reason);
        }
    }

    fn reason(&self, what: &str, error: &kube::Error) -> String {
        why_not(what, &self.namespace, LEASE, error)
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

/// What came of a request, and why it failed.
type Replied = (Answer, Option<kube::Error>);

async fn send(leases: Api<Lease>, request: Request, patience: Duration) -> Replied {
    let params = PostParams {
        field_manager: Some(LEASE.to_owned()),
        ..PostParams::default()
    };
    let exchange = async {
        Ok::<_, kube::Error>(match &request {
            Request::Look => Answer::Shown(leases.get_opt(LEASE).await?.map(Box::new)),
            Request::Create(lease) => {
                Answer::Written(Box::new(leases.create(&params, lease).await?))
            }
            Request::Replace(lease) => {
                Answer::Written(Box::new(leases.replace(LEASE, &params, lease).await?))
            }
        })
    };
    match timeout(patience, exchange).await {
        Ok(Ok(answer)) => (answer, None),
        Ok(Err(error)) => judge(&request, error),
        Err(_elapsed) => {
            let late = format!("no answer within {} s", patience.as_secs());
            (Answer::Failed, Some(kube::Error::Service(late.into())))
        }
    }
}

fn judge(request: &Request, error: kube::Error) -> Replied {
    let code = match &error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    };
    match (request, code) {
        (Request::Create(_) | Request::Replace(_), 409) | (Request::Replace(_), 404) => {
            (Answer::Outrun, None)
        }
        _ if needs_somebody(&error) => (Answer::Refused, Some(error)),
        _ => (Answer::Failed, Some(error)),
    }
}

/// Whether it fails until somebody does something about it.
fn needs_somebody(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400..=404 | 422))
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
