//! The revisions of the sets as `ControllerRevision`s, and what has to be written of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::slim::revision::ControllerRevision;
use serde_json::{Value, json};

use crate::cluster::{ObjectName, ResourceVersion};
use crate::sidecarset::event::Write;
use crate::sidecarset::revision::{self, RevisionOwner, RevisionOwners, SET_LABEL, SetRevision};
use crate::sidecarset::set::{CUSTOM_VERSION_LABEL, PinnedRevision, SidecarSet};
use crate::workload::go_json::{FieldOrder, Form, GoValue};
use crate::workload::revision::{Newest, Revision, RevisionChange, newest, revision_hash, surplus};

/// A revision as it is kept: its template is read where a new pod gets it.
#[derive(Debug)]
pub(super) struct StoredRevision {
    object: Arc<ControllerRevision>,
    pub(super) version: ResourceVersion,
    revision: Revision,
    /// The set that owns it.
    owner: Option<Arc<str>>,
    /// Whether the API server has deleted it, and the watch has not shown that yet.
    is_deleted: bool,
}

impl StoredRevision {
    fn new(object: Arc<ControllerRevision>) -> Self {
        let meta = &object.identity;
        let owners = meta.owner_references.iter().flatten();
        let owner = owners
            .filter(|owner| owner.kind == "SidecarSet" && owner.controller == Some(true))
            .map(|owner| Arc::from(owner.uid.as_str()))
            .next();
        Self {
            version: ResourceVersion::parse(meta.resource_version.as_deref()),
            revision: Revision {
                name: meta.name.as_deref().unwrap_or_default().into(),
                number: object.revision,
                data: GoValue::read(&object.data, Form::Plain)
                    .to_text(FieldOrder::Sorted)
                    .into(),
            },
            owner,
            is_deleted: false,
            object,
        }
    }

    pub(super) fn revision_owner(&self) -> RevisionOwner {
        RevisionOwner {
            uid: self.owner.clone(),
            set: self.label_value(SET_LABEL).map(Arc::from),
            custom_version: self.label_value(CUSTOM_VERSION_LABEL).map(Arc::from),
        }
    }

    fn label_value(&self, key: &str) -> Option<&str> {
        let labels = self.object.identity.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.revision.name
    }

    pub(super) fn data(&self) -> &Value {
        &self.object.data
    }
}

/// The history of a set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History {
    /// The newest revision; None for a set that is not acted on.
    pub(super) newest: Option<Newest>,
    /// Whether a revision of an earlier set has the name, which goes with its owner.
    is_name_in_use: bool,
    /// The revision that new pods are pinned to, if there is one.
    pub(super) pinned: Option<Arc<SetRevision>>,
}

impl History {
    /// Whether the revision of the set as it is now is there.
    pub(super) fn has_newest(&self) -> bool {
        let newest = self.newest.as_ref();
        newest.is_some_and(|newest| !matches!(newest.change, RevisionChange::Create { .. }))
    }

    pub(super) fn newest_name(&self) -> &str {
        self.newest
            .as_ref()
            .map(|newest| &*newest.name)
            .unwrap_or_default()
    }
}

/// The revisions of all sets.
#[derive(Debug, Default)]
pub(super) struct Revisions {
    by_name: BTreeMap<Arc<str>, StoredRevision>,
    /// The names of those that a set owns, by its uid.
    by_owner: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
}

impl Revisions {
    pub(super) fn get(&self, name: &str) -> Option<&StoredRevision> {
        self.by_name.get(name)
    }

