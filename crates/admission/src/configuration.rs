//! The `MutatingWebhookConfiguration` by which the API server calls: what it is to say, and whether it says so.
//!
//! The leader applies it (server-side apply, KEP-555) with a field manager of its own, and again when somebody has changed
//! or deleted it. Webhooks and match conditions are lists by name there, so entries and fields that somebody else has
//! added, and that say nothing else than ours, stay. A match condition on our webhook does: the webhook is called for what
//! fulfils all. An apply leaves those of others, so another patch takes them away.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use serde_json::{Map, Value, json};

use crate::FIELD_MANAGER;
use crate::args::{Args, ServiceReference, WebhookUrl};
use crate::certificate::CaBundle;
use crate::webhook::WebhookSpec;

pub(crate) mod repair;

/// The configuration's name.
pub const CONFIGURATION: &str = "leadsman";

/// Where the API server calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A Service of the cluster.
    Service(ServiceReference),
    /// Anywhere.
    Url(WebhookUrl),
}

impl Address {
    /// As the flags say; a Service in this namespace if they say nothing.
    pub(crate) fn of(args: &Args, namespace: &str) -> Self {
        match (&args.webhook_url, &args.webhook_service) {
            (Some(url), _) => Self::Url(url.clone()),
            (None, Some(service)) => Self::Service(service.clone()),
            (None, None) => Self::Service(ServiceReference::in_namespace(namespace)),
        }
    }

    /// What the certificate has to name: for a Service, `NAME.NAMESPACE.svc`
    /// (`k8s.io/apiserver/pkg/util/webhook/client.go`).
    pub(crate) fn names(&self) -> Vec<String> {
        vec![match self {
            Self::Service(service) => format!("{}.{}.svc", service.name, service.namespace),
            Self::Url(url) => url.host().to_owned(),
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
        if let CaBundle::Pem(pem) = bundle {
            config["caBundle"] = json!(ByteString(pem.clone()));
        }
        config
    }
}

/// A webhook that is in force.
pub(crate) struct InForceWebhook {
    pub(crate) name: &'static str,
    pub(crate) path: String,
    pub(crate) spec: WebhookSpec,
}

/// What the configuration is to say, as an apply sends it; none while no webhook is in force.
pub(crate) fn desired(
    webhooks: &[InForceWebhook],
    address: &Address,
    bundle: &CaBundle,
) -> Option<Value> {
    let entries = webhooks
        .iter()
        .map(|webhook| entry(webhook, address, bundle));
    let entries: Vec<_> = entries.collect();
    (!entries.is_empty()).then(|| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {
                "name": CONFIGURATION,
                "labels": {"app.kubernetes.io/name": "leadsman"},
            },
            "webhooks": entries,
        })
    })
}

fn entry(webhook: &InForceWebhook, address: &Address, bundle: &CaBundle) -> Value {
    let InForceWebhook { name, path, spec } = webhook;
    let mut entry = json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": address.client_config(path, bundle),
        // A pod is never refused for a trouble of ours.
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "reinvocationPolicy": if spec.reinvoked { "IfNeeded" } else { "Never" },
        "timeoutSeconds": spec.timeout_seconds,
        "rules": spec.rules,
        "namespaceSelector": spec.namespace_selector,
        "objectSelector": spec.object_selector,
    });
    // An empty list is not stored.
    if !spec.match_conditions.is_empty() {
        entry["matchConditions"] = json!(spec.match_conditions);
    }
    entry
}

/// Whether an object says all that is desired. What it says beside that is somebody else's.
fn says(observed: &Value, desired: &Value) -> bool {
    match (observed, desired) {
        (Value::Object(observed), Value::Object(desired)) => says_fields(observed, desired),
        (Value::Array(observed), Value::Array(desired)) => {
            let by_name = desired.iter().all(|item| item.get("name").is_some());
            if by_name && !desired.is_empty() {
                desired.iter().all(|item| {
                    let same = |other: &&Value| other["name"] == item["name"];
                    observed.iter().find(same).is_some_and(|o| says(o, item))
                })
            } else {
                let pairs = || observed.iter().zip(desired);
                observed.len() == desired.len() && pairs().all(|(o, d)| says(o, d))
            }
        }
        _ => observed == desired,
    }
}

