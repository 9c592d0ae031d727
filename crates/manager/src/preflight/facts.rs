//! Reading the facts about a cluster. That something cannot be read is a fact too, with its reason.

use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::PostParams;
use kube::{Api, Client};
use leadsman_core::sidecarset::set::FailurePolicy;
use leadsman_lease::record;
use leadsman_process::clock;
use leadsman_process::reply::{Disposition, error_chain};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::clone_sets::{CloneSetSurvey, read_clone_sets};
use super::marks::{self, MarkerSurvey};
use super::openkruise::{OPENKRUISE_RIGHTS, OpenKruiseFacts, read_openkruise};
use crate::openkruise::was_left_behind;
use crate::{
    Gates, LEASE, LEASE_NAMESPACE, LEASE_RIGHTS, Right, feature_rights, openkruise, webhook_rights,
};

/// The deadline of a request.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The result of a look-up, or the reason why it failed.
pub type Lookup<T> = Result<T, String>;

/// The install that a preflight is about, and how much of it is there to be checked.
#[derive(Clone, Debug)]
pub struct PreflightScope {
    /// The namespace of the install.
    pub namespace: String,
    /// The feature gates of its manager.
    pub gates: Gates,
    /// The fate of a pod while no manager answers, if API servers call the webhook for all pods.
    pub standing_rule: Option<FailurePolicy>,
    /// The part of the install that is checked.
    pub part: InstallPart,
}

/// The part of an install that is checked, beside the cluster itself and what else runs in it.
#[derive(Clone, Debug)]
pub enum InstallPart {
    /// Nothing: the install has yet to bring it.
    BeforeInstall,
    /// The install, with the rights of its manager.
    Manager,
    /// The install, with the rights of an agent: group, resource, verb.
    Agent(Vec<(&'static str, &'static str, &'static str)>),
    /// The install, for a person, who needs none of these rights, and reads elsewhere who leads, markers and their pods.
    Person,
}

/// The facts about a cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// The API server's version: major, minor, as it calls itself.
    pub version: Lookup<(u32, u32, String)>,
    /// Whether it serves admission policies, `admissionregistration.k8s.io/v1`.
    pub policies: Lookup<bool>,
    /// The account that this runs as.
    pub identity: Lookup<Identity>,
    /// The parts of `OpenKruise` that are installed.
    pub openkruise: OpenKruiseFacts,
    /// The holder of leadsman's own Lease, unless it was renewed long ago.
    pub leader: Lookup<Option<String>>,
    /// The install; none before it.
    pub install: Option<InstallFacts>,
}

/// The facts about what an installation brings, and about what it acts on.
#[derive(Clone, Debug)]
pub struct InstallFacts {
    /// The CRDs of the features whose gates are on.
    pub crds: Vec<(String, Lookup<Option<CrdFacts>>)>,
    /// The markers, and the owners of the marks that they name.
    pub markers: Lookup<MarkerSurvey>,
    /// The `CloneSet`s that a Helm release would delete; none if there is no such release.
    pub clone_sets: Lookup<Option<CloneSetSurvey>>,
    /// The rights, and whether each is granted.
    pub rights: Vec<(RequiredRight, Lookup<bool>)>,
}

/// An account, as the API server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: String,
    /// The node that its token is bound to (KEP-4193).
    pub node: Option<String>,
}

/// One of the CRDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrdFacts {
    /// Fields of leadsman's that it drops.
    pub drops: Vec<String>,
    /// Versions of leadsman's that it does not serve.
    pub not_served: Vec<String>,
    /// The Service of a webhook that converts its objects, without which they cannot be read.
    pub converter: Option<String>,
    /// Whether it has validation rules (CEL), or needs none.
    pub rules: bool,
    /// The Helm release that it belongs to and goes with.
    pub release: Option<String>,
}

/// A right on a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredRight {
    /// `get`, `list`, …
    pub verb: &'static str,
    /// API group; empty for the core's.
    pub group: Cow<'static, str>,
    /// `pods` or `pods/status`.
    pub resource: Cow<'static, str>,
    /// The namespace; all, if empty.
    pub namespace: String,
    /// The name of the object; all objects, if empty.
    pub name: Cow<'static, str>,
}

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
#[error("the API server does not answer: {0}; check the server of the kubeconfig and the network")]
pub struct NoAnswer(String);

