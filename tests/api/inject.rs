//! `kubectl leadsman inject`, `drift`, and `explain` of sidecars, against the API server: what they say of a pod is what the API server makes of it.
//! On a control plane without a webhook, so that a pod is what `inject` printed and no more.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_api::SidecarSet;
use leadsman_api::crd::sidecar_set_crd;
use leadsman_tests::scene::merge;
use leadsman_tests::{Printed, kubectl_leadsman, wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;
use crate::stage::PLACES;

/// A set whose containers have what the API server completes: probes, limits without requests, a volume of a `ConfigMap`.
fn log_agent() -> Value {
    json!({
        "selector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchLabels": {"tier": "gold"}},
        "containers": [{
            "name": "log-agent",
            "image": "log-agent:1.0",
            "env": [{"name": "LEVEL", "value": "info"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
            "ports": [{"containerPort": 9000}],
            "resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}},
            "startupProbe": {"grpc": {"port": 9000}},
            "readinessProbe": {"httpGet": {"port": 9000}},
            "shareVolumePolicy": {"type": "enabled"},
            "transferEnv": [{"sourceContainerName": "main", "envName": "ROLE"}],
            "volumeMounts": [{"name": "configuration", "mountPath": "/etc/log-agent"}],
        }],
        "initContainers": [{"name": "setup", "image": "setup:1"}],
        "volumes": [{"name": "configuration", "configMap": {"name": "log-agent"}}],
        "imagePullSecrets": [{"name": "registry"}],
    })
}

const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "web:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "emptyDir": {}}]}}"#;

pub(crate) async fn run(
    installation: &Installation,
    words: &[&str],
    input: &str,
) -> Result<Printed> {
    let kubeconfig = installation.plane.admin_kubeconfig();
    let printed = kubectl_leadsman(kubeconfig, words, input).await?;
    eprintln!(
        "$ kubectl leadsman {}\n{}{}",
        words.join(" "),
        printed.out,
        printed.err
    );
    Ok(printed)
}

pub(crate) fn expect(printed: &Printed, success: bool, words: &[&str]) -> Result<()> {
    let all = format!("{}{}", printed.out, printed.err);
    ensure!(printed.success == success, "{all}");
    for words in words {
        ensure!(all.contains(words), "{words}: {all}");
    }
    Ok(())
}

/// Has the API server serve the kind, which only its gate installs.
pub(crate) async fn serve_sidecar_sets(client: &Client) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = serde_json::to_value(sidecar_set_crd())?;
    let name = "sidecarsets.apps.kruise.io";
    let apply = PatchParams::apply("tests").force();
    crds.patch(name, &apply, &Patch::Apply(crd)).await?;
    wait_until_served(&crds, name).await
}

/// Waits until the objects of a definition can be written.
pub(crate) async fn wait_until_served(
    crds: &Api<CustomResourceDefinition>,
    name: &str,
) -> Result<()> {
    wait_for_object(crds, name, "its kind to be served", |crd| {
        let conditions = crd
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        ensure!(conditions.any(|one| one.type_ == "Established" && one.status == "True"));
        Ok(())
    })
    .await
}

/// A control plane that has the kind, and a namespace.
async fn raise() -> Result<Installation> {
    let installation = Installation::raise_idle().await?;
    serve_sidecar_sets(&installation.client).await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"tier": "gold"}}});
    let namespace = namespace.to_string();
    let plane = &installation.plane;
    plane
        .kubectl_with(&["create", "-f", "-"], namespace.as_bytes())
        .await?;
    Ok(installation)
}

async fn apply_set(installation: &Installation, name: &str, spec: &Value) -> Result<()> {
    let sets: Api<SidecarSet> = Api::all(installation.client.clone());
    let set = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": name}, "spec": spec});
    let apply = PatchParams::apply("tests").force();
    sets.patch(name, &apply, &Patch::Apply(set)).await?;
    Ok(())
}

