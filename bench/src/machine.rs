//! What figures were taken on: without it they say nothing.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
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
}

impl Machine {
    pub(crate) fn read() -> Result<Self> {
        let info = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let binary = leadsman_testkit::leadsman::program()?;
        Ok(Self {
            processor: field(&info, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: field(&memory, "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or_default()
                / 1024,
            kernel: kernel.trim().to_owned(),
            commit: commit(),
            binary_bytes: fs::metadata(binary)?.len(),
        })
    }
}

/// The value of the first line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Results that are being written do not make the tree another.
fn commit() -> String {
    let asked = Command::new("git")
        .args([
            "describe",
            "--always",
            "--abbrev=12",
            "--exclude=*",
            "--dirty",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    match asked {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemTotalX: 1\nMemTotal:   24 kB\n";
        assert_eq!(super::field(text, "MemTotal"), Some("24 kB"));
        assert_eq!(super::field(text, "Mem"), None);
    }
}