/// Reads everything that is checked; nothing if the first request has no answer, since no other would have one.
pub async fn read_facts(client: &Client, scope: &PreflightScope) -> Result<ClusterFacts, NoAnswer> {
    let version = read_version(client).await?;
    let resources = client.list_api_group_resources("admissionregistration.k8s.io/v1");
    let policies = lookup_reply(resources).await.map(|list| {
        let mut resources = list.resources.iter();
        resources.any(|resource| resource.name == "validatingadmissionpolicies")
    });
    Ok(ClusterFacts {
        version: version.map(|info| {
            (
                parse_leading_number(&info.major),
                parse_leading_number(&info.minor),
                info.git_version,
            )
        }),
        policies,
        identity: lookup_reply(read_identity(client)).await,
        openkruise: read_openkruise(client).await,
        leader: match scope.part {
            InstallPart::Person => Ok(None),
            _ => lookup_reply(read_leader(client)).await,
        },
        install: match &scope.part {
            InstallPart::BeforeInstall => None,
            InstallPart::Manager => {
                let rights = manager_rights(&scope.namespace, scope.gates);
                let clone_sets = read_clone_sets(client).await;
                let install = read_install(client, scope.gates, rights).await;
                Some(InstallFacts {
                    clone_sets,
                    ..install
                })
            }
            InstallPart::Agent(rights) => {
                let rights = rights.iter().copied().map(right_on_all).collect();
                Some(read_install(client, scope.gates, rights).await)
            }
            InstallPart::Person => Some(InstallFacts {
                crds: read_crds(client, scope.gates).await,
                markers: Ok(MarkerSurvey::default()),
                clone_sets: Ok(None),
                rights: Vec::new(),
            }),
        },
    })
}

/// The version, or why an API server that answers does not tell it.
async fn read_version(client: &Client) -> Result<Lookup<Info>, NoAnswer> {
    match timeout(TIMEOUT, client.apiserver_version()).await {
        Ok(Ok(version)) => Ok(Ok(version)),
        // Refused is answered too.
        Ok(Err(kube::Error::Api(status))) => Ok(Err(status.message)),
        Ok(Err(error)) => Err(NoAnswer(error_chain(&error))),
        Err(_elapsed) => Err(NoAnswer(late_reply_reason())),
    }
}

async fn read_install(client: &Client, gates: Gates, required: Vec<RequiredRight>) -> InstallFacts {
    let mut rights = Vec::new();
    for right in required {
        let allowed = lookup_reply(review_access(client, &right)).await;
        rights.push((right, allowed));
    }
    InstallFacts {
        crds: read_crds(client, gates).await,
        markers: lookup_all(marks::read_markers(client)).await,
        clone_sets: Ok(None),
        rights,
    }
}

/// The reply, or why there is none.
pub(super) async fn lookup_reply<T>(reply: impl Future<Output = kube::Result<T>>) -> Lookup<T> {
    match timeout(TIMEOUT, reply).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(kube::Error::Api(status))) => Err(status.message),
        Ok(Err(error)) => Err(error_chain(&error)),
        Err(_elapsed) => Err(late_reply_reason()),
    }
}

/// The objects of a list, or why they cannot be read.
pub(super) async fn lookup_all<T>(read: impl Future<Output = Result<T, Disposition>>) -> Lookup<T> {
    match timeout(TIMEOUT, read).await {
        Ok(read) => read.map_err(|failure| failure.explain_reason()),
        Err(_elapsed) => Err(late_reply_reason()),
    }
}

fn late_reply_reason() -> String {
    format!("no reply within {} s", TIMEOUT.as_secs())
}

/// The number in `34+`; some providers append to it.
fn parse_leading_number(text: &str) -> u32 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap_or_default()
}

async fn read_identity(client: &Client) -> kube::Result<Identity> {
    // Every authenticated user may ask who it is, and what it may do (`system:basic-user`,
    // `plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go`).
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

async fn read_leader(client: &Client) -> kube::Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let found = leases.get_opt(LEASE).await?;
    // A manager that was killed stands there until another one takes the Lease.
    let lease = found.filter(|lease| !was_left_behind(lease, clock::now()));
    Ok(lease.and_then(|lease| record::holder_of(&lease).map(str::to_owned)))
}

async fn read_crds(client: &Client, gates: Gates) -> Vec<(String, Lookup<Option<CrdFacts>>)> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crds = Vec::new();
    let of_sets = gates.sidecar_set.then(leadsman_api::crd::sidecar_set_crd);
    let of_systems = gates.systems.iter().flat_map(|system| (system.crds)());
    for ours in leadsman_api::crd::podprobe_crds()
        .into_iter()
        .chain(of_sets)
        .chain(of_systems)
    {
        let name = ours.metadata.name.clone().unwrap_or_default();
        let theirs = lookup_reply(api.get_opt(&name)).await;
        let seen = theirs.map(|theirs| theirs.map(|theirs| compare_crds(&ours, &theirs)));
        crds.push((name, seen));
    }
    crds
}

