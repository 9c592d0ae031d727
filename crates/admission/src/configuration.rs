//! The webhook configurations, by which the API server calls the webhooks: their desired contents, and whether they have
//! them. Webhooks that may change objects are in a `MutatingWebhookConfiguration`, those that may refuse them in a
//! `ValidatingWebhookConfiguration`, which differ in little.
//!
//! The leader applies each (server-side apply, KEP-555) with a field manager of its own, and again when somebody has
//! changed or deleted it. Webhooks and match conditions are lists by name there, so entries and fields of others stay.
//! One thing of others must not stay: a match condition on our webhook, since the API server calls it only for objects
//! that fulfil all of them. An apply leaves such a condition, so another patch removes it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::FIELD_MANAGER;
use crate::args::{AdmissionArgs, ServiceReference, WebhookUrl};
use crate::barrier::{Barrier, StoredBarrier};
use crate::certificate::CaBundle;
use crate::endpoint::CallPath;
use crate::owner::{OWNER, VALIDATING_OWNER};
use crate::webhook::{WebhookFailurePolicy, WebhookSpec};

pub(crate) mod leftover;
pub(crate) mod repair;

/// The configurations' name, of either kind.
pub const CONFIGURATION: &str = "leadsman";

/// Annotation by which the admissions enforcer of AKS leaves a configuration as it is. Otherwise it adds namespaces that no
/// webhook is called for, `kube-system` among them, again after each apply
/// (<https://learn.microsoft.com/azure/aks/faq>, "Can admission controller webhooks impact kube-system").
const WITHOUT_ENFORCER: (&str, &str) = ("admissions.enforcer/disabled", "true");

/// A kind of webhook configuration.
pub(crate) trait WebhookConfiguration:
    Resource<DynamicType = ()>
    + Clone
    + Debug
    + PartialEq
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
    /// The `ClusterRole` that grants the rights on it.
    const OWNER: &'static str;

    /// Adds the fields of an entry that the other kind does not have.
    fn complete_entry(entry: &mut Value, spec: &WebhookSpec);

    /// The object's name in messages.
    fn describe_object() -> String {
        format!("{} {CONFIGURATION}", Self::kind(&()))
    }
}

impl WebhookConfiguration for MutatingWebhookConfiguration {
    const OWNER: &'static str = OWNER;

    fn complete_entry(entry: &mut Value, spec: &WebhookSpec) {
        entry["reinvocationPolicy"] = json!(if spec.reinvoked { "IfNeeded" } else { "Never" });
    }
}

impl WebhookConfiguration for ValidatingWebhookConfiguration {
    const OWNER: &'static str = VALIDATING_OWNER;

    fn complete_entry(_: &mut Value, _: &WebhookSpec) {}
}

/// The address at which the API server calls the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A Service of the cluster.
    Service(ServiceReference),
    /// A URL, for a manager outside of the cluster.
    Url(WebhookUrl),
}

impl Address {
    /// The address in the flags; by default a Service in this namespace.
    pub(crate) fn from_args(args: &AdmissionArgs, namespace: &str) -> Self {
        match (&args.webhook_url, &args.webhook_service) {
            (Some(url), _) => Self::Url(url.clone()),
            (None, Some(service)) => Self::Service(service.clone()),
            (None, None) => Self::Service(ServiceReference::default_in_namespace(namespace)),
        }
    }

    /// The names that the certificate must have: for a Service, `NAME.NAMESPACE.svc`
    /// (`k8s.io/apiserver/pkg/util/webhook/client.go`).
    pub(crate) fn certificate_names(&self) -> Vec<String> {
        vec![match self {
            Self::Service(service) => format!("{}.{}.svc", service.name, service.namespace),
            Self::Url(url) => url.host_name().to_owned(),
        }]
    }

