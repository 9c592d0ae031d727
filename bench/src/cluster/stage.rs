//! A control plane with leadsman's manifests, for the length of a bench, and who is measured on it: the manager, or a bare
//! loop in its place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use leadsman_process::clock;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman::{self, MANAGER};
use leadsman_testkit::ControlPlane;
use leadsman_tests::Process;
use tokio::process::Command;
use tokio::time::Instant;

use super::api::ApiRequest;
use super::{PATIENCE, floor};
use crate::meter::{Held, Meter};
use crate::part::{Part, Talk};
use crate::proxies::ByteCounter;
use crate::requests::Requests;

/// Between two questions for readiness, which no watch tells.
const PAUSE: Duration = Duration::from_millis(10);

/// The control plane, and who is who on it.
pub(super) struct Stage {
    pub(super) plane: ControlPlane,
    /// As administrator: controllers, kubelets, agents and users are all played by it.
    pub(super) client: Client,
    /// Of the manager's account, which floors use too.
    kubeconfig: PathBuf,
}

/// Who is measured.
pub(super) enum Who {
    Manager,
    /// A floor that lists and watches as a manager does, and then sends these.
    Floor(Vec<ApiRequest>),
    /// A floor that does nothing but to send these, when it is told to.
    Sender(Vec<ApiRequest>),
}

/// A process that is measured. Killed when dropped.
pub(super) struct Contender {
    pub(super) meter: Meter,
    pub(super) started: Instant,
    process: Running,
}

enum Running {
    /// With a client of its address for health.
    Manager(Process, Client),
    /// With the time after which it was ready.
    Floor(Talk, Duration),
}

/// What one run of a contender came to.
pub(super) struct Run<T> {
    /// How long what took.
    pub(super) took: T,
    pub(super) cpu: Duration,
    pub(super) held: Held,
    pub(super) requests: Requests,
}

/// Raises a stage, lets `act` play on it, and takes it away.
pub(super) fn play<T>(act: impl AsyncFnOnce(&mut Stage) -> Result<T>) -> Result<T> {
    crate::play(Stage::raise(), act, async |stage| stage.plane.end().await)
}

impl Stage {
    async fn raise() -> Result<Self> {
        let plane = leadsman::control_plane().await?;
        Ok(Self {
            client: plane.client().await?,
            kubeconfig: plane.kubeconfig_for(MANAGER, &["system:serviceaccounts"])?,
            plane,
        })
    }

    /// What the account under test has sent since then.
    pub(super) fn requests(&self, since: Mark) -> Result<Requests> {
        Ok(Requests::of(MANAGER, &self.plane.audit(since)?))
    }

    /// Starts a process, perhaps one that reaches the API server through a proxy.
    pub(super) async fn start(&self, who: Who, proxy: Option<&ByteCounter>) -> Result<Contender> {
        let kubeconfig = match proxy {
            Some(proxy) => self.kubeconfig_through(proxy)?,
            None => self.kubeconfig.clone(),
        };
        match who {
            Who::Manager => self.start_manager(&kubeconfig),
            Who::Floor(requests) => self.start_floor(kubeconfig, &requests, true).await,
            Who::Sender(requests) => self.start_floor(kubeconfig, &requests, false).await,
        }
    }

    /// The same kubeconfig with the proxy's URL in it.
    fn kubeconfig_through(&self, proxy: &ByteCounter) -> Result<PathBuf> {
        let text = std::fs::read_to_string(&self.kubeconfig)?;
        let path = self.plane.folder().join("through.kubeconfig");
        std::fs::write(&path, text.replace(self.plane.server(), &proxy.server()))?;
        Ok(path)
    }

    fn start_manager(&self, kubeconfig: &Path) -> Result<Contender> {
        // Another process may take the address first; the manager then says so and ends.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut health = kube::Config::new(format!("http://{address}").parse()?);
        health.default_retry = false;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(leadsman::program()?)
            .args(["manager", "--metrics-bind-address", &address.to_string()])
            .arg("--kubeconfig")
            .arg(kubeconfig);
        let started = clock::monotonic();
        let process = Process::start(command, &self.plane.folder().join("logs/manager.log"))?;
        Ok(Contender {
            meter: Meter(process.pid().context("it has ended at once")?),
            started,
            process: Running::Manager(process, Client::try_from(health)?),
        })
    }

    async fn start_floor(
        &self,
        kubeconfig: PathBuf,
        requests: &[ApiRequest],
        lists: bool,
    ) -> Result<Contender> {
        let file = self.plane.folder().join("floor.json");
        std::fs::write(&file, serde_json::to_string(requests)?)?;
        let part = Part::Manager(floor::Order {
            kubeconfig,
            requests: file,
            lists,
        });
        let started = clock::monotonic();
        let talk = Talk::here(&part).await?;
        Ok(Contender {
            meter: talk.meter,
            started,
            process: Running::Floor(talk, started.elapsed()),
        })
    }

    /// Ends a contender; what its run came to: what took how long, the CPU that this took, and all that was sent since then.
    pub(super) async fn finish<T>(
        &self,
        contender: Contender,
        (took, cpu): (T, Duration),
        since: Mark,
    ) -> Result<Run<T>> {
        let run = Run {
            took,
            cpu,
            held: contender.meter.held()?,
            requests: self.requests(since)?,
        };
        contender.end().await?;
        Ok(run)
    }
}

impl Contender {
    /// Waits until a manager's `/readyz` says 200, or a floor that it is ready; how long after the start that was.
    pub(super) async fn ready(&self) -> Result<Duration> {
        let health = match &self.process {
            Running::Manager(_, health) => health,
            Running::Floor(_, ready) => return Ok(*ready),
        };
        let asking = async {
            let request = || http::Request::get("/readyz").body(Vec::new());
            while health.request_text(request()?).await.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(self.started.elapsed())
        };
        let ready = tokio::time::timeout(PATIENCE, asking).await;
        ready.with_context(|| format!("/readyz never said 200{}", self.last_lines()))?
    }

    /// Tells a sender to send all it has, and waits until it has; a manager need not be told.
    pub(super) async fn send(&mut self) -> Result<()> {
        match &mut self.process {
            Running::Manager(..) => Ok(()),
            Running::Floor(talk, _) => talk.ask().await,
        }
    }

    pub(super) fn is_manager(&self) -> bool {
        matches!(self.process, Running::Manager(..))
    }

    /// SIGTERM to a manager, and waits for its end.
    pub(super) async fn end(self) -> Result<()> {
        let lines = self.last_lines();
        match self.process {
            Running::Manager(process, _) => process.terminate().await.context(lines),
            Running::Floor(..) => Ok(()),
        }
    }

    /// The end of a manager's log, for an error's text.
    pub(super) fn last_lines(&self) -> String {
        let Running::Manager(process, _) = &self.process else {
            return String::new();
        };
        let text = process.log().unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        format!("; the last lines of the manager's log:\n{last}")
    }
}