fn compare_crds(ours: &CustomResourceDefinition, theirs: &CustomResourceDefinition) -> CrdFacts {
    let schema = |crd: &CustomResourceDefinition| {
        let versions = crd.spec.versions.iter();
        // All versions of a kind of ours have one schema.
        let mut versions = versions.filter(|version| version.name == leadsman_api::VERSION);
        let schema = versions.next().and_then(|version| version.schema.as_ref());
        let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
        serde_json::to_value(schema).unwrap_or_default()
    };
    let has_rules = |schema: &Value| schema.to_string().contains("x-kubernetes-validations");
    let names: Vec<_> = ours
        .spec
        .versions
        .iter()
        .map(|own| own.name.clone())
        .collect();
    let our_versions = names.into_iter();
    let (ours, crd, theirs) = (schema(ours), theirs, schema(theirs));
    let mut drops = Vec::new();
    collect_missing_properties(&ours, &theirs, "", &mut drops);
    let conversion = crd.spec.conversion.as_ref();
    let converts = conversion.and_then(|conversion| conversion.webhook.as_ref());
    let converter = converts
        .and_then(|webhook| webhook.client_config.as_ref()?.service.as_ref())
        .map(|service| format!("{}/{}", service.namespace, service.name));
    let serves = |version: &str| {
        let mut versions = crd.spec.versions.iter();
        versions.any(|own| own.name == version && own.served)
    };
    let not_served = our_versions.filter(|version| !serves(version));
    CrdFacts {
        drops,
        not_served: not_served.collect(),
        converter,
        // Ours of `NodePodProbe` has none.
        rules: has_rules(&theirs) || !has_rules(&ours),
        release: release_that_deletes(crd),
    }
}

/// The Helm release that a CRD goes with. What Helm is to keep, as leadsman's chart says of its CRDs, outlives the release.
pub(super) fn release_that_deletes(crd: &CustomResourceDefinition) -> Option<String> {
    let annotations = crd.metadata.annotations.as_ref()?;
    let is_kept = annotations
        .get("helm.sh/resource-policy")
        .is_some_and(|policy| policy == "keep");
    annotations
        .get("meta.helm.sh/release-name")
        .filter(|_| !is_kept)
        .cloned()
}

/// Collects the paths of properties that only the first schema has, the outermost of each.
fn collect_missing_properties(ours: &Value, theirs: &Value, place: &str, into: &mut Vec<String>) {
    // A schema with this field keeps what it does not name (`pkg/apiserver/schema/pruning` of k8s.io/apiextensions-apiserver).
    if theirs["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return;
    }
    for (name, schema) in ours["properties"].as_object().into_iter().flatten() {
        let dot = if place.is_empty() { "" } else { "." };
        let place = format!("{place}{dot}{name}");
        match theirs["properties"].get(name) {
            Some(theirs) => collect_missing_properties(schema, theirs, &place, into),
            None => into.push(place),
        }
    }
    if ours["items"].is_object() {
        collect_missing_properties(
            &ours["items"],
            &theirs["items"],
            &format!("{place}[]"),
            into,
        );
    }
}

/// A right on all objects of a resource, in all namespaces.
fn right_on_all(
    (group, resource, verb): (&'static str, &'static str, &'static str),
) -> RequiredRight {
    RequiredRight {
        verb,
        group: group.into(),
        resource: resource.into(),
        ..RequiredRight::default()
    }
}

/// The rights of a manager.
fn manager_rights(namespace: &str, gates: Gates) -> Vec<RequiredRight> {
    let on_one = |right: (_, _, _), name: &'static str, namespace: &str| RequiredRight {
        name: name.into(),
        namespace: namespace.to_owned(),
        ..right_on_all(right)
    };
    let lease = |verb, name, namespace: &str| {
        on_one(("coordination.k8s.io", "leases", verb), name, namespace)
    };
    let required = |rights: Vec<Right>, namespace: &str| {
        let namespace = namespace.to_owned();
        rights.into_iter().map(move |right| RequiredRight {
            verb: right.verb,
            group: right.group,
            resource: right.resource,
            name: right.name,
            namespace: namespace.clone(),
        })
    };
    let mut all = Vec::new();
    let features = feature_rights(gates).into_iter();
    for (_, rights) in features.chain(webhook_rights(gates)) {
        all.extend(required(rights.cluster, ""));
        all.extend(required(rights.own_namespace, namespace));
    }
    all.extend(
        LEASE_RIGHTS
            .map(|(verb, named)| lease(verb, if named { LEASE } else { "" }, LEASE_NAMESPACE)),
    );
    let of_guard = openkruise::GUARD_RIGHTS;
    all.extend(of_guard.map(|(group, resource, name, verb)| {
        let namespace = if name == openkruise::LEASE {
            openkruise::NAMESPACE
        } else {
            ""
        };
        on_one((group, resource, verb), name, namespace)
    }));
    all
}

/// The rights that [`InstallPart::BeforeInstall`] takes. They hold in all namespaces: `OpenKruise`'s may not exist.
pub fn before_install_rights() -> Vec<Right> {
    let right =
        |(group, resource, name, verb): (&'static str, &'static str, &'static str, _)| Right {
            group: group.into(),
            resource: resource.into(),
            name: name.into(),
            verb,
        };
    let own_lease = ("coordination.k8s.io", "leases", LEASE, "get");
    let all = openkruise::GUARD_RIGHTS
        .into_iter()
        .chain([own_lease])
        .chain(OPENKRUISE_RIGHTS);
    all.map(right).collect()
}

async fn review_access(client: &Client, right: &RequiredRight) -> kube::Result<bool> {
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
mod tests;