/// A pod is created as `inject` printed it, and `drift` finds what an edit of the set would change in it.
pub(crate) async fn a_pod_is_what_inject_said_and_drift_says_what_it_lacks(
    _world: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    apply_set(&installation, "log-agent", &log_agent()).await?;
    let mut mesh = log_agent();
    mesh["selector"] = json!({"matchLabels": {"app": "wbe"}});
    mesh["injectionStrategy"] = json!({"paused": true});
    apply_set(&installation, "mesh", &mesh).await?;
    let inject = ["inject", "-f", "-", "-n", "shop"];
    let printed = run(&installation, &inject, POD).await?;
    let words = [
        "Pod shop/web: 1 of 2 SidecarSets is injected",
        "log-agent  injected, revision log-agent-",
        "has no variable \"ROLE\" from container \"main\"",
        "its injection is paused",
        "no   app=wbe   the pod has app=web",
        "+   - env:",
    ];
    expect(&printed, true, &words)?;
    let elsewhere = ["inject", "-f", "-", "-n", "default"];
    let printed = run(&installation, &elsewhere, POD).await?;
    expect(
        &printed,
        true,
        &["no   tier=gold   namespace default has no label tier"],
    )?;
    let as_json = [&inject[..], &["-o", "json"]].concat();
    let printed = run(&installation, &as_json, POD).await?;
    let warning = "warning: SidecarSet log-agent has no variable";
    ensure!(printed.err.starts_with(warning), "{}", printed.err);
    let pod: Pod = serde_json::from_str(&printed.out)?;
    let pods: Api<Pod> = Api::namespaced(installation.client.clone(), "shop");
    pods.create(&PostParams::default(), &pod)
        .await
        .context("the API server refuses what inject printed")?;
    let drift = run(&installation, &["drift", "log-agent"], "").await?;
    expect(
        &drift,
        true,
        &["1 of 1 pods are as they would be created now"],
    )?;
    edit_and_look(&installation).await?;
    installation.end().await;
    Ok(())
}

async fn edit_and_look(installation: &Installation) -> Result<()> {
    let mut edited = log_agent();
    edited["containers"][0]["image"] = json!("log-agent:2.0");
    apply_set(installation, "log-agent", &edited).await?;
    let drift = run(installation, &["drift", "log-agent", "-o", "wide"], "").await?;
    let words = [
        "0 of 1 pods are as they would be created now",
        "an upgrade   containers[log-agent].image",
        "- containers[log-agent].image: \"log-agent:1.0\"",
        "+ containers[log-agent].image: \"log-agent:2.0\"",
    ];
    expect(&drift, true, &words)?;
    edited["containers"][0]["resources"]["limits"]["cpu"] = json!("2");
    edited["volumes"][0]["configMap"]["name"] = json!("other");
    apply_set(installation, "log-agent", &edited).await?;
    let drift = run(
        installation,
        &["drift", "log-agent", "-n", "shop", "-o", "json"],
        "",
    )
    .await?;
    let report: Value = serde_json::from_str(&drift.out)?;
    let pod = &report["pods"][0];
    let fields = pod["differs"].as_array().context("no list")?.iter();
    let fields: Vec<_> = fields.filter_map(|one| one["field"].as_str()).collect();
    let expected = [
        "containers[log-agent].image",
        "containers[log-agent].resources.limits.cpu",
        "volumes[configuration]",
    ];
    ensure!(
        pod["takes"] == "Recreation" && fields == expected,
        "{report:#}"
    );
    let none = run(installation, &["drift", "log-agnet"], "").await?;
    let words = ["no sidecarset log-agnet; did you mean log-agent?"];
    expect(&none, false, &words)?;
    let delete = ["delete", "sidecarset", "log-agent"];
    installation.plane.kubectl(&delete).await?;
    let left = run(installation, &["drift", "log-agent"], "").await?;
    expect(
        &left,
        false,
        &[
            "there is no SidecarSet log-agent any more",
            "in these pods:\nshop/",
        ],
    )
}

