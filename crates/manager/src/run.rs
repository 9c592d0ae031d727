//! The manager's life: its watches, the control loop, and the candidate for leadership.

use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::event::{Effects, Event, Write, WriteTarget};
use leadsman_core::podprobe::{Config, Index};
use leadsman_lease::Shutdown;
use leadsman_process::{Component, Process, RunError};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::{JoinError, JoinSet};

use crate::args::Args;
use crate::control::{Control, Rules};
use crate::kinds::{Watched, resource};
use crate::leader;
use crate::metrics::Metrics;
use crate::openkruise::Guard;
use crate::schemas;
use crate::slots::Slots;
use crate::watch::{Arrival, follow};

/// Events between the watches and the loop. A loop that falls behind slows the watches down, not the memory up.
const ARRIVALS: usize = 1024;
/// Writes in flight. The API server shares itself out fairly; more only lengthens its queue.
const WRITES: usize = 32;

/// The rights that the watches need: API group, resource; each with `get`, `list` and `watch`.
pub const WATCH_RIGHTS: [(&str, &str); 4] = [
    ("", "pods"),
    ("", "nodes"),
    (leadsman_api::GROUP, "podprobemarkers"),
    (leadsman_api::GROUP, "nodepodprobes"),
];

/// Why the manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// A watch broke in a way that no watch should.
    #[error("a watch ended: {0}")]
    Watch(#[from] JoinError),
    /// The candidate for leadership broke.
    #[error("leader election ended: {0}")]
    Candidate(JoinError),
    /// A watch came to its end.
    #[error("a watch ended, which none does while it is listened to")]
    WatchEnded,
}

impl Rules for Index {
    fn apply(&mut self, event: Event, now: Now) -> Effects {
        Index::apply(self, event, now)
    }

    fn write(&mut self, object: &WriteTarget, now: Now) -> Option<Write> {
        Index::write(self, object, now)
    }
}

/// Runs the manager until SIGTERM or SIGINT.
pub fn run(args: &Args) -> Result<(), RunError<ManagerError>> {
    let config = Config {
        compatibility: args.compatibility.into(),
        agent_namespace: args.namespace.clone(),
        ..Config::default()
    };
    let seconds = args.lease_duration;
    let gates = args.feature_gates;
    leadsman_process::run(&args.process, Component::Manager, async move |process| {
        if gates.pod_probe_marker {
            manage(config, seconds, process).await
        } else {
            idle(&process).await;
            Ok(())
        }
    })
}

/// Runs without a feature: nothing is watched, written or removed.
async fn idle(process: &Process) {
    tracing::warn!(
        "PodProbeMarkerGate=false: no PodProbeMarker is acted on, and everything stays as it is, marks included"
    );
    let switched_off = "PodProbeMarkerGate=false, nothing is acted on";
    process.readiness.condition(switched_off, "").ready();
    process.shutdown.cancelled().await;
}

async fn manage(config: Config, seconds: u16, process: Process) -> Result<(), ManagerError> {
    let metrics = Metrics::new(&process.metrics);
    let rights = process
        .readiness
        .condition("rights to write", "nothing has been written yet");
    let slots = Slots::new(WRITES, fastrand::Rng::new());
    let candidate = leader::candidate(
        process.server.clone(),
        &config.agent_namespace,
        seconds,
        process
            .readiness
            .condition("leadership", "the Lease has not been read yet"),
        metrics.clone(),
    );
    let guard = Guard::new(
        process.server.clone(),
        candidate.leadership(),
        process.readiness.condition(
            "no OpenKruise that acts on the same objects",
            "its Lease has not been looked for yet",
        ),
    );
    let control = Control::new(
        Index::new(config),
        process.server.clone(),
        slots,
        guard.leadership(),
        rights,
        metrics.clone(),
    );
    let (send, arrivals) = channel(ARRIVALS);
    let mut watches = JoinSet::new();
    watches.spawn(guard.run());
    watch::<PodProbeMarker>(&mut watches, &process, &send, &metrics);
    watch::<Pod>(&mut watches, &process, &send, &metrics);
    watch::<Node>(&mut watches, &process, &send, &metrics);
    watch::<NodePodProbe>(&mut watches, &process, &send, &metrics);
    for (kind, condition) in schemas::KINDS {
        let condition = process.readiness.condition(condition, "not read yet");
        let server = process.server.clone();
        watches.spawn(schemas::follow(kind, server, send.clone(), condition));
    }
    // The Lease is kept while what is under way ends.
    let shutdown = Shutdown {
        stop_taking: process.shutdown.clone(),
        ..Shutdown::default()
    };
    let mut candidate = tokio::spawn(candidate.run(shutdown.clone()));
    let ended = tokio::select! {
        () = control.run(arrivals, process.shutdown.clone()) => Ok(()),
        ended = watches.join_next() => match ended {
            Some(Err(error)) => Err(error.into()),
            _ => Err(ManagerError::WatchEnded),
        },
        Err(error) = &mut candidate => return Err(ManagerError::Candidate(error)),
    };
    shutdown.release.cancel();
    candidate.await.map_err(ManagerError::Candidate)?;
    ended
}

fn watch<K: Watched>(
    watches: &mut JoinSet<()>,
    process: &Process,
    events: &Sender<Arrival>,
    metrics: &Metrics,
) {
    let condition = process
        .readiness
        .condition(resource(K::KIND), "waiting for the first list");
    watches.spawn(follow::<K>(
        process.server.clone(),
        events.clone(),
        condition,
        metrics.clone(),
    ));
}
