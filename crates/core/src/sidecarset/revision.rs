//! The revisions of a set: the `ControllerRevision` that records one, and the revision that a new pod gets.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

pub use self::changes::{changed_fields, changed_outside_of_hash};
use super::annotations::{HASH, HASH_WITHOUT_IMAGE, HashEntries};
use super::set::{CUSTOM_VERSION_LABEL, Pin, PinPolicy, PinnedRevision, SidecarSet};
use super::strategy::UpdateMode;
use super::template::{Hashes, Template};
use crate::workload::amount::Amount;
use crate::workload::go_json::{FieldOrder, Form, GoValue};
use crate::workload::hash::fnv1_32;
use crate::workload::revision::{HASH_LABEL, Revision};

/// Label of a revision: the name of its set.
pub const SET_LABEL: &str = "kruise.io/sidecarset-name";
/// The annotation with what kubectl wrote last, which is long and says nothing about a revision.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The version in owner references, as `OpenKruise` 1.9 writes it.
const API_VERSION: &str = "apps.kruise.io/v1beta1";

/// A revision of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetRevision {
    /// The revision's name, number and data.
    pub revision: Revision,
    /// The uid of the set that it belongs to.
    pub owner: Arc<str>,
    /// The custom version that the set had.
    pub custom_version: Option<Arc<str>>,
    /// The parts that a pod gets.
    pub template: Template,
    /// The hashes that the revision was given, which a pod of it has.
    pub hashes: Hashes,
}

/// The owner of a `ControllerRevision`, by which a pin is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevisionOwner {
    /// The uid of its set.
    pub uid: Option<Arc<str>>,
    /// The name of its set, by its label.
    pub set: Option<Arc<str>>,
    /// The custom version that the set had.
    pub custom_version: Option<Arc<str>>,
}

/// The owners of revisions by the revisions' names.
pub type RevisionOwners = BTreeMap<Arc<str>, RevisionOwner>;

impl SetRevision {
    /// Reads a `ControllerRevision`; None if it is none of a set, or records nothing that could be injected.
    pub fn read(meta: &ObjectMeta, number: i64, data: &Value) -> Option<Self> {
        let labels = meta.labels.as_ref()?;
        labels.get(SET_LABEL)?;
        let owners = meta.owner_references.iter().flatten();
        let owner = owners
            .filter(|owner| owner.kind == "SidecarSet")
            .find_map(controller)?;
        let template = Template::of_revision(data)?;
        let annotation = |key: &str| {
            meta.annotations
                .as_ref()?
                .get(key)
                .map(|hash| Arc::from(hash.as_str()))
        };
        let computed = template.hashes();
        Some(Self {
            revision: Revision {
                name: meta.name.as_deref()?.into(),
                number,
                data: GoValue::read(data, Form::Plain)
                    .to_text(FieldOrder::Sorted)
                    .into(),
            },
            owner: owner.into(),
            custom_version: labels
                .get(CUSTOM_VERSION_LABEL)
                .map(|version| version.as_str().into()),
            hashes: Hashes {
                hash: annotation(HASH).unwrap_or(computed.hash),
                without_image: annotation(HASH_WITHOUT_IMAGE).unwrap_or(computed.without_image),
            },
            template,
        })
    }
}

fn controller(owner: &OwnerReference) -> Option<&str> {
    (owner.controller == Some(true)).then_some(owner.uid.as_str())
}

/// The `ControllerRevision` of a set as it is now. Labels and annotations of the set are copied to it.
pub fn create(
    set: &SidecarSet,
    meta: &ObjectMeta,
    namespace: &str,
    (name, hash, number): (&str, &str, i64),
) -> Value {
    let mut labels = meta.labels.clone().unwrap_or_default();
    // The field of the set goes before its label, which may have another version.
    labels.remove(CUSTOM_VERSION_LABEL);
    let version = set.custom_version.as_deref();
    labels.extend(version.map(|version| (CUSTOM_VERSION_LABEL.to_owned(), version.to_owned())));
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    labels.insert(SET_LABEL.to_owned(), set.name.to_string());
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    annotations.insert(HASH.to_owned(), set.hashes.hash.to_string());
    annotations.insert(
        HASH_WITHOUT_IMAGE.to_owned(),
        set.hashes.without_image.to_string(),
    );
    let data: Value = serde_json::from_str(&set.template.revision_data())
        .expect("the data of a revision are JSON");
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": "SidecarSet",
                "name": &*set.name,
                "uid": &*set.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "data": data,
        "revision": number,
    })
}

/// The revision that a set pins new pods to; None if it has none of that name or version. One of another set does not count.
pub fn pinned<'a>(
    set: &SidecarSet,
    pin: &Pin,
    known: &'a [SetRevision],
) -> Option<&'a SetRevision> {
    // `OpenKruise` takes a revision of the name whosever it is, and then injects another set's
    // containers (`getControllerRevision`, `pkg/control/sidecarcontrol/history_control.go`).
    let own = known.iter().filter(|revision| revision.owner == set.uid);
    match &pin.revision {
        PinnedRevision::Name(name) => own.into_iter().find(|known| known.revision.name == *name),
        PinnedRevision::CustomVersion(version) => own
            .filter(|known| known.custom_version.as_ref() == Some(version))
            // An earlier revision may have had the version before; the newest counts there too.
            .max_by_key(|known| known.revision.number),
    }
}

/// Whether a new pod gets the pinned revision and not the newest. With a partition as many pods get it as stay old: which
/// of them, is drawn from their owner and the set, so that the pods of one owner are alike, and one that is created again
/// is as before. `matched` is the number of pods that the set has.
pub fn is_pinned<'a>(
    set: &SidecarSet,
    pin: &Pin,
    owner: &str,
    matched: usize,
    label: impl Fn(&str) -> Option<&'a str>,
) -> bool {
    if pin.policy == PinPolicy::Always || set.update.mode == UpdateMode::Paused {
        return true;
    }
    if let Some(selector) = &set.update.selector {
        return !selector.matches(label);
    }
    let percent = match set.update.partition {
        Amount::Percent(percent) => percent as usize,
        // The count includes this pod, so that the first ones are as pinned as those that come when there are few.
        Amount::Number(number) => number as usize * 100 / (matched + 1),
    };
    let text = format!("{owner}/{}", set.uid);
    // The low bits of FNV depend on all of the text.
    (fnv1_32(text.bytes()) % 100) < u32::try_from(percent.min(100)).unwrap_or(100)
}

/// The revisions that must be kept: those that a pod has by its annotation, and the pinned one.
pub fn used<'a>(
    set: &SidecarSet,
    known: &[SetRevision],
    pods: impl Iterator<Item = &'a HashEntries>,
) -> BTreeSet<Arc<str>> {
    let of_pods = pods.filter_map(|entries| {
        let revision = entries.entry_of(&set.name)?.revision?;
        Some(Arc::from(&*revision))
    });
    let pinned = set
        .pin
        .as_ref()
        .and_then(|pin| pinned(set, pin, known))
        .map(|revision| revision.revision.name.clone());
    of_pods.chain(pinned).collect()
}

#[cfg(test)]
mod tests;
