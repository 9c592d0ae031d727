//! A node as a whole, case by case.

mod obstacles;
mod runs;
mod verdicts;
mod writes;

use std::collections::BTreeMap;
use std::time::Duration;

use leadsman_api::NodePodProbeStatus;
use serde_json::json;

use super::sim::{
    Sim, exec_probe, file_probe, outcome_of, running_state, sim_with_succeeding_probe, tcp_probe,
};
use super::{
    ContainerName, NodeEvent, PodIdentity, ProbeRun, RuntimeContainer, RuntimeState, StatusWriteEnd,
};
use crate::podprobe::probe::{CannotProbe, HandlerKind, State};

const SECOND: Duration = Duration::from_secs(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn pod_name(namespace: &str, name: &str, uid: &str) -> PodIdentity {
    PodIdentity {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}
