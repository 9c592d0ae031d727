//! The bench's end of the conversation with a process that it has started of itself.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadsman_testkit::NodeBed;
use leadsman_testkit::node::Inside;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Part;
use crate::meter::Meter;

/// For an answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// A process that does its part until this is dropped.
pub(crate) struct Talk {
    /// What it costs.
    pub(crate) meter: Meter,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _process: Process,
}

/// Held for what dropping it does: it kills.
#[expect(dead_code, reason = "as above")]
enum Process {
    Here(Child),
    Inside(Inside),
}

impl Talk {
    /// Starts a process here.
    pub(crate) async fn here(part: &Part) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(part.arguments()?).kill_on_drop(true);
        // Ctrl-C on a terminal is for the bench, whose end is the end of its pipes.
        command.process_group(0);
        let mut child = piped(&mut command).spawn().context("starting a part")?;
        let pid = child.id().context("it has just been started")?;
        let pipes = (child.stdin.take(), child.stdout.take());
        Self::begin(pid, pipes, Process::Here(child)).await
    }

    /// Starts a process in a bed.
    pub(crate) async fn inside(bed: &NodeBed, part: &Part) -> Result<Self> {
        let mut command = bed.command_inside(std::env::current_exe()?);
        command.args(part.arguments()?);
        piped(&mut command);
        let mut inside = bed.spawn_inside(command).await?;
        let pid = inside.pid().as_raw().unsigned_abs();
        let pipes = (inside.stdin.take(), inside.stdout.take());
        Self::begin(pid, pipes, Process::Inside(inside)).await
    }

    async fn begin(
        pid: u32,
        pipes: (Option<ChildStdin>, Option<ChildStdout>),
        process: Process,
    ) -> Result<Self> {
        let (Some(input), Some(output)) = pipes else {
            anyhow::bail!("a part has no pipes");
        };
        let mut talk = Self {
            meter: Meter::new(pid),
            input,
            output: BufReader::new(output).lines(),
            _process: process,
        };
        let line = talk.line().await?;
        ensure!(line == "ready", "a part began with {line:?}");
        Ok(talk)
    }

    /// Asks how things stand.
    pub(crate) async fn ask<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.input.write_all(b"?\n").await?;
        let line = self.line().await?;
        serde_json::from_str(&line).with_context(|| format!("a part answered {line:?}"))
    }

    async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line());
        let line = line.await.context("a part does not answer")??;
        line.context("a part has ended")
    }
}

fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped())
}
