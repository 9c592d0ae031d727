//! A control plane with leadsman's manifests, for the length of a bench, and who is measured on it: the manager, or a bare
//! loop in its place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use leadsman_testkit::ControlPlane;
use leadsman_testkit::leadsman::{self, MANAGER};
use leadsman_tests::{Link, Process};
use serde_json::{Value, json};
use tokio::process::Command;

use super::api::{ApiRequest, CREATE};
use super::roll_out::floor::{Order as RollOutOrder, PodPatches};
use super::{PATIENCE, QUIET, floor};
use crate::meter::{Held, Meter};
use crate::part::{Part, Talk};
use crate::progress::{Step, wait};
use crate::requests::{Requests, Since};

/// Between two questions for readiness, which no watch tells.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at a manager's counters.
const BETWEEN_COUNTS: Duration = Duration::from_secs(1);
/// How long the writes of a manager may take that are waited for by their number.
const PATIENCE_WITH_WRITES: Duration = Duration::from_mins(30);

/// The control plane, and who is who on it.
pub(super) struct Stage {
    pub(super) plane: ControlPlane,
    /// As administrator: controllers, kubelets, agents and users are all played by it.
    pub(super) client: Client,
    /// Of the manager's account, which floors use too.
    kubeconfig: PathBuf,
    /// Of managers, beside the usual ones.
    flags: Vec<String>,
    gates: String,
}

/// Who is measured.
pub(super) enum Who {
    Manager,
    /// A floor that lists and watches as a manager does, and then sends these.
    Floor(Vec<ApiRequest>),
    /// A floor that does nothing but to send these, when it is told to.
    Sender(Vec<ApiRequest>),
    /// A floor that upgrades pods by these patches, when it is told to.
    RollOut(PodPatches),
}

/// A process that is measured. Killed when dropped.
pub(super) struct Contender {
    pub(super) meter: Meter,
    started: Since,
    process: Running,
}

enum Running {
    /// With a client of its address for health.
    Manager(Process, Client),
    /// With the time after which it was ready.
    Floor(Talk, Duration),
}

/// What one run of a contender came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// After how long it was ready, where that was asked.
    pub(super) ready: Duration,
    pub(super) cpu: Duration,
    pub(super) held: Held,
    pub(super) requests: Requests,
}

/// Raises a stage, lets `act` play on it, and takes it away.
pub(super) fn play<T>(act: impl AsyncFnOnce(&mut Stage) -> Result<T>) -> Result<T> {
    play_with("", act)
}

/// The same, with these feature gates.
pub(super) fn play_with<T>(
    gates: &str,
    act: impl AsyncFnOnce(&mut Stage) -> Result<T>,
) -> Result<T> {
    crate::play(Stage::raise(gates), act, async |stage| {
        stage.plane.end().await
    })
}

impl Stage {
    async fn raise(gates: &str) -> Result<Self> {
        let plane = leadsman::control_plane_with(gates).await?;
        Ok(Self {
            client: plane.client().await?,
            kubeconfig: plane.kubeconfig_for(MANAGER, &["system:serviceaccounts"])?,
            flags: flags(gates)?,
            gates: gates.to_owned(),
            plane,
        })
    }

    /// Has the managers that start from now on listen at another port, as two cannot share one.
    pub(super) fn take_another_port(&mut self) -> Result<()> {
        self.flags = flags(&self.gates)?;
        Ok(())
    }

    /// What the account under test has sent since then.
    pub(super) fn requests(&self, since: Since) -> Result<Requests> {
        since.requests(&self.plane, MANAGER)
    }

    /// Starts a process, perhaps one that reaches the API server through a proxy.
    pub(super) async fn start(&self, who: Who, proxy: Option<&Link>) -> Result<Contender> {
        let kubeconfig = match proxy {
            Some(proxy) => self
                .plane
                .kubeconfig_through(&self.kubeconfig, &proxy.url())?,
            None => self.kubeconfig.clone(),
        };
        let file = self.plane.folder().join("floor.json");
        let lists = matches!(who, Who::Floor(_));
        let part = match who {
            Who::Manager => return self.start_manager(&kubeconfig),
            Who::Floor(requests) | Who::Sender(requests) => {
                std::fs::write(&file, serde_json::to_string(&requests)?)?;
                Part::Manager(floor::Order {
                    kubeconfig,
                    requests: file,
                    lists,
                })
            }
            Who::RollOut(patches) => {
                std::fs::write(&file, serde_json::to_string(&patches)?)?;
                Part::RollOut(RollOutOrder {
                    kubeconfig,
                    patches: file,
                })
            }
        };
        let started = Since::now(&self.plane)?;
        let talk = Talk::here(&part).await?;
        Ok(Contender {
            meter: talk.meter,
            started,
            process: Running::Floor(talk, started.elapsed()),
        })
    }