    /// The shared form of the name of a revision that is known.
    pub(super) fn shared_name(&self, name: &str) -> Option<&Arc<str>> {
        self.by_name.get_key_value(name).map(|(name, _)| name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_name.keys()
    }

    /// Whose each revision is.
    pub(super) fn revision_owners(&self) -> RevisionOwners {
        let known = self.by_name.iter();
        known
            .map(|(name, own)| (name.clone(), own.revision_owner()))
            .collect()
    }

    /// Returns the set whose history it belongs to, by its label.
    pub(super) fn insert_revision(&mut self, object: Arc<ControllerRevision>) -> Option<Arc<str>> {
        let revision = StoredRevision::new(object);
        let set = revision.label_value(SET_LABEL).map(Arc::from);
        let name = revision.revision.name.clone();
        self.unlink_owner(&name);
        if let Some(owner) = &revision.owner {
            let names = self.by_owner.entry(owner.clone()).or_default();
            names.insert(name.clone());
        }
        self.by_name.insert(name, revision);
        set
    }

    /// Forgets who owns a revision.
    fn unlink_owner(&mut self, name: &str) {
        let owner = self.by_name.get(name).and_then(|own| own.owner.clone());
        if let Some(owner) = owner
            && let Some(names) = self.by_owner.get_mut(&owner)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }

    /// Returns the set whose history it belonged to.
    pub(super) fn remove_revision(&mut self, name: &str) -> Option<Arc<str>> {
        self.unlink_owner(name);
        let revision = self.by_name.remove(name)?;
        revision.label_value(SET_LABEL).map(Arc::from)
    }

    fn revisions_of(&self, set: &SidecarSet) -> impl Iterator<Item = &StoredRevision> {
        let names = self.by_owner.get(&set.uid).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name))
    }

    /// The history of a set, of whose names `collisions` were taken before.
    pub(super) fn history_of(&self, set: &SidecarSet, collisions: i32) -> History {
        let known: Vec<_> = self
            .revisions_of(set)
            .map(|own| own.revision.clone())
            .collect();
        let data = set.template.revision_data();
        let mut newest = newest(&set.name, &data, &known, collisions);
        let mut is_name_in_use = false;
        while let RevisionChange::Create { number, .. } = newest.change {
            let Some(other) = self.by_name.get(&newest.name) else {
                break;
            };
            if other.owner.is_some() {
                // The garbage collector deletes it with its owner.
                is_name_in_use = true;
                break;
            }
            // Another name for the same data, as `CreateControllerRevision` finds one
            // (`pkg/controller/history/controller_history.go`). It ends, since no more names are
            // taken than there are revisions.
            let collisions = newest.collisions + 1;
            let hash = revision_hash(&data, collisions);
            newest = Newest {
                name: crate::workload::revision::revision_name(&set.name, &hash).into(),
                collisions,
                change: RevisionChange::Create { number, hash },
            };
        }
        History {
            newest: Some(newest),
            is_name_in_use,
            pinned: self.pinned_revision(set).map(Arc::new),
        }
    }

    fn pinned_revision(&self, set: &SidecarSet) -> Option<SetRevision> {
        let pin = set.pin.as_ref()?;
        let stored = match &pin.revision {
            PinnedRevision::Name(name) => self
                .revisions_of(set)
                .find(|own| own.revision.name == *name),
            PinnedRevision::CustomVersion(version) => self
                .revisions_of(set)
                .filter(|own| own.label_value(CUSTOM_VERSION_LABEL) == Some(version))
                .max_by_key(|own| own.revision.number),
        }?;
        let object = &stored.object;
        SetRevision::read(&object.identity, object.revision, &object.data)
    }

    /// A revision has been deleted, and is here until the watch shows that it is gone, or another version of it.
    pub(super) fn note_deletion(&mut self, name: &str) {
        if let Some(revision) = self.by_name.get_mut(name) {
            revision.is_deleted = true;
        }
    }

    /// The write that is due for a set's revisions: the newest first, then one that exceeds the limit. `used` are those that
    /// pods have.
    pub(super) fn due_write(
        &self,
        (set, wire): (&SidecarSet, &SidecarSetWire),
        history: &History,
        used: impl Iterator<Item = Arc<str>>,
        namespace: &str,
    ) -> Option<Write> {
        let newest = history.newest.as_ref()?;
        if let RevisionChange::Create { number, hash } = &newest.change {
            let object = revision::create(
                set,
                &wire.metadata,
                namespace,
                (&newest.name, hash, *number),
            );
            return (!history.is_name_in_use).then(|| Write::CreateRevision(Box::new(object)));
        }
        let stored = self.get(&newest.name)?;
        let number = match newest.change {
            RevisionChange::Renumber(number) => Some(number),
            _ => None,
        };
        let version = set.custom_version.as_deref();
        if number.is_some() || stored.label_value(CUSTOM_VERSION_LABEL) != version {
            return Some(stored.patch_request(number, version, namespace));
        }
        let pinned = history.pinned.as_ref();
        let pinned = pinned.map(|pinned| pinned.revision.name.clone());
        let used: BTreeSet<_> = used.chain(pinned).collect();
        let known = self.revisions_of(set).filter(|own| !own.is_deleted);
        let known: Vec<_> = known.map(|own| own.revision.clone()).collect();
        let surplus = surplus(&known, set.history_limit, &used);
        // One at a time: each answer affects the set again, until nothing is surplus.
        let surplus = self.get(surplus.first()?)?;
        Some(surplus.delete_request(namespace))
    }
}

