//! What the CRD takes and refuses, in either version.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};

use super::{
    Api, Arc, Error, Installation, Patch, PatchParams, PostParams, Result, Scene, Value, ensure,
    json, serve_jobs,
};
use crate::recorded::RecordedCases;

const RECORDED: RecordedCases<'_> = RecordedCases {
    kind: "CloneSet",
    lines: include_str!("../../fixtures/openkruise/cloneset-admission.jsonl"),
    refused: &[
        "both-zero-replicas-0",
        "surge-negative",
        "grace-negative",
        "claim-without-storage",
        "scale-maxUnavailable-text",
        "scale-maxUnavailable-negative",
        "minReady-negative",
        "history-negative",
    ],
    // Names of pods that are not there are no error.
    judged_later: &[
        "bad-image-empty",
        "unknown-volume-mount",
        "podsToDelete-on-create",
    ],
    is_complete: |spec| {
        spec["replicas"].is_number()
            && spec["updateStrategy"]["type"].is_string()
            && !spec["updateStrategy"]["maxUnavailable"].is_null()
    },
};

// CLS-57, CLS-60, CLD-18, CLD-46, CLD-62
pub(crate) async fn the_api_server_takes_and_refuses_what_was_recorded(
    installation: Arc<Installation>,
) -> Result<()> {
    serve_jobs(&installation.client).await?;
    let scene = Scene::new(&installation.client, "c").await?;
    RECORDED.check(&scene).await
}

/// A set of this version with these fields beside what it needs.
pub(super) fn set_of(version: &str, name: &str, more: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": "s"}},
        "template": {"metadata": {"labels": {"app": "s"}},
            "spec": {"containers": [{"name": "main", "image": "app:1"}]}}});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": format!("apps.kruise.io/{version}"), "kind": "CloneSet", "metadata": {"name": name}, "spec": spec})
}

/// Patches of the sets of a case: the version that is written, the set, and the part of the refusal, if it is one.
fn patches_of_either_form() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let strategy = |strategy: Value| json!({"spec": {"updateStrategy": strategy}});
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let none = json!({"partition": null, "maxUnavailable": null, "maxSurge": null});
    let partition = json!({"rollingUpdate": {"partition": 2}});
    let moved = json!({"partition": 0, "type": "RollingUpdate",
        "rollingUpdate": {"podUpdatePolicy": "InPlaceOnly", "partition": 1}});
    let no_reuse = json!({"spec": {"scaleStrategy": {"enablePVCReuse": false}}});
    vec![
        // What kubectl writes, whatever the version.
        ("v1beta1", "a", label.clone(), ""),
        ("v1beta1", "a", strategy(json!({"partition": 2})), ""),
        ("v1alpha1", "b", label, ""),
        ("v1alpha1", "b", strategy(partition.clone()), ""),
        ("v1alpha1", "plain", json!({"spec": {"replicas": 3}}), ""),
        // What a program writes that knows one form alone.
        ("v1beta1", "a", strategy(none), "is in the form of v1alpha1"),
        ("v1beta1", "a", no_reuse, "write disablePVCReuse"),
        (
            "v1alpha1",
            "b",
            strategy(json!({"rollingUpdate": null})),
            "is missing: the type is of v1beta1",
        ),
        // Both forms at once, and the other one.
        (
            "v1beta1",
            "b",
            strategy(json!({"partition": 2})),
            "move them there",
        ),
        ("v1alpha1", "a", strategy(partition), "counts with type"),
        ("v1alpha1", "a", strategy(moved), ""),
    ]
}

// CLS-1, CLS-2, CLD-42, CLD-43
pub(crate) async fn either_version_keeps_what_the_other_one_has_written(
    installation: Arc<Installation>,
) -> Result<()> {
    serve_jobs(&installation.client).await?;
    let scene = Scene::new(&installation.client, "cv").await?;
    let [old, new] = ["v1alpha1", "v1beta1"].map(|version| {
        let kind = GroupVersionKind::gvk("apps.kruise.io", version, "CloneSet");
        let resource = ApiResource::from_gvk(&kind);
        Api::<DynamicObject>::namespaced_with(scene.client.clone(), &scene.ns, &resource)
    });
    let strategy = json!({"type": "OnDelete", "rollingUpdate": {"partition": 1, "paused": true}});
    for (sets, version, name, strategy) in [
        (
            &old,
            "v1alpha1",
            "a",
            json!({"type": "InPlaceIfPossible", "partition": 1}),
        ),
        (&new, "v1beta1", "b", strategy.clone()),
        (&new, "v1beta1", "plain", json!({})),
    ] {
        let set = set_of(version, name, &json!({"updateStrategy": strategy}));
        let set = serde_json::from_value(set)?;
        sets.create(&PostParams::default(), &set).await?;
    }
    let read = old.get("b").await?.data["spec"]["updateStrategy"].clone();
    ensure!(
        read["type"] == "OnDelete" && read["rollingUpdate"] == strategy["rollingUpdate"],
        "{read}"
    );
    let read = new.get("a").await?.data["spec"]["updateStrategy"].clone();
    ensure!(
        read["type"] == "InPlaceIfPossible" && read["partition"] == 1,
        "{read}"
    );
    let read = new.get("plain").await?.data["spec"]["updateStrategy"].clone();
    ensure!(read["type"] == "RollingUpdate", "{read}");
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    for (version, name, patch, part) in patches_of_either_form() {
        let sets = if version == "v1beta1" { &new } else { &old };
        let answer = match sets.patch(name, &dry_run, &Patch::Merge(&patch)).await {
            Ok(_) => String::new(),
            Err(Error::Api(status)) => status.message,
            Err(error) => return Err(error.into()),
        };
        let is_as_said = if part.is_empty() {
            answer.is_empty()
        } else {
            answer.contains(part)
        };
        ensure!(is_as_said, "{name} {patch}: {answer:?}");
    }
    Ok(())
}
