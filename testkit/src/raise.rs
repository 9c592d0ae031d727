//! The owner's side of a bed: starting the keeper, hearing its events, giving orders, and waiting
//! for its end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::cache;
use crate::keep;
use crate::processes;
use crate::progress::Progress;
use crate::request::{Bed, Event, Order, Request};

/// A bed that is up, held by the pipe to its keeper. Dropping it waits until all is taken away.
#[derive(Debug)]
pub(crate) struct Raised {
    keeper: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    bed: Option<Bed>,
}

impl Raised {
    /// Raises a bed. Blocks until it is up; on an error everything is taken away first.
    pub(crate) fn raise(
        request: &Request,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, Bed)> {
        let mut keeper = Command::new(program(progress)?)
            .arg("keep")
            .arg(serde_json::to_string(request)?)
            // Ctrl-C on a terminal reaches its whole group; the keeper must outlive the owner.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if request.detached {
                Stdio::null()
            } else {
                Stdio::inherit()
            })
            .spawn()
            .context("cannot start the bed's keeper")?;
        let input = keeper.stdin.take();
        let output = BufReader::new(
            keeper
                .stdout
                .take()
                .context("the keeper's stdout is a pipe")?,
        );
        let mut raised = Self {
            keeper,
            input,
            output,
            bed: None,
        };
        let mut awaited = request.supervisors();
        while awaited > 0 {
            match raised.next()? {
                Event::Progress(step) => progress(step),
                Event::Bed(bed) => raised.bed = Some(*bed),
                Event::Raised => awaited -= 1,
                Event::Failed(reason) => bail!("the bed could not be raised: {reason}"),
                Event::Done | Event::Refused(_) => {}
            }
        }
        let bed = raised
            .bed
            .clone()
            .context("the keeper did not say what the bed is")?;
        Ok((raised, bed))
    }

    /// Gives an order and waits until it is carried out.
    pub(crate) fn order(&mut self, order: &Order) -> Result<()> {
        let input = self
            .input
            .as_mut()
            .context("the bed has no pipe for orders")?;
        writeln!(input, "{}", serde_json::to_string(order)?).context("the bed has ended")?;
        loop {
            match self.next()? {
                // A supervisor that was started by an order answers by being up.
                Event::Done | Event::Raised => return Ok(()),
                Event::Refused(reason) | Event::Failed(reason) => bail!("{reason}"),
                Event::Progress(_) | Event::Bed(_) => {}
            }
        }
    }

    /// Lets the bed live on without its owner; its keeper then ends by a signal.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.order(&Order::Detach)?;
        // Dropping would wait for the bed's end. The pipes close with this process.
        std::mem::forget(self);
        Ok(())
    }

    fn next(&mut self) -> Result<Event> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.keeper.wait()?;
            bail!("the bed has ended (its keeper: {status})");
        }
        serde_json::from_str(&line).with_context(|| format!("the keeper said {line:?}"))
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        drop(self.input.take());
        let ended = self.keeper.wait();
        // A keeper that was killed has cleaned nothing.
        if let Some(bed) = &self.bed
            && (ended.is_err() || bed.folder.exists())
            && let Err(error) = keep::sweep(bed)
        {
            eprintln!("bed: {error:#}");
        }
    }
}

/// Where the logs of a bed that could not be raised are put.
pub(crate) fn logs_after_failure() -> Result<PathBuf> {
    Ok(cache::folder()?.join("last-failure"))
}

/// The program `leadsman-bed`: this one, or the one beside it in the target folder, compiled first
/// if it is missing or older than its sources.
pub(crate) fn program(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    const NAME: &str = "leadsman-bed";
    if let Some(given) = std::env::var_os("LEADSMAN_BED") {
        return Ok(given.into());
    }
    let current = std::env::current_exe()?;
    if current.file_name().is_some_and(|name| name == NAME) {
        return Ok(current);
    }
    let profile = current
        .ancestors()
        .skip(1)
        .find(|folder| folder.join(".cargo-lock").exists());
    let profile = profile
        .with_context(|| format!("{} is not in a target folder of cargo", current.display()))?;
    let program = profile.join(NAME);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    if newest(&sources.join("src")) > modified(&program) {
        progress(Progress::Note(format!("compiling {NAME}")));
        let release = profile.file_name().is_some_and(|name| name == "release");
        let mut cargo = processes::cargo();
        // All packages and an example: the features that xtask builds with too, so nothing is compiled twice.
        cargo
            .args([
                "build",
                "--quiet",
                "--workspace",
                "--example",
                "crds",
                "--bin",
                NAME,
            ])
            .args(release.then_some("--release"))
            .arg("--manifest-path")
            .arg(sources.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(profile.parent().unwrap_or(profile));
        processes::run_command(&mut cargo)?;
    }
    Ok(program)
}

fn newest(folder: &Path) -> Option<std::time::SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let times = entries.map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            newest(&path)
        } else {
            modified(&path)
        }
    });
    times.max().flatten()
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    path.metadata().ok()?.modified().ok()
}
