//! What is asked of the program `leadsman-differ`, and what it answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A command in a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The container's id.
    pub container: String,
    /// The command.
    pub command: Vec<String>,
    /// How long it may take.
    pub timeout: Duration,
}

/// How one command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Exit code, or the message.
    pub end: String,
    /// The beginning of the standard output.
    pub stdout: String,
    /// The beginning of the standard error.
    pub stderr: String,
}

/// The command run both ways.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Through the runtime.
    pub runtime: Run,
    /// Directly.
    pub direct: Run,
    /// `direct`, or why the second run went through the runtime too.
    pub way: String,
}

/// What many runs of a command cost, each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// How many runs.
    pub count: u32,
    /// How many did not exit with 0.
    pub failed: u32,
    /// CPU time of the caller, the runtime, and their children.
    pub processes_ms: f64,
    /// CPU time of the whole machine, with all that runs on it beside.
    pub machine_ms: f64,
    /// Median of the time until the answer.
    pub median_ms: f64,
    /// 99th percentile of it.
    pub p99_ms: f64,
}
