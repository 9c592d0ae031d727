//! An install beside OpenKruise, as whoever runs `helm` sees it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use leadsman_testkit::Release;
use leadsman_testkit::release::CHART;
use leadsman_tests::{Neighbour, neighbour};
use serde_json::{Value, json};

use crate::room::{flip, roles_were};
use crate::{install, marked_pods};

const CRDS: [&str; 2] = [
    "crd/podprobemarkers.apps.kruise.io",
    "crd/nodepodprobes.apps.kruise.io",
];

/// `helm upgrade --install` with the preflight and these values; the message with which it refuses.
async fn refusal(release: &Release, values: Value) -> Result<String> {
    match release.install(&values).await {
        Ok(()) => bail!("it was installed with {values}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

fn says(message: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(message.contains(part), "no {part:?} in: {message}");
    }
    Ok(())
}

/// The CRDs belong to OpenKruise's release from now on.
async fn give_crds_to_openkruise(release: &Release) -> Result<()> {
    let [markers, probes] = CRDS;
    let owner = [
        "meta.helm.sh/release-name=kruise",
        "meta.helm.sh/release-namespace=default",
    ];
    let annotate = ["annotate", "--overwrite", markers, probes];
    release.kubectl(&[&annotate[..], &owner].concat()).await?;
    Ok(())
}

async fn is_refused_until_the_gate_is_off(release: &Arc<Release>) -> Result<()> {
    let gates = "CloneSetShortHash=true";
    let neighbour = Neighbour::start(&release.client, "kruise-a", gates).await?;
    let message = refusal(release, json!({})).await?;
    says(&message, &["invalid ownership metadata", "\"kruise\""])?;
    let theirs = json!({"crds": {"install": false}});
    let message = refusal(release, theirs.clone()).await?;
    says(
        &message,
        &[
            "job leadsman-preflight failed",
            "OpenKruise's manager kruise-a_",
            "runs with PodProbeMarkerGate on",
            "-> helm upgrade kruise openkruise/kruise --reuse-values --set-literal \
             featureGates='CloneSetShortHash=true,PodProbeMarkerGate=false'",
            "not ready: 1 thing to do first",
        ],
    )?;
    let left = ["get", "deployments,daemonsets,serviceaccounts", "-o=name"];
    let left = release.kubectl(&left).await?;
    ensure!(!left.contains("leadsman-manager"), "{left}");
    let gates = "CloneSetShortHash=true,PodProbeMarkerGate=false";
    neighbour.hand_over("kruise-b", gates).await?;
    release.install(&theirs).await.context("the gate is off")?;
    release.wait_for_rollout().await?;
    let (room, history) = marked_pods(release, "beside").await?;
    flip(&room, "first", false).await?;
    // The other documented way: the CRDs are leadsman's from now on.
    let chart = Path::new(CHART);
    release
        .install_from(chart, &json!({}), &["--take-ownership"])
        .await
        .context("--take-ownership")?;
    release.wait_for_rollout().await?;
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

// PPM-19
pub(crate) async fn an_install_is_refused_until_openkruises_gate_is_off(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    // The CRDs stay.
    let uninstall = ["uninstall", "leadsman", "--wait", "--cascade=foreground"];
    release.helm(&uninstall).await?;
    give_crds_to_openkruise(&release).await?;
    let outcome = is_refused_until_the_gate_is_off(&release).await;
    neighbour::uninstall(&release.client).await?;
    // Its pods too: a manager counts what it finds in any of them.
    let remove = ["delete", "namespace", "kruise-system", "--wait=false"];
    release.kubectl(&remove).await?;
    let chart = Path::new(CHART);
    let without_preflight = json!({"preflight": {"enabled": false}});
    let restored = release
        .install_from(chart, &without_preflight, &["--take-ownership"])
        .await;
    outcome?;
    restored.context("giving the CRDs back")
}