impl StoredRevision {
    fn object_name(&self, namespace: &str) -> ObjectName {
        ObjectName {
            namespace: namespace.to_owned(),
            name: self.revision.name.to_string(),
        }
    }

    fn patch_request(&self, number: Option<i64>, version: Option<&str>, namespace: &str) -> Write {
        let meta = &self.object.identity;
        let mut patch =
            json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}});
        if let Some(number) = number {
            patch["revision"] = number.into();
        }
        if self.label_value(CUSTOM_VERSION_LABEL) != version {
            patch["metadata"]["labels"] = json!({CUSTOM_VERSION_LABEL: version});
        }
        Write::PatchRevision {
            revision: self.object_name(namespace),
            patch: Box::new(patch),
        }
    }

    fn delete_request(&self, namespace: &str) -> Write {
        let meta = &self.object.identity;
        Write::DeleteRevision {
            revision: self.object_name(namespace),
            uid: meta.uid.clone().unwrap_or_default(),
            // One that got the highest number meanwhile is in use again: the version makes its
            // deletion a 409.
            resource_version: meta.resource_version.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNERS: [&str; 3] = ["", "u1", "u2"];

    fn revision(name: usize, owner: usize) -> Arc<ControllerRevision> {
        let mut object =
            json!({"metadata": {"name": format!("r{name}")}, "revision": 1, "data": {}});
        if owner > 0 {
            let owner = json!({
                "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "name": "log", "uid": OWNERS[owner],
                "controller": true,
            });
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn set(uid: &str) -> SidecarSet {
        let wire = json!({
            "metadata": {"name": "log", "uid": uid},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": "log", "image": "i:1"}]},
        });
        SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        // SDF-43
        #[test]
        fn the_revisions_of_a_set_are_those_that_it_owns_among_all(
            changes in proptest::collection::vec((0..4_usize, proptest::option::weighted(0.7, 0..OWNERS.len())), 1..20),
        ) {
            let mut revisions = Revisions::default();
            for (name, owner) in changes {
                match owner {
                    Some(owner) => drop(revisions.insert_revision(revision(name, owner))),
                    None => drop(revisions.remove_revision(&format!("r{name}"))),
                }
                for uid in &OWNERS[1..] {
                    let found: Vec<_> = revisions.revisions_of(&set(uid)).map(StoredRevision::name).collect();
                    let all = revisions.by_name.values();
                    let owned = all.filter(|own| own.owner.as_deref() == Some(*uid));
                    prop_assert_eq!(found, owned.map(StoredRevision::name).collect::<Vec<_>>());
                }
            }
            for name in 0..4 {
                revisions.remove_revision(&format!("r{name}"));
            }
            prop_assert!(revisions.by_owner.is_empty());
        }
    }
}
