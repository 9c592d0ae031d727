//! Programs of crates.io that a chore runs and no toolchain has as a component.
//!
//! If PATH has one in another version or not at all, it is compiled once and kept in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::cache;
use crate::cargo::cargo;

/// A program in the one version that the gate runs: another may check or write something else.
pub(crate) struct Tool {
    /// Of its package and of its executable.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Of `cargo install`: which features it is compiled with.
    pub(crate) features: &'static [&'static str],
}

impl Tool {
    /// The program, compiled if there is none.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        let kept = cache::folder()?.join(format!("{name}-{version}"));
        let compiled = kept.join("bin").join(name);
        let known = [PathBuf::from(name), compiled.clone()];
        if let Some(program) = known.into_iter().find(|program| self.is_current(program)) {
            return Ok(program);
        }
        eprintln!("compiling {name} {version} (minutes, the first time only)");
        // Unoptimised: what it does here takes a second, and it would take three times as long to compile.
        let status = cargo()
            .args(["install", "--quiet", "--locked", "--debug"])
            .args(self.features)
            .arg("--root")
            .arg(&kept)
            .arg(format!("{name}@{version}"))
            .status()?;
        if !status.success() {
            bail!("{name} {version} could not be compiled; its messages are above");
        }
        Ok(compiled)
    }

    /// Whether it answers `cargo-deny 0.20.2`, or `mdbook v0.5.2`, which some write so.
    fn is_current(&self, program: &Path) -> bool {
        let Ok(output) = Command::new(program).arg("--version").output() else {
            return false;
        };
        let answer = String::from_utf8_lossy(&output.stdout);
        let mut words = answer.split_whitespace();
        words.next() == Some(self.name)
            && words.next().map(|word| word.trim_start_matches('v')) == Some(self.version)
    }
}