    fn start_manager(&self, kubeconfig: &Path) -> Result<Contender> {
        // Another process may take the address first; the manager then says so and ends.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut health = kube::Config::new(format!("http://{address}").parse()?);
        health.default_retry = false;
        let manager = leadsman::manager(kubeconfig, &address.to_string())?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(manager.as_std().get_program())
            .args(manager.as_std().get_args())
            .args(&self.flags);
        let started = Since::now(&self.plane)?;
        let process = Process::start(command, &self.plane.folder().join("logs/manager.log"))?;
        Ok(Contender {
            meter: Meter(process.pid().context("it has ended at once")?),
            started,
            process: Running::Manager(process, Client::try_from(health)?),
        })
    }

    /// A run: starts a process, lets `act` wait until what it is to do is done, and then so much longer for what it should
    /// not; and ends it. CPU is what it had used when `act` ended; requests are all since the start.
    pub(super) async fn run(
        &self,
        name: &str,
        (who, proxy): (Who, Option<&Link>),
        act: impl AsyncFnOnce(&Contender) -> Result<Duration>,
        longer: Duration,
    ) -> Result<Run> {
        let contender = self.start(who, proxy).await?;
        let ready = act(&contender).await;
        let ready = ready.with_context(|| format!("{name}{}", contender.last_lines()))?;
        let cpu = contender.meter.cpu()?;
        wait(format!("{name}: what else is written"), longer).await;
        let run = Run {
            ready,
            cpu,
            held: contender.meter.held()?,
            requests: self.requests(contender.started)?,
        };
        contender.end().await?;
        Ok(run)
    }

    /// What a contender that runs already needs for what `act` waits for, and for what it does for a while after that.
    pub(super) async fn during(
        &self,
        contender: &Contender,
        name: &str,
        act: impl Future<Output = Result<()>>,
    ) -> Result<Run> {
        let (since, before) = (Since::now(&self.plane)?, contender.meter.cpu()?);
        let step = Step::begin(name);
        let done = act.await;
        done.with_context(|| format!("{name}{}", contender.last_lines()))?;
        drop(step);
        wait(format!("{name}: what else is written"), QUIET).await;
        Ok(Run {
            ready: Duration::ZERO,
            cpu: contender.meter.cpu()?.saturating_sub(before),
            held: contender.meter.held()?,
            requests: self.requests(since)?,
        })
    }

    /// The requests of a floor that does nothing but to send these.
    pub(super) async fn send_bare(&self, requests: Vec<ApiRequest>) -> Result<Requests> {
        let mut floor = self.start(Who::Sender(requests), None).await?;
        let since = Since::now(&self.plane)?;
        floor.send().await?;
        let requests = self.requests(since)?;
        floor.end().await?;
        Ok(requests)
    }

    /// Makes a namespace.
    pub(super) async fn make_namespace(&self, name: &str) -> Result<()> {
        let body = json!({"metadata": {"name": name}});
        let namespace = ApiRequest::new(CREATE, "/api/v1/namespaces", "bench", &body);
        namespace.send(&self.client).await.map(drop)
    }
}

/// An owner of this kind, without which the manager's account may create nothing: a floor has the same rights.
pub(super) fn owner(kind: &str) -> Value {
    json!([{
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": kind,
        "name": "floor",
        "uid": "00000000-0000-4000-8000-000000000000",
        "controller": true,
    }])
}

