//! Pods whose upgrade is refused by others.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};

use super::world::{Place, World};
use crate::Installation;

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

// SDF-35, SDF-55
pub(crate) async fn a_pod_that_a_policy_protects_stops_no_other(
    _: Arc<Installation>,
) -> Result<()> {
    let place = Place::new(World::shared().await?, "refused").await?;
    place.set("log:1", json!({})).await?;
    // It is the newest and so the first in the order of the upgrade.
    place.pods(["a", "b", "c"]).await?;
    place.pods(["stubborn"]).await?;
    place.wait_for_counts([4, 4, 4, 4]).await?;
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
