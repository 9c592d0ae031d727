//! Sets that are refused as they are written, by a real API server that asks leadsman: for what its own schema and rules
//! cannot say.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Error, ResourceExt};
use leadsman_api::SidecarSet;
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};

use crate::Installation;
use crate::sidecarset_webhook::{Injecting, set};

/// Why a request is refused, if it is.
fn refused(answer: kube::Result<SidecarSet>) -> Result<Option<Box<Status>>> {
    match answer {
        Ok(_) => Ok(None),
        Err(Error::Api(status)) => Ok(Some(status)),
        Err(other) => Err(other.into()),
    }
}

/// Creates a set, which the API server then forgets.
async fn try_create(bed: &Injecting, set: &SidecarSet) -> Result<Option<Box<Status>>> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    refused(bed.sets().create(&params, set).await)
}

async fn try_edit(bed: &Injecting, name: &str, edit: &Value) -> Result<Option<Box<Status>>> {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    refused(bed.sets().patch(name, &params, &Patch::Merge(edit)).await)
}

/// The fields of a refusal, which has to be that of leadsman.
fn fields(refusal: Option<Box<Status>>) -> Result<BTreeSet<String>> {
    let Some(status) = refusal else {
        return Ok(BTreeSet::new());
    };
    ensure!(
        (status.code, status.reason.as_str()) == (422, "Invalid"),
        "{status:?}"
    );
    ensure!(
        status.message.contains("validate-sidecarset.leadsman.io"),
        "{}",
        status.message
    );
    let details = status.details.context("no details")?;
    ensure!(details.kind == "SidecarSet", "{details:?}");
    Ok(details
        .causes
        .into_iter()
        .map(|cause| cause.field)
        .collect())
}

fn set_of(fields: &[&str]) -> BTreeSet<String> {
    fields.iter().map(ToString::to_string).collect()
}

