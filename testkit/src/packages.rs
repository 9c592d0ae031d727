//! The system programs a bed needs. What is there is used; what is missing is installed where that
//! is safe to do (as root, on Debian and its kin, removing nothing, starting no service), else named.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use leadsman_image::StaticProgram;

use crate::processes;
use crate::progress::Progress;

/// A program a node bed runs, and the Debian package that has it.
const NEEDED: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("busybox", "busybox-static"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("mount", "mount"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("/usr/lib/cni/ptp", "containernetworking-plugins"),
];

/// Where services' start at installation is asked for and refused.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// What runs a node in a virtual machine.
const QEMU: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("dpkg-deb", "dpkg"),
];

/// Where Debian has the program that shares folders with a virtual machine: before version 13 it came with QEMU.
const VIRTIOFSD: [&str; 2] = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];

/// Debian's newest kernel for virtual machines: an empty package that depends on it.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Prometheus, and the tool that checks its rules. No bed needs them; a test that scrapes one does.
const PROMETHEUS: &[(&str, &str)] = &[("prometheus", "prometheus"), ("promtool", "prometheus")];

/// The shells that completion is tried in, what bash's completion of kubectl needs, and a terminal for them.
const SHELLS: &[(&str, &str)] = &[
    (BASH_COMPLETION, "bash-completion"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("script", "bsdutils"),
];

/// Where the package bash-completion has what a shell reads at its start.
pub const BASH_COMPLETION: &str = "/usr/share/bash-completion/bash_completion";

/// Cases run side by side, and apt does not.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Makes sure that all a node bed needs is there.
pub(crate) fn ensure(progress: &mut dyn FnMut(Progress)) -> Result<()> {
    ensure_programs(NEEDED, progress)?;
    check_containerd()?;
    check_busybox()
}

/// Makes sure that `prometheus` and `promtool` are there.
pub fn ensure_prometheus(progress: &mut dyn FnMut(Progress)) -> Result<()> {
    ensure_programs(PROMETHEUS, progress)
}

/// Makes sure that the shells of [`SHELLS`] are there. Without root none is installed, and the answer is what is missing.
pub fn ensure_shells(progress: &mut dyn FnMut(Progress)) -> Result<Vec<&'static str>> {
    if nix::unistd::Uid::effective().is_root() {
        ensure_programs(SHELLS, progress)?;
    }
    Ok(packages_without_program(SHELLS))
}

/// Makes sure that QEMU is there, and what shares folders with its machines.
pub(crate) fn ensure_qemu(progress: &mut dyn FnMut(Progress)) -> Result<()> {
    ensure_programs(QEMU, progress)?;
    if virtiofsd().is_none() {
        ensure_programs(&[(VIRTIOFSD[1], "virtiofsd")], progress)?;
    }
    Ok(())
}

/// The program that shares folders with a virtual machine.
pub(crate) fn virtiofsd() -> Option<PathBuf> {
    VIRTIOFSD.into_iter().find_map(find)
}

/// Downloads the kernel of [`KERNEL`] and unpacks it into a folder. It is not installed: the machine keeps its own.
pub(crate) fn unpack_kernel(folder: &Path, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let facts = processes::run("apt-cache", &["depends", "--important", KERNEL]);
    let facts = facts.context("which kernel is the newest; `apt-get update` may be needed")?;
    let mut words = facts.lines().map(|line| line.split_whitespace().last());
    let package =
        words.find_map(|word| word.filter(|it| it.starts_with("linux-image-") && *it != KERNEL));
    let package = package.with_context(|| format!("{KERNEL} depends on no kernel:\n{facts}"))?;
    progress(Progress::Note(format!("downloading {package}")));
    let mut download = Command::new("apt-get");
    download.args(["download", package]).current_dir(folder);
    processes::run_command(&mut download)?;
    let mut files = std::fs::read_dir(folder)?.flatten().map(|file| file.path());
    let file = files.find(|path| path.extension().is_some_and(|it| it == "deb"));
    let file = file.with_context(|| format!("apt-get has downloaded no {package}"))?;
    let [from, to] = [&*file, folder].map(|path| path.display().to_string());
    processes::run("dpkg-deb", &["--extract", &from, &to])?;
    Ok(std::fs::remove_file(file)?)
}

fn ensure_programs(needed: &[(&str, &str)], progress: &mut dyn FnMut(Progress)) -> Result<()> {
    // Whoever panicked while it held this left nothing behind but the lock.
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = packages_without_program(needed);
    if !missing.is_empty() {
        install(&missing, progress)?;
    }
    let still = packages_without_program(needed);
    if !still.is_empty() {
        bail!(
            "still missing after their installation: {}",
            still.join(" ")
        );
    }
    Ok(())
}

/// Whether images can be made already, by whoever we are.
pub(crate) fn suffice_for_images() -> bool {
    find("busybox").is_some() && check_busybox().is_ok()
}

/// Names the programs among `tools` that are missing.
pub(crate) fn ensure_tools(tools: &[&str]) -> Result<()> {
    let missing: Vec<&str> = tools
        .iter()
        .copied()
        .filter(|tool| find(tool).is_none())
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        bail!("the test bed needs these programs: {}", missing.join(", "))
    }
}

/// The path of a program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = processes::search_path();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn packages_without_program<'a>(needed: &[(&str, &'a str)]) -> Vec<&'a str> {
    let mut packages: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn install(packages: &[&str], progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let list = packages.join(" ");
    if !nix::unistd::Uid::effective().is_root() || find("apt-get").is_none() {
        bail!("these packages are needed, here by their Debian names: {list}");
    }
    progress(Progress::Note(format!(
        "installing what is missing: apt-get install {list}"
    )));
    let _policy = NoServices::begin()?;
    apt(&["update"])?;
    let mut arguments = vec!["install", "-y", "--no-remove", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot run apt-get")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`apt-get {}` ended with {}: {}",
            arguments.join(" "),
            output.status,
            words.trim()
        );
    }
    Ok(())
}

/// While this lives, installing a package starts none of its services. A policy that is there
/// already stays as it is.
struct NoServices(Option<&'static Path>);

impl NoServices {
    fn begin() -> Result<Self> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let policy = std::fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o755)
            .open(POLICY);
        match policy {
            Ok(mut file) => {
                file.write_all(b"#!/bin/sh\nexit 101\n")?;
                Ok(Self(Some(Path::new(POLICY))))
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(Self(None)),
            Err(error) => Err(error).with_context(|| format!("writing {POLICY}")),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn check_containerd() -> Result<()> {
    let version = processes::run("containerd", &["--version"])?;
    let number = version
        .split_whitespace()
        .nth(2)
        .unwrap_or_default()
        .trim_start_matches('v');
    let mut parts = number
        .split(['.', '~', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) if (major, minor) < (1, 6) => {
            bail!("containerd {major}.{minor} is too old, the bed needs 1.6 or later")
        }
        _ => Ok(()),
    }
}

fn check_busybox() -> Result<()> {
    // Debian has two packages of one program; an image has no libc for the dynamic one.
    let path = find("busybox").context("busybox has just been found")?;
    StaticProgram::new(std::fs::read(&path)?).with_context(|| {
        format!(
            "{} is of no use in an image; install Debian's busybox-static",
            path.display()
        )
    })?;
    Ok(())
}