    fn client_config(&self, path: &str, bundle: &CaBundle) -> Value {
        let mut config = match self {
            Self::Service(service) => json!({"service": {
                "namespace": service.namespace,
                "name": service.name,
                "port": service.port,
                "path": path,
            }}),
            Self::Url(url) => json!({"url": format!("{url}{path}")}),
        };
        // A bundle that somebody else fills in is not named, so that an apply leaves it alone.
        if let CaBundle::Pem(pem) = bundle {
            config["caBundle"] = json!(ByteString(pem.clone()));
        }
        config
    }
}

/// A webhook that is in force.
pub(crate) struct InForceWebhook {
    pub(crate) name: &'static str,
    pub(crate) specs: Vec<WebhookSpec>,
    pub(crate) barrier: Option<Barrier>,
}

/// The desired configuration, as an apply sends it. None while no webhook is in force.
pub(crate) fn desired_configuration<C: WebhookConfiguration>(
    webhooks: &[InForceWebhook],
    address: &Address,
    bundle: &CaBundle,
) -> Option<Value> {
    let entries: Vec<_> = webhooks
        .iter()
        .flat_map(|webhook| webhook_entries::<C>(webhook, address, bundle))
        .collect();
    let barriers = webhooks.iter().filter_map(|webhook| {
        let key = Barrier::annotation_key(webhook.name);
        Some((key, webhook.barrier?.to_text().into()))
    });
    let (key, value) = WITHOUT_ENFORCER;
    let without_enforcer = (key.to_owned(), value.into());
    let annotations: Map<_, _> = barriers.chain([without_enforcer]).collect();
    if entries.is_empty() {
        return None;
    }
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": C::kind(&()),
        "metadata": {
            "name": CONFIGURATION,
            "labels": {"app.kubernetes.io/name": "leadsman"},
            "annotations": annotations,
        },
        "webhooks": entries,
    }))
}

fn webhook_entries<C: WebhookConfiguration>(
    webhook: &InForceWebhook,
    address: &Address,
    bundle: &CaBundle,
) -> Vec<Value> {
    let mut counts = BTreeMap::new();
    let entries = webhook.specs.iter().map(|spec| {
        let count = counts.entry(spec.failure_policy).or_insert(0);
        *count += 1;
        webhook_entry::<C>(webhook, spec, *count, address, bundle)
    });
    entries.collect()
}

/// The name of the call of a webhook with this policy and of this number among them.
fn entry_name(webhook: &str, policy: WebhookFailurePolicy, number: usize) -> String {
    let (first, domain) = webhook.split_once('.').unwrap_or((webhook, ""));
    let policy = match policy {
        WebhookFailurePolicy::Ignore => "",
        WebhookFailurePolicy::Fail => "-fail",
    };
    match number {
        1 => format!("{first}{policy}.{domain}"),
        number => format!("{first}{policy}-{number}.{domain}"),
    }
}

fn webhook_entry<C: WebhookConfiguration>(
    webhook: &InForceWebhook,
    spec: &WebhookSpec,
    number: usize,
    address: &Address,
    bundle: &CaBundle,
) -> Value {
    let path = CallPath {
        name: webhook.name,
        fails: spec.failure_policy == WebhookFailurePolicy::Fail,
        slot: webhook.barrier.map(|barrier| barrier.slot),
        tag: spec.tag,
    };
    let mut entry = json!({
        "name": entry_name(webhook.name, spec.failure_policy, number),
        "admissionReviewVersions": ["v1"],
        "clientConfig": address.client_config(&path.to_string(), bundle),
        "failurePolicy": spec.failure_policy.as_str(),
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": spec.timeout_seconds,
        "rules": spec.rules,
        "namespaceSelector": spec.namespace_selector,
        "objectSelector": spec.object_selector,
    });
    C::complete_entry(&mut entry, spec);
    // An empty list is not stored.
    if !spec.match_conditions.is_empty() {
        entry["matchConditions"] = json!(spec.match_conditions);
    }
    entry
}

