//! What the manager may change of pods: its policy, asked by the API server.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use leadsman_testkit::leadsman::MANAGER;
use leadsman_tests::{Scene, wait_for_answer};
use serde_json::{Value, json};

use crate::{Installation, SIDECAR_SET_GATE};

/// What `SidecarSet`s ask for.
fn allowed() -> Vec<Value> {
    let image =
        |list: &str, name: &str| json!({"spec": {list: [{"name": name, "image": "new:1"}]}});
    let annotation = |key: &str| json!({"metadata": {"annotations": {key: "x"}}});
    vec![
        image("containers", "side"),
        image("initContainers", "native"),
        annotation("kruise.io/sidecarset-hash"),
        annotation("kruise.io/sidecarset-inplace-update-state"),
        annotation("version.sidecarset.kruise.io/side"),
        annotation("versionalt.sidecarset.kruise.io/side"),
        annotation("example.com/patched-by-a-set"),
        json!({"metadata": {"annotations": {"example.com/old": null}}}),
        json!({"metadata": {"annotations": {"kruise.io/sidecarset-hash": "y"}},
            "spec": {"containers": [{"name": "side", "image": "new:2"}]}}),
    ]
}

/// What nothing of leadsman asks for, and a part of the refusal.
fn refused() -> Vec<(Value, &'static str)> {
    let spec = "nothing else of a pod's spec";
    let metadata = "labels, owners and finalizers";
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]);
    let terms = json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let toleration =
        json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]);
    vec![
        (
            json!({"spec": {"containers": [{"name": "app", "image": "new:1"}]}}),
            "images of containers",
        ),
        (
            json!({"metadata": {"annotations": {"kruise.io/sidecarset-hash": r#"{"s":{"sidecarList":["app"]}}"#}},
                "spec": {"containers": [{"name": "app", "image": "new:1"}]}}),
            "images of containers",
        ),
        (
            json!({"spec": {"initContainers": [{"name": "init", "image": "new:1"}]}}),
            "images of init containers",
        ),
        (json!({"spec": {"activeDeadlineSeconds": 1}}), spec),
        (json!({"spec": {"affinity": affinity}}), spec),
        (json!({"spec": {"nodeSelector": {"a": "b"}}}), spec),
        (json!({"spec": {"tolerations": toleration}}), spec),
        (
            json!({"spec": {"schedulingGates": [{"name": "example.com/held", "$patch": "delete"}]}}),
            spec,
        ),
        (json!({"metadata": {"labels": {"app": "other"}}}), metadata),
        (
            json!({"metadata": {"finalizers": ["example.com/held"]}}),
            metadata,
        ),
        (json!({"metadata": {"ownerReferences": owner}}), metadata),
        (
            json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}}),
            "kubectl.kubernetes.io/last-applied-configuration",
        ),
        (
            json!({"metadata": {"annotations": {"lifecycle.apps.kruise.io/state": "Normal"}}}),
            "lifecycle.apps.kruise.io/state",
        ),
        (
            json!({"metadata": {"annotations": {"lifecycle.apps.kruise.io/timestamp": null}}}),
            "lifecycle.apps.kruise.io/timestamp",
        ),
    ]
}

pub(super) async fn check_patches_of_pods(installation: &Installation) -> Result<()> {
    installation
        .apply_manifests(&[SIDECAR_SET_GATE, "--only=access"], &["--force-conflicts"])
        .await?;
    let scene = Scene::new(&installation.client, "patched-pods").await?;
    let injected = json!([{"name": "IS_INJECTED", "value": "true"}]);
    let pod = json!({
        "metadata": {"name": "p", "labels": {"app": "web"}, "annotations": {"example.com/old": "x", "lifecycle.apps.kruise.io/timestamp": "x"}},
        "spec": {
            "schedulingGates": [{"name": "example.com/held"}],
            "initContainers": [
                {"name": "init", "image": "init:1"},
                {"name": "native", "image": "native:1", "restartPolicy": "Always", "env": injected},
            ],
            "containers": [
                {"name": "app", "image": "app:1", "env": [{"name": "IS_INJECTED", "value": "false"}]},
                {"name": "side", "image": "side:1", "env": injected},
            ],
        },
    });
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), &scene.ns);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    let kubeconfig = installation
        .plane
        .kubeconfig_for(MANAGER, &["system:serviceaccounts"])?;
    let manager = client_of(&kubeconfig).await?;
    let manager: Api<Pod> = Api::namespaced(manager, &scene.ns);
    wait_for_answer(
        "the policy is in force, and the right to patch pods",
        || async {
            let (patch, part) = &refused()[0];
            Ok(refusal(&manager, patch).await?.contains(part).then_some(()))
        },
    )
    .await?;
    for (patch, part) in refused() {
        let told = refusal(&manager, &patch).await?;
        ensure!(told.contains(part), "{patch}: {told:?}");
        // The policy is about this account alone.
        let by_another = pods.patch("p", &dry_run(), &Patch::Strategic(&patch)).await;
        ensure!(
            by_another.is_ok(),
            "{patch} by an administrator: {by_another:?}"
        );
    }
    for patch in allowed() {
        let told = refusal(&manager, &patch).await?;
        ensure!(told.is_empty(), "{patch}: {told}");
    }
    Ok(())
}

fn dry_run() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

/// Why a patch is refused; empty if it is not.
async fn refusal(pods: &Api<Pod>, patch: &Value) -> Result<String> {
    match pods.patch("p", &dry_run(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(String::new()),
        Err(Error::Api(status)) => Ok(status.message),
        Err(other) => Err(other.into()),
    }
}

pub(crate) async fn client_of(kubeconfig: &std::path::Path) -> Result<Client> {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    Ok(Client::try_from(config)?)
}
