//! The revisions of a set: `ControllerRevision`s, each with a template that its pods have or had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leadsman_api::CloneSet;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::{ObjectName, ResourceVersion, Store, Stored};
use serde_json::{Value, json};

use super::child::owner;
use super::claim::ClaimTemplate;
use super::pod::hash_in;
use super::set::PodSet;
use super::template::RevisionData;
use crate::workload::JsonObject;
use crate::workload::revision::{HASH_LABEL, Newest, Revision, RevisionChange, newest};

/// The annotation of a revision with the set's templates of claims: pods of an earlier template mount what these have named.
const CLAIM_TEMPLATES: &str = "cloneset.leadsman.io/claim-templates";

/// A revision of whichever workload. Of one that belongs to another one its data is not kept.
#[derive(Debug, PartialEq)]
pub struct CloneSetRevision {
    name: ObjectName,
    pub(super) uid: String,
    version: ResourceVersion,
    /// The uid of its controller.
    owner: Option<String>,
    labels: BTreeMap<String, String>,
    number: i64,
    pub(super) data: RevisionData,
    /// The templates of claims of the time when it was recorded.
    pub(super) claims: Vec<ClaimTemplate>,
}

impl CloneSetRevision {
    /// Reads a revision.
    pub fn read(revision: &ControllerRevision) -> Self {
        let metadata = &revision.identity;
        let references = metadata.owner_references.iter().flatten();
        let mut controllers = references.filter(|it| it.controller == Some(true));
        let controller = controllers.next();
        let may_be_of_set = controller.is_none_or(|it| it.kind == "CloneSet");
        let annotations = metadata.annotations.as_ref().filter(|_| may_be_of_set);
        let claims = annotations.and_then(|all| all.get(CLAIM_TEMPLATES));
        Self {
            claims: claims.map_or_else(Vec::new, |record| ClaimTemplate::read_record(record)),
            name: ObjectName::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            owner: controller.map(|it| it.uid.clone()),
            labels: metadata.labels.clone().unwrap_or_default(),
            number: revision.revision,
            data: if may_be_of_set {
                RevisionData::read(&revision.data)
            } else {
                RevisionData("".into())
            },
        }
    }

    pub(super) fn revision_name(&self) -> &str {
        &self.name.name
    }
}

impl Stored for CloneSetRevision {
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
        if let Some(owner) = &self.owner {
            found(owner);
        }
        // A revision that is named after a set may have the name of one that the set wants to create.
        if let Some((set, _)) = self.name.name.rsplit_once('-') {
            found(&word_of_names(set));
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.owner == other.owner
            && self.number == other.number
            && self.labels == other.labels
            && self.data == other.data
            && self.claims == other.claims
    }
}

/// The word under which revisions are found whose names begin with a set's.
fn word_of_names(set: &str) -> String {
    format!("{}-", crate::cluster::truncate(set, 223))
}

/// The revisions of a set as they are known.
#[derive(Debug)]
pub(super) struct Revisions<'a> {
    by_name: BTreeMap<&'a str, &'a CloneSetRevision>,
    set: &'a PodSet,
    /// The newest one, which has the present template, and how it comes to be.
    pub(super) newest: Newest,
}

impl<'a> Revisions<'a> {
    pub(super) fn find(set: &'a PodSet, store: &'a Store<CloneSetRevision>) -> Self {
        let namespace = &set.name.namespace;
        let owned = store.find_in(namespace, &set.uid);
        let named = store.find_in(namespace, &word_of_names(&set.name.name));
        let all: BTreeMap<_, _> = owned
            .chain(named)
            .map(|one| (&*one.name.name, &**one))
            .collect();
        let known: Vec<_> = all
            .values()
            .map(|one| Revision {
                name: one.name.name.as_str().into(),
                number: if is_ours(set, one) { one.number } else { 0 },
                // Nothing equals the data of somebody else's.
                data: if is_ours(set, one) {
                    one.data.0.clone()
                } else {
                    Arc::from("")
                },
            })
            .collect();
        let collisions = set.status.collision_count.unwrap_or_default();
        let newest = newest(&set.name.name, &set.spec.data.0, &known, collisions);
        let by_name = all.into_iter().filter(|(_, one)| is_ours(set, one));
        Self {
            by_name: by_name.collect(),
            set,
            newest,
        }
    }

