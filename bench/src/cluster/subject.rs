//! The process that is measured: a manager, or a floor. Ended with the bench, however that ends.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use leadsman_testkit::leadsman;
use leadsman_tests::process::Process;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use super::PATIENCE;
use super::exchange::Exchange;
use super::floor::Order;
use super::stage::Stage;
use crate::clock;
use crate::meter::Meter;
use crate::part::Part;

/// How long it may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);
/// Between two questions for readiness, which no watch tells.
const PAUSE: Duration = Duration::from_millis(10);

/// A started process.
pub(super) struct Subject {
    /// What it uses.
    pub(super) meter: Meter,
    /// When it was started.
    pub(super) started: Instant,
    process: Process,
    log: PathBuf,
}

/// What a floor does; see `floor`.
#[derive(Clone, Debug, Default)]
pub(super) struct Floor {
    /// List and watch everything first.
    pub(super) list: bool,
    /// Then send these.
    pub(super) exchanges: Vec<Exchange>,
}

impl Subject {
    /// Starts a manager that serves its readiness at `address`.
    pub(super) fn manager(stage: &Stage, kubeconfig: &Path, address: SocketAddr) -> Result<Self> {
        let mut command = bound_to_us(&leadsman::program()?);
        command
            .args(["manager", "--metrics-bind-address", &address.to_string()])
            .arg("--kubeconfig")
            .arg(kubeconfig);
        Self::start(stage, command, "manager")
    }

    /// Starts a floor that does its work at once.
    pub(super) fn floor(stage: &Stage, kubeconfig: &Path, floor: &Floor) -> Result<Self> {
        Self::start(
            stage,
            floor_command(stage, kubeconfig, floor, None)?,
            "floor",
        )
    }

    /// Starts a floor that lists, says so, and waits to be told to send.
    pub(super) async fn gated_floor(stage: &Stage, floor: &Floor) -> Result<(Self, Gate)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let gate = Some(listener.local_addr()?);
        let command = floor_command(stage, &stage.kubeconfig, floor, gate)?;
        let subject = Self::start(stage, command, "floor")?;
        let (stream, _) = tokio::time::timeout(PATIENCE, listener.accept())
            .await
            .with_context(|| format!("the floor did not call{}", subject.last_words()))??;
        let mut gate = Gate(BufReader::new(stream));
        let waiting = tokio::time::timeout(PATIENCE, gate.hear());
        waiting
            .await
            .with_context(|| format!("the floor is not ready{}", subject.last_words()))??;
        Ok((subject, gate))
    }

    fn start(stage: &Stage, command: Command, name: &str) -> Result<Self> {
        let log = stage.plane.folder().join(format!("logs/{name}.log"));
        let started = clock::now();
        let process = Process::start(command, &log)?;
        let pid = process.pid().context("it has ended at once")?;
        Ok(Self {
            meter: Meter::new(pid),
            started,
            process,
            log,
        })
    }

    /// Waits until `/readyz` says 200; how long after the start that was.
    pub(super) async fn ready(&self, address: SocketAddr) -> Result<Duration> {
        let mut last = String::new();
        let asking = async {
            loop {
                if let Ok(answer) = ask(address).await {
                    if answer.starts_with("HTTP/1.0 200") {
                        return self.started.elapsed();
                    }
                    last = answer;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(time) => Ok(time),
            Err(_) => bail!("/readyz never said 200 but {last:?}{}", self.last_words()),
        }
    }

    /// SIGTERM, and waits for its end.
    pub(super) async fn end(self) -> Result<()> {
        let words = self.last_words();
        let ended = self.process.terminate(GRACE).await;
        ended.with_context(|| format!("the end{words}"))
    }

    /// SIGKILL.
    pub(super) async fn kill(self) -> Result<()> {
        self.process.kill().await
    }

    /// The end of its log, for an error's text.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(12).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        format!("; the last lines of its log:\n{}", lines.join("\n"))
    }
}

/// What a floor is told, and what it says.
pub(super) struct Gate(BufReader<TcpStream>);

impl Gate {
    /// It may send now.
    pub(super) async fn open(&mut self) -> Result<()> {
        Ok(self.0.get_mut().write_all(b"go\n").await?)
    }

    /// Waits for its next word.
    async fn hear(&mut self) -> Result<()> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            bail!("it has hung up");
        }
        Ok(())
    }
}

/// A free address on loopback. Another process may take it first; it then says so and ends.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A command that is killed when we are.
fn bound_to_us(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn floor_command(
    stage: &Stage,
    kubeconfig: &Path,
    floor: &Floor,
    gate: Option<SocketAddr>,
) -> Result<Command> {
    let exchanges = stage.plane.folder().join("floor.jsonl");
    let lines = floor.exchanges.iter().map(serde_json::to_string);
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    std::fs::write(&exchanges, lines.join("\n"))?;
    let order = Order {
        kubeconfig: kubeconfig.to_owned(),
        exchanges,
        list: floor.list,
        gate,
    };
    let mut command = bound_to_us(&std::env::current_exe()?);
    command.args(Part::Manager(order).arguments()?);
    Ok(command)
}

async fn ask(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
