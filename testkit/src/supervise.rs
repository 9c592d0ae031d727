//! The supervisor: the first process of a node's namespaces, or of a control plane. It carries out a
//! [`Plan`], obeys orders, and ends, with all parts, when its stdin closes.
//!
//! Parts start as soon as what they come after is ready, so a bed takes as long as its longest
//! chain. In a node bed the supervisor is process 1 of its namespace: its end is the end of every
//! process in there, and it reaps orphans. In a control plane its parts carry a parent-death
//! signal; it starts them from its main thread, which lives as long as the process.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures::future::try_join_all;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::clock;
use crate::plan::{Part, Plan, Ready, Work};
use crate::processes;
use crate::progress::Progress;
use crate::readiness::Readiness;
use crate::request::{Event, Order, report};

/// How long a part may take to become ready. Beds are raised beside compilers on small machines.
const PATIENCE: Duration = Duration::from_mins(3);
/// Above this, Go's programs collect garbage more often than when their heap has doubled. Only the API server of the bench's largest
/// cluster comes near it, and would take twice as much.
const GO_MEMORY: &str = "16GiB";
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Reads a plan from stdin, carries it out, obeys orders, and returns when stdin closes.
/// `folder` is the bed's own.
pub async fn supervise(folder: PathBuf) -> Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let Some(plan) = input.next_line().await? else {
        return Ok(());
    };
    let plan: Plan = serde_json::from_str(&plan).context("the plan")?;
    let supervisor = Supervisor {
        plan,
        readiness: Readiness::new(&folder),
        running: RefCell::default(),
    };
    let mut closed = false;
    let outcome = tokio::select! {
        outcome = supervisor.raise() => outcome,
        () = supervisor.reap_orphans() => Ok(()),
        // An order before all is up is not expected; the pipe's end is.
        _ = input.next_line() => { closed = true; Ok(()) }
    };
    if let Err(error) = &outcome {
        report(&Event::Failed(format!("{error:#}")));
        supervisor.end().await;
        return outcome;
    }
    if !closed {
        report(&Event::Raised);
        tokio::select! {
            () = supervisor.carry_out_orders(&mut input) => {}
            () = supervisor.reap_orphans() => {}
            () = supervisor.watch() => {}
        }
    }
    supervisor.end().await;
    Ok(())
}

struct Supervisor {
    plan: Plan,
    readiness: Readiness,
    running: RefCell<BTreeMap<String, Child>>,
}

impl Supervisor {
    async fn raise(&self) -> Result<()> {
        let (ready, _) = watch::channel(BTreeSet::new());
        try_join_all(
            self.plan
                .parts
                .iter()
                .map(|part| self.raise_part(part, &ready)),
        )
        .await?;
        Ok(())
    }

    async fn raise_part(&self, part: &Part, ready: &watch::Sender<BTreeSet<String>>) -> Result<()> {
        let mut others = ready.subscribe();
        others
            .wait_for(|ready| part.after.iter().all(|name| ready.contains(name)))
            .await?;
        let started = clock::now();
        self.start(part).await?;
        let seconds = started.elapsed().as_secs_f64();
        report(&Event::Progress(Progress::Step {
            name: part.name.clone(),
            seconds,
        }));
        ready.send_modify(|ready| {
            ready.insert(part.name.clone());
        });
        Ok(())
    }

    async fn start(&self, part: &Part) -> Result<()> {
        match &part.work {
            Work::Commands(commands) => {
                for command in commands {
                    self.spawn(&part.name, command)?;
                    self.wait_for_end(&part.name, command).await?;
                }
                Ok(())
            }
            Work::Program { command, ready } => {
                self.spawn(&part.name, command)?;
                self.wait_until_ready(&part.name, ready).await
            }
            Work::Wait(ready) => self.wait_until_ready(&part.name, ready).await,
        }
    }