/// Whether an object has all that is desired. Anything beyond that belongs to others.
fn contains_desired(observed: &Value, desired: &Value) -> bool {
    match (observed, desired) {
        (Value::Object(observed), Value::Object(desired)) => contains_fields(observed, desired),
        (Value::Array(observed), Value::Array(desired)) => {
            // Webhooks and match conditions are `listType: map` by their names (`k8s.io/api/admissionregistration/v1`),
            // so others may add items in between.
            let by_name = desired.iter().all(|item| item.get("name").is_some());
            if by_name && !desired.is_empty() {
                desired.iter().all(|item| {
                    let same = |other: &&Value| other["name"] == item["name"];
                    observed
                        .iter()
                        .find(same)
                        .is_some_and(|o| contains_desired(o, item))
                })
            } else {
                let pairs = || observed.iter().zip(desired);
                observed.len() == desired.len() && pairs().all(|(o, d)| contains_desired(o, d))
            }
        }
        _ => observed == desired,
    }
}

fn contains_fields(observed: &Map<String, Value>, desired: &Map<String, Value>) -> bool {
    desired.iter().all(|(key, desired)| match key.as_str() {
        // A selector is one value (`x-kubernetes-map-type: atomic`): another requirement would select less.
        "namespaceSelector" | "objectSelector" => {
            let empty = Value::Object(Map::new());
            observed.get(key).unwrap_or(&empty) == desired
        }
        // An object of a typed list does not name its own type.
        "apiVersion" | "kind" => observed.get(key).is_none_or(|observed| observed == desired),
        _ => observed
            .get(key)
            .is_some_and(|observed| contains_desired(observed, desired)),
    })
}

/// Whether a set of fields has all of an object, and nothing else (`FieldsV1` in
/// `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`). A value that is owned as a whole has no fields below it.
fn owns_exactly(fields: &Value, object: &Value) -> bool {
    let entries = fields.as_object().into_iter().flatten();
    // The item of a list itself, beside its fields.
    let below: Vec<_> = entries.filter(|(key, _)| *key != ".").collect();
    let has_all = match object {
        _ if below.is_empty() => return fields.is_object(),
        Value::Object(object) => object.len() == below.len(),
        Value::Array(items) => items.len() == below.len(),
        _ => false,
    };
    has_all
        && below.into_iter().all(|(key, fields)| {
            let child = match object {
                Value::Array(items) => keyed_item(items, key),
                _ => key.strip_prefix("f:").and_then(|field| object.get(field)),
            };
            child.is_some_and(|child| owns_exactly(fields, child))
        })
}

/// The item of a list by a key of a set of fields, such as `k:{"name":"one"}`.
fn keyed_item<'a>(items: &'a [Value], key: &str) -> Option<&'a Value> {
    let key: Map<String, Value> = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
    let has_key = |item: &&Value| key.iter().all(|(field, value)| item[field] == *value);
    items.iter().find(has_key)
}

/// Whether cert-manager's cainjector fills in the bundle.
fn is_injected(observed: &ObjectMeta) -> bool {
    let annotations = observed.annotations.iter().flatten();
    let mut keys = annotations.map(|(key, _)| key);
    keys.any(|key| {
        key.starts_with("cert-manager.io/inject-ca-from")
            || key == "cert-manager.io/inject-apiserver-ca"
    })
}

/// Whether a field of the object is ours, so that we have to remove it.
fn is_ours(observed: &ObjectMeta) -> bool {
    let entries = observed.managed_fields.iter().flatten();
    entries
        .filter_map(|entry| entry.manager.as_deref())
        .any(|manager| manager == FIELD_MANAGER)
}

/// The observed configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Observed<C> {
    /// The configuration has not been listed yet.
    #[default]
    Unknown,
    Absent,
    Present(Box<C>),
}

/// The next step towards the desired configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigurationStep {
    /// Nothing: it is as desired, or unknown.
    Rest,
    Apply,
    /// Remove match conditions that others have added to our webhooks.
    RemoveConditions,
    Delete,
}