/// A cluster with two sets, `old` and `log`, and a list of annotations.
async fn raise() -> Result<Injecting> {
    let bed = Injecting::raise().await?;
    let list = json!({"rules": [{"allowedAnnotationKeyExprs": ["^allowed/"]}]}).to_string();
    let map = json!({
        "metadata": {"name": "kruise-configuration"},
        "data": {"SidecarSet_PatchPodMetadata_WhiteList": list},
    });
    let maps: Api<ConfigMap> = Api::namespaced(bed.client(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(map)?)
        .await?;
    bed.set("old", json!({})).await?;
    bed.set("log", json!({})).await?;
    wait_for_answer("sets are judged", || async {
        let conflicting = set(
            "new",
            json!({"spec": {"containers": [{"name": "old", "image": "i"}]}}),
        )?;
        try_create(&bed, &conflicting).await
    })
    .await?;
    Ok(bed)
}

const PIN: &str = "spec.injectionStrategy.revision.revisionName";

// SCS-44, SCS-70, SCS-73, SCS-74, SCS-78, SDF-17, SDF-24, SDF-26, SDF-28
pub(crate) async fn what_no_schema_can_say_is_refused_with_its_field(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = raise().await?;
    let old = bed.sets().get("old").await?;
    let revision_of_old = old.status.and_then(|status| status.latest_revision);
    let patch = |policy: &str, key: &str, value: &str| json!({"spec": {"patchPodMetadata": [{"patchPolicy": policy, "annotations": {key: value}}]}});
    let container = |over: Value| {
        let mut container = json!({"name": "log", "image": "image:1"});
        leadsman_tests::scene::merge(&mut container, over);
        json!({"spec": {"containers": [container]}})
    };
    let pin = |revision: Value| json!({"spec": {"injectionStrategy": {"revision": revision}}});
    let annotated =
        json!({"metadata": {"annotations": {"sidecarset.leadsman.io/failure-policy": "Never"}}});
    let amount = container(json!({"resources": {"limits": {"cpu": "much"}}}));
    let table = [
        (
            patch("MergePatchJson", "allowed/a", "{"),
            "spec.patchPodMetadata[0].annotations[allowed/a]",
        ),
        (
            patch("Retain", "other/b", "1"),
            "spec.patchPodMetadata[0].annotations[other/b]",
        ),
        (amount, "spec.containers[0].resources.limits[cpu]"),
        (
            annotated,
            "metadata.annotations[sidecarset.leadsman.io/failure-policy]",
        ),
        (container(json!({"name": "old"})), "spec.containers[0].name"),
        (pin(json!({"revisionName": revision_of_old})), PIN),
        (pin(json!({"revisionName": "log-none"})), PIN),
        (
            pin(json!({"customVersion": "none"})),
            "spec.injectionStrategy.revision.customVersion",
        ),
    ];
    for (edit, field) in &table {
        let told = fields(try_edit(&bed, "log", edit).await?)?;
        ensure!(told == set_of(&[field]), "{edit}: {told:?}");
    }
    for edit in [
        patch("MergePatchJson", "allowed/a", "{}"),
        container(json!({"image": "image:2"})),
        json!({"spec": {"selector": {"matchLabels": {"app": "other"}}, "containers": [{"name": "old", "image": "i"}]}}),
    ] {
        let told = try_edit(&bed, "log", &edit).await?;
        ensure!(told.is_none(), "{edit}: {told:?}");
    }
    // All at once, of a set that is new. Its pin may have been restored with it.
    let mut all =
        json!({"metadata": {"annotations": {"sidecarset.leadsman.io/failure-policy": "Never"}}});
    for edit in [
        container(json!({"name": "old", "resources": {"limits": {"cpu": "much"}}})),
        patch("MergePatchJson", "other/b", "{"),
        pin(json!({"revisionName": "new-none"})),
    ] {
        leadsman_tests::scene::merge(&mut all, edit);
    }
    let told = fields(try_create(&bed, &set("new", all)?).await?)?;
    let expected = set_of(&[
        "metadata.annotations[sidecarset.leadsman.io/failure-policy]",
        "spec.containers[0].name",
        "spec.containers[0].resources.limits[cpu]",
        "spec.patchPodMetadata[0].annotations[other/b]",
    ]);
    ensure!(told == expected, "{told:?}");
    bed.installation.end().await;
    Ok(())
}

// SCS-75, SDF-54
pub(crate) async fn what_was_wrong_before_keeps_nobody_from_another_edit(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = raise().await?;
    bed.installation.stop_manager().await?;
    // Nobody judges it.
    let wrong = json!({"spec": {"patchPodMetadata": [{"annotations": {"other/b": "1"}}]}});
    let patch = |edit: &Value| Patch::Merge(edit.clone());
    bed.sets()
        .patch("log", &PatchParams::default(), &patch(&wrong))
        .await?;
    bed.start().await?;
    let worse =
        json!({"spec": {"patchPodMetadata": [{"annotations": {"other/b": "1", "other/c": "1"}}]}});
    wait_for_answer("sets are judged again", || async {
        try_edit(&bed, "log", &worse).await
    })
    .await?;
    let told = fields(try_edit(&bed, "log", &worse).await?)?;
    let expected = set_of(&["spec.patchPodMetadata[0].annotations[other/c]"]);
    ensure!(told == expected, "{told:?}");
    let edits = [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"finalizers": ["example.com/held"]}}),
        json!({"spec": {"containers": [{"name": "log", "image": "image:2"}]}}),
        json!({"metadata": {"finalizers": null}}),
    ];
    for edit in edits {
        let answer = bed
            .sets()
            .patch("log", &PatchParams::default(), &patch(&edit))
            .await;
        ensure!(answer.is_ok(), "{edit}: {answer:?}");
    }
    the_client_is_warned(&bed).await?;
    let all = bed.sets().list(&ListParams::default()).await?;
    ensure!(all.iter().any(|set| set.name_any() == "log"), "it is gone");
    bed.installation.end().await;
    Ok(())
}

/// What is wrong without a refusal comes as a warning.
async fn the_client_is_warned(bed: &Injecting) -> Result<()> {
    let edit = json!({"spec": {"containers": [{"name": "log", "image": "image:3"}]}});
    let request = kube::core::Request::new("/apis/apps.kruise.io/v1beta1/sidecarsets");
    let request = request.patch("log", &PatchParams::default(), &Patch::Merge(edit))?;
    let request = request.map(kube::client::Body::from);
    let response = bed.client().send(request).await?;
    let warnings = response.headers().get_all("warning").iter();
    let warnings: Vec<_> = warnings.filter_map(|value| value.to_str().ok()).collect();
    ensure!(
        warnings.iter().any(|text| text.contains("other/b")),
        "{warnings:?}"
    );
    Ok(())
}