    /// A revision by its name.
    pub(super) fn get(&self, name: &str) -> Option<&'a CloneSetRevision> {
        self.by_name.get(name).copied()
    }

    /// The revision of a pod with this hash.
    pub(super) fn of_hash(&self, hash: &str) -> Option<&'a CloneSetRevision> {
        let mut all = self.by_name.iter();
        all.find(|(name, _)| hash_in(name) == hash)
            .map(|(_, one)| *one)
    }

    /// The name of the revision that pods have which are not updated.
    pub(super) fn current(&self) -> &str {
        let named = self.set.status.current_revision.as_deref();
        named
            .filter(|name| self.by_name.contains_key(name))
            .unwrap_or(&self.newest.name)
    }

    /// The newest revision as it is created.
    pub(super) fn new_object(&self) -> Option<Value> {
        let RevisionChange::Create { number, hash } = &self.newest.change else {
            return None;
        };
        let set = self.set;
        let data: Value = serde_json::from_str(&set.spec.data.0).unwrap_or_default();
        let template = set.spec.data.template();
        let mut labels = super::template::read_template(&template)
            .labels
            .cloned()
            .unwrap_or_default();
        labels.insert(HASH_LABEL.to_owned(), json!(hash));
        let claims = &set.spec.claims;
        let annotations =
            (!claims.is_empty()).then(|| json!({CLAIM_TEMPLATES: ClaimTemplate::record(claims)}));
        Some(json!({
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": &*self.newest.name,
                "namespace": set.name.namespace,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [owner(set)],
            },
            "data": data,
            "revision": number,
        }))
    }

    /// Patches the newest revision: its number, or its owner, which a set that was deleted without it has taken away.
    pub(super) fn patch(&self) -> Option<(&'a CloneSetRevision, Value)> {
        let newest = self.get(&self.newest.name)?;
        let mut patch = json!({"metadata": {"uid": newest.uid}});
        let number = match self.newest.change {
            RevisionChange::Renumber(number) => Some(number),
            _ => None,
        };
        if newest.owner.is_some() && number.is_none() {
            return None;
        }
        if let Some(number) = number {
            patch["revision"] = json!(number);
        }
        if newest.owner.is_none() {
            patch["metadata"]["ownerReferences"] = json!([owner(self.set)]);
        }
        Some((newest, patch))
    }

    /// Revisions that nobody needs, beyond the limit: the oldest ones. Revisions in use do not count.
    pub(super) fn surplus(&self, hashes_of_pods: &BTreeSet<&str>) -> Vec<&'a CloneSetRevision> {
        let is_used = |name: &str| {
            name == &*self.newest.name
                || name == self.current()
                || hashes_of_pods.contains(hash_in(name))
        };
        let owned = self.by_name.values().filter(|one| one.owner.is_some());
        let mut unused: Vec<_> = owned
            .filter(|one| !is_used(&one.name.name))
            .copied()
            .collect();
        unused.sort_by_key(|one| (one.number, &one.name));
        let most = self.set.spec.history_limit;
        let surplus = unused.len().saturating_sub(most);
        unused.truncate(surplus);
        unused
    }
}

/// A template that a set has or had, for `kubectl leadsman rollout`.
#[derive(Clone, Debug, PartialEq)]
pub struct PastTemplate {
    /// The name of its revision.
    pub name: String,
    /// The number of its revision; the newest has the highest.
    pub number: i64,
    /// The template. It makes no other revision where a set has it again.
    pub template: JsonObject,
    /// Whether the set has it now.
    pub is_present: bool,
}

/// The templates of a set by its revisions among these, the oldest first.
pub fn past_templates(set: &CloneSet, revisions: &[ControllerRevision]) -> Vec<PastTemplate> {
    let template = set.spec.template.read().unwrap_or_default();
    let present = RevisionData::of(&template);
    let uid = set.metadata.uid.as_deref();
    let revisions = revisions.iter();
    let own = revisions.filter(|one| CloneSetRevision::read(one).owner.as_deref() == uid);
    let mut templates: Vec<_> = own
        .map(|one| {
            let data = RevisionData::read(&one.data);
            PastTemplate {
                name: ObjectName::of(&one.identity).name,
                number: one.revision,
                template: data.template(),
                is_present: data == present,
            }
        })
        .collect();
    templates.sort_by_key(|one| one.number);
    templates
}

/// Whether a revision is a set's: its own, or one that nobody owns and whose labels it selects.
fn is_ours(set: &PodSet, revision: &CloneSetRevision) -> bool {
    if let Some(owner) = &revision.owner {
        return *owner == set.uid;
    }
    let label = |key: &str| revision.labels.get(key).map(String::as_str);
    set.spec.selector.matches(label)
}
