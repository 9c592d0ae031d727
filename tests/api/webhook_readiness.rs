//! When a replica may be called: by what reviews need, and not by what else a manager does.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use leadsman_tests::wait_for_answer;
use serde_json::json;

use crate::Installation;
use crate::sidecarset_webhook::{Injecting, create, make_namespace, names};

/// Waits until `/readyz` has this code and this text.
async fn readyz_says(bed: &Injecting, code: &str, text: &str) -> Result<()> {
    wait_for_answer(&format!("{code} and {text:?} in /readyz"), || async {
        let readyz = bed.installation.get("/readyz").await?;
        let is_code = readyz.starts_with(&format!("HTTP/1.0 {code}"));
        Ok((is_code && readyz.contains(text)).then_some(()))
    })
    .await
}

// SDF-63
pub(crate) async fn trouble_of_another_feature_takes_no_replica_from_the_webhook(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    let fails =
        json!({"metadata": {"annotations": {"sidecarset.leadsman.io/failure-policy": "Fail"}}});
    bed.set("side", fails).await?;
    readyz_says(&bed, "200", "[+] nodepodprobes.apps.kruise.io").await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete("nodepodprobes.apps.kruise.io", &DeleteParams::default())
        .await?;
    readyz_says(&bed, "200", "[!] nodepodprobes.apps.kruise.io: ").await?;
    // A process that has never seen it is ready too, and one without a right.
    bed.installation.stop_manager().await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let nothing = Patch::Merge(json!({"rules": []}));
    roles
        .patch(
            "leadsman-manager-podprobe",
            &PatchParams::default(),
            &nothing,
        )
        .await?;
    bed.start().await?;
    readyz_says(&bed, "200", "[!] nodes: missing right: ").await?;
    let injected = create(&client, "shop", json!({}), true).await?;
    ensure!(names(&injected) == ["side", "main"], "{injected:?}");
    // What reviews need counts.
    roles
        .patch(
            "leadsman-manager-sidecarset",
            &PatchParams::default(),
            &nothing,
        )
        .await?;
    bed.installation.stop_manager().await?;
    bed.start().await?;
    readyz_says(
        &bed,
        "503",
        "[-] sidecarsets.apps.kruise.io: missing right: ",
    )
    .await?;
    bed.installation.end().await;
    Ok(())
}
