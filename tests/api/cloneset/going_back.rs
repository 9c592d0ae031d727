//! What leadsman leaves of sets, pods, claims and revisions reads as what an `OpenKruise` left of the same sets when it was at rest:
//! so it finds nothing to write when it takes them back. Ids of pods, uids, times and image ids differ, and so do annotations of
//! revisions, which nobody reads unless a gate is on.

use std::collections::BTreeSet;

use kube::Client;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leadsman_tests::metrics::is_at_rest;
use leadsman_tests::scene::merge;

use super::takeover::LEFT;
use super::{
    Api, Arc, CloneSet, Context as _, Installation, ListParams, PLACES, Patch, PatchParams, Pods,
    PostParams, Result, Scene, Value, ensure, json, raise, wait_for_answer,
};

const ID: &str = "apps.kruise.io/cloneset-instance-id";
const STATE: &str = "apps.kruise.io/inplace-update-state";
const TIMESTAMP: &str = "lifecycle.apps.kruise.io/timestamp";
/// The kinds of which something is left.
const KINDS: [(&str, &str, &str); 4] = [
    ("apps.kruise.io", "v1alpha1", "CloneSet"),
    ("apps", "v1", "ControllerRevision"),
    ("", "v1", "Pod"),
    ("", "v1", "PersistentVolumeClaim"),
];

/// Namespaces, and the images and specs that their sets had before they were as they were left.
fn courses() -> [(&'static str, Vec<(&'static str, Value)>); 4] {
    let re_create = json!({"updateStrategy": {"type": "ReCreate"}});
    [
        ("web", vec![]),
        ("in-place", vec![("app:1", json!({}))]),
        (
            "partition",
            vec![("app:1", re_create.clone()), ("app:2", re_create)],
        ),
        // The earlier revision was not recorded.
        (
            "claims",
            vec![
                ("app:1", json!({})),
                ("app:2", json!({"revisionHistoryLimit": 0})),
            ],
        ),
    ]
}

// CLS-6, CLS-7, CLS-8, CLS-9, CLS-10, CLS-12, CLS-13, CLS-14, CLS-29, CLS-43, CLS-50, CLD-32
pub(crate) async fn what_is_left_reads_as_what_openkruise_left(
    _shared: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    for (namespace, before) in courses() {
        let recorded = recorded_in(namespace)?;
        let scene = Scene::new(&installation.client, namespace).await?;
        run_course(&installation, &scene, (&recorded[0], before))
            .await
            .context(namespace)?;
        let recorded = recorded
            .iter()
            .filter(|it| it["status"]["phase"] != "Failed");
        let recorded: BTreeSet<_> = recorded.map(|it| facts(it, "$SET")).collect();
        let left = left_in(&scene.client, namespace).await?;
        let unlike: Vec<_> = left.symmetric_difference(&recorded).collect();
        ensure!(
            unlike.is_empty(),
            "{namespace}: in one of both only:\n{unlike:#?}"
        );
    }
    installation.end().await;
    Ok(())
}

fn recorded_in(namespace: &str) -> Result<Vec<Value>> {
    let mut recorded = Vec::new();
    for line in LEFT.lines() {
        let object: Value = serde_json::from_str(line)?;
        if object["metadata"]["namespace"] == namespace {
            recorded.push(object);
        }
    }
    Ok(recorded)
}

