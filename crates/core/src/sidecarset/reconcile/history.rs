//! The history of each set, and what has to be written of its revisions.

use std::collections::BTreeSet;
use std::sync::Arc;

use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::{Plan, Purpose, Stored, Write, WriteKind, WriteVerb};
use serde_json::{Value, json};

use super::SidecarSets;
use super::revisions::{History, StoredRevision};
use super::world::{SetWorld, StoredSet};
use super::writes::{CREATE_REVISION, DELETE_REVISION, PATCH_REVISION, refusal_reason};
use crate::cluster::ObjectName;
use crate::sidecarset::revision::{self, SetRevision};
use crate::sidecarset::set::{CUSTOM_VERSION_LABEL, PinnedRevision, SidecarSet};
use crate::workload::revision::{
    Newest, RevisionChange, newest, revision_hash, revision_name, surplus,
};

/// The write that is due for a set's revisions.
pub(super) struct DueRevision {
    /// Whether it creates the newest one, which the status names.
    pub(super) is_creation: bool,
    /// Why it was refused, if it was.
    pub(super) refused: Option<Arc<str>>,
}

impl SidecarSets {
    fn revision_object(&self, name: &str) -> ObjectName {
        ObjectName {
            namespace: self.config.namespace.clone(),
            name: name.to_owned(),
        }
    }

    pub(super) fn revision<'a>(
        &self,
        name: &str,
        world: &'a SetWorld,
    ) -> Option<&'a Arc<StoredRevision>> {
        world.revisions.observed(&self.revision_object(name))
    }

    /// The history of a set, of whose names `collisions` were taken before.
    pub(super) fn history_of(
        &self,
        set: &SidecarSet,
        collisions: i32,
        world: &SetWorld,
    ) -> History {
        let known: Vec<_> = world
            .revisions
            .find(&set.uid)
            .map(|own| own.revision.clone())
            .collect();
        let data = set.template.revision_data();
        let mut newest = newest(&set.name, &data, &known, collisions);
        let mut is_name_in_use = false;
        while let RevisionChange::Create { number, .. } = newest.change {
            let Some(other) = self.revision(&newest.name, world) else {
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
                name: revision_name(&set.name, &hash).into(),
                collisions,
                change: RevisionChange::Create { number, hash },
            };
        }
        History {
            newest: Some(newest),
            is_name_in_use,
            pinned: pinned_revision(set, world).map(Arc::new),
        }
    }

    /// Plans the write that is due for a set's revisions: the newest first, then one that exceeds the limit. `used` are those
    /// that pods have.
    pub(super) fn plan_revision(
        &self,
        (set, stored): (&Arc<SidecarSet>, &StoredSet),
        used: impl Iterator<Item = Arc<str>>,
        world: &SetWorld,
        plan: &mut Plan<'_, Self>,
    ) -> Option<DueRevision> {
        let history = &world.known.get(&set.name)?.history;
        let (kind, write) = self.revision_write(history, (set, stored), used, world, plan)?;
        let (name, purpose) = (write.name().clone(), write.purpose());
        let rest = plan.fate_of(kind, &name, purpose);
        Some(DueRevision {
            is_creation: kind.verb == WriteVerb::Create,
            refused: rest.and_then(|rest| refusal_reason(rest.fate)),
        })
    }

    fn revision_write<'a>(
        &self,
        history: &History,
        (set, stored): (&Arc<SidecarSet>, &StoredSet),
        used: impl Iterator<Item = Arc<str>>,
        world: &SetWorld,
        plan: &'a mut Plan<'_, Self>,
    ) -> Option<(&'static WriteKind, &'a mut Write<Self>)> {
        let newest = history.newest.as_ref()?;
        let number = match &newest.change {
            RevisionChange::Create { .. } if history.is_name_in_use => return None,
            RevisionChange::Create { number, hash } => {
                let name = self.revision_object(&newest.name);
                let purpose = Purpose::of((&set.uid, hash, number));
                let (set, wire) = (set.clone(), stored.wire.clone());
                let (own, hash, number) = (name.clone(), hash.clone(), *number);
                let build = move || {
                    let named = (own.name.as_str(), hash.as_str(), number);
                    revision::create(&set, &wire.metadata, &own.namespace, named)
                };
                let write = plan.create(&CREATE_REVISION, name, purpose, build);
                return Some((&CREATE_REVISION, write));
            }
            RevisionChange::Renumber(number) => Some(*number),
            RevisionChange::None => None,
        };
        let present = self.revision(&newest.name, world)?;
        let version = set.custom_version.as_deref();
        if number.is_some() || present.label(CUSTOM_VERSION_LABEL) != version {
            let patch = patch_of(present, number, version);
            let write = plan.patch(&PATCH_REVISION, present.name(), &patch);
            return Some((
                &PATCH_REVISION,
                write.with_purpose(Purpose::of((number, version))),
            ));
        }
        let pinned = history.pinned.as_ref();
        let pinned_name = pinned.map(|pinned| pinned.revision.name.clone());
        let used: BTreeSet<_> = used.chain(pinned_name).collect();
        let found = world.revisions.find(&set.uid);
        // One that was deleted is here until the watch shows that.
        let known: Vec<_> = found
            .filter(|own| world.revisions.assumed(&own.name()).is_some())
            .map(|own| own.revision.clone())
            .collect();
        // One at a time: each answer affects the set again, until nothing is surplus.
        let surplus_revisions = surplus(&known, set.history_limit, &used);
        let surplus = self.revision(surplus_revisions.first()?, world)?;
        let (name, uid) = (surplus.name(), surplus.uid());
        let write = plan.delete::<ControllerRevision>(&DELETE_REVISION, name, uid);
        // One that got the highest number meanwhile is in use again: the version makes its deletion a 409.
        if let Some(version) = &surplus.object.identity.resource_version {
            write.in_version(version);
        }
        Some((&DELETE_REVISION, write))
    }
}

fn pinned_revision(set: &SidecarSet, world: &SetWorld) -> Option<SetRevision> {
    let pin = set.pin.as_ref()?;
    let mut own = world.revisions.find(&set.uid);
    let stored = match &pin.revision {
        PinnedRevision::Name(name) => own.find(|own| own.revision.name == *name),
        PinnedRevision::CustomVersion(version) => own
            .filter(|own| own.label(CUSTOM_VERSION_LABEL) == Some(version))
            .max_by_key(|own| own.revision.number),
    }?;
    let object = &stored.object;
    SetRevision::read(&object.identity, object.revision, &object.data)
}

fn patch_of(revision: &StoredRevision, number: Option<i64>, version: Option<&str>) -> Value {
    let meta = &revision.object.identity;
    let mut patch =
        json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}});
    if let Some(number) = number {
        patch["revision"] = number.into();
    }
    if revision.label(CUSTOM_VERSION_LABEL) != version {
        patch["metadata"]["labels"] = json!({CUSTOM_VERSION_LABEL: version});
    }
    patch
}
