//! A manager or an agent that somebody without some right has started.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use leadsman_testkit::{ControlPlane, leadsman};
use leadsman_tests::{Process, wait_for_answer};
use tokio::process::Command;

use super::table::{Given, Grant, NamedIn};
use crate::{get, serving_address};

/// A process with a log of its own.
pub(crate) struct Started {
    process: Process,
    log: PathBuf,
}

impl Started {
    /// With what it logs by default.
    pub(crate) async fn manager(
        plane: &ControlPlane,
        name: &str,
        kubeconfig: &Path,
        gates: Given,
        serves: bool,
    ) -> Result<Self> {
        let mut arguments = vec!["manager"];
        let flag = format!("--feature-gates={}", gates.gates());
        arguments.push(&flag);
        if gates.has_webhooks() {
            let address = if serves { "127.0.0.1:0" } else { "0" };
            arguments.extend(["--webhook-bind-address", address]);
            // No pod of these tests needs an answer.
            arguments.push("--webhook-url=https://127.0.0.1:1");
        }
        Self::start(plane, name, kubeconfig, leadsman::program()?, &arguments).await
    }

    /// With what it logs by default.
    pub(crate) async fn agent(
        plane: &ControlPlane,
        name: &str,
        kubeconfig: &Path,
        node: &str,
        runtime: &Path,
    ) -> Result<Self> {
        let runtime = format!("unix://{}", runtime.display());
        let arguments = ["--node-name", node, "--runtime-endpoint", &runtime];
        Self::start(
            plane,
            name,
            kubeconfig,
            leadsman::agent_program()?,
            &arguments,
        )
        .await
    }

    async fn start(
        plane: &ControlPlane,
        name: &str,
        kubeconfig: &Path,
        program: PathBuf,
        arguments: &[&str],
    ) -> Result<Self> {
        let log = plane.folder().join(format!("logs/{name}.log"));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .args(["--metrics-bind-address", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .env_remove("LEADSMAN_LOG");
        let started = Self {
            process: Process::start(command, &log)?,
            log,
        };
        // Before that line a SIGTERM ends it as it would any program.
        wait_for_answer(&format!("an address of {name}"), || async {
            Ok(serving_address(&started.log)?.map(|_| ()))
        })
        .await?;
        Ok(started)
    }

    /// Waits until it says that this user lacks this right, in words of the API server, and what to do.
    pub(crate) async fn wait_for_missing_right(
        &self,
        user: &str,
        grant: &Grant,
        named_in: NamedIn,
    ) -> Result<()> {
        let Grant {
            verb,
            resource,
            group,
            ..
        } = grant;
        let denied =
            format!(r#"User "{user}" cannot {verb} resource "{resource}" in API group "{group}""#);
        let is_named = |text: &str| {
            let mut lines = text.lines();
            lines.any(|line| {
                line.contains(&denied)
                    && line.contains("missing right: ")
                    && line.contains("`leadsman manifests`")
            })
        };
        self.wait_for(&denied, is_named).await?;
        if named_in == NamedIn::Readyz {
            wait_for_answer(&format!("{denied} in /readyz"), || async {
                let readyz = self.readyz().await?;
                // A right that no review depends on takes no replica from the webhook.
                let fails = readyz.starts_with("HTTP/1.0 503") || readyz.contains("\n[!] ");
                Ok((fails && is_named(&readyz)).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until it has logged this.
    pub(crate) async fn wait_for_log(&self, text: &str) -> Result<()> {
        self.wait_for(text, |log| log.contains(text)).await
    }

    async fn wait_for(&self, what: &str, is_said: impl Fn(&str) -> bool) -> Result<()> {
        let said = wait_for_answer(what, || async {
            let log = self.log_text()?;
            Ok(is_said(&log).then_some(()))
        });
        said.await
            .with_context(|| self.log_text().unwrap_or_default())
    }

    /// Its log, with the quotes that it quotes.
    fn log_text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?.replace(r#"\""#, "\""))
    }

    /// What it answers at `/readyz`.
    async fn readyz(&self) -> Result<String> {
        get(&self.log, "/readyz").await
    }

    /// Waits until it is ready.
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let ready = wait_for_answer("ready", || async {
            let readyz = self.readyz().await?;
            Ok(readyz.starts_with("HTTP/1.0 200").then_some(()))
        });
        ready
            .await
            .with_context(|| self.log_text().unwrap_or_default())
    }

    pub(crate) async fn end(self) -> Result<()> {
        ensure!(
            self.process.pid().is_some(),
            "it has ended: {}",
            self.log_text()?
        );
        self.process.terminate().await
    }
}
