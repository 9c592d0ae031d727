//! Features that run against a small API server, as its leader: for the tests of this crate, and of crates that bring a
//! feature of their own. A tiny feature, which copies labels, is here to run beside them. Only with the crate's feature
//! `labels`, which nothing that is shipped asks for.
#![allow(clippy::unwrap_used, reason = "only tests use it")]

pub mod api_server;
pub mod rules;
pub mod wiring;

use std::time::Duration;

use leadsman_lease::Leadership;
use leadsman_process::{ApiServer, Process, RandomSource, clock};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::api_server::Cluster;
use crate::{Control, ControlError};

/// The namespace that they run in.
pub const NAMESPACE: &str = "leadsman-system";

/// Features that run.
pub struct Running {
    pub process: Process,
    pub leadership: watch::Sender<Leadership>,
    pub control: JoinHandle<Result<(), ControlError>>,
}

/// Runs features that nobody led before.
pub fn run_features(cluster: &Cluster, add: impl FnOnce(&mut Control)) -> Running {
    let until = clock::monotonic() + Duration::from_hours(1);
    let leads = Leadership::Leads {
        term: 1,
        after_others: false,
        until,
    };
    run_features_as(leads, cluster, add)
}

pub fn run_features_as(
    leadership: Leadership,
    cluster: &Cluster,
    add: impl FnOnce(&mut Control),
) -> Running {
    let server = ApiServer::new(cluster.client());
    let process = Process::new(server, RandomSource::from_seed(7), "host");
    let leadership = watch::Sender::new(leadership);
    let mut control = Control::new(&process, leadership.subscribe(), NAMESPACE);
    add(&mut control);
    Running {
        process,
        leadership,
        control: tokio::spawn(control.run()),
    }
}
