//! Pods whose upgrade is refused by others.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leadsman_testkit::leadsman::MANAGER;
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};

use super::world::{Place, World};
use crate::Installation;

/// Bytes of the keys and values of all annotations of an object (`TotalAnnotationSizeLimitB`,
/// `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
const ANNOTATIONS_BYTES: usize = 256 * 1024;

/// Refuses every change of a pod's images whose name is `stubborn`, in this namespace.
fn policy(namespace: &str) -> (Value, Value) {
    let named = |mut object: Value| {
        object["metadata"] = json!({"name": namespace});
        object
    };
    let policy = named(json!({"spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"],
        }]},
        "matchConditions": [{
            "name": "stubborn",
            "expression": format!("request.namespace == '{namespace}' && request.name == 'stubborn'"),
        }],
        "validations": [{
            "expression": "object.spec.containers.all(one, oldObject.spec.containers.exists(old, old.image == one.image))",
            "message": "this pod stays as it is",
            "reason": "Forbidden",
        }],
    }}));
    let binding = named(json!({"spec": {"policyName": namespace, "validationActions": ["Deny"]}}));
    (policy, binding)
}

/// A set and four pods of it. One has this name; it is the newest, and so the first in the order of the upgrade.
async fn four_pods(namespace: &str, newest: &str) -> Result<Place> {
    let place = Place::new(World::shared().await?, namespace).await?;
    place.set("log:1", json!({})).await?;
    place.pods(["a", "b", "c"]).await?;
    place.pods([newest]).await?;
    place.wait_for_counts([4, 4, 4, 4]).await?;
    Ok(place)
}

// SDF-35, SDF-55
pub(crate) async fn a_pod_that_a_policy_protects_stops_no_other(
    _: Arc<Installation>,
) -> Result<()> {
    let place = four_pods("refused", "stubborn").await?;
    let (policy, binding) = policy(place.name());
    let client = &place.scene.client;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let post = PostParams::default();
    policies
        .create(&post, &serde_json::from_value(policy)?)
        .await?;
    bindings
        .create(&post, &serde_json::from_value(binding)?)
        .await?;
    let try_it = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let images =
        Patch::Strategic(json!({"spec": {"containers": [{"name": "log", "image": "log:x"}]}}));
    wait_for_answer("the policy holds", || async {
        let answer = place.scene.pods().patch("stubborn", &try_it, &images).await;
        Ok(answer.is_err().then_some(()))
    })
    .await?;
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([4, 3, 4, 3]).await?;
    ensure!(
        place.images().await?["stubborn"] == "log:1",
        "{:?}",
        place.images().await?
    );
    let message = place.wait_for_reason("WriteRefused").await?;
    ensure!(
        message.contains("stubborn") && message.contains("stays as it is"),
        "{message}"
    );
    // Any change of the set tries it again.
    bindings
        .delete(place.name(), &DeleteParams::default())
        .await?;
    policies
        .delete(place.name(), &DeleteParams::default())
        .await?;
    wait_for_answer("the policy is gone", || async {
        let answer = place.scene.pods().patch("stubborn", &try_it, &images).await;
        Ok(answer.is_ok().then_some(()))
    })
    .await?;
    place.upgrade_to("log:3").await?;
    place.wait_for_counts([4, 4, 4, 4]).await?;
    Ok(())
}

// SDF-35
pub(crate) async fn a_pod_whose_annotations_are_full_stops_no_other(
    _: Arc<Installation>,
) -> Result<()> {
    let place = four_pods("full", "crammed").await?;
    let (pods, params) = (place.scene.pods(), PatchParams::default());
    let annotations = pods.get("crammed").await?.metadata.annotations;
    let used = annotations.iter().flatten();
    let used: usize = used.map(|(key, value)| key.len() + value.len()).sum();
    let annotate = |bytes: usize| {
        let value = (bytes > 0).then(|| "x".repeat(bytes));
        Patch::Merge(json!({"metadata": {"annotations": {"own": value}}}))
    };
    let room = ANNOTATIONS_BYTES - "own".len() - used;
    let above = pods.patch("crammed", &params, &annotate(room + 1)).await;
    ensure!(above.is_err(), "the API server has another limit");
    pods.patch("crammed", &params, &annotate(room)).await?;

    let installation = &place.world.installation;
    let mark = installation.plane.audit_mark()?;
    let attempts = || {
        let requests = installation.plane.audit(mark)?.into_iter();
        let own = requests.filter(|it| it.namespace == "full" && it.name == "crammed");
        let own = own.filter(|it| it.user == MANAGER && it.is_write());
        anyhow::Ok(own.map(|it| it.kind()).collect::<Vec<_>>())
    };
    place.upgrade_to("log:2").await?;
    place.wait_for_counts([4, 3, 4, 3]).await?;
    let message = place.wait_for_reason("WriteRefused").await?;
    for part in ["1 pod was", "full/crammed", "annotations", "262144"] {
        ensure!(message.contains(part), "no {part:?} in: {message}");
    }
    // Neither a change of the pod repeats what was refused, nor one of another pod; that of `d` is seen after it.
    let label = Patch::Merge(json!({"metadata": {"labels": {"seen": "again"}}}));
    pods.patch("crammed", &params, &label).await?;
    place.pods(["d"]).await?;
    place.wait_for_counts([5, 4, 5, 4]).await?;
    let refused = attempts()?;
    ensure!(refused == ["patch pods 422"], "{refused:?}");
    // An edit of the set tries it again, once.
    place.upgrade_to("log:3").await?;
    place.wait_for_counts([5, 4, 5, 4]).await?;
    let message = place.wait_for_reason("WriteRefused").await?;
    ensure!(message.contains("full/crammed"), "{message}");
    let refused = attempts()?;
    ensure!(refused == ["patch pods 422"; 2], "{refused:?}");
    pods.patch("crammed", &params, &annotate(0)).await?;
    place.upgrade_to("log:4").await?;
    place.wait_for_counts([5, 5, 5, 5]).await?;
    Ok(())
}