/// Creates a set, and edits it until it is as it was recorded. Each time all of its pods are ready in the end.
async fn run_course(
    installation: &Installation,
    scene: &Scene,
    (recorded, before): (&Value, Vec<(&str, Value)>),
) -> Result<()> {
    let sets: Api<CloneSet> = Api::namespaced(scene.client.clone(), &scene.ns);
    let pods = Pods(scene.pods());
    let name = recorded["metadata"]["name"].as_str().context("a name")?;
    let mut specs: Vec<_> = before
        .into_iter()
        .map(|(image, more)| {
            let mut spec = recorded["spec"].clone();
            spec["template"]["spec"]["containers"][0]["image"] = json!(image);
            merge(&mut spec, more);
            spec
        })
        .collect();
    specs.push(recorded["spec"].clone());
    for (number, spec) in specs.into_iter().enumerate() {
        if number > 0 {
            let patch = Patch::Merge(json!({"spec": spec}));
            sets.patch(name, &PatchParams::default(), &patch).await?;
        } else {
            let mut set = recorded.clone();
            set["spec"] = spec;
            sets.create(&PostParams::default(), &serde_json::from_value(set)?)
                .await?;
        }
        wait_for_answer("a set at rest", || async {
            pods.report().await?;
            let set = sets.get(name).await?;
            let status = set.status.clone().unwrap_or_default();
            let is_newest = Some(status.observed_generation) == set.metadata.generation;
            let is_whole = Some(status.available_replicas) == set.spec.replicas
                && status.replicas == status.available_replicas
                && status.updated_replicas == status.updated_available_replicas
                && status.updated_replicas >= status.expected_updated_replicas;
            let metrics = installation.get("/metrics").await?;
            Ok((is_newest && is_whole && is_at_rest(&metrics)).then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn left_in(client: &Client, namespace: &str) -> Result<BTreeSet<String>> {
    let mut left = BTreeSet::new();
    let mut uid = String::new();
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let objects: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &resource);
        for object in objects.list(&ListParams::default()).await? {
            let mut object = serde_json::to_value(object)?;
            object["kind"] = json!(kind);
            let metadata = &object["metadata"];
            if kind == "CloneSet" {
                let found = metadata["uid"].as_str().unwrap_or_default();
                found.clone_into(&mut uid);
            }
            // Nobody takes the finalizer of the protection away that the API server adds to claims.
            if metadata["deletionTimestamp"].is_null() {
                left.insert(facts(&object, &uid));
            }
        }
    }
    Ok(left)
}

/// What an `OpenKruise` reads of an object, as text that is the same whatever the id of its pod, the uid of its set and the time.
fn facts(object: &Value, uid: &str) -> String {
    let metadata = &object["metadata"];
    let mut read = json!({"kind": object["kind"], "name": metadata["name"]});
    match object["kind"].as_str() {
        Some("CloneSet") => {
            let mut status = object["status"].clone();
            // A condition of an OpenKruise may be about an error that is over, and generations count edits.
            status["conditions"] = Value::Null;
            status["observedGeneration"] = Value::Null;
            read["status"] = status;
        }
        Some("ControllerRevision") => {
            read["data"] = object["data"].clone();
            read["revision"] = object["revision"].clone();
        }
        Some("Pod") => read["pod"] = facts_of_pod(object),
        _ => {}
    }
    if object["kind"] != "CloneSet" {
        read["labels"] = metadata["labels"].clone();
        read["owners"] = metadata["ownerReferences"].clone();
    }
    let id = metadata["labels"][ID].as_str().unwrap_or("no id");
    let version = |version: &str| format!("apps.kruise.io/{version}");
    // Owners are found by group, kind and uid.
    let text = read.to_string().replace(uid, "UID");
    text.replace(&version("v1alpha1"), &version("v1beta1"))
        .replace(id, "ID")
}

fn facts_of_pod(pod: &Value) -> Value {
    let mut annotations = pod["metadata"]["annotations"].clone();
    annotations[TIMESTAMP] = json!(annotations[TIMESTAMP].is_string());
    if let Some(state) = annotations[STATE].as_str() {
        let mut state: Value = serde_json::from_str(state).unwrap_or_default();
        for place in [
            "/updateTimestamp",
            "/lastContainerStatuses/main/imageID",
            "/containerBatchesRecord/0/timestamp",
        ] {
            if let Some(differs) = state.pointer_mut(place) {
                *differs = json!(differs.is_string());
            }
        }
        // An OpenKruise skips what else leadsman notes.
        if let Some(before) = state.pointer_mut("/lastContainerStatuses/main") {
            merge(before, json!({"containerID": null}));
        }
        annotations[STATE] = state;
    }
    let conditions = pod["status"]["conditions"].as_array();
    let conditions = conditions.into_iter().flatten();
    let read = ["InPlaceUpdateReady", "KruisePodReady", "Ready"];
    let conditions = conditions.filter(|one| read.iter().any(|type_| one["type"] == *type_));
    let conditions: BTreeSet<_> = conditions
        .map(|one| format!("{} {}", one["type"], one["status"]))
        .collect();
    json!({
        "generateName": pod["metadata"]["generateName"],
        "annotations": annotations,
        "image": pod["spec"]["containers"][0]["image"],
        "volumes": pod["spec"]["volumes"],
        "readinessGates": pod["spec"]["readinessGates"],
        "conditions": conditions,
    })
}