/// Who may not read sets is told the right, and needs none with the sets of a file.
pub(crate) async fn sets_of_files_take_no_rights(_world: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    let inject = ["inject", "-f", "-", "-n", "shop", "--as", "developer"];
    let printed = run(&installation, &inject, POD).await?;
    let right = "missing right: list sidecarsets.apps.kruise.io at the cluster scope";
    expect(&printed, false, &[right])?;
    let set = json!({"kind": "SidecarSet", "metadata": {"name": "log-agent"}, "spec": log_agent()});
    let file = installation.plane.folder().join("sidecarset.yaml");
    std::fs::write(&file, set.to_string())?;
    let file = file.display().to_string();
    let offline = [&inject[..], &["--set", &file]].concat();
    let printed = run(&installation, &offline, POD).await?;
    let unknown = "those of namespace shop are not known";
    expect(&printed, true, &["the SidecarSet is not injected", unknown])?;
    // What the file has takes the place of what the cluster has.
    apply_set(&installation, "log-agent", &log_agent()).await?;
    let mut edited = set;
    edited["spec"]["containers"][0]["image"] = json!("log-agent:3.0");
    std::fs::write(&file, edited.to_string())?;
    let beside = [
        "inject",
        "-f",
        "-",
        "-n",
        "shop",
        "--set",
        &file,
        "--with-cluster",
    ];
    let printed = run(&installation, &beside, POD).await?;
    expect(&printed, true, &["+     image: log-agent:3.0"])?;
    installation.end().await;
    Ok(())
}

/// The causes that this case raises on a live cluster, and what is told to do; `leadsman_core` has all of them on objects
/// (`sidecarset/explain/tests.rs`).
const RAISED: [(&str, &str); 14] = [
    ("CreatedBefore", "create the pod again"),
    ("NotInForce", "look at its condition Ready"),
    ("Missed", "no webhook answered"),
    ("Labels", "does not match the pod's labels"),
    ("Namespace", "namespaceSelector does not match"),
    ("InjectionPaused", "spec.injectionStrategy.paused"),
    ("OwnContainer", "rename one of the two"),
    ("Due", "upgraded next"),
    ("Partition", "lower it to go on"),
    ("Paused", "set updateStrategy.paused to false"),
    ("NotUpdate", "set RollingUpdate"),
    ("NotUpgradable", "containers[log-agent].env[LEVEL]"),
    ("OutsideOfHash", "volumes[configuration]"),
    ("SetDeleted", "there is no SidecarSet log-agent any more"),
];

/// Fails unless the first cause of a pod for the set is this one.
async fn expect_cause(installation: &Installation, pod: &str, reason: &str) -> Result<()> {
    let told = explained(installation, pod).await?;
    let first = &told["causes"][0];
    let row = RAISED.iter().find(|(known, _)| *known == reason);
    let (_, action) = row.with_context(|| format!("{reason} is not in the table"))?;
    let message = first["message"].as_str().unwrap_or_default();
    ensure!(
        first["reason"] == reason && message.contains(action),
        "{pod}, {reason}: {told:#}"
    );
    Ok(())
}

/// What is told of a pod and the set.
async fn explained(installation: &Installation, pod: &str) -> Result<Value> {
    let words = ["explain", pod, "-n", "shop", "-o", "json"];
    let kubeconfig = installation.plane.admin_kubeconfig();
    let printed = kubectl_leadsman(kubeconfig, &words, "").await?;
    ensure!(printed.success, "{words:?}: {}", printed.err);
    let mut told: Value = serde_json::from_str(&printed.out)?;
    let sets = told["sidecarSets"].as_array_mut().map(std::mem::take);
    let mut sets = sets
        .with_context(|| format!("{pod} has no part on sets: {told:#}"))?
        .into_iter();
    let own = sets.find(|set| set["set"] == "log-agent");
    own.with_context(|| format!("nothing on log-agent: {told:#}"))
}

async fn create_pod(installation: &Installation, name: &str, change: &Value) -> Result<()> {
    let mut pod: Value = serde_json::from_str(POD)?;
    pod["metadata"]["name"] = json!(name);
    merge(&mut pod, change.clone());
    let pods: Api<Pod> = Api::namespaced(installation.client.clone(), "shop");
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    Ok(())
}

pub(crate) async fn causes_about_sidecars_are_named_on_a_live_cluster(
    _world: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    not_injected(&installation).await?;
    not_upgraded(&installation).await?;
    installation.end().await;
    Ok(())
}