    fn spawn(&self, name: &str, command: &[String]) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log(&self.plan.logs, name))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(command)
            .env("PATH", processes::search_path())
            .env("GOMEMLIMIT", GO_MEMORY)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{name}: cannot start {}", command.join(" ")))?;
        self.running.borrow_mut().insert(name.to_owned(), child);
        Ok(())
    }

    async fn wait_for_end(&self, name: &str, command: &[String]) -> Result<()> {
        let deadline = clock::now() + PATIENCE;
        while clock::now() < deadline {
            if let Some(status) = self.ended(name)? {
                if status.success() {
                    return Ok(());
                }
                bail!(
                    "{name}: `{}` ended with {status}{}",
                    command.join(" "),
                    self.last_log_lines(name)
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!(
            "{name}: `{}` did not end in {PATIENCE:?}{}",
            command.join(" "),
            self.last_log_lines(name)
        )
    }

    async fn wait_until_ready(&self, name: &str, ready: &Ready) -> Result<()> {
        let deadline = clock::now() + PATIENCE;
        loop {
            if let Some(status) = self.ended(name)? {
                bail!(
                    "{name} ended with {status} before it was ready{}",
                    self.last_log_lines(name)
                );
            }
            let Err(reason) = self.readiness.look(ready).await else {
                return Ok(());
            };
            if clock::now() > deadline {
                bail!(
                    "{name} was not ready in {PATIENCE:?}: {reason:#}{}",
                    self.last_log_lines(name)
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The status of a part that has ended.
    fn ended(&self, name: &str) -> Result<Option<std::process::ExitStatus>> {
        let mut running = self.running.borrow_mut();
        Ok(running
            .get_mut(name)
            .map(Child::try_wait)
            .transpose()?
            .flatten())
    }

    fn last_log_lines(&self, name: &str) -> String {
        let words = processes::tail(&log(&self.plan.logs, name), 12);
        let place = log(&self.plan.logs_after_failure, name);
        format!("\nthe last lines of its log, {}:\n{words}", place.display())
    }

    async fn carry_out_orders(&self, input: &mut tokio::io::Lines<BufReader<tokio::io::Stdin>>) {
        while let Ok(Some(line)) = input.next_line().await {
            let outcome = match serde_json::from_str(&line) {
                Ok(Order::Stop(name)) => self.stop(&name).await,
                Ok(Order::Start(name)) => self.start_again(&name).await,
                Ok(order) => Err(anyhow!("{order:?} is for the keeper")),
                Err(error) => Err(error.into()),
            };
            report(&match outcome {
                Ok(()) => Event::Done,
                Err(error) => Event::Refused(format!("{error:#}")),
            });
        }
    }

    async fn stop(&self, name: &str) -> Result<()> {
        let child = self.running.borrow_mut().remove(name);
        child
            .with_context(|| format!("{name} is not running"))?
            .kill()
            .await?;
        Ok(())
    }

    async fn start_again(&self, name: &str) -> Result<()> {
        if self.ended(name)?.is_none() && self.running.borrow().contains_key(name) {
            bail!("{name} is running already");
        }
        self.start(
            self.part(name)
                .with_context(|| format!("this bed has no part {name}"))?,
        )
        .await
    }

    /// Reaps processes that were reparented to this one. Never returns.
    async fn reap_orphans(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let ours: BTreeSet<u32> = self
                .running
                .borrow()
                .values()
                .filter_map(Child::id)
                .collect();
            for child in processes::children() {
                if !ours.contains(&child.as_raw().cast_unsigned()) {
                    let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
                }
            }
        }
    }

    /// Reports parts that end by themselves, so that a test that fails because of one shows why.
    async fn watch(&self) {
        let mut reported = BTreeSet::new();
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            for (name, child) in self.running.borrow_mut().iter_mut() {
                let program = self
                    .part(name)
                    .is_some_and(|part| matches!(part.work, Work::Program { .. }));
                let Ok(Some(status)) = child.try_wait() else {
                    reported.remove(name);
                    continue;
                };
                if program && reported.insert(name.clone()) {
                    eprintln!(
                        "bed: {name} ended by itself with {status}{}",
                        self.last_log_lines(name)
                    );
                }
            }
        }
    }

    fn part(&self, name: &str) -> Option<&Part> {
        self.plan.parts.iter().find(|part| part.name == name)
    }

    async fn end(&self) {
        // As process 1 our end ends everything at once; nothing is gained by asking first.
        if Pid::this().as_raw() == 1 {
            return;
        }
        let children = std::mem::take(&mut *self.running.borrow_mut());
        for (_, mut child) in children {
            let _ = child.kill().await;
        }
    }
}

fn log(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}
