//! The cluster's own programs, compiled from `testbed/go.mod` by the Go toolchain and nothing else:
//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl, helm.
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

const GO_MOD: &str = include_str!("../../testbed/go.mod");
const GO_SUM: &str = include_str!("../../testbed/go.sum");

/// Names the folder of programs that are compiled already, for a root who is not to run the user's Go.
pub const GIVEN: &str = "LEADSMAN_PROGRAMS";

/// The folder with the eight programs, compiled first if need be.
pub fn ensure(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(GIVEN) {
        return Ok(given.into());
    }
    let version = go_version()?;
    let flags = link_flags()?;
    let key = cache::key([
        GO_MOD.as_bytes(),
        GO_SUM.as_bytes(),
        flags.as_bytes(),
        version.as_bytes(),
    ]);
    cache::entry(&format!("programs-{key}"), |folder| {
        compile(folder, &flags, progress)
    })
}

/// The version of Kubernetes in go.mod, for instance `1.34.4`.
pub fn kubernetes_version() -> Result<&'static str> {
    module_version("k8s.io/kubernetes")
}

fn module_version(module: &str) -> Result<&'static str> {
    GO_MOD
        .lines()
        .filter_map(|line| line.trim().strip_prefix(module)?.strip_prefix(" v"))
        .map(|rest| rest.split_whitespace().next().unwrap_or(rest))
        .next()
        .with_context(|| format!("testbed/go.mod does not name {module}"))
}

fn go_version() -> Result<String> {
    let output = Command::new("go").arg("version").output().context(
        "the test bed compiles its cluster with Go, and `go` cannot be run: install Go (https://go.dev/dl) and put it on PATH",
    )?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let number = version
        .split_whitespace()
        .nth(2)
        .unwrap_or_default()
        .trim_start_matches("go");
    let wanted = GO_MOD
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
fn link_flags() -> Result<String> {
    let version = kubernetes_version()?;
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
    let helm = module_version("helm.sh/helm/v3")?;
    let of_kubernetes = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"].map(|package| {
        format!(
            "-X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        )
    });
    let of_helm = [
        "helm.sh/helm/v3/pkg/chartutil",
        "helm.sh/helm/v3/pkg/lint/rules",
    ]
    .map(|package| {
        format!("-X {package}.k8sVersionMajor={major} -X {package}.k8sVersionMinor={minor}")
    });
    let helm = format!("-X helm.sh/helm/v3/internal/version.version=v{helm}");
    Ok(format!(
        "-s -w {} {helm} {}",
        of_kubernetes.join(" "),
        of_helm.join(" ")
    ))
}

fn compile(folder: &Path, flags: &str, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let started = clock::now();
    let module = folder.join("module");
    std::fs::create_dir(&module)?;
    std::fs::write(module.join("go.mod"), GO_MOD)?;
    std::fs::write(module.join("go.sum"), GO_SUM)?;
    progress(Progress::Note(
        "compiling the cluster's programs (minutes, the first time only)".into(),
    ));
    let listed = Command::new("go")
        .args(["list", "-deps", "tool"])
        .current_dir(&module)
        .stderr(Stdio::inherit())
        .output()
        .context("running go list")?;
    if !listed.status.success() {
        bail!("`go list` could not load the modules of testbed/go.mod (its message is above)");
    }
    let total = listed.stdout.split(|byte| *byte == b'\n').count();
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
    std::fs::rename(folder.join("server"), folder.join("etcd"))
        .context("etcd's program is called `server` by Go")?;
    cache::remove(&module)?;
    progress(Progress::Step {
        name: "programs".into(),
        seconds: started.elapsed().as_secs_f64(),
    });
    Ok(())
}
