//! Running the manager: its features, and leadership.

use std::pin::pin;

use leadsman_admission::{Admission, AdmissionError, Webhook, WebhookServing};
use leadsman_control::{Control, ControlError, FeatureRights, Rules, rights_of_feature};
use leadsman_core::podprobe::Config;
use leadsman_lease::{Leadership, Shutdown};
use leadsman_process::{Component, Process, RunError, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::args::ManagerArgs;
use crate::gates::Gates;
use crate::leader;
use crate::openkruise::OpenKruiseGuard;
use crate::podprobe::{PodProbeRules, new_rules};
use crate::sidecarset::{SidecarSetRules, barrier_events, sidecar_sets};

/// Why the manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// A feature or a watch ended, or panicked.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The webhooks cannot be served.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The task of leader election panicked.
    #[error("leader election ended: {0}")]
    Candidate(JoinError),
    /// The guard against a second writer panicked.
    #[error("looking for OpenKruise ended: {0}")]
    Guard(JoinError),
}

/// Runs the manager until SIGTERM or SIGINT.
pub fn run_manager(args: &ManagerArgs) -> Result<(), RunError<ManagerError>> {
    leadsman_process::run_process(&args.process, Component::Manager, async move |process| {
        if !args.feature_gates.pod_probe_marker {
            warn_that_markers_stay();
        }
        if args.feature_gates.are_all_off() {
            run_without_features(&process).await;
            Ok(())
        } else {
            run_features(args, process, WebhookServing::Socket).await
        }
    })
}

/// Adds the features whose gates are on, and returns their webhooks. A feature whose gate is off costs nothing. `over_sets`
/// permits writes for `SidecarSet`s, and for all else on which `OpenKruise` acts without a gate.
fn add_features(
    control: &mut Control,
    args: &ManagerArgs,
    over_sets: &watch::Receiver<Leadership>,
    metrics: &leadsman_process::Metrics,
) -> Vec<Webhook> {
    let mut webhooks = Vec::new();
    if args.feature_gates.pod_probe_marker {
        let config = Config {
            compatibility: args.compatibility.into(),
            agent_namespace: args.namespace.clone(),
            serverless: args.feature_gates.serverless,
            ..Config::default()
        };
        let (rules, of_pods) = new_rules(config, metrics);
        webhooks.extend(of_pods);
        control.add_feature(rules);
    }
    if args.feature_gates.sidecar_set {
        let config = args.sidecar_set_config();
        let (rules, injection, review) = sidecar_sets(config, metrics);
        let barriers = barrier_events(injection.barrier_in_force());
        // A webhook changes what sets do as a write does, so it also waits until no OpenKruise acts on them.
        let of_sets = [injection, review];
        webhooks.extend(of_sets.map(|webhook| webhook.led_by(over_sets.clone())));
        control.add_feature_with_events(rules, over_sets.clone(), barriers);
    }
    for system in args.feature_gates.systems.iter() {
        (system.add)(control, args, over_sets.clone());
    }
    webhooks
}

/// The features whose gates are on, each with the rights that it needs.
pub fn feature_rights(gates: Gates) -> Vec<(&'static str, FeatureRights)> {
    let mut features = Vec::new();
    if gates.pod_probe_marker {
        features.push((PodProbeRules::NAME, rights_of_feature::<PodProbeRules>()));
    }
    if gates.sidecar_set {
        features.push((
            SidecarSetRules::NAME,
            rights_of_feature::<SidecarSetRules>(),
        ));
    }
    for system in gates.systems.iter() {
        features.push((system.name, system.rights()));
    }
    features
}

fn warn_that_markers_stay() {
    tracing::warn!(
        "PodProbeMarkerGate=false: no PodProbeMarker is acted on, and marks stay as they are"
    );
}

/// Runs without a feature: nothing is watched, written or removed.
async fn run_without_features(process: &Process) {
    tracing::warn!(
        "all feature gates are off. If EnablePodProbeMarkerOnServerless or SidecarSetGate was on before, API servers may still \
         call a webhook that nobody serves, and refuse pods of SidecarSets with failure-policy: Fail: run \
         `kubectl delete mutatingwebhookconfiguration leadsman`"
    );
    let switched_off = "all feature gates are off: idle by configuration";
    process.readiness.add_check(switched_off, "").set_ready();
    process.shutdown.cancelled().await;
}