fn says_fields(observed: &Map<String, Value>, desired: &Map<String, Value>) -> bool {
    desired.iter().all(|(key, desired)| match key.as_str() {
        // A selector is one value (`x-kubernetes-map-type: atomic`): more of it selects less.
        "namespaceSelector" | "objectSelector" => {
            let empty = Value::Object(Map::new());
            observed.get(key).unwrap_or(&empty) == desired
        }
        // An object of a typed list does not name its own type.
        "apiVersion" | "kind" => observed.get(key).is_none_or(|observed| observed == desired),
        _ => observed
            .get(key)
            .is_some_and(|observed| says(observed, desired)),
    })
}

/// Whether cert-manager's cainjector is told to fill in the bundle.
fn is_injected(observed: &MutatingWebhookConfiguration) -> bool {
    let annotations = observed.metadata.annotations.iter().flatten();
    let mut keys = annotations.map(|(key, _)| key);
    keys.any(|key| {
        key.starts_with("cert-manager.io/inject-ca-from")
            || key == "cert-manager.io/inject-apiserver-ca"
    })
}

/// Whether a field of the object is ours, so that it is we who remove it.
fn is_ours(observed: &MutatingWebhookConfiguration) -> bool {
    let entries = observed.metadata.managed_fields.iter().flatten();
    entries
        .filter_map(|entry| entry.manager.as_deref())
        .any(|manager| manager == FIELD_MANAGER)
}

/// What is known of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Observed {
    /// It has not been listed yet.
    #[default]
    Unknown,
    Absent,
    Present(Box<MutatingWebhookConfiguration>),
}

/// What is to be done with the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: it is as it is to be, or that is not known.
    Rest,
    Apply,
    /// Match conditions that somebody else has put on our webhooks are taken away.
    RemoveConditions,
    Delete,
}

/// Decides what is to be done. `applied` is what this process has applied last, since it leads: fields that are not
/// desired any more only go with another apply.
pub(crate) fn decide(
    desired: Option<&Value>,
    observed: &Observed,
    applied: Option<&Value>,
) -> Step {
    match (desired, observed) {
        (None, Observed::Present(observed)) if is_ours(observed) => Step::Delete,
        (None, _) | (_, Observed::Unknown) => Step::Rest,
        (Some(desired), _) if applied == Some(desired) && observed.says(desired) => {
            match observed.without_others_conditions(desired) {
                Some(_) => Step::RemoveConditions,
                None => Step::Rest,
            }
        }
        (Some(_), _) => Step::Apply,
    }
}

impl Observed {
    /// Whether all that is desired is there.
    pub(crate) fn says(&self, desired: &Value) -> bool {
        match self {
            Self::Unknown | Self::Absent => false,
            Self::Present(observed) => {
                serde_json::to_value(observed).is_ok_and(|observed| says(&observed, desired))
            }
        }
    }

    /// A merge patch that leaves only our match conditions on our webhooks; none if there are no others.
    pub(crate) fn without_others_conditions(&self, desired: &Value) -> Option<Value> {
        let Self::Present(observed) = self else {
            return None;
        };
        let mut webhooks = serde_json::to_value(&observed.webhooks).ok()?;
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
        // The list is replaced as a whole, so only what was read.
        let version = &observed.metadata.resource_version;
        removes.then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": webhooks}))
    }

    fn is_injected(&self) -> bool {
        match self {
            Self::Unknown | Self::Absent => false,
            Self::Present(observed) => is_injected(observed),
        }
    }
}

#[cfg(test)]
mod tests;