/// Decides the next step. `applied` is what this process last applied in this term: fields that are no longer desired
/// are removed only by another apply. What another process applied is known by the fields that are ours, so that a leader
/// that has nothing to change writes nothing.
pub(crate) fn decide_step<C: WebhookConfiguration>(
    desired: Option<&Value>,
    observed: &Observed<C>,
    applied: Option<&Value>,
) -> ConfigurationStep {
    match (desired, observed) {
        // A configuration that we never wrote is somebody else's, even under our name.
        (None, Observed::Present(observed)) if is_ours(observed.meta()) => {
            ConfigurationStep::Delete
        }
        (None, _) | (_, Observed::Unknown) => ConfigurationStep::Rest,
        (Some(desired), _)
            if observed.has_desired(desired)
                && (applied == Some(desired) || observed.was_applied(desired)) =>
        {
            match observed.without_others_conditions(desired) {
                Some(_) => ConfigurationStep::RemoveConditions,
                None => ConfigurationStep::Rest,
            }
        }
        (Some(_), _) => ConfigurationStep::Apply,
    }
}

impl<C: WebhookConfiguration> Observed<C> {
    /// Whether it has all that is desired.
    pub(crate) fn has_desired(&self, desired: &Value) -> bool {
        match self {
            Self::Unknown | Self::Absent => false,
            Self::Present(observed) => serde_json::to_value(observed)
                .is_ok_and(|observed| contains_desired(&observed, desired)),
        }
    }

    /// Whether the fields that we have applied are those that are desired, and no others.
    pub(crate) fn was_applied(&self, desired: &Value) -> bool {
        let Self::Present(observed) = self else {
            return false;
        };
        let mut applied = desired.clone();
        // The fields that identify the object belong to nobody.
        for (parent, field) in [("", "apiVersion"), ("", "kind"), ("/metadata", "name")] {
            let parent = applied.pointer_mut(parent).and_then(Value::as_object_mut);
            parent.map(|parent| parent.remove(field));
        }
        let mut entries = observed.meta().managed_fields.iter().flatten();
        let ours = entries.find(|entry| {
            entry.manager.as_deref() == Some(FIELD_MANAGER)
                && entry.operation.as_deref() == Some("Apply")
        });
        let fields = ours.and_then(|entry| entry.fields_v1.as_ref());
        fields.is_some_and(|fields| owns_exactly(&fields.0, &applied))
    }

    /// A merge patch that removes the match conditions of others from our webhooks. None if there are none.
    pub(crate) fn without_others_conditions(&self, desired: &Value) -> Option<Value> {
        let Self::Present(observed) = self else {
            return None;
        };
        let mut observed_value = serde_json::to_value(observed).ok()?;
        let mut webhooks = observed_value["webhooks"].take();
        let mut removes = false;
        for webhook in webhooks.as_array_mut()? {
            let mut ours = desired["webhooks"].as_array()?.iter();
            let Some(ours) = ours.find(|ours| ours["name"] == webhook["name"]) else {
                continue;
            };
            let conditions = webhook.get_mut("matchConditions");
            let Some(conditions) = conditions.and_then(Value::as_array_mut) else {
                continue;
            };
            let before = conditions.len();
            let mut ours = ours["matchConditions"].as_array().into_iter().flatten();
            let names: Vec<_> = ours.by_ref().map(|condition| &condition["name"]).collect();
            conditions.retain(|condition| names.contains(&&condition["name"]));
            removes |= conditions.len() < before;
        }
        // The list is replaced as a whole, hence the resourceVersion.
        let version = &observed.meta().resource_version;
        removes.then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": webhooks}))
    }

    /// The barrier of a webhook.
    pub(crate) fn barrier_of(&self, webhook: &str) -> StoredBarrier {
        match self {
            Self::Unknown => StoredBarrier::Unknown,
            Self::Absent => StoredBarrier::Absent,
            Self::Present(observed) => Barrier::read_annotation(webhook, observed.meta())
                .map_or(StoredBarrier::None, StoredBarrier::At),
        }
    }

    fn is_injected(&self) -> bool {
        match self {
            Self::Unknown | Self::Absent => false,
            Self::Present(observed) => is_injected(observed.meta()),
        }
    }
}

#[cfg(test)]
mod tests;