/// The flags of a manager with these feature gates: those of the webhook among them, which is called at a free port of this
/// machine, as there is no Service.
fn flags(gates: &str) -> Result<Vec<String>> {
    if gates.is_empty() {
        return Ok(Vec::new());
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok(vec![
        format!("--feature-gates={gates}"),
        format!("--webhook-bind-address={free}"),
        format!("--webhook-url=https://{free}"),
    ])
}

impl Run {
    /// Of some runs the middle one, of an even number the worse of the two in the middle; with the highest peak of memory
    /// of all. And of each kind of request the largest count.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn middle(mut runs: Vec<Self>, by: impl Fn(&Self) -> Duration) -> (Self, Requests) {
        let requests = Requests::largest(runs.iter().map(|run| &run.requests));
        let peak = runs.iter().map(|run| run.held.peak).max();
        runs.sort_by_key(by);
        let mut middle = runs.swap_remove(runs.len() / 2);
        middle.held.peak = peak.unwrap_or_default();
        (middle, requests)
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
        ready.context("/readyz never said 200")?
    }

    /// Waits until a manager has said of each of these features that its writes begin. After a takeover, and where there never was
    /// a Lease, it lists again before that, long after it was ready.
    pub(super) async fn begins_writes(&self, features: &[&str]) -> Result<()> {
        let saying = async {
            loop {
                let log = self.log();
                let said: Vec<_> = log
                    .lines()
                    .filter(|line| line.contains("writes begin"))
                    .collect();
                let has_begun = |feature: &&str| said.iter().any(|line| line.contains(*feature));
                if features.iter().all(has_begun) {
                    return;
                }
                tokio::time::sleep(BETWEEN_COUNTS).await;
            }
        };
        let _step = Step::begin("the first writes of each feature");
        let said = tokio::time::timeout(PATIENCE_WITH_WRITES, saying).await;
        said.context("half an hour is over")
    }

    /// Waits until a manager has carried out so many writes of a kind, by its own count.
    pub(super) async fn written(&self, kind: &str, count: usize) -> Result<()> {
        let health = self.health().context("a floor counts nothing")?;
        let of_kind = format!(r#"leadsman_writes_total{{write="{kind}",result="done"}} "#);
        let counting = async {
            loop {
                let request = http::Request::get("/metrics").body(Vec::new())?;
                let text = health.request_text(request).await?;
                let written = text.lines().find_map(|line| line.strip_prefix(&of_kind));
                let written: usize = written.context("nothing counts these writes")?.parse()?;
                if written >= count {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(BETWEEN_COUNTS).await;
            }
        };
        let _step = Step::begin(format!("{count} × {kind}"));
        let counted = tokio::time::timeout(PATIENCE_WITH_WRITES, counting).await;
        counted.context("half an hour is over")?
    }

    /// Tells a sender to send all it has, and waits until it has; a manager need not be told.
    pub(super) async fn send(&mut self) -> Result<()> {
        match &mut self.process {
            Running::Manager(..) => Ok(()),
            Running::Floor(talk, _) => talk.ask().await,
        }
    }

    /// A client of a manager's address for health.
    pub(super) fn health(&self) -> Option<Client> {
        match &self.process {
            Running::Manager(_, health) => Some(health.clone()),
            Running::Floor(..) => None,
        }
    }

    pub(super) fn is_manager(&self) -> bool {
        matches!(self.process, Running::Manager(..))
    }

    /// SIGTERM to a manager, and waits for its end. What it has warned of is printed: it may explain a figure.
    pub(super) async fn end(self) -> Result<()> {
        let is_warning = |line: &&str| line.contains(" WARN ") && !line.contains("not ready");
        for line in self.log().lines().filter(is_warning) {
            eprintln!("bench: the manager warned: {line}");
        }
        let lines = self.last_lines();
        match self.process {
            Running::Manager(process, _) => process.terminate().await.context(lines),
            Running::Floor(..) => Ok(()),
        }
    }

    /// The end of a manager's log, for an error's text.
    pub(super) fn last_lines(&self) -> String {
        if !self.is_manager() {
            return String::new();
        }
        let text = self.log();
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        format!("; the last lines of the manager's log:\n{last}")
    }

    /// The log of a manager since it started; managers of one stage share a file.
    fn log(&self) -> String {
        let Running::Manager(process, _) = &self.process else {
            return String::new();
        };
        let text = process.log().unwrap_or_default();
        let begin = text.rfind("leadsman manager version=");
        text[begin.unwrap_or_default()..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_run_is_no_better_than_half() {
        let middle = |runs: &[u64]| {
            let runs = runs.iter().map(|seconds| Run {
                ready: Duration::from_secs(*seconds),
                ..Run::default()
            });
            Run::middle(runs.collect(), |run| run.ready)
                .0
                .ready
                .as_secs()
        };
        assert_eq!(middle(&[3, 1, 2]), 2);
        assert_eq!(middle(&[4, 1, 3, 2]), 3);
    }
}
