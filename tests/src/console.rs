//! Pages for people with a cluster: their commands are typed one after another, in a folder that has what the repository's has
//! and the files that the page has people save, until they print what the page shows.
//!
//! Whatever a command shows may take a while to come true, so it is repeated; one that shows nothing is typed once and must
//! succeed. `NAME=$(…)` stays set for those that follow. What has `--watch` is for a second terminal and is not typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadsman_testkit::NodeBed;
use tokio::process::Command;

use crate::document::{self, Exchange};
use crate::wait::PAUSE;

/// How long a command may take to print what the page shows: three failures of a probe with Kubernetes' own period, and
/// a machine that is busy.
const PATIENCE: Duration = Duration::from_mins(3);

/// Types all commands of a page, named by its path in the repository.
///
/// # Errors
/// When a command fails, or does not print what the page shows.
pub async fn type_page(bed: &NodeBed, page: &str) -> Result<()> {
    let exchanges = document::exchanges_of_page(page)?;
    ensure!(!exchanges.is_empty(), "{page} has no command");
    let mut shell = Shell::of(bed, page)?;
    for exchange in exchanges {
        if !exchange.command.contains("--watch") {
            let run = shell.run(&exchange);
            run.await
                .with_context(|| format!("{page}:{}", exchange.line))?;
        }
    }
    Ok(())
}

/// With what the demo tells its users to set.
struct Shell {
    folder: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    /// The assignments so far, a line each.
    assignments: String,
}

impl Shell {
    fn of(bed: &NodeBed, page: &str) -> Result<Self> {
        let mut path = bed.tools()?.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let environment = vec![
            ("KUBECONFIG", bed.admin_kubeconfig().into()),
            ("KUBECACHEDIR", bed.folder().join("kubectl").into()),
            ("PATH", path),
        ];
        Ok(Self {
            folder: folder_with_files(bed, page)?,
            environment,
            assignments: String::new(),
        })
    }

    async fn run(&mut self, exchange: &Exchange) -> Result<()> {
        let Exchange {
            command, output, ..
        } = exchange;
        if !output.is_empty() {
            return self.repeat(exchange).await;
        }
        let Some(name) = assigned(command) else {
            return self.type_in(command).await.map(drop);
        };
        let value = self
            .type_in(&format!("{command}\necho \"${name}\""))
            .await?;
        self.assignments = format!("{}{name}='{}'\n", self.assignments, value.trim());
        Ok(())
    }

    async fn repeat(&self, exchange: &Exchange) -> Result<()> {
        let mut last = None;
        let repeated = async {
            loop {
                let printed = text(&self.output(&exchange.command).await?);
                match exchange.expect(&printed) {
                    Ok(()) => return anyhow::Ok(()),
                    Err(difference) => last = Some(difference),
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let Ok(outcome) = tokio::time::timeout(PATIENCE, repeated).await else {
            let last = last.context("it has not ended once")?;
            return Err(last.context(format!("not seen within {PATIENCE:?}")));
        };
        outcome
    }

    async fn type_in(&self, command: &str) -> Result<String> {
        let output = self.output(command).await?;
        let printed = text(&output);
        ensure!(output.status.success(), "`{command}` fails: {printed}");
        Ok(printed)
    }

    async fn output(&self, command: &str) -> Result<Output> {
        let mut shell = Command::new("sh");
        shell
            .args(["-euc", &format!("{}{command}", self.assignments)])
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Ok(shell.output().await?)
    }
}

/// A folder of the page's own, so that what is saved is not left in the repository.
fn folder_with_files(bed: &NodeBed, page: &str) -> Result<PathBuf> {
    let folder = bed.folder().join("pages").join(page.replace('/', "-"));
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(document::root().canonicalize()?)? {
        let entry = entry?;
        std::os::unix::fs::symlink(entry.path(), folder.join(entry.file_name()))?;
    }
    for (name, text) in document::saved_files(page)? {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(folder)
}

/// The name that a command sets.
fn assigned(command: &str) -> Option<&str> {
    let (name, _) = command.split_once('=')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase());
    is_name.then_some(name)
}

/// Both streams, as a terminal shows them.
fn text(output: &Output) -> String {
    let streams = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&streams).into_owned()
}
