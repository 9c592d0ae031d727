//! Processes that the bench starts of itself, so that what they cost can be told from what the bench does: bare loops,
//! the engine, and the index among so many pods.
//!
//! Such a process reads what to do, says `ready`, answers each further line that it reads with a line, and ends when its
//! input does.
//!
//! `Part` and `Questions` are such a process's end of the conversation, [`Talk`] is the bench's; `bare` is what the agent
//! exchanges, with the same libraries and no logic.

pub(crate) mod bare;

use std::any::Any;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadsman_testkit::NodeBed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin};
use tokio::process::{ChildStdin, ChildStdout, Command};

use self::bare::Tally;
use crate::cluster::{floor, roll_out};
use crate::meter::Meter;
use crate::progress::wait;
use crate::report::Amount as _;
use crate::{engine, index};

/// The argument that makes the bench's program such a process.
const SIGN: &str = "--part";

/// What such a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The agent's exchanges, bare.
    Bare(bare::Order),
    /// The manager's exchanges with the API server, bare.
    Manager(floor::Order),
    /// The manager's roll-out of a sidecar, bare.
    RollOut(roll_out::floor::Order),
    /// The rules and the executors, without a cluster.
    Engine(bare::Order),
    /// The index among so many pods.
    Index(index::Order),
}

impl Part {
    async fn run(self, questions: Questions) -> Result<()> {
        match self {
            Self::Bare(order) => bare::run(order, questions).await,
            Self::Manager(order) => floor::run(order, questions).await,
            Self::RollOut(order) => roll_out::floor::run(order, questions).await,
            Self::Engine(order) => engine::run(order, questions).await,
            Self::Index(order) => index::run(&order, questions).await,
        }
    }
}

/// What the bench asks of such a process, a line for each question.
pub(crate) struct Questions(Lines<BufReader<Stdin>>);

impl Questions {
    /// Says that all is ready, then answers until nobody asks any more.
    pub(crate) async fn answer<T: Serialize>(
        mut self,
        mut answer: impl AsyncFnMut() -> Result<T>,
    ) -> Result<()> {
        // Each line is written out at its end.
        println!("ready");
        while self.0.next_line().await?.is_some() {
            println!("{}", serde_json::to_string(&answer().await?)?);
        }
        Ok(())
    }
}

/// Does what such a process is to do, if this is one.
pub(crate) fn run_if_asked() -> Option<Result<()>> {
    (std::env::args().nth(1)? == SIGN).then(run)
}

fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let order = lines.next_line().await?.context("a part needs an order")?;
        let part: Part = serde_json::from_str(&order).context("what a part is to do")?;
        drop(order);
        part.run(Questions(lines)).await
    });
    // The one blocking thread sits in a read of the standard input.
    runtime.shutdown_background();
    ended
}

/// For an answer. The largest index takes half a minute, and a build may run beside it.
const PATIENCE: Duration = Duration::from_mins(5);

/// A process that does its part until this is dropped.
pub(crate) struct Talk {
    pub(crate) meter: Meter,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Held for its end: it kills.
    _process: Box<dyn Any + Send>,
}

impl Talk {
    /// Starts a process here.
    pub(crate) async fn here(part: &Part) -> Result<Self> {
        let mut command = with_pipes(Command::new(std::env::current_exe()?));
        // Ctrl-C on a terminal is for the bench, whose end is the end of its pipes.
        command.kill_on_drop(true).process_group(0);
        let mut child = command.spawn().context("starting a part")?;
        let pid = child.id().context("it has just been started")?;
        let pipes = (child.stdin.take(), child.stdout.take());
        Self::begin(part, pid, pipes, Box::new(child)).await
    }

    /// Starts a process in a bed.
    pub(crate) async fn inside(bed: &NodeBed, part: &Part) -> Result<Self> {
        let command = with_pipes(bed.command_inside(std::env::current_exe()?)?);
        let mut inside = bed.spawn_inside(command).await?;
        let pid = inside.pid().as_raw().unsigned_abs();
        let pipes = (inside.stdin.take(), inside.stdout.take());
        Self::begin(part, pid, pipes, Box::new(inside)).await
    }

    async fn begin(
        part: &Part,
        pid: u32,
        pipes: (Option<ChildStdin>, Option<ChildStdout>),
        process: Box<dyn Any + Send>,
    ) -> Result<Self> {
        let mut talk = Self {
            meter: Meter(pid),
            input: pipes.0.context("a part has no input")?,
            output: BufReader::new(pipes.1.context("a part has no output")?).lines(),
            _process: process,
        };
        let line = talk.exchange(&serde_json::to_string(part)?).await?;
        ensure!(line == "ready", "a part began with {line:?}");
        Ok(talk)
    }

    /// Asks how things stand.
    pub(crate) async fn ask<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.exchange("?").await?;
        serde_json::from_str(&line).with_context(|| format!("a part answered {line:?}"))
    }

    async fn exchange(&mut self, line: &str) -> Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        let answer = tokio::time::timeout(PATIENCE, self.output.next_line());
        answer
            .await
            .context("a part does not answer")??
            .context("a part has ended")
    }

    /// Lets a bare loop settle. Returns the CPU that an exchange then costs it.
    pub(crate) async fn cost_of_exchange(
        &mut self,
        name: &str,
        settle: Duration,
        window: Duration,
    ) -> Result<Duration> {
        wait(format!("{name}: floor: settling"), settle).await;
        let before: Tally = self.ask().await?;
        let measuring = format!("{name}: floor: measuring");
        let cpu = self.meter.cpu_over(measuring, window).await?;
        let after: Tally = self.ask().await?;
        let (done, failed) = (after.done - before.done, after.failed);
        ensure!(
            failed == 0 && done > 0,
            "{name}: of the bare exchanges {done} were done and {failed} failed"
        );
        Ok(cpu.div_f64(done.amount()))
    }
}

fn with_pipes(mut command: Command) -> Command {
    command
        .arg(SIGN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}
