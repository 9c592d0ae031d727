//! Metrics of this process that the operating system keeps, by the names that Prometheus' client libraries agree on ("Writing
//! client libraries", "Process metrics"). Read when asked.

use std::fmt::{Result, Write};
use std::fs;

use crate::clock;

/// Ticks of `/proc/PID/stat` in a second: `USER_HZ`, which is the same on all architectures that Rust has Linux for (man 5
/// proc, man 7 time).
const TICKS: f64 = 100.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct OperatingSystemMetrics {
    /// The start of the process, in seconds since 1970.
    started: i64,
}

impl OperatingSystemMetrics {
    /// The metrics of a process that starts now.
    pub(super) fn new() -> Self {
        let started = clock::now().as_second();
        Self { started }
    }

    /// Appends them in Prometheus' text format. What cannot be read is left out.
    pub(super) fn encode_into(self, text: &mut String) -> Result {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let status = fs::read_to_string("/proc/self/status").ok();
        let files = fs::read_dir("/proc/self/fd").ok();
        let cpu = stat.as_deref().and_then(cpu_seconds);
        let memory = status.as_deref().and_then(resident_bytes);
        let shown = [
            (
                "process_start_time_seconds",
                "gauge",
                "Start of the process, in seconds since 1970.",
                Some(self.started.to_string()),
            ),
            (
                "process_cpu_seconds_total",
                "counter",
                "CPU time of the process, in user and kernel mode.",
                cpu.map(|seconds| seconds.to_string()),
            ),
            (
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory of the process.",
                memory.map(|bytes| bytes.to_string()),
            ),
            (
                "process_open_fds",
                "gauge",
                "Open file descriptors of the process.",
                files.map(|files| files.count().to_string()),
            ),
        ];
        for (name, kind, help, value) in shown {
            if let Some(value) = value {
                writeln!(text, "# HELP {name} {help}")?;
                writeln!(text, "# TYPE {name} {kind}")?;
                writeln!(text, "{name} {value}")?;
            }
        }
        Ok(())
    }
}

/// The fields `utime` and `stime`: the 12th and 13th after the name, which is in parentheses and may have spaces.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The fields follow the last parenthesis: the name is chosen by the program and may have one
    // itself.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11);
    let mut next = || ticks.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / TICKS)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_memory_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 123 1 2";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        let status = "Name:\tleadsman\nVmRSS:\t   10240 kB\nThreads:\t1\n";
        assert_eq!(resident_bytes(status), Some(10_485_760));
        let mut text = String::new();
        OperatingSystemMetrics::new()
            .encode_into(&mut text)
            .unwrap();
        for name in [
            "start_time_seconds",
            "cpu_seconds_total",
            "resident_memory_bytes",
            "open_fds",
        ] {
            assert!(text.contains(&format!("\nprocess_{name} ")), "{text}");
        }
    }
}
