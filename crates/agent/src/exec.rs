//! How the commands of probes are run: through the container runtime, or directly where `--direct-exec` asks for it.

use std::time::Duration;

use leadsman_cri::{Detour, DirectExec, DirectExecError, Runtime};
use leadsman_probe::{Exec, ExecError, Execution};
use leadsman_process::Metrics;
use leadsman_process::metrics::Counters;

/// The program that is started for each command, beside that of the agent.
const HELPER: &str = "leadsman-exec";
/// The value of the metric for a command that did not go through the runtime.
const DIRECT: &str = "direct";

/// Runs the commands of probes. Clones are the same one.
#[derive(Clone)]
pub(crate) enum CommandRunner {
    /// All of them through the runtime.
    Runtime(Runtime),
    /// Directly where that is the same.
    Direct(DirectExec),
}

impl CommandRunner {
    /// A runner that runs commands directly if it is to, and counts how. On the thread that runs them.
    pub(crate) fn new(
        directly: bool,
        runtime: Runtime,
        metrics: &Metrics,
    ) -> Result<Self, DirectExecError> {
        let ways = register_ways(metrics);
        if !directly {
            return Ok(Self::Runtime(runtime));
        }
        let program = std::env::current_exe().map_err(|source| DirectExecError::Helper {
            path: HELPER.into(),
            source,
        })?;
        let observer = move |run: Result<(), Detour>| {
            let way = run.map_or_else(Detour::label, |()| DIRECT);
            ways.get_or_create_owned(&[("way", way)]).inc();
        };
        let helper = program.with_file_name(HELPER);
        DirectExec::new(runtime, &helper, observer).map(Self::Direct)
    }
}

/// Counters of commands by their way, each 0 so far.
fn register_ways(metrics: &Metrics) -> Counters<1> {
    let ways = Counters::<1>::default();
    for way in Detour::ALL.map(Detour::label).into_iter().chain([DIRECT]) {
        drop(ways.get_or_create(&[("way", way)]));
    }
    metrics.register(|r| {
        let help = "Commands of exec probes with --direct-exec, by how they were run: direct, or through the container runtime and why";
        r.register("direct_execs", help, ways.clone());
    });
    ways
}

impl Exec for CommandRunner {
    async fn exec(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<Execution, ExecError> {
        match self {
            Self::Runtime(runtime) => runtime.exec(container_id, command, timeout).await,
            Self::Direct(direct) => direct.exec(container_id, command, timeout).await,
        }
    }
}
