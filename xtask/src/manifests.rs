//! `cargo xtask manifests`: what is generated of the chart and of the kustomize base.
//!
//! Rights go from Rust into the chart, and workloads from the chart into Rust and the kustomize base:
//!
//! | file | is |
//! |---|---|
//! | `charts/leadsman/files/access/always.yaml` | `leadsman manifests --only=access` with all gates off, the namespace left open for Helm |
//! | `charts/leadsman/files/access/GATE.yaml` | the objects that a gate adds |
//! | `charts/leadsman/files/gates.yaml` | the gates, and whether each is on by default |
//! | `charts/leadsman/files/access/webhooks.yaml` | those that each gate with webhooks adds |
//! | `charts/leadsman/files/access/preflight.yaml` | the account of the preflight hook |
//! | `charts/leadsman/Chart.yaml` | its versions: the workspace's |
//! | `kustomize/access.yaml` | `leadsman manifests --only=namespace,access` |
//! | `kustomize/sidecarset/manifests.yaml` | `leadsman manifests --only=namespace,access,workloads` with `SidecarSetGate` |
//! | `kustomize/workloads.yaml` | the chart's workloads with its default values, which `leadsman manifests` includes |
//!
//! The last one takes helm, so `--check` leaves it out; `tests/chart` compares it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::cargo::{self, Executable};

/// Arguments of `manifests`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if a committed file is not what the program prints
    #[arg(long)]
    pub(crate) check: bool,
}

/// Files of the chart, each with the setting of gates whose objects are in it, as far as they are in no file before: those of
/// the webhooks stand apart from those of the gates that share them. Each gate that is not named here has a file of its own.
const GATES: [(&str, &str); 4] = [
    ("always", "PodProbeMarkerGate=false"),
    ("PodProbeMarkerGate", "PodProbeMarkerGate=true"),
    ("webhooks", "EnablePodProbeMarkerOnServerless=true"),
    ("SidecarSetGate", "SidecarSetGate=true"),
];

/// The gate that adds no object.
const NO_OBJECT: &str = "SidecarSetPatchPodMetadataDefaultsAllowed";

const NOTE: &str = "# Written by `cargo xtask manifests`.\n";

/// Labels that only an installation by Helm has.
const HELM_LABELS: [&str; 4] = [
    "helm.sh/chart:",
    "app.kubernetes.io/instance:",
    "app.kubernetes.io/version:",
    "app.kubernetes.io/managed-by:",
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let built = cargo::build(&["--bin", "leadsman", "--bin", "leadsman-bed"])?;
    let mut files = chart_access(&built)?;
    let base = kustomize(&built, &["--only=namespace,access"])?;
    files.push(("kustomize/access.yaml".into(), base));
    let gate = "--feature-gates=SidecarSetGate=true";
    let of_sets = kustomize(&built, &["--only=namespace,access,workloads", gate])?;
    files.push(("kustomize/sidecarset/manifests.yaml".into(), of_sets));
    files.push((CHART.into(), chart_versions()?));
    if arguments.check {
        return Ok(compare(&files));
    }
    write(&files)?;
    let workloads = rendered_workloads(&programs(&built)?)?;
    write(&[("kustomize/workloads.yaml".into(), workloads)])?;
    Ok(ExitCode::SUCCESS)
}

/// A file by its path in the repository, and its text.
type File = (PathBuf, String);

