//! The history of a set: byte for byte that of `OpenKruise`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_tests::wait_for_answer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::world::{Place, World, annotation};
use crate::Installation;

const VERSION: &str = "apps.kruise.io/sidecarset-custom-version";

/// The documents of a file that was recorded from `OpenKruise`.
macro_rules! recorded {
    ($name:literal) => {
        documents(include_str!(concat!(
            "../../../crates/core/tests/fixtures/sidecarset/",
            $name,
            ".yaml"
        )))
    };
}
pub(super) use recorded;

pub(super) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(text);
    let documents = documents.map(|document| Ok(Value::deserialize(document)?));
    documents.collect()
}

/// Number, name, custom version and image of each revision.
fn shown(revisions: &[ControllerRevision]) -> Vec<(i64, String, String, String)> {
    let shown = revisions.iter().map(|revision| {
        let image = revision.data.0.pointer("/spec/containers/0/image");
        (
            revision.revision.unwrap_or_default(),
            revision.name_any(),
            revision.labels().get(VERSION).cloned().unwrap_or_default(),
            image.and_then(Value::as_str).unwrap_or_default().to_owned(),
        )
    });
    shown.collect()
}

/// Metadata that a record has, but for what differs from one cluster to another.
fn comparable(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut owners = metadata["ownerReferences"].clone();
    owners[0]["uid"] = json!("");
    json!({
        "name": metadata["name"],
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "ownerReferences": owners,
        "revision": object["revision"],
    })
}

// SCS-22, SCS-33, SCS-34, SCS-35, SCS-36, SCS-38, SDF-56
pub(crate) async fn revisions_are_those_that_openkruise_recorded(
    _: Arc<Installation>,
) -> Result<()> {
    // The name is part of theirs. Its pods, if any, are none of the case's business.
    let place = Place::new(World::shared().await?, "log-agent").await?;
    let mut spec = recorded!("01-sidecarset-stored")?.remove(0)["spec"].clone();
    spec["customVersion"] = json!("v1");
    let set = place.set("", spec.clone()).await?;
    let expected = recorded!("02-controllerrevision-first")?.remove(0);
    let first = place.revisions().await?.remove(0);
    // What follows `data` in the text ends with it.
    let text = include_str!(
        "../../../crates/core/tests/fixtures/sidecarset/02-controllerrevision-first.yaml"
    );
    let data = text
        .lines()
        .find_map(|line| line.strip_prefix("# data, byte for byte: "));
    let path = format!(
        "/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions/{}",
        first.name_any()
    );
    let request = http::Request::get(path).body(Vec::new())?;
    let stored = place.scene.client.request_text(request).await?;
    let data = format!("\"data\":{}", data.context("the record has the text")?);
    ensure!(stored.contains(&data), "{stored}");
    let mut found = comparable(&serde_json::to_value(&first)?);
    ensure!(found["labels"][VERSION] == "v1", "{found}");
    found["labels"]
        .as_object_mut()
        .context("labels")?
        .remove(VERSION);
    let expected = comparable(&expected);
    ensure!(found == expected, "{found}\nrecorded: {expected}");
    // The set's hashes are on the set, as whoever waits for them reads them.
    expected["annotations"].as_object().context("annotations")?;
    wait_for_answer("the hashes on the set", || async {
        let stored = place.world.sets().get(place.name()).await?;
        let mut recorded = expected["annotations"].as_object().into_iter().flatten();
        let is_there = |(key, hash): (&String, &Value)| {
            stored.annotations().get(key).map(String::as_str) == hash.as_str()
        };
        Ok(recorded.all(is_there).then_some(()))
    })
    .await?;
    ensure!(
        set.status.and_then(|status| status.latest_revision) == Some(first.name_any()),
        "latestRevision"
    );
    // Another image, and back: nothing is created, the old one is renumbered.
    let image = |image: &str, version: &str| {
        let mut containers = spec["containers"].clone();
        containers[0]["image"] = json!(image);
        json!({"spec": {"containers": containers, "customVersion": version}})
    };
    place
        .edit(image("registry.example/log-agent:1.1", "v2"))
        .await?;
    place
        .edit(image("registry.example/log-agent:1.0", "v1"))
        .await?;
    let revisions = place.revisions().await?;
    let recorded = recorded!("05-revisions-after-rollback")?;
    ensure!(revisions.len() == recorded.len(), "{:?}", shown(&revisions));
    for (revision, recorded) in revisions.iter().zip(&recorded) {
        let found = comparable(&serde_json::to_value(revision)?);
        let recorded = comparable(recorded);
        ensure!(found == recorded, "{found}\nrecorded: {recorded}");
    }
    Ok(())
}

// SCS-36, SDF-27
pub(crate) async fn the_label_of_a_custom_version_follows_the_set(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "versions").await?;
    place.set("log:1", json!({})).await?;
    let becomes = async |version: &str| {
        wait_for_answer(&format!("version {version:?}"), || async {
            let versions = shown(&place.revisions().await?);
            ensure!(versions.len() == 1, "{versions:?}");
            Ok((versions[0].2 == version).then_some(()))
        })
        .await
    };
    becomes("").await?;
    // As v1beta1 has it, as v1alpha1 has it (which moves no generation), and taken away.
    place
        .edit(json!({"spec": {"customVersion": "one"}}))
        .await?;
    becomes("one").await?;
    place
        .edit(json!({"spec": {"customVersion": null}, "metadata": {"labels": {VERSION: "two"}}}))
        .await?;
    becomes("two").await?;
    place
        .edit(json!({"metadata": {"labels": {VERSION: null}}}))
        .await?;
    becomes("").await
}

// SCS-35, SCS-37
pub(crate) async fn the_oldest_revisions_go_but_for_those_in_use(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "limit").await?;
    let few = json!({"revisionHistoryLimit": 3, "updateStrategy": {"type": "NotUpdate"}});
    place.set("log:0", few).await?;
    place.pods(["one"]).await?;
    for number in 1..=6 {
        place.upgrade_to(&format!("log:{number}")).await?;
    }
    wait_for_answer("three revisions and the pod's", || async {
        let images: Vec<_> = shown(&place.revisions().await?)
            .into_iter()
            .map(|(.., image)| image)
            .collect();
        Ok((images == ["log:0", "log:5", "log:6"]
            || images == ["log:0", "log:4", "log:5", "log:6"])
        .then_some(()))
    })
    .await?;
    let pod = place.scene.pods().get("one").await?;
    let own = &annotation(&pod, "kruise.io/sidecarset-hash")?[place.name()]["controllerRevision"];
    let first = shown(&place.revisions().await?).remove(0);
    ensure!(*own == *first.1, "{own}, {first:?}");
    Ok(())
}
