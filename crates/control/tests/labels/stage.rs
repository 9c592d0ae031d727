//! Features that run against a small API server, as its leader: for the tests of this crate, and of crates that bring a
//! feature of their own.

pub(crate) mod api_server;
pub(crate) mod rules;
pub(crate) mod wiring;

use std::time::Duration;

use leadsman_control::{Control, ControlError};
use leadsman_lease::Leadership;
use leadsman_process::{ApiServer, Metrics, Process, Readiness, clock};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::api_server::Cluster;

/// Features that run.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) control: JoinHandle<Result<(), ControlError>>,
}

/// Runs features that nobody led before.
pub(crate) fn run(cluster: &Cluster, add: impl FnOnce(&mut Control)) -> Running {
    let until = clock::monotonic() + Duration::from_hours(1);
    let leads = Leadership::Leads {
        term: 1,
        after_others: false,
        until,
    };
    run_as(leads, cluster, add)
}

pub(crate) fn run_as(
    leadership: Leadership,
    cluster: &Cluster,
    add: impl FnOnce(&mut Control),
) -> Running {
    let process = Process {
        server: ApiServer::new(cluster.client()),
        shutdown: CancellationToken::new(),
        readiness: Readiness::default(),
        metrics: Metrics::default(),
    };
    let leadership = watch::Sender::new(leadership);
    let mut control = Control::new(&process, leadership.subscribe());
    add(&mut control);
    Running {
        process,
        leadership,
        control: tokio::spawn(control.run()),
    }
}
