//! What figures were taken on: without it they say nothing.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use leadsman_testkit::leadsman;
use procfs::{CpuInfo, Current as _, Meminfo};
use serde::{Deserialize, Serialize};

/// Machine and commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The processor's name for itself.
    pub(crate) processor: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// The commit that was measured; with `-dirty` when files differed from it.
    pub(crate) commit: String,
    /// The size of the `leadsman` binary in bytes.
    pub(crate) binary_bytes: u64,
    /// The same of `leadsman-agent`; none in pages of before it was a program of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent_binary_bytes: Option<u64>,
}

impl Machine {
    pub(crate) fn read() -> Result<Self> {
        let processor = CpuInfo::current().context("reading /proc/cpuinfo")?;
        let memory = Meminfo::current().context("reading /proc/meminfo")?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Ok(Self {
            processor: processor.model_name(0).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: memory.mem_total / (1024 * 1024),
            kernel: kernel.trim().to_owned(),
            commit: commit(),
            binary_bytes: fs::metadata(leadsman::program()?)?.len(),
            agent_binary_bytes: Some(fs::metadata(leadsman::agent_program()?)?.len()),
        })
    }
}

/// Results that are being written do not make the tree another.
fn commit() -> String {
    let arguments = "describe --always --abbrev=12 --exclude=* --dirty";
    let asked = Command::new("git")
        .args(arguments.split(' '))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let answer = asked.ok().filter(|output| output.status.success());
    let commit = answer.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    commit.unwrap_or_else(|| "unknown".to_owned())
}
