//! `--kubernetes`, `--containerd`, `--runtime`, `--vm`: a suite on other versions of what its cluster consists of.
//!
//! The suites know nothing of it. They find the other programs where they look for the ordinary ones: the cluster's by
//! `LEADSMAN_PROGRAMS`, containerd and runc on PATH.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::Stage;
use crate::bed;
use crate::cargo::{self, Executable};

/// Versions that differ from those of the ordinary run.
#[derive(Debug, Default, clap::Args)]
pub(super) struct OtherVersions {
    /// Run `api` on this Kubernetes, 1.31, 1.35 or 1.36, or `node --vm` on one of the last two; compiled the first time
    #[arg(long, value_name = "MINOR")]
    kubernetes: Option<String>,
    /// Run `node` on this containerd, 2; compiled the first time
    #[arg(long, value_name = "MAJOR")]
    containerd: Option<String>,
    /// Run `node` with this OCI runtime in the place of runc, such as crun
    #[arg(long, value_name = "PROGRAM")]
    runtime: Option<String>,
    /// Run `node` on a virtual machine with cgroups of version 2: those of its cases that count no seconds
    #[arg(long)]
    pub(super) vm: bool,
}

/// The variable by which suite `node` and testkit know that the node is to be a virtual machine.
const IN_VM: &str = "LEADSMAN_VM";

impl OtherVersions {
    /// Fails if a version is asked for that no stage would run on.
    pub(super) fn check(&self, stages: &[Stage]) -> Result<()> {
        if self.vm && stages != [Stage::Node] {
            bail!("--vm is for one stage: `cargo xtask test node --vm`");
        }
        // A newer kubelet refuses cgroups of version 1, which a node in namespaces may have.
        let of_kubernetes = if self.vm { Stage::Node } else { Stage::Api };
        for (flag, value, stage) in [
            ("--kubernetes", &self.kubernetes, of_kubernetes),
            ("--containerd", &self.containerd, Stage::Node),
            ("--runtime", &self.runtime, Stage::Node),
        ] {
            if let Some(value) = value
                && stages != [stage]
            {
                let stage = stage.name();
                bail!("{flag} is for one stage: `cargo xtask test {stage} {flag} {value}`");
            }
        }
        Ok(())
    }

    /// Whether a test program of the stage has to do with the versions. `chart` renders without a cluster, by a helm that
    /// comes with the ordinary programs alone; a virtual machine is a node of suite `node`.
    pub(super) fn concern(&self, executable: &Executable) -> bool {
        (self.kubernetes.is_none() || executable.target != "chart")
            && (!self.vm || executable.target == "node")
    }

    /// The case of a test program that says nothing of the versions: the model is one of the ordinary API server.
    pub(super) fn left_out(&self, executable: &Executable) -> Option<&'static str> {
        let case = "api_model::generated_requests_get_the_answers_of_the_real_api_server";
        (self.kubernetes.is_some() && executable.target == "api").then_some(case)
    }

    /// Compiles what is asked for by `bed`, the program `leadsman-bed`, and returns the environment in which the suites
    /// find it.
    pub(super) fn environment(&self, bed: &Path) -> Result<Vec<(String, OsString)>> {
        let mut environment = Vec::new();
        if self.vm {
            environment.push((IN_VM.to_owned(), "yes".into()));
        }
        let (mut first_on_path, mut last_on_path) = (Vec::new(), Vec::new());
        if let Some(minor) = &self.kubernetes {
            let programs = bed::programs_of_other_version(bed, &format!("kubernetes-{minor}"))?;
            print_version(&programs.join("etcd"))?;
            print_version(&programs.join("kube-apiserver"))?;
            environment.push(("LEADSMAN_PROGRAMS".to_owned(), programs.into()));
            // Pages have helm typed, which comes with the ordinary programs alone.
            last_on_path.push(bed::programs(bed)?);
        }
        if let Some(major) = &self.containerd {
            let programs = bed::programs_of_other_version(bed, &format!("containerd-{major}"))?;
            print_version(&programs.join("containerd"))?;
            first_on_path.push(programs);
        }
        if let Some(program) = &self.runtime {
            let folder = in_the_place_of_runc(program)?;
            print_version(&folder.join("runc"))?;
            first_on_path.push(folder);
        }
        if !first_on_path.is_empty() || !last_on_path.is_empty() {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = first_on_path
                .into_iter()
                .chain(std::env::split_paths(&path))
                .chain(last_on_path);
            environment.push(("PATH".to_owned(), std::env::join_paths(folders)?));
        }
        Ok(environment)
    }
}

/// A folder with a script `runc` that runs this program. `runc` is the name by which containerd's shim starts its runtime
/// (`cmd/containerd-shim-runc-v2`, `DefaultCommand` of go-runc).
fn in_the_place_of_runc(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("{program} is not on PATH (Debian: apt-get install {program})"))?;
    let folder = cargo::root().join("target/runtimes").join(program);
    std::fs::create_dir_all(&folder)?;
    let script = folder.join("runc");
    std::fs::write(&script, RUNC.replace("{program}", &found.to_string_lossy()))
        .and_then(|()| std::fs::set_permissions(&script, Permissions::from_mode(0o755)))
        .with_context(|| format!("writing {}", script.display()))?;
    Ok(folder)
}

/// crun refuses a machine with cgroups of both versions that has controllers in the second ("cgroups in hybrid mode not
/// supported"). Nothing of a bed uses the second then, so it is hidden from the runtime.
const RUNC: &str = r#"#!/bin/sh
if [ -d /sys/fs/cgroup/unified ]; then
    exec unshare --mount sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup/unified && exec "$0" "$@"' {program} "$@"
fi
exec {program} "$@"
"#;

/// Says what is about to be tested, in the program's own words.
fn print_version(program: &Path) -> Result<()> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    eprintln!("test: on {}", text.lines().next().unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_without_its_stage_is_refused() {
        let versions = OtherVersions {
            kubernetes: Some("1.31".to_owned()),
            ..OtherVersions::default()
        };
        assert!(versions.check(&[Stage::Api]).is_ok());
        let refused = versions.check(&Stage::ALL).unwrap_err().to_string();
        assert!(
            refused.contains("`cargo xtask test api --kubernetes 1.31`"),
            "{refused}"
        );
        let vm = OtherVersions {
            vm: true,
            ..OtherVersions::default()
        };
        assert!(vm.check(&[Stage::Node]).is_ok() && vm.check(&Stage::ALL).is_err());
        assert!(OtherVersions::default().check(&Stage::ALL).is_ok());
    }
}
