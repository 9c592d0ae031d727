//! What is read of the cluster. A look that fails is a fact too, with the reason.

use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::marks::{self, Markers};
use super::neighbour::{self, OpenKruise};
use crate::{LEASE, LEASE_NAMESPACE, LEASE_RIGHTS, feature_rights, openkruise};

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// What was seen, or why it cannot be seen.
pub type Lookup<T> = Result<T, String>;

/// What is to be looked at.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The rights of an agent, where they are to be looked at instead of the manager's: group, resource, verb.
    pub agent_rights: Option<Vec<(&'static str, &'static str, &'static str)>>,
}

/// All that was seen.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The API server's version: major, minor, as it calls itself.
    pub version: Lookup<(u32, u32, String)>,
    /// Whether it serves admission policies, `admissionregistration.k8s.io/v1`.
    pub policies: Lookup<bool>,
    /// Who we are.
    pub identity: Lookup<Identity>,
    /// The two CRDs.
    pub crds: Vec<(String, Lookup<Option<Crd>>)>,
    /// What there is of `OpenKruise`.
    pub openkruise: OpenKruise,
    /// The markers, and whose the marks are that they name.
    pub markers: Lookup<Markers>,
    /// What we may do.
    pub rights: Vec<(Right, Lookup<bool>)>,
}

/// Who the API server takes us for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: String,
    /// The node that its token is bound to.
    pub node: Option<String>,
}

/// One of the CRDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crd {
    /// Fields of leadsman's that it drops.
    pub drops: Vec<String>,
    /// Whether it has validation rules (CEL).
    pub rules: bool,
    /// The Helm release that it belongs to.
    pub release: Option<String>,
}

/// A right on a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Right {
    /// `get`, `list`, …
    pub verb: &'static str,
    /// API group; empty for the core's.
    pub group: Cow<'static, str>,
    /// `pods` or `pods/status`.
    pub resource: Cow<'static, str>,
    /// In this namespace; in all, if empty.
    pub namespace: String,
    /// On this object; on all, if empty.
    pub name: Cow<'static, str>,
}

/// Looks at everything.
pub async fn facts(client: &Client, scope: &Scope) -> Facts {
    let version = look(client.apiserver_version()).await;
    let resources = client.list_api_group_resources("admissionregistration.k8s.io/v1");
    let policies = look(resources).await.map(|list| {
        let mut resources = list.resources.iter();
        resources.any(|resource| resource.name == "validatingadmissionpolicies")
    });
    let mut all_rights = Vec::new();
    for right in rights(scope) {
        let allowed = look(may(client, &right)).await;
        all_rights.push((right, allowed));
    }
    Facts {
        version: version.map(|info| (number(&info.major), number(&info.minor), info.git_version)),
        policies,
        identity: look(identity(client)).await,
        crds: crds(client).await,
        openkruise: neighbour::openkruise(client).await,
        markers: look(marks::markers(client)).await,
        rights: all_rights,
    }
}

/// The answer, or what is said instead.
pub(super) async fn look<T>(answer: impl Future<Output = kube::Result<T>>) -> Lookup<T> {
    match timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(status.message),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// `34+`, as some providers have it, is 34.
fn number(text: &str) -> u32 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap_or_default()
}

async fn identity(client: &Client) -> kube::Result<Identity> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review
        .status
        .and_then(|status| status.user_info)
        .unwrap_or_default();
    let extra = user.extra.unwrap_or_default();
    let node = extra.get("authentication.kubernetes.io/node-name");
    Ok(Identity {
        user: user.username.unwrap_or_default(),
        node: node.and_then(|names| names.first().cloned()),
    })
}

async fn crds(client: &Client) -> Vec<(String, Lookup<Option<Crd>>)> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crds = Vec::new();
    for ours in leadsman_api::crd::crds() {
        let name = ours.metadata.name.clone().unwrap_or_default();
        let theirs = look(api.get_opt(&name)).await;
        let seen = theirs.map(|theirs| theirs.map(|theirs| compared(&ours, &theirs)));
        crds.push((name, seen));
    }
    crds
}

