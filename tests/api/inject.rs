//! `kubectl leadsman inject` and `drift` against the API server: what they say of a pod is what the API server makes of it.
//! On a control plane without a webhook, so that a pod is what `inject` printed and no more.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leadsman_api::SidecarSet;
use leadsman_api::crd::sidecar_set_crd;
use leadsman_tests::{Printed, kubectl_leadsman, wait_for_object};
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

async fn run(installation: &Installation, words: &[&str], input: &str) -> Result<Printed> {
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

fn expect(printed: &Printed, success: bool, words: &[&str]) -> Result<()> {
    let all = format!("{}{}", printed.out, printed.err);
    ensure!(printed.success == success, "{all}");
    for words in words {
        ensure!(all.contains(words), "{words}: {all}");
    }
    Ok(())
}

/// A control plane that has the kind, a namespace and sets.
async fn raise() -> Result<Installation> {
    let installation = Installation::raise_idle().await?;
    let client = &installation.client;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = serde_json::to_value(sidecar_set_crd())?;
    let name = "sidecarsets.apps.kruise.io";
    let apply = PatchParams::apply("tests").force();
    crds.patch(name, &apply, &Patch::Apply(crd)).await?;
    wait_for_object(&crds, name, "its kind to be served", |crd| {
        let conditions = crd
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        ensure!(conditions.any(|one| one.type_ == "Established" && one.status == "True"));
        Ok(())
    })
    .await?;
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
    expect(
        &none,
        false,
        &["no sidecarset log-agnet; did you mean log-agent?"],
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
