//! The cluster's own programs, compiled from `testbed/go.mod` by the Go toolchain and nothing else:
//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl, helm.
//! Programs of other versions come from folders of `testbed` in the same way.
//!
//! They are kept in the cache under a key of go.mod, go.sum, the flags and `go version`. The first
//! build takes minutes; afterwards [`ensure`] is a look at the disk.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::cache;
use crate::clock;
use crate::progress::Progress;

/// A Go module whose tools are programs of a cluster.
struct Module {
    go_mod: &'static str,
    go_sum: &'static str,
}

/// The module in a folder of `testbed`: `""`, or a name that ends with `/`.
macro_rules! module {
    ($folder:literal) => {
        Module {
            go_mod: include_str!(concat!("../../testbed/", $folder, "go.mod")),
            go_sum: include_str!(concat!("../../testbed/", $folder, "go.sum")),
        }
    };
}

/// What every bed runs.
const CLUSTER: Module = module!("");

/// Other versions of some of its programs, by the names of their folders.
const OTHER_VERSIONS: [(&str, Module); 4] = [
    ("kubernetes-1.31", module!("kubernetes-1.31/")),
    ("kubernetes-1.35", module!("kubernetes-1.35/")),
    ("kubernetes-1.36", module!("kubernetes-1.36/")),
    ("containerd-2", module!("containerd-2/")),
];

/// Names the folder of programs that are compiled already: for a root who is not to run the user's Go, or of another
/// version.
pub const GIVEN: &str = "LEADSMAN_PROGRAMS";

/// The folder with the eight programs, compiled first if need be.
pub fn ensure(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(GIVEN) {
        return Ok(given.into());
    }
    CLUSTER.ensure(progress)
}

/// The folder with the programs of another version, such as `kubernetes-1.31`, compiled first if need be.
pub fn ensure_other_version(name: &str, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let found = OTHER_VERSIONS.iter().find(|(other, _)| *other == name);
    let (_, module) = found.with_context(|| {
        let names = OTHER_VERSIONS.map(|(name, _)| name).join(", ");
        format!("testbed has no programs called {name:?}; it has {names}")
    })?;
    module.ensure(progress)
}

impl Module {
    fn ensure(&self, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
        let go = self.go_version()?;
        let flags = self.link_flags();
        let key = cache::key([
            self.go_mod.as_bytes(),
            self.go_sum.as_bytes(),
            flags.as_bytes(),
            go.as_bytes(),
        ]);
        cache::entry(&format!("programs-{key}"), |folder| {
            self.compile(folder, &flags, progress)
        })
    }