fn write(files: &[File]) -> Result<()> {
    for (path, text) in files {
        std::fs::write(cargo::root().join(path), text)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn compare(files: &[File]) -> ExitCode {
    let is_stale = |(path, text): &&File| {
        std::fs::read_to_string(cargo::root().join(path))
            .ok()
            .as_ref()
            != Some(text)
    };
    let stale: Vec<_> = files.iter().filter(is_stale).collect();
    for (path, _) in &stale {
        eprintln!("{} differs from what would be written", path.display());
    }
    if stale.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What `leadsman manifests` prints.
fn printed(built: &[Executable], arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(cargo::program(built, "leadsman")?);
    output(command.arg("manifests").args(arguments))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{} failed; its message is above",
            command.get_program().display()
        );
    }
    String::from_utf8(output.stdout).context("its output is UTF-8")
}

fn documents(text: &str) -> Vec<&str> {
    let documents = text.split("---\n");
    documents.filter(|document| !document.is_empty()).collect()
}

/// Accounts and rights as the chart takes them: Helm fills in the namespace.
fn chart_access(built: &[Executable]) -> Result<Vec<File>> {
    const NAMESPACE: &str = "--namespace={{ .Release.Namespace }}";
    let folder = Path::new("charts/leadsman/files/access");
    let file = |name: &str, documents: &[&str]| {
        let text = documents.join("---\n");
        (
            folder.join(format!("{name}.yaml")),
            format!("{NOTE}---\n{text}"),
        )
    };
    let mut files = Vec::new();
    let gates = printed(built, &["--gates"])?;
    files.push((
        "charts/leadsman/files/gates.yaml".into(),
        format!("{NOTE}{gates}"),
    ));
    let settings = GATES.map(|(name, setting)| (name.to_owned(), setting.to_owned()));
    let names = gates.lines().filter_map(|line| line.split(':').next());
    let is_named = |name: &str| GATES.iter().any(|(_, setting)| setting.starts_with(name));
    let others = names.filter(|name| *name != NO_OBJECT && !is_named(name));
    let others = others.map(|name| (name.to_owned(), format!("{name}=true")));
    let mut before = String::new();
    for (name, setting) in settings.into_iter().chain(others) {
        let gates = format!("--feature-gates={setting}");
        let access = printed(built, &[NAMESPACE, &gates, "--only=access"])?;
        let workloads = printed(built, &[NAMESPACE, &gates, "--only=workloads"])?;
        let services = documents(&workloads).into_iter();
        let services = services.filter(|document| document.contains("\nkind: Service\n"));
        let known = documents(&before);
        let all = documents(&access).into_iter().chain(services);
        let all: Vec<_> = all.collect();
        let added = all.iter().filter(|document| !known.contains(document));
        files.push(file(&name, &added.copied().collect::<Vec<_>>()));
        before.push_str("---\n");
        before.push_str(&all.join("---\n"));
    }
    let preflight = printed(built, &[NAMESPACE, "--only=preflight"])?;
    files.push(file("preflight", &documents(&preflight)));
    Ok(files)
}

fn kustomize(built: &[Executable], arguments: &[&str]) -> Result<String> {
    let printed = printed(built, arguments)?;
    Ok(format!("{NOTE}{printed}"))
}

const CHART: &str = "charts/leadsman/Chart.yaml";

/// The chart's own file with the workspace's version as its versions.
fn chart_versions() -> Result<String> {
    let metadata = cargo::metadata()?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let package = packages.find(|package| package["name"] == "leadsman");
    let version = package.and_then(|package| package["version"].as_str());
    let version = version.context("the workspace has a package `leadsman`")?;
    let chart = std::fs::read_to_string(cargo::root().join(CHART)).context(CHART)?;
    let lines = chart.lines().map(|line| match line.split_once(':') {
        Some((key @ ("version" | "appVersion"), _)) => format!("{key}: {version}\n"),
        _ => format!("{line}\n"),
    });
    Ok(lines.collect())
}

/// The folder of helm, compiled first if need be.
fn programs(built: &[Executable]) -> Result<PathBuf> {
    let mut bed = Command::new(cargo::program(built, "leadsman-bed")?);
    let environment = output(bed.args(["prepare", "--control-plane"]))?;
    let folder = environment
        .lines()
        .find_map(|line| line.strip_prefix("LEADSMAN_PROGRAMS="));
    folder
        .map(PathBuf::from)
        .context("leadsman-bed names the folder of its programs")
}

/// The chart's workloads, without what only Helm adds.
fn rendered_workloads(programs: &Path) -> Result<String> {
    let mut helm = Command::new(programs.join("helm"));
    helm.current_dir(cargo::root()).args([
        "template",
        "leadsman",
        "charts/leadsman",
        "--namespace=leadsman-system",
        "--show-only=templates/manager.yaml",
        "--show-only=templates/agent.yaml",
    ]);
    let rendered = output(&mut helm)?;
    let is_helms = |line: &str| {
        let line = line.trim_start();
        line.starts_with("# Source:") || HELM_LABELS.iter().any(|label| line.starts_with(label))
    };
    let lines = rendered.lines().filter(|line| !is_helms(line));
    let text = lines.collect::<Vec<_>>().join("\n");
    Ok(text.replacen("---\n", &format!("---\n{NOTE}"), 1) + "\n")
}
