//! leadsman on a bed: what its README has a user install, before any process of it runs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::progress::to_stderr;
use crate::{ControlPlane, Options};

/// The namespace that `leadsman manifests` installs into.
pub const NAMESPACE: &str = "leadsman-system";
/// The manager's user.
pub const MANAGER: &str = "system:serviceaccount:leadsman-system:leadsman-manager";
/// The agents' user.
pub const AGENT: &str = "system:serviceaccount:leadsman-system:leadsman-agent";

/// The built `leadsman` program, named by `LEADSMAN_BIN`. The agent's and the plugin are in the same folder.
pub fn program() -> Result<PathBuf> {
    built("LEADSMAN_BIN", "leadsman program")
}

/// The built `leadsman-agent` program.
pub fn agent_program() -> Result<PathBuf> {
    beside_program("leadsman-agent")
}

/// The built plugin of kubectl.
pub fn plugin() -> Result<PathBuf> {
    beside_program("kubectl-leadsman")
}

fn beside_program(name: &str) -> Result<PathBuf> {
    let path = program()?.with_file_name(name);
    if !path.is_file() {
        bail!("{} is no file; it is beside LEADSMAN_BIN", path.display());
    }
    Ok(path)
}

/// The archive of leadsman's image, named by `LEADSMAN_IMAGE`.
pub(crate) fn image() -> Result<PathBuf> {
    built("LEADSMAN_IMAGE", "archive of leadsman's image")
}

/// An earlier leadsman, to be installed beside this one or in its place.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// Its chart's folder.
    pub chart: PathBuf,
    /// The archive of its image.
    pub(crate) image: PathBuf,
    /// The tag of that image.
    pub tag: String,
}

/// The earlier commit that `cargo xtask test install --earlier COMMIT` has built, if it was asked for.
pub fn earlier() -> Result<Option<Earlier>> {
    const IMAGE: &str = "LEADSMAN_EARLIER_IMAGE";
    let Some(chart) = std::env::var_os("LEADSMAN_EARLIER_CHART") else {
        return Ok(None);
    };
    let tag = std::env::var("LEADSMAN_EARLIER_TAG");
    Ok(Some(Earlier {
        chart: chart.into(),
        image: built(IMAGE, "archive of an earlier image of leadsman")?,
        tag: tag.context("LEADSMAN_EARLIER_TAG names the tag of that image")?,
    }))
}

fn built(variable: &str, what: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable)
        .map(PathBuf::from)
        .with_context(|| format!("{variable} names the {what}; `cargo xtask` sets it"))?;
    if !path.is_file() {
        bail!("{variable} is {}, which is no file", path.display());
    }
    Ok(path)
}

/// A control plane with leadsman's CRDs and rights in it. Progress goes to stderr.
pub async fn control_plane() -> Result<ControlPlane> {
    control_plane_with("").await
}

/// The same, with those that these feature gates need.
pub async fn control_plane_with(gates: &str) -> Result<ControlPlane> {
    let plane = ControlPlane::start(Options::default(), to_stderr()).await?;
    install_with(&plane, gates).await?;
    Ok(plane)
}

/// `leadsman manager` as the account of this kubeconfig, with `/metrics` and `/readyz` at this address. Not started yet.
pub fn manager(kubeconfig: &Path, address: &str) -> Result<Command> {
    let mut command = Command::new(program()?);
    command
        .args(["manager", "--metrics-bind-address", address, "--kubeconfig"])
        .arg(kubeconfig);
    Ok(command)
}

/// `leadsman manifests --only=namespace,crds,access | kubectl apply --server-side -f -`, then waits until the CRDs are
/// served. The workloads are left out: tests run manager and agent as processes.
pub async fn install(plane: &ControlPlane) -> Result<()> {
    install_with(plane, "").await
}

/// The same, with what these feature gates need.
pub async fn install_with(plane: &ControlPlane, gates: &str) -> Result<()> {
    let manifests = Command::new(program()?)
        .args(["manifests", "--only=namespace,crds,access"])
        .arg(format!("--feature-gates={gates}"))
        .stderr(Stdio::inherit())
        .output()
        .await?;
    if !manifests.status.success() {
        bail!("`leadsman manifests` ended with {}", manifests.status);
    }
    let apply = ["apply", "--server-side", "-f", "-"];
    plane.kubectl_with(&apply, &manifests.stdout).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(plane.client().await?);
    let all = crds.list(&ListParams::default()).await?;
    for name in all.iter().map(ResourceExt::name_any) {
        let established = await_condition(crds.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(30), established)
            .await
            .with_context(|| format!("the CRD {name} was not established within 30 s"))??;
    }
    Ok(())
}

/// The labels by which the manager knows an agent's pod.
pub fn agent_labels() -> Value {
    json!({"app.kubernetes.io/name": "leadsman", "app.kubernetes.io/component": "agent"})
}
