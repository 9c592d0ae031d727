//! Users who have all rights of an account of leadsman but some.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use leadsman_testkit::ControlPlane;
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};

use super::table::Grant;

const RBAC: &str = "rbac.authorization.k8s.io";

/// A user, who can be authenticated.
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) kubeconfig: PathBuf,
}

/// A user with these rights and no others, once the API server grants them.
pub(crate) async fn user(
    plane: &ControlPlane,
    client: &Client,
    name: &str,
    grants: &[Grant],
    lacks: &[Grant],
) -> Result<User> {
    let mut namespaces: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for grant in grants.iter().filter(|grant| !lacks.contains(grant)) {
        let mut rule = json!({"apiGroups": [grant.group], "resources": [grant.resource], "verbs": [grant.verb]});
        if !grant.name.is_empty() {
            rule["resourceNames"] = json!([grant.name]);
        }
        namespaces.entry(&grant.namespace).or_default().push(rule);
    }
    for (namespace, rules) in namespaces {
        bind(client, name, namespace, rules).await?;
    }
    // A role is in force as a whole.
    let mut one_of_each_role: Vec<&Grant> = grants
        .iter()
        .filter(|grant| !lacks.contains(grant))
        .collect();
    one_of_each_role.dedup_by_key(|grant| &grant.namespace);
    for grant in one_of_each_role {
        wait_until_granted(client, name, grant).await?;
    }
    for grant in lacks {
        ensure!(
            !is_allowed(client, name, grant).await?,
            "{name} has {grant:?}"
        );
    }
    Ok(User {
        name: name.to_owned(),
        kubeconfig: plane.kubeconfig_for(name, &[])?,
    })
}

/// Waits until the API server lets this user do it.
pub(crate) async fn wait_until_granted(client: &Client, user: &str, grant: &Grant) -> Result<()> {
    wait_for_answer(&format!("{grant:?} of {user}"), || async {
        Ok(is_allowed(client, user, grant).await?.then_some(()))
    })
    .await
}

async fn bind(client: &Client, name: &str, namespace: &str, rules: Vec<Value>) -> Result<()> {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let binding = |kind| {
        json!({"metadata": {"name": name}, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": name}]})
    };
    let params = PostParams::default();
    if namespace.is_empty() {
        let api: Api<ClusterRole> = Api::all(client.clone());
        api.create(&params, &serde_json::from_value(role)?).await?;
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        let binding = serde_json::from_value(binding("ClusterRole"))?;
        bindings.create(&params, &binding).await?;
    } else {
        let api: Api<Role> = Api::namespaced(client.clone(), namespace);
        api.create(&params, &serde_json::from_value(role)?).await?;
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
        let binding = serde_json::from_value(binding("Role"))?;
        bindings.create(&params, &binding).await?;
    }
    Ok(())
}

/// Whether the API server would let this user do it.
async fn is_allowed(client: &Client, user: &str, grant: &Grant) -> Result<bool> {
    let (resource, subresource) = grant
        .resource
        .split_once('/')
        .unwrap_or((&grant.resource, ""));
    let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": {
        "verb": grant.verb, "group": grant.group, "resource": resource, "subresource": subresource,
        "namespace": grant.namespace, "name": grant.name}}});
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &serde_json::from_value(review)?)
        .await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}
