//! Installing what a cluster needs for leadsman, as its README says.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::wait::conditions;
use kube::{Api, Client};
use leadsman_testkit::ControlPlane;
use tokio::process::Command;

use crate::process;

/// `leadsman manifests | kubectl apply -f -`, as a user would.
///
/// # Errors
/// When the binary, `kubectl` or the API server refuses, or the CRDs are not served in time.
pub async fn install(plane: &ControlPlane, client: &Client) -> Result<()> {
    let manifests = std::process::Command::new(process::binary()?)
        .arg("manifests")
        .output()?;
    if !manifests.status.success() {
        bail!(
            "leadsman manifests: {}",
            String::from_utf8_lossy(&manifests.stderr)
        );
    }
    let file = plane.folder().join("manifests.yaml");
    std::fs::write(&file, manifests.stdout)?;
    let applied = Command::new(plane.programs()?.join("kubectl"))
        .env("KUBECACHEDIR", plane.folder().join("kubectl"))
        .args(["apply", "--server-side", "-f"])
        .arg(&file)
        .arg("--kubeconfig")
        .arg(plane.admin_kubeconfig())
        .output()
        .await?;
    if !applied.status.success() {
        bail!(
            "kubectl apply: {}",
            String::from_utf8_lossy(&applied.stderr)
        );
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in [
        "podprobemarkers.apps.kruise.io",
        "nodepodprobes.apps.kruise.io",
    ] {
        let established = kube::runtime::wait::await_condition(
            crds.clone(),
            name,
            conditions::is_crd_established(),
        );
        tokio::time::timeout(Duration::from_secs(30), established)
            .await
            .context(name)??;
    }
    Ok(())
}
