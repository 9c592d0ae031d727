//! What the tests of beds share: trials that say why they are skipped, and a look at the machine.

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use libtest_mimic::{Completion, Trial};

/// A test that is counted as ignored, with the reason, where it cannot run.
pub(crate) fn trial(
    name: &str,
    why_not: Option<&str>,
    test: impl FnOnce() -> Result<()> + Send + 'static,
) -> Trial {
    let why_not = why_not.map(str::to_owned);
    Trial::ignorable_test(name, move || match why_not {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => test()
            .map(|()| Completion::Completed)
            .map_err(|error| format!("{error:#}").into()),
    })
}

/// A new folder below the temporary one.
pub(crate) fn new_folder(purpose: &str) -> Result<PathBuf> {
    let parent = std::env::temp_dir();
    (0..1000)
        .map(|number| parent.join(format!("lm-{purpose}-{}-{number}", std::process::id())))
        .find(|folder| fs::create_dir(folder).is_ok())
        .context("no folder can be made")
}

/// A process and its command line.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) words: Vec<String>,
}

/// All processes that are not zombies.
pub(crate) fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let words = line
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned());
            (!line.is_empty()).then(|| Process {
                pid,
                words: words.collect(),
            })
        })
        .collect()
}

/// A variable of the environment a process was started with.
pub(crate) fn environment(pid: i32, name: &str) -> Option<OsString> {
    let all = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut pairs = all.split(|byte| *byte == 0);
    let value = pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsString::from_vec(value.to_vec()))
}

/// What a bed might leave on a machine, without the traces of beds other than those named.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Machine(BTreeSet<String>);

impl Machine {
    /// Looks at mounts, links, routes, network namespaces, firewall rules and cgroups.
    pub(crate) fn look(beds: &[String]) -> Result<Self> {
        let mut seen = BTreeSet::new();
        let mut add = |kind: &str, lines: &str| {
            let ours = |line: &&str| match line.split("lmbed-").nth(1) {
                None => true,
                Some(rest) => beds
                    .iter()
                    .any(|bed| rest.starts_with(bed.trim_start_matches("lmbed-"))),
            };
            let lines = lines
                .lines()
                .filter(ours)
                .filter(|line| !line.starts_with('#'));
            seen.extend(lines.map(|line| format!("{kind}: {line}")));
        };
        add("mount", &fs::read_to_string("/proc/self/mountinfo")?);
        add("link", &run("ip", &["-o", "link"])?);
        add("route", &run("ip", &["route"])?);
        add("namespace", &run("ip", &["netns"])?);
        // Only a root may ask for the rest, and only a root's bed could have changed it.
        if nix::unistd::Uid::effective().is_root() {
            add("rule", &run("iptables-save", &[])?.replace(['[', ']'], ""));
            // A hierarchy's own children: the bed makes one there and all else within it; what is in somebody else's
            // comes and goes as that one likes.
            add(
                "cgroup",
                &run("find", &["/sys/fs/cgroup", "-maxdepth", "2", "-type", "d"])
                    .unwrap_or_default(),
            );
        }
        Ok(Self(seen))
    }

    /// What is there now and was not before, or the reverse.
    pub(crate) fn differences(&self, before: &Self) -> Vec<String> {
        self.0.symmetric_difference(&before.0).cloned().collect()
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(OsStr::new(":/usr/sbin:/sbin"));
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .output();
    Ok(
        String::from_utf8_lossy(&output.with_context(|| format!("running {program}"))?.stdout)
            .into_owned(),
    )
}
