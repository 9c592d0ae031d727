//! A pod that is injected as the one that was recorded of `OpenKruise`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::{Injecting, create};
use crate::Installation;

/// The set and the pod of it that were recorded from `OpenKruise`.
const STORED: &str =
    include_str!("../../../crates/core/tests/fixtures/sidecarset/01-sidecarset-stored.yaml");
const INJECTED: &str =
    include_str!("../../../crates/core/tests/fixtures/sidecarset/03-pod-injected.yaml");
/// A document of recorded objects.
fn recorded(text: &str, place: usize) -> Result<Value> {
    let documents = serde_norway::Deserializer::from_str(text);
    let mut documents = documents.map(Value::deserialize);
    Ok(documents.nth(place).context("no such document")??)
}

/// What a set gives to a pod, without the time of the injection and the field of leadsman's own (SDF-51).
fn without_times(pod: &Value) -> Result<Value> {
    let mut annotations = pod["metadata"]["annotations"].clone();
    let texts = annotations.as_object_mut().context("no annotations")?;
    for text in texts.values_mut() {
        // The others are lists of names.
        let parsed = text
            .as_str()
            .and_then(|text| serde_json::from_str::<Map<_, _>>(text).ok());
        let Some(mut entries) = parsed else {
            continue;
        };
        for entry in entries.values_mut() {
            entry["updateTimestamp"] = Value::Null;
            if let Some(fields) = entry.as_object_mut() {
                fields.remove("newestRevision");
            }
        }
        *text = entries.into();
    }
    Ok(json!([
        annotations,
        pod["metadata"]["labels"],
        pod["spec"]["containers"],
        pod["spec"]["volumes"]
    ]))
}

// SCS-5, SCS-9, SCS-15, SCS-23, SCS-81
pub(crate) async fn a_new_pod_is_what_openkruise_made_of_it(_: Arc<Installation>) -> Result<()> {
    let bed = Injecting::raise().await?;
    let set = serde_json::from_value(recorded(STORED, 0)?)?;
    bed.sets().create(&PostParams::default(), &set).await?;
    bed.is_in_force("log-agent").await?;
    let expected = recorded(INJECTED, 0)?;
    let app = expected["spec"]["containers"][1].clone();
    let over = json!({"metadata": {"name": "web-0"}, "spec": {"containers": [app]}});
    for dry_run in [true, false] {
        let found = create(&bed.client(), "default", over.clone(), dry_run).await?;
        let found = serde_json::to_value(found)?;
        ensure!(
            without_times(&found)? == without_times(&expected)?,
            "{found:#}"
        );
    }
    // An edit of the pod is no creation.
    let calls = bed.calls().await?;
    let pods: Api<Pod> = Api::namespaced(bed.client(), "default");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    pods.patch("web-0", &PatchParams::default(), &patch).await?;
    ensure!(bed.calls().await? == calls, "called for an update");
    bed.installation.end().await;
    Ok(())
}