/// Runs the features whose gates are on until the process is to stop. All that it has begun ends with the future: one that is
/// dropped is a process that is killed.
pub async fn run_features(
    args: &ManagerArgs,
    process: Process,
    serving: WebhookServing,
) -> Result<(), ManagerError> {
    if args.feature_gates.sidecar_set {
        // Pods may be refused while no replica is called.
        process.readiness.expect_calls();
    }
    let candidate = leader::new_candidate(&process, &args.namespace, args.lease_duration);
    let guard = OpenKruiseGuard::new(
        process.server.clone(),
        candidate.subscribe_to_leadership(),
        (args.feature_gates, args.ignore_openkruise),
        process
            .readiness
            .add_own_check("OpenKruise conflict check", "not looked yet"),
        &process.metrics,
    );
    let mut control = Control::new(&process, guard.leadership_over_markers(), &args.namespace);
    let webhooks = add_features(
        &mut control,
        args,
        &guard.leadership_over_sets(),
        &process.metrics,
    );
    let namespace = &args.namespace;
    // A registration that an OpenKruise manager is beside stays as it is, and is answered: without this leadership the
    // webhooks of sets would be taken out of it, and pods of sets with `failure-policy: Fail` let through without them.
    let leadership = if args.feature_gates.sidecar_set {
        guard.leadership_over_sets()
    } else {
        guard.leadership_over_markers()
    };
    let mut admission =
        // Admission starts after the features are added: what is registered follows from their
        // webhooks.
        Admission::start(&args.admission, namespace, webhooks, (&process, serving), leadership).await?;
    // The guard starts last: the features have subscribed to the leadership that it passes on.
    let mut guard = AbortOnDropHandle::new(tokio::spawn(guard.run()));
    // The Lease is kept while the writes in flight end.
    let shutdown = Shutdown {
        stop_taking: process.shutdown.clone(),
        ..Shutdown::default()
    };
    let task = tokio::spawn(candidate.take_part(shutdown.clone()));
    let mut candidate = AbortOnDropHandle::new(task);
    let control = async { Ok(control.run().await?) };
    let broken = async {
        tokio::select! {
            // Any failure ends the process.
            biased;
            Err(error) = &mut guard => ManagerError::Guard(error),
            Err(error) = &mut candidate => ManagerError::Candidate(error),
            error = admission.wait_for_failure() => error.into(),
        }
    };
    let ended = run_to_end(control, broken, &process.shutdown).await;
    if matches!(ended, Err(ManagerError::Candidate(_))) {
        // Nobody is left to release the Lease, so it expires.
        return ended;
    }
    // The next leader waits for our writes, but not for webhook calls that are still answered.
    admission.stop_writing().await;
    shutdown.release.cancel();
    let released = candidate.await.map_err(ManagerError::Candidate);
    // Last, since calls may be answered by a replica that no longer leads.
    let served = admission.join_server().await.map_err(ManagerError::from);
    ended.and(released).and(served)
}

