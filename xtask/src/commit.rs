//! The commit that is built, as git tells it.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// What an archive says of the sources that it was made from.
#[derive(Debug)]
pub(crate) struct Commit {
    /// The hash, with `-dirty` where files differ from the commit; none outside of a git repository.
    pub(crate) revision: Option<String>,
    /// `SOURCE_DATE_EPOCH` (<https://reproducible-builds.org/specs/source-date-epoch>), else the time of the commit, else
    /// 0; in seconds since 1970.
    pub(crate) time: String,
}

impl Commit {
    pub(crate) fn read() -> Result<Self> {
        let given = std::env::var("SOURCE_DATE_EPOCH").ok();
        if let Some(text) = given.as_ref().filter(|text| text.parse::<u64>().is_err()) {
            bail!("SOURCE_DATE_EPOCH is {text:?}, which is no number of seconds");
        }
        let describe = [
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ];
        let time = given.or_else(|| line("git", &["log", "-1", "--format=%ct"]));
        Ok(Self {
            revision: line("git", &describe),
            time: time.unwrap_or_else(|| "0".to_owned()),
        })
    }

    /// The commit that a name, such as `HEAD~1`, stands for.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let commit = format!("{name}^{{commit}}");
        let revision = line("git", &["rev-parse", "--verify", "--quiet", &commit]);
        let revision = revision.with_context(|| format!("git knows no commit {name:?}"))?;
        let time = line("git", &["log", "-1", "--format=%ct", &revision]);
        Ok(Self {
            time: time.unwrap_or_else(|| "0".to_owned()),
            revision: Some(revision),
        })
    }

    /// The time as RFC 3339 writes it, by the program `date` of GNU or busybox.
    pub(crate) fn utc(&self) -> Result<String> {
        let time = format!("@{}", self.time);
        line("date", &["-u", "-d", &time, "+%Y-%m-%dT%H:%M:%SZ"])
            .context("`date` of GNU or busybox is missing")
    }
}

/// What a program prints at the root of the workspace; none if it fails, prints nothing or is not there.
pub(crate) fn line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(cargo::root())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