    /// The version that go.mod requires of another module, for instance `1.34.4`.
    fn version_of(&self, module: &str) -> Option<&'static str> {
        let mut versions = self
            .go_mod
            .lines()
            .filter_map(|line| line.trim().strip_prefix(module)?.strip_prefix(" v"));
        versions.next()?.split_whitespace().next()
    }

    fn go_version(&self) -> Result<String> {
        let output = Command::new("go").arg("version").output().context(
            "the test bed compiles its cluster with Go, and `go` cannot be run: install Go (https://go.dev/dl) and put it on PATH",
        )?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let number = version
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .trim_start_matches("go");
        let wanted = self
            .go_mod
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .unwrap_or("1.21");
        let minor = |text: &str| {
            text.split('.')
                .nth(1)
                .and_then(|minor| minor.parse::<u32>().ok())
        };
        // From 1.21 on, Go fetches the newer toolchain a module asks for by itself.
        if minor(number).is_none_or(|have| have < 21) {
            bail!(
                "`go version` says \"{version}\"; the test bed needs Go {wanted} (or 1.21 and later, which fetches it)"
            );
        }
        Ok(version)
    }

    /// Without these the programs call themselves v0.0.0, and Helm charts and clients that look at the
    /// server's version refuse to work with them.
    fn link_flags(&self) -> String {
        let mut flags = vec!["-s -w".to_owned()];
        let mut set = |variable: &str, value: &str| flags.push(format!("-X {variable}={value}"));
        if let Some(version) = self.version_of("k8s.io/kubernetes") {
            let mut numbers = version.split('.');
            let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
            for package in ["k8s.io/component-base", "k8s.io/client-go/pkg"] {
                set(
                    &format!("{package}/version.gitVersion"),
                    &format!("v{version}"),
                );
                set(&format!("{package}/version.gitMajor"), major);
                set(&format!("{package}/version.gitMinor"), minor);
            }
            if let Some(helm) = self.version_of("helm.sh/helm/v3") {
                let of_helm = "helm.sh/helm/v3";
                set(
                    &format!("{of_helm}/internal/version.version"),
                    &format!("v{helm}"),
                );
                for package in ["pkg/chartutil", "pkg/lint/rules"] {
                    set(&format!("{of_helm}/{package}.k8sVersionMajor"), major);
                    set(&format!("{of_helm}/{package}.k8sVersionMinor"), minor);
                }
            }
        }
        let containerd = "github.com/containerd/containerd/v2";
        if let Some(version) = self.version_of(containerd) {
            set(
                &format!("{containerd}/version.Version"),
                &format!("v{version}"),
            );
        }
        flags.join(" ")
    }

    fn compile(
        &self,
        folder: &Path,
        flags: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let started = clock::now();
        let module = folder.join("module");
        std::fs::create_dir(&module)?;
        std::fs::write(module.join("go.mod"), self.go_mod)?;
        std::fs::write(module.join("go.sum"), self.go_sum)?;
        progress(Progress::Note(
            "compiling the cluster's programs (minutes, the first time only)".into(),
        ));
        let total = count_packages(&module)?;
        let mut go = Command::new("go")
            .args(["build", "-v", "-ldflags", flags, "-o"])
            .arg(folder)
            .arg("tool")
            .current_dir(&module)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("running go build")?;
        let mut words = Vec::new();
        let mut done = 0;
        if let Some(stderr) = go.stderr.take() {
            for line in BufReader::new(stderr).lines() {
                let line = line?;
                // A package's path has no spaces; what has some is a download or an error.
                if line.contains(' ') {
                    words.push(line);
                } else {
                    done += 1;
                }
                progress(Progress::Compiling { done, total });
            }
        }
        if !go.wait()?.success() {
            let tail = words.split_off(words.len().saturating_sub(20)).join("\n");
            bail!("`go build` of the cluster's programs failed:\n{tail}");
        }
        if self.version_of("go.etcd.io/etcd/server/v3").is_some() {
            std::fs::rename(folder.join("server"), folder.join("etcd"))
                .context("etcd's program is called `server` by Go")?;
        }
        cache::remove(&module)?;
        progress(Progress::Step {
            name: "programs".into(),
            seconds: started.elapsed().as_secs_f64(),
        });
        Ok(())
    }
}

/// How many packages the tools of a module consist of.
fn count_packages(module: &Path) -> Result<usize> {
    let listed = Command::new("go")
        .args(["list", "-deps", "tool"])
        .current_dir(module)
        .stderr(Stdio::inherit())
        .output()
        .context("running go list")?;
    if !listed.status.success() {
        bail!("`go list` could not load the modules of go.mod in testbed (its message is above)");
    }
    Ok(listed.stdout.split(|byte| *byte == b'\n').count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_called_like_the_version_in_its_go_mod() {
        for (name, module) in OTHER_VERSIONS {
            let (program, version) = name.split_once('-').unwrap();
            let required = match program {
                "kubernetes" => module.version_of("k8s.io/kubernetes"),
                _ => module.version_of("github.com/containerd/containerd/v2"),
            };
            let required = required.unwrap();
            assert!(
                required.starts_with(&format!("{version}.")),
                "{name}: {required}"
            );
        }
    }
}
