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
use leadsman_process::reply::error_chain;
use serde_json::{Value, json};
use tokio::time::timeout;

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
    /// Its namespace.
    pub namespace: String,
    /// The feature gates of its manager.
    pub gates: Gates,
    /// What becomes of pods while no manager answers, if API servers call for all of them.
    pub standing_rule: Option<FailurePolicy>,
    /// What is checked of it.
    pub part: InstallPart,
}

/// What is checked beside the cluster itself and what else runs in it.
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

/// What was read of what an installation brings, and of what it acts on.
#[derive(Clone, Debug)]
pub struct InstallFacts {
    /// The CRDs of the features whose gates are on.
    pub crds: Vec<(String, Lookup<Option<CrdFacts>>)>,
    /// The markers, and the owners of the marks that they name.
    pub markers: Lookup<MarkerSurvey>,
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
    /// In this namespace; in all, if empty.
    pub namespace: String,
    /// On this object; on all, if empty.
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
                Some(read_install(client, scope.gates, rights).await)
            }
            InstallPart::Agent(rights) => {
                let rights = rights.iter().copied().map(right_on_all).collect();
                Some(read_install(client, scope.gates, rights).await)
            }
            InstallPart::Person => Some(InstallFacts {
                crds: read_crds(client, scope.gates).await,
                markers: Ok(MarkerSurvey::default()),
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
        markers: match timeout(TIMEOUT, marks::read_markers(client)).await {
            Ok(read) => read.map_err(|failure| failure.explain_reason()),
            Err(_elapsed) => Err(late_reply_reason()),
        },
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

fn late_reply_reason() -> String {
    format!("no reply within {} s", TIMEOUT.as_secs())
}

/// The number in `34+`; some providers append to it.
fn parse_leading_number(text: &str) -> u32 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap_or_default()
}

async fn read_identity(client: &Client) -> kube::Result<Identity> {
    // Whoever is authenticated may ask who it is, and what it may do (`system:basic-user`,
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
    let lease = leases.get_opt(LEASE).await?;
    // A manager that was killed stands there until another one takes the Lease.
    let lease = lease.filter(|lease| !was_left_behind(lease, clock::now()));
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
    let our_versions: Vec<_> = ours
        .spec
        .versions
        .iter()
        .map(|own| own.name.clone())
        .collect();
    let our_versions = our_versions.into_iter();
    let (ours, crd, theirs) = (schema(ours), theirs, schema(theirs));
    let mut drops = Vec::new();
    collect_missing_properties(&ours, &theirs, "", &mut drops);
    let annotation = |key: &str| crd.metadata.annotations.as_ref()?.get(key).cloned();
    // What Helm is to keep, as leadsman's chart says of its CRDs, outlives the release.
    let is_kept = annotation("helm.sh/resource-policy").is_some_and(|policy| policy == "keep");
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
        release: annotation("meta.helm.sh/release-name").filter(|_| !is_kept),
    }
}

