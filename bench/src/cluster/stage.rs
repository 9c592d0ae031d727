//! A control plane with leadsman's manifests, for the length of a bench.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::Client;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman;
use leadsman_testkit::{ControlPlane, Options};
use tokio::signal::unix::{SignalKind, signal};

use super::requests::Requests;
use crate::progress::Step;

/// The account that `leadsman manifests` gives its rights to; floors use it too.
const USER: &str = "system:serviceaccount:leadsman-system:leadsman-manager";

/// The control plane, and who is who on it.
pub(super) struct Stage {
    /// Where all runs.
    pub(super) plane: ControlPlane,
    /// As administrator: controllers, kubelets, agents and users are all played by it.
    pub(super) client: Client,
    /// Of the manager's account.
    pub(super) kubeconfig: PathBuf,
}

/// Raises a stage, lets `act` play on it, and takes it away whatever came of it, Ctrl-C included.
pub(super) fn play<T>(act: impl AsyncFnOnce(&Stage) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // On this thread, not on a worker: processes are started that end with the thread which started them.
    let outcome = runtime.block_on(async {
        let stage = tokio::select! {
            stage = Stage::raise() => stage?,
            () = interrupt() => bail!("interrupted; everything is being taken away"),
        };
        let outcome = tokio::select! {
            outcome = act(&stage) => outcome,
            () = interrupt() => Err(anyhow::anyhow!("interrupted; everything is taken away")),
        };
        let ended = stage.plane.end().await;
        outcome.and_then(|outcome| ended.map(|()| outcome))
    });
    // A bed being raised holds a thread; its keeper takes all away once this process is gone.
    runtime.shutdown_background();
    outcome
}

impl Stage {
    async fn raise() -> Result<Self> {
        let progress = leadsman_testkit::progress::to_stderr();
        let plane = ControlPlane::start(Options::default(), progress).await?;
        let client = plane.client().await?;
        leadsman::install(&plane).await?;
        let kubeconfig = plane.kubeconfig_for(USER, &["system:serviceaccounts"])?;
        Ok(Self {
            plane,
            client,
            kubeconfig,
        })
    }

    /// What the account under test has sent since then.
    pub(super) fn requests(&self, since: Mark) -> Result<Requests> {
        Ok(Requests::of(USER, &self.plane.audit(since)?))
    }

    /// The same kubeconfig with another URL in it.
    pub(super) fn kubeconfig_through(&self, server: &str) -> Result<PathBuf> {
        let text = std::fs::read_to_string(&self.kubeconfig)?;
        let through = text.replace(self.plane.server(), server);
        if through == text {
            bail!("the kubeconfig does not name {}", self.plane.server());
        }
        let path = self.plane.folder().join("through.kubeconfig");
        std::fs::write(&path, through).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// Ctrl-C or SIGTERM. Where neither can be heard, it never comes.
async fn interrupt() {
    let heard = async |kind| match signal(kind) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = heard(SignalKind::interrupt()) => {}
        () = heard(SignalKind::terminate()) => {}
    }
}

/// Lets time pass over which something is measured.
pub(super) async fn pass(what: &str, time: Duration) {
    const TICK: Duration = Duration::from_secs(1);
    let seconds = time.as_secs();
    let mut step = Step::begin(what, seconds);
    let mut ticks = tokio::time::interval(TICK);
    // The first tick comes at once.
    ticks.tick().await;
    for second in 1..=seconds {
        ticks.tick().await;
        step.at(second);
    }
    step.end();
}