async fn not_injected(installation: &Installation) -> Result<()> {
    let sets: Api<SidecarSet> = Api::all(installation.client.clone());
    let pods: Api<Pod> = Api::namespaced(installation.client.clone(), "shop");
    create_pod(installation, "early", &json!({})).await?;
    let early = pods.get("early").await?.metadata.creation_timestamp;
    // Times of objects have whole seconds.
    wait_for_answer("a set that is younger than a pod", || async {
        apply_set(installation, "log-agent", &log_agent()).await?;
        let set = sets.get("log-agent").await?;
        if set.metadata.creation_timestamp > early {
            return Ok(Some(()));
        }
        sets.delete("log-agent", &DeleteParams::default()).await?;
        Ok(None)
    })
    .await?;
    expect_cause(installation, "early", "CreatedBefore").await?;
    create_pod(installation, "late", &json!({})).await?;
    expect_cause(installation, "late", "NotInForce").await?;
    let in_force = json!({"status": {"matchedPods": 0, "updatedPods": 0, "readyPods": 0,
        "inForce": {"generation": 1, "since": "2026-01-01T00:00:00Z"}}});
    sets.patch_status(
        "log-agent",
        &PatchParams::default(),
        &Patch::Merge(in_force),
    )
    .await?;
    expect_cause(installation, "late", "Missed").await?;
    let typo = json!({"metadata": {"labels": {"app": "wbe"}}});
    create_pod(installation, "typo", &typo).await?;
    expect_cause(installation, "typo", "Labels").await?;
    let own = json!({"spec": {"containers": [{"name": "log-agent", "image": "own:1"}]}});
    create_pod(installation, "own", &own).await?;
    expect_cause(installation, "own", "OwnContainer").await?;
    let mut edited = log_agent();
    edited["namespaceSelector"] = json!({"matchLabels": {"tier": "tin"}});
    apply_set(installation, "log-agent", &edited).await?;
    expect_cause(installation, "late", "Namespace").await?;
    let mut edited = log_agent();
    edited["injectionStrategy"] = json!({"paused": true});
    apply_set(installation, "log-agent", &edited).await?;
    expect_cause(installation, "late", "InjectionPaused").await?;
    let printed = run(installation, &["explain", "late", "-n", "shop"], "").await?;
    let words = [
        "SidecarSets\n",
        "log-agent  not injected\n    InjectionPaused: its injection is paused",
    ];
    expect(&printed, true, &words)
}

async fn not_upgraded(installation: &Installation) -> Result<()> {
    apply_set(installation, "log-agent", &log_agent()).await?;
    let inject = ["inject", "-f", "-", "-n", "shop", "-o", "json"];
    let printed = run(installation, &inject, POD).await?;
    let pods: Api<Pod> = Api::namespaced(installation.client.clone(), "shop");
    pods.create(&PostParams::default(), &serde_json::from_str(&printed.out)?)
        .await?;
    report_running(&pods, "web").await?;
    let told = explained(installation, "web").await?;
    ensure!(
        told["injected"] == true && told["causes"] == json!([]),
        "{told:#}"
    );
    let mut edited = log_agent();
    edited["containers"][0]["image"] = json!("log-agent:2.0");
    for (strategy, reason) in [
        (json!({}), "Due"),
        (json!({"partition": 1}), "Partition"),
        (json!({"paused": true}), "Paused"),
        (json!({"type": "NotUpdate"}), "NotUpdate"),
    ] {
        edited["updateStrategy"] = strategy;
        apply_set(installation, "log-agent", &edited).await?;
        expect_cause(installation, "web", reason).await?;
    }
    edited["containers"][0]["env"][0]["value"] = json!("debug");
    apply_set(installation, "log-agent", &edited).await?;
    expect_cause(installation, "web", "NotUpgradable").await?;
    let mut edited = log_agent();
    edited["volumes"][0]["configMap"]["name"] = json!("other");
    apply_set(installation, "log-agent", &edited).await?;
    expect_cause(installation, "web", "OutsideOfHash").await?;
    let sets: Api<SidecarSet> = Api::all(installation.client.clone());
    sets.delete("log-agent", &DeleteParams::default()).await?;
    expect_cause(installation, "web", "SetDeleted").await
}

/// What a kubelet would report of a pod that runs.
async fn report_running(pods: &Api<Pod>, name: &str) -> Result<()> {
    let pod = pods.get(name).await?;
    let containers = pod.spec.context("no spec")?.containers.into_iter();
    let statuses = containers.map(|container| {
        json!({"name": container.name, "ready": true, "restartCount": 0, "image": container.image, "imageID": "x@sha256:1",
            "containerID": format!("containerd://{name}"), "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
    });
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": statuses.collect::<Vec<_>>()}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}
