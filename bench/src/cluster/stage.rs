//! A control plane with leadsman's manifests, for the length of a bench, and the manager that is measured on it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman::{self, MANAGER};
use leadsman_testkit::{ControlPlane, Options};
use leadsman_tests::Process;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::PATIENCE;
use crate::clock;
use crate::meter::Meter;
use crate::requests::Requests;

/// How long a manager may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);
/// Between two questions for readiness, which no watch tells.
const PAUSE: Duration = Duration::from_millis(10);

/// The control plane, and who is who on it.
pub(super) struct Stage {
    pub(super) plane: ControlPlane,
    /// As administrator: controllers, kubelets, agents and users are all played by it.
    pub(super) client: Client,
    /// Of the manager's account, which floors use too.
    pub(super) kubeconfig: PathBuf,
}

/// Raises a stage, lets `act` play on it, and takes it away.
pub(super) fn play<T>(act: impl AsyncFnOnce(&mut Stage) -> Result<T>) -> Result<T> {
    crate::play(Stage::raise(), act, async |stage| stage.plane.end().await)
}

impl Stage {
    async fn raise() -> Result<Self> {
        let progress = leadsman_testkit::progress::to_stderr();
        let plane = ControlPlane::start(Options::default(), progress).await?;
        let client = plane.client().await?;
        leadsman::install(&plane).await?;
        let kubeconfig = plane.kubeconfig_for(MANAGER, &["system:serviceaccounts"])?;
        Ok(Self {
            plane,
            client,
            kubeconfig,
        })
    }

    /// What the account under test has sent since then.
    pub(super) fn requests(&self, since: Mark) -> Result<Requests> {
        Ok(Requests::of(MANAGER, &self.plane.audit(since)?))
    }

    /// The same kubeconfig with another URL in it.
    pub(super) fn kubeconfig_through(&self, server: &str) -> Result<PathBuf> {
        let text = std::fs::read_to_string(&self.kubeconfig)?;
        let through = text.replace(self.plane.server(), server);
        ensure!(
            through != text,
            "the kubeconfig does not name {}",
            self.plane.server()
        );
        let path = self.plane.folder().join("through.kubeconfig");
        std::fs::write(&path, through).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    pub(super) fn start_manager(&self, kubeconfig: &Path) -> Result<Manager> {
        // Another process may take the address first; the manager then says so and ends.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(leadsman::program()?);
        command.args([
            "manager",
            "--metrics-bind-address",
            &address.to_string(),
            "--kubeconfig",
        ]);
        command.arg(kubeconfig);
        let log = self.plane.folder().join("logs/manager.log");
        let started = clock::now();
        let process = Process::start(command, &log)?;
        let meter = Meter(process.pid().context("it has ended at once")?);
        Ok(Manager {
            meter,
            started,
            address,
            process,
            log,
        })
    }
}

/// A manager that was started. Ended with the bench, however that ends.
pub(super) struct Manager {
    pub(super) meter: Meter,
    pub(super) started: Instant,
    address: SocketAddr,
    process: Process,
    log: PathBuf,
}

impl Manager {
    /// Waits until `/readyz` says 200; how long after the start that was.
    pub(super) async fn ready(&self) -> Result<Duration> {
        let asking = async {
            while !is_ready(self.address).await.unwrap_or_default() {
                tokio::time::sleep(PAUSE).await;
            }
            self.started.elapsed()
        };
        let ready = tokio::time::timeout(PATIENCE, asking).await;
        ready.with_context(|| format!("/readyz never said 200{}", self.last_lines()))
    }

    /// SIGTERM, and waits for its end.
    pub(super) async fn end(self) -> Result<()> {
        let lines = self.last_lines();
        self.process
            .terminate(GRACE)
            .await
            .with_context(|| format!("the end{lines}"))
    }

    /// SIGKILL.
    pub(super) async fn kill(self) -> Result<()> {
        self.process.kill().await
    }

    /// The end of its log, for an error's text.
    pub(super) fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(12)..];
        format!(
            "; the last lines of the manager's log:\n{}",
            last.join("\n")
        )
    }
}

async fn is_ready(address: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.0 200"))
}