fn compared(ours: &CustomResourceDefinition, theirs: &CustomResourceDefinition) -> Crd {
    let schema = |crd: &CustomResourceDefinition| {
        let versions = crd.spec.versions.iter();
        let mut versions = versions.filter(|version| version.name == leadsman_api::VERSION);
        let schema = versions.next().and_then(|version| version.schema.as_ref());
        let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
        serde_json::to_value(schema).unwrap_or_default()
    };
    let (ours, crd, theirs) = (schema(ours), theirs, schema(theirs));
    let mut drops = Vec::new();
    missing(&ours, &theirs, "", &mut drops);
    let annotations = crd.metadata.annotations.as_ref();
    Crd {
        drops,
        rules: theirs.to_string().contains("x-kubernetes-validations"),
        release: annotations.and_then(|all| all.get("meta.helm.sh/release-name").cloned()),
    }
}

/// The places of properties that only the first schema knows, the outermost of each.
fn missing(ours: &Value, theirs: &Value, place: &str, into: &mut Vec<String>) {
    if theirs["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return;
    }
    for (name, schema) in ours["properties"].as_object().into_iter().flatten() {
        let dot = if place.is_empty() { "" } else { "." };
        let place = format!("{place}{dot}{name}");
        match theirs["properties"].get(name) {
            Some(theirs) => missing(schema, theirs, &place, into),
            None => into.push(place),
        }
    }
    if ours["items"].is_object() {
        missing(
            &ours["items"],
            &theirs["items"],
            &format!("{place}[]"),
            into,
        );
    }
}

/// The rights of what is to run.
fn rights(scope: &Scope) -> Vec<Right> {
    let on = |(group, resource, verb): (&'static str, &'static str, _)| Right {
        verb,
        group: group.into(),
        resource: resource.into(),
        ..Right::default()
    };
    if let Some(agent) = &scope.agent_rights {
        return agent.iter().copied().map(on).collect();
    }
    let features = feature_rights().into_iter().map(|right| Right {
        verb: right.verb,
        group: right.group,
        resource: right.resource,
        name: right.name,
        ..Right::default()
    });
    let lease = |verb, name: &'static str, namespace: &str| Right {
        name: name.into(),
        namespace: namespace.to_owned(),
        ..on(("coordination.k8s.io", "leases", verb))
    };
    let own = LEASE_RIGHTS.iter().map(|(verb, named)| {
        let name = if *named { LEASE } else { "" };
        lease(verb, name, LEASE_NAMESPACE)
    });
    let neighbours = openkruise::LEASE_RIGHTS.iter();
    let neighbours = neighbours.map(|verb| lease(verb, openkruise::LEASE, openkruise::NAMESPACE));
    features.chain(own).chain(neighbours).collect()
}

async fn may(client: &Client, right: &Right) -> kube::Result<bool> {
    let (resource, subresource) = right
        .resource
        .split_once('/')
        .unwrap_or((&right.resource, ""));
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
        "spec": {"resourceAttributes": {"verb": right.verb, "group": right.group, "resource": resource,
            "subresource": subresource, "namespace": right.namespace, "name": right.name}}});
    let review: SelfSubjectAccessReview =
        serde_json::from_value(review).map_err(kube::Error::SerdeError)?;
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crd_without_our_fields_is_known_by_what_it_drops() {
        for ours in leadsman_api::crd::crds() {
            let seen = compared(&ours, &ours);
            assert!(seen.drops.is_empty() && seen.release.is_none(), "{seen:?}");
            let mut theirs = serde_json::to_value(&ours).unwrap();
            theirs["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "kruise"});
            let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
            theirs.pointer_mut(status).unwrap()["properties"] = json!({});
            let seen = compared(&ours, &serde_json::from_value(theirs).unwrap());
            assert!(
                seen.drops.iter().all(|place| place.starts_with("status.")),
                "{seen:?}"
            );
            assert!(!seen.drops.is_empty());
            assert_eq!(seen.release.as_deref(), Some("kruise"));
        }
    }

    #[test]
    fn versions_are_read_with_what_providers_add() {
        assert_eq!(["34", "31+", "30-gke", ""].map(number), [34, 31, 30, 0]);
    }

    #[test]
    fn every_right_of_the_manager_is_asked_for() {
        let scope = Scope { agent_rights: None };
        let rights = rights(&scope);
        assert_eq!(
            rights.len(),
            feature_rights().len() + LEASE_RIGHTS.len() + openkruise::LEASE_RIGHTS.len()
        );
        let create = rights
            .iter()
            .find(|right| right.verb == "create" && right.resource == "leases");
        assert_eq!(
            create.map(|right| (&*right.name, right.namespace.as_str())),
            Some(("", LEASE_NAMESPACE))
        );
    }
}
