//! `kubectl leadsman` as its users run it.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};
use leadsman_testkit::leadsman;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What a run printed.
pub struct Printed {
    /// To standard output.
    pub out: String,
    /// To standard error.
    pub err: String,
    /// Whether the exit code is 0.
    pub success: bool,
}

/// `kubectl leadsman …`, with this standard input.
///
/// # Errors
/// The program cannot be run, or does not print text.
pub async fn kubectl_leadsman(kubeconfig: &Path, words: &[&str], input: &str) -> Result<Printed> {
    let mut child = Command::new(leadsman::plugin()?)
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    // A program that does not read it has ended before; its output tells why.
    let _written = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await?;
    Ok(Printed {
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
        success: output.status.success(),
    })
}
