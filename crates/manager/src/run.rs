//! The manager's life: its features, and leadership.

use leadsman_admission::{Admission, AdmissionError, Webhook};
use leadsman_control::{Control, ControlError, Right, rights};
use leadsman_core::podprobe::Config;
use leadsman_lease::Shutdown;
use leadsman_process::{Component, Process, RunError};
use tokio::task::JoinError;

use crate::args::Args;
use crate::gates::Gates;
use crate::leader;
use crate::metrics::Metrics;
use crate::openkruise::OpenKruiseGuard;
use crate::podprobe::PodProbeRules;

/// Why the manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// A feature or a watch broke off.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The webhooks cannot be served.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The candidate for leadership broke.
    #[error("leader election ended: {0}")]
    Candidate(JoinError),
    /// The look-out for `OpenKruise` broke.
    #[error("watching for OpenKruise ended: {0}")]
    Guard(JoinError),
}

/// Runs the manager until SIGTERM or SIGINT.
pub fn run(args: &Args) -> Result<(), RunError<ManagerError>> {
    leadsman_process::run(&args.process, Component::Manager, async move |process| {
        if args.feature_gates == Gates::none() {
            idle(&process).await;
            Ok(())
        } else {
            manage(args, process).await
        }
    })
}

/// Adds the features whose gates are on, and returns their webhooks. One whose gate is off costs nothing.
fn add_features(control: &mut Control, args: &Args) -> Vec<Webhook> {
    let mut webhooks = Vec::new();
    if args.feature_gates.pod_probe_marker {
        let rules = PodProbeRules::new(Config {
            compatibility: args.compatibility.into(),
            agent_namespace: args.namespace.clone(),
            former_field_managers: args.former_field_managers.clone(),
            serverless: args.feature_gates.serverless,
            ..Config::default()
        });
        webhooks.extend(rules.webhooks());
        control.add(rules);
    }
    webhooks
}

/// The rights that the features whose gates are on need, in all namespaces.
pub fn feature_rights(gates: Gates) -> Vec<Right> {
    let mut all = Vec::new();
    if gates.pod_probe_marker {
        all.extend(rights::<PodProbeRules>());
    }
    all
}

/// Runs without a feature: nothing is watched, written or removed.
async fn idle(process: &Process) {
    tracing::warn!(
        "PodProbeMarkerGate=false: no PodProbeMarker is acted on, and everything stays as it is, marks included"
    );
    let switched_off = "PodProbeMarkerGate=false: idle by configuration";
    process.readiness.condition(switched_off, "").ready();
    process.shutdown.cancelled().await;
}

async fn manage(args: &Args, process: Process) -> Result<(), ManagerError> {
    let candidate = leader::candidate(
        process.server.clone(),
        &args.namespace,
        args.lease_duration,
        process
            .readiness
            .condition("leadership", "the Lease has not been read yet"),
        Metrics::new(&process.metrics),
    );
    let guard = OpenKruiseGuard::new(
        process.server.clone(),
        candidate.leadership(),
        process.readiness.condition(
            "OpenKruise conflict check",
            "its Lease has not been read yet",
        ),
    );
    let mut control = Control::new(&process, guard.passed_on());
    let webhooks = add_features(&mut control, args);
    let namespace = &args.namespace;
    let leadership = guard.passed_on();
    let admission =
        Admission::start(&args.admission, namespace, webhooks, &process, leadership).await?;
    let mut guard = tokio::spawn(guard.run());
    // The Lease is kept while the writes in flight end.
    let shutdown = Shutdown {
        stop_taking: process.shutdown.clone(),
        ..Shutdown::default()
    };
    let mut candidate = tokio::spawn(candidate.run(shutdown.clone()));
    let ended = tokio::select! {
        ended = control.run() => ended.map_err(ManagerError::from),
        Err(error) = &mut guard => Err(ManagerError::Guard(error)),
        Err(error) = &mut candidate => return Err(ManagerError::Candidate(error)),
    };
    let served = admission.ended().await;
    shutdown.release.cancel();
    candidate.await.map_err(ManagerError::Candidate)?;
    ended.and(served.map_err(ManagerError::from))
}
