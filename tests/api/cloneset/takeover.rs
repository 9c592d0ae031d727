//! Sets with their pods, claims and revisions as an `OpenKruise` leaves them. It leads no more.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leadsman_testkit::audit::Request;
use leadsman_testkit::leadsman::MANAGER as USER;
use leadsman_tests::Neighbour;
use leadsman_tests::metrics::is_at_rest;
use leadsman_tests::neighbour::{remove_lease, uninstall};

use super::{
    Api, Arc, BTreeMap, CloneSet, Context as _, GATE, Installation, ListParams, PLACES, Patch,
    PatchParams, Pod, Pods, PostParams, ResourceExt as _, Result, Scene, Value, ensure, json, uids,
    wait_for_answer,
};
use crate::openkruise::preflight;

/// Namespace after namespace, in each a set and then what it controls.
pub(super) const LEFT: &str = include_str!("../../fixtures/openkruise/clonesets.jsonl");
/// The sets, and the pods that they have, in all namespaces.
const SETS: usize = 9;
const PODS: usize = 19;

/// Puts these objects onto the API server, and their statuses.
async fn leave_behind(client: &Client) -> Result<()> {
    let by = PostParams {
        field_manager: Some("kruise-manager".to_owned()),
        ..PostParams::default()
    };
    let mut uid = String::new();
    for line in LEFT.lines() {
        let mut object: DynamicObject = serde_json::from_str(&line.replace("$SET", &uid))?;
        let (types, namespace) = (object.types.clone(), object.namespace());
        let (types, namespace) = (types.context("a kind")?, namespace.context("a namespace")?);
        if types.kind == "CloneSet" {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let made = json!({"metadata": {"name": namespace}});
            namespaces
                .create(&by, &serde_json::from_value(made)?)
                .await?;
        }
        let kind = GroupVersionKind::try_from(&types)?;
        let kind = ApiResource::from_gvk(&kind);
        let objects = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &kind);
        let created = objects.create(&by, &object).await?;
        if types.kind == "CloneSet" {
            uid = created.uid().context("a uid")?;
            // Here nobody has edited it since.
            object.data["status"]["observedGeneration"] = json!(created.metadata.generation);
        }
        let status = &object.data["status"];
        if !status.is_null() {
            let patch = Patch::Merge(json!({"status": status}));
            objects
                .patch_status(&created.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
    }
    Ok(())
}

/// `leadsman preflight` before `OpenKruise` is removed.
async fn the_preflight_names_what_would_go(installation: &Installation) -> Result<()> {
    let client = &installation.client;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let release = json!({"metadata": {"annotations": {"meta.helm.sh/release-name": "kruise"}}});
    let release = Patch::Merge(release);
    let params = PatchParams::default();
    crds.patch("clonesets.apps.kruise.io", &params, &release)
        .await?;
    let off = "PodProbeMarkerGate=false";
    let neighbour = Neighbour::start(client, "kruise-c", off).await?;
    let report = wait_for_answer("it sees the manager", || async {
        let report = preflight(installation, &[GATE]).await?;
        let text = report.to_string();
        Ok(text.contains("openkruise-ungated").then_some(report))
    })
    .await?;
    drop(neighbour);
    remove_lease(client).await?;
    uninstall(client).await?;
    let found = |check: &str| {
        let mut checks = report["checks"].as_array().into_iter().flatten();
        let found = checks.find(|one| one["check"] == check);
        found.map(|one| format!("{} {}", one["result"], one["message"]))
    };
    let (running, sets) = (found("openkruise-ungated"), found("clonesets"));
    let running = running.unwrap_or_default();
    ensure!(
        running.contains("todo") && running.contains("CloneSets"),
        "{running}"
    );
    let (sets, counts) = (
        sets.unwrap_or_default(),
        format!("{SETS} CloneSets, and with them {PODS} pods"),
    );
    ensure!(
        sets.contains("note") && sets.contains("release kruise") && sets.contains(&counts),
        "{sets}"
    );
    Ok(())
}

/// The version of each pod outside of this namespace.
async fn versions(client: &Client, fence: &str) -> Result<BTreeMap<String, Option<String>>> {
    let pods = Api::<Pod>::all(client.clone());
    let all = pods.list(&ListParams::default()).await?.into_iter();
    let all = all.filter(|pod| pod.namespace().as_deref() != Some(fence));
    let version = |pod: Pod| {
        let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        (name, pod.resource_version())
    };
    Ok(all.map(version).collect())
}

/// Somebody applies a manifest that says of the pod nothing but this image: `kubectl` takes away what it finds beside that.
async fn apply(client: &Client, namespace: &str, set: &str, image: &str) -> Result<()> {
    let sets: Api<CloneSet> = Api::namespaced(client.clone(), namespace);
    let mut spec = json!({"containers": [{"name": "main", "image": image}]});
    for field in [
        "dnsPolicy",
        "restartPolicy",
        "schedulerName",
        "securityContext",
    ] {
        spec[field] = Value::Null;
    }
    spec["terminationGracePeriodSeconds"] = Value::Null;
    let patch = Patch::Merge(json!({"spec": {"template": {"spec": spec}}}));
    sets.patch(set, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Pods stay where the manifest means what `OpenKruise` has stored of it, and are updated in place where the image differs.
async fn manifests_are_applied_again(client: &Client) -> Result<()> {
    for (namespace, set, image) in [("web", "web", "nginx:1"), ("in-place", "s", "app:3")] {
        let pods = Pods(Api::namespaced(client.clone(), namespace));
        let before = pods.active().await?;
        apply(client, namespace, set, image).await?;
        let sets: Api<CloneSet> = Api::namespaced(client.clone(), namespace);
        let after = wait_for_answer("pods of the new revision", || async {
            let after = pods.ready(before.len(), image).await?;
            let status = sets.get(set).await?.status.unwrap_or_default();
            let revision = status.update_revision.as_ref();
            let key = "controller-revision-hash";
            let mut labels = after.iter().map(|pod| pod.labels().get(key));
            let is_new = revision != before[0].labels().get(key);
            Ok((is_new && labels.all(|label| label == revision)).then_some(after))
        })
        .await?;
        ensure!(uids(&after) == uids(&before), "{namespace}: others came");
    }
    Ok(())
}

// CLS-2, CLS-6, CLS-8, CLS-9, CLS-10, CLS-50, CLD-24, CLD-36, CLD-47, CLD-52
pub(crate) async fn what_openkruise_left_is_taken_over(_shared: Arc<Installation>) -> Result<()> {
    const FENCE: &str = "fence";
    let _place = PLACES.acquire().await?;
    let installation = super::raise_without_manager().await?;
    let client = &installation.client;
    leave_behind(client).await?;
    the_preflight_names_what_would_go(&installation).await?;
    let before = versions(client, FENCE).await?;
    let start = installation.plane.audit_mark()?;
    installation.start_manager_with(&[GATE]).await?;
    // What comes later is done: so is what was there before.
    let scene = Scene::new(client, FENCE).await?;
    let sets: Api<CloneSet> = Api::namespaced(client.clone(), FENCE);
    let set = super::set_of("v1alpha1", FENCE, &json!({"replicas": 2}));
    sets.create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    let pods = Pods(scene.pods());
    pods.ready(2, "app:1").await?;
    wait_for_answer("its status, and a manager at rest", || async {
        let status = sets.get(FENCE).await?.status.unwrap_or_default();
        let metrics = installation.get("/metrics").await?;
        Ok((status.available_replicas == 2 && is_at_rest(&metrics)).then_some(()))
    })
    .await?;
    let requests = installation.plane.audit(start)?.into_iter();
    // Its namespace, and its node, which has probes.
    let is_of_fence = |it: &Request| it.namespace == FENCE || it.name == FENCE;
    let writes = requests.filter(|it| {
        it.user == USER && it.is_write() && it.resource != "leases" && !is_of_fence(it)
    });
    let writes: Vec<_> = writes
        .map(|it| format!("{} {}/{}", it.kind(), it.namespace, it.name))
        .collect();
    // The revision that nobody has owned since its set was deleted without it.
    ensure!(
        writes == ["patch controllerrevisions orphaned/s-8647df48fc"],
        "{writes:#?}"
    );
    let after = versions(client, FENCE).await?;
    ensure!(after == before, "{after:?}, not {before:?}");
    manifests_are_applied_again(client).await?;
    installation.end().await;
    Ok(())
}