/// Collects the paths of properties that only the first schema has, the outermost of each.
fn collect_missing_properties(ours: &Value, theirs: &Value, place: &str, into: &mut Vec<String>) {
    // It keeps what it does not name (`pkg/apiserver/schema/pruning` of k8s.io/apiextensions-apiserver).
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
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use leadsman_admission::{CONFIGURATION, OWNER, SECRET, VALIDATING_OWNER};

    use super::*;

    #[test]
    fn a_crd_without_our_fields_is_recognised_by_what_it_drops() {
        let of_sets = leadsman_api::crd::sidecar_set_crd();
        for ours in leadsman_api::crd::podprobe_crds()
            .into_iter()
            .chain([of_sets])
        {
            let seen = compare_crds(&ours, &ours);
            assert_eq!((seen.not_served.len(), &seen.converter), (0, &None));
            assert!(seen.drops.is_empty() && seen.release.is_none(), "{seen:?}");
            assert!(seen.rules, "{seen:?}");
            let mut theirs = serde_json::to_value(&ours).unwrap();
            theirs["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "kruise"});
            let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
            theirs.pointer_mut(status).unwrap()["properties"] = json!({});
            let seen = compare_crds(&ours, &serde_json::from_value(theirs.clone()).unwrap());
            assert!(
                seen.drops.iter().all(|place| place.starts_with("status.")),
                "{seen:?}"
            );
            assert!(!seen.drops.is_empty());
            assert_eq!(seen.release.as_deref(), Some("kruise"));
            theirs["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
            let seen = compare_crds(&ours, &serde_json::from_value(theirs).unwrap());
            assert_eq!(seen.release, None);
        }
    }

    // SCS-2
    #[test]
    fn a_crd_of_sets_with_one_version_or_a_conversion_is_recognised() {
        let ours = leadsman_api::crd::sidecar_set_crd();
        let mut theirs = serde_json::to_value(&ours).unwrap();
        theirs["spec"]["versions"][1]["served"] = json!(false);
        let service = json!({"namespace": "kruise-system", "name": "kruise-webhook-service"});
        theirs["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}});
        let seen = compare_crds(&ours, &serde_json::from_value(theirs).unwrap());
        assert_eq!(seen.not_served, ["v1beta1"]);
        assert_eq!(
            seen.converter.as_deref(),
            Some("kruise-system/kruise-webhook-service")
        );
    }

    #[tokio::test]
    async fn nothing_more_is_asked_where_nobody_answers() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |_: http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
            std::future::ready(Err::<http::Response<Body>, _>(refused))
        });
        let client = Client::new(service, "default");
        let scope = PreflightScope {
            namespace: "games".to_owned(),
            gates: Gates::default(),
            standing_rule: None,
            part: InstallPart::Manager,
        };
        let error = read_facts(&client, &scope).await.unwrap_err().to_string();
        assert!(error.contains("connection refused"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_version_is_read_with_what_providers_append() {
        assert_eq!(
            ["34", "31+", "30-gke", ""].map(parse_leading_number),
            [34, 31, 30, 0]
        );
    }

    #[test]
    fn every_right_of_the_manager_is_checked() {
        let gates = Gates::default();
        let rights = manager_rights("leadsman-system", gates);
        let features = feature_rights(gates);
        let of_features = features
            .iter()
            .map(|(_, rights)| rights.cluster.len() + rights.own_namespace.len());
        let leases = LEASE_RIGHTS.len() + openkruise::GUARD_RIGHTS.len();
        assert_eq!(rights.len(), of_features.sum::<usize>() + leases);
        let create = rights
            .iter()
            .find(|right| right.verb == "create" && right.resource == "leases");
        assert_eq!(
            create.map(|right| (&*right.name, right.namespace.as_str())),
            Some(("", LEASE_NAMESPACE))
        );
    }

    #[test]
    fn without_a_feature_no_right_of_one_is_checked() {
        let off = manager_rights(
            "leadsman-system",
            "PodProbeMarkerGate=false".parse().unwrap(),
        );
        let of_leader = ["leases", "clusterroles", "clusterrolebindings"];
        assert!(
            off.iter()
                .all(|right| of_leader.contains(&&*right.resource)),
            "{off:?}"
        );
    }

    // PPM-16
    #[test]
    fn the_rights_of_webhooks_are_checked_with_their_gate() {
        let serverless = "EnablePodProbeMarkerOnServerless=true".parse().unwrap();
        let rights = manager_rights("games", serverless);
        let of = |resource: &str| -> Vec<_> {
            let rights = rights.iter().filter(|right| right.resource == resource);
            rights
                .map(|right| (&*right.name, &*right.namespace, right.verb))
                .collect()
        };
        let secrets = of("secrets");
        assert!(secrets.contains(&("", "games", "create")), "{secrets:?}");
        assert!(
            secrets.contains(&(SECRET, "games", "update")),
            "{secrets:?}"
        );
        let configurations = of("mutatingwebhookconfigurations");
        assert!(
            configurations.contains(&(CONFIGURATION, "", "patch")),
            "{configurations:?}"
        );
        let roles = [(OWNER, "", "get"), (openkruise::ROLE, "", "get")];
        assert_eq!(of("clusterroles"), roles);
        assert_eq!(of("roles"), [(OWNER, "games", "get")]);
        assert_eq!(of("validatingwebhookconfigurations"), []);
    }

    // SCS-80
    #[test]
    fn the_rights_of_both_configurations_are_checked_with_the_gate_of_sets() {
        let rights = manager_rights("games", "SidecarSetGate=true".parse().unwrap());
        let is_there = |resource: &str, name: &str, verb: &str| {
            let mut rights = rights.iter();
            rights.any(|one| one.resource == resource && one.name == name && one.verb == verb)
        };
        for configurations in [
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        ] {
            assert!(
                is_there(configurations, CONFIGURATION, "patch"),
                "{rights:?}"
            );
        }
        assert!(
            is_there("clusterroles", VALIDATING_OWNER, "get"),
            "{rights:?}"
        );
        assert!(is_there("secrets", SECRET, "update"), "{rights:?}");
    }
}