/// Runs the features until they end, which ends the process. If something that they depend on fails first, they are
/// stopped and their writes in flight end: a leader that does not write must not keep the Lease.
async fn run_to_end(
    writers: impl Future<Output = Result<(), ManagerError>>,
    broken: impl Future<Output = ManagerError>,
    shutdown: &CancellationToken,
) -> Result<(), ManagerError> {
    let mut writers = pin!(writers);
    tokio::select! {
        // The features first: what they ended with says more than what broke because they did. Either ends the process.
        biased;
        ended = &mut writers => {
            shutdown.cancel();
            ended
        }
        error = broken => {
            shutdown.cancel();
            if let Err(later) = writers.await {
                tracing::error!(error = %later, "stopping the features failed");
            }
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use std::time::Duration;

    use clap::Parser;
    use leadsman_control::Right;
    use leadsman_process::{ApiServer, RandomSource};

    use super::*;
    use crate::api_server::Cluster;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ManagerArgs,
    }

    // SCS-80, SDF-52, PPM-17
    #[tokio::test(start_paused = true)]
    async fn a_feature_that_is_off_costs_no_watch_and_no_right() {
        const KINDS: [&str; 7] = [
            "podprobemarkers",
            "nodes",
            "pods",
            "sidecarsets",
            "namespaces",
            "controllerrevisions",
            "configmaps",
        ];
        for (gates, watched, features) in [
            ("", [1, 1, 1, 0, 0, 0, 0], &["podprobe"][..]),
            (
                "SidecarSetGate=true",
                [1, 1, 1, 1, 1, 1, 1],
                &["podprobe", "sidecarset"],
            ),
            (
                "PodProbeMarkerGate=false,SidecarSetGate=true",
                [0, 0, 1, 1, 1, 1, 1],
                &["sidecarset"],
            ),
        ] {
            let args = Line::parse_from(["manager", "--feature-gates", gates]).args;
            let cluster = Cluster::default();
            let leadership = watch::Sender::new(Leadership::Standby);
            let server = ApiServer::new(cluster.client());
            let process = Process::new(server, RandomSource::from_seed(7), "host");
            let mut control = Control::new(&process, leadership.subscribe(), "leadsman-system");
            let metrics = leadsman_process::Metrics::default();
            add_features(&mut control, &args, &leadership.subscribe(), &metrics);
            let _running = tokio::spawn(control.run());
            tokio::time::sleep(Duration::from_secs(1)).await;
            let watches = KINDS.map(|kind| cluster.count_requests(&format!("WATCH {kind} ")));
            assert_eq!(watches, watched, "{gates}");
            let with_rights = feature_rights(args.feature_gates).into_iter();
            let with_rights: Vec<_> = with_rights.map(|(feature, _)| feature).collect();
            assert_eq!(with_rights, features, "{gates}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_is_killed_sends_nothing_more() {
        let cluster = Cluster::default();
        // It goes on trying to take the Lease.
        cluster.hang_on_method("POST");
        let server = ApiServer::new(cluster.client());
        let process = Process::new(server, RandomSource::from_seed(7), "host");
        let line = ["manager", "--webhook-bind-address", "0"];
        let args = Line::parse_from(line).args;
        let running =
            tokio::spawn(async move { run_features(&args, process, WebhookServing::Socket).await });
        tokio::time::sleep(Duration::from_mins(1)).await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        // The runtime drops what the manager has begun.
        tokio::task::yield_now().await;
        let sent = cluster.count_requests("");
        assert!(sent > 0);
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(cluster.count_requests(""), sent);
    }

    // SDF-52
    #[test]
    fn rights_on_revisions_and_configuration_hold_in_the_own_namespace_alone() {
        let gates = "SidecarSetGate=true".parse().unwrap();
        let of_sets = feature_rights(gates).into_iter();
        let (_, rights) = of_sets.last().unwrap();
        let is_own =
            |right: &Right| matches!(&*right.resource, "controllerrevisions" | "configmaps");
        assert!(rights.own_namespace.iter().all(is_own), "{rights:?}");
        assert!(!rights.cluster.iter().any(is_own), "{rights:?}");
        assert!(!rights.own_namespace.is_empty());
    }

    #[tokio::test]
    async fn what_breaks_stops_the_process_and_lets_the_writes_in_flight_end() {
        let shutdown = CancellationToken::new();
        let drained = Cell::new(false);
        let writers = async {
            shutdown.cancelled().await;
            tokio::task::yield_now().await;
            drained.set(true);
            Ok(())
        };
        let broken = ready(ManagerError::Admission(AdmissionError::Server));
        let ended = run_to_end(writers, broken, &shutdown).await;
        assert!(matches!(ended, Err(ManagerError::Admission(_))));
        assert!(drained.get());
    }

    #[tokio::test]
    async fn a_feature_that_breaks_stops_the_process() {
        let shutdown = CancellationToken::new();
        let broken = ready(Err(ControlError::FeatureEnded.into()));
        let ended = run_to_end(broken, pending(), &shutdown).await;
        assert!(matches!(ended, Err(ManagerError::Control(_))));
        assert!(shutdown.is_cancelled());
    }
}
