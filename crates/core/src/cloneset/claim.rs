//! A claim of a pod of a set, and what it is made of.

use std::sync::Arc;

use leadsman_api::clone_set::INSTANCE_LABEL;
use leadsman_api::limits;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_reconcile::{ObjectName, ResourceVersion, Stored};
use serde_json::{Map, Value, json};

use super::pod::hash_in;
use crate::cluster::{FieldErrors, names};
use crate::workload::{JsonObject, object};

/// A claim. Of one that belongs to no set only its name is kept, which a set's claim cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetClaim {
    pub(super) name: ObjectName,
    pub(super) uid: String,
    version: ResourceVersion,
    /// The set that controls it: its uid and its name.
    owner: Option<(String, String)>,
    /// The end of its pod's name.
    id: String,
    pub(super) is_going: bool,
}

impl SetClaim {
    /// Reads a claim.
    pub fn read(claim: &PersistentVolumeClaim) -> Self {
        let metadata = &claim.identity;
        let references = metadata.owner_references.iter().flatten();
        let mut controllers = references.filter(|it| it.controller == Some(true));
        let owner = controllers.next().filter(|it| it.kind == "CloneSet");
        let labels = metadata.labels.as_ref();
        let id = labels.and_then(|labels| labels.get(INSTANCE_LABEL));
        let of_set = owner.zip(id);
        Self {
            name: ObjectName::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            owner: of_set.map(|(it, _)| (it.uid.clone(), it.name.clone())),
            id: of_set.map_or_else(String::new, |(_, id)| id.clone()),
            is_going: metadata.deletion_timestamp.is_some(),
        }
    }

    /// A claim as it is once it is created.
    pub(super) fn created(body: &Value) -> Self {
        let claim: PersistentVolumeClaim = serde_json::from_value(body.clone()).unwrap_or_default();
        Self::read(&claim)
    }

    /// The set whose pod's it is.
    pub(super) fn set(&self) -> Option<ObjectName> {
        let owner = self.owner.as_ref();
        owner.map(|(_, set)| self.name.beside(set))
    }

    /// The pod whose it is, if there is one of this name.
    pub(super) fn pod(&self) -> Option<ObjectName> {
        let (_, set) = self.owner.as_ref()?;
        Some(self.name.beside(format!("{set}-{}", self.id)))
    }
}

impl Stored for SetClaim {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        if let Some((uid, _)) = &self.owner {
            found(uid);
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.owner == other.owner && self.id == other.id && self.is_going == other.is_going
    }
}

/// A template of claims: the name of the volume, and the claim without its name, its pod and its owner, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimTemplate {
    pub(super) name: String,
    claim: Arc<str>,
}

impl ClaimTemplate {
    /// Reads a template of a set; its claims get the labels that the set selects its pods by.
    pub(super) fn read(
        template: &JsonObject,
        selected: impl Iterator<Item = (String, String)>,
        report: &mut FieldErrors<'_>,
    ) -> Self {
        let metadata = object::inner(template, "metadata");
        let part = |field: &str| metadata.and_then(|metadata| metadata.get(field));
        let name = part("name").and_then(Value::as_str).unwrap_or_default();
        let mut at = report.field("metadata");
        at.field("name").check(names::dns_label(name));
        let mut labels = match part("labels") {
            Some(Value::Object(labels)) => labels.clone(),
            _ => Map::new(),
        };
        labels.extend(selected.map(|(key, value)| (key, json!(value))));
        let claim = json!({
            "metadata": {"name": name, "labels": labels, "annotations": part("annotations"),
                "finalizers": part("finalizers")},
            "spec": template.get("spec"),
        });
        Self {
            name: name.to_owned(),
            claim: claim.to_string().into(),
        }
    }

    /// Reads the templates that a revision has recorded: none, if they are not what was recorded.
    pub(super) fn read_record(record: &str) -> Vec<Self> {
        if record.len() > limits::TEMPLATE_BYTES {
            return Vec::new();
        }
        let claims: Vec<Value> = serde_json::from_str(record).unwrap_or_default();
        let template = |claim: &Value| {
            let name = claim.pointer("/metadata/name").and_then(Value::as_str)?;
            Some(Self {
                name: name.to_owned(),
                claim: claim.to_string().into(),
            })
        };
        claims.iter().filter_map(template).collect()
    }

    /// The templates as a revision records them.
    pub(super) fn record(templates: &[Self]) -> String {
        let claims: Vec<_> = templates.iter().map(|template| &*template.claim).collect();
        format!("[{}]", claims.join(","))
    }

    /// The name of a pod's claim.
    pub(super) fn claim_name(&self, pod: &ObjectName) -> ObjectName {
        pod.beside(format!("{}-{}", self.name, pod.name))
    }

    /// The claim of a pod of this name, with the reference to its owner.
    pub(super) fn new_claim(&self, pod: &ObjectName, owner: &Value) -> Value {
        let mut claim: Value = serde_json::from_str(&self.claim).unwrap_or_default();
        claim["apiVersion"] = json!("v1");
        claim["kind"] = json!("PersistentVolumeClaim");
        let metadata = &mut claim["metadata"];
        metadata["name"] = json!(self.claim_name(pod).name);
        metadata["namespace"] = json!(pod.namespace);
        metadata["labels"][INSTANCE_LABEL] = json!(hash_in(&pod.name));
        metadata["ownerReferences"] = json!([owner]);
        claim
    }

    /// The volume of a pod of this name.
    pub(super) fn volume(&self, pod: &ObjectName) -> Value {
        let claim = self.claim_name(pod).name;
        json!({"name": self.name, "persistentVolumeClaim": {"claimName": claim}})
    }
}

/// The volumes that containers of a pod mount and the pod itself does not have.
pub(super) fn has_missing_volume(pod: &JsonObject, name: &str) -> bool {
    let is_named = |one: &JsonObject| object::text(one, "name") == Some(name);
    let mut containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| object::items(pod, list));
    let mut is_mounted = containers.any(|container| {
        let lists = ["volumeMounts", "volumeDevices"];
        let mut mounts = lists
            .into_iter()
            .flat_map(|list| object::items(container, list));
        mounts.any(is_named)
    });
    is_mounted &= !object::items(pod, "volumes").any(is_named);
    is_mounted
}
