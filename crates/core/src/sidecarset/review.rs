//! The faults of a set that is being written, as the webhook tells its author: all that parsing finds, the objections
//! (`objection`) of other sets, revisions and the administrator's list, and changes that an edit must not make. The schema and
//! the CEL rules of the CRD were asked before.
//!
//! An edit is refused for what it makes wrong, not for what was wrong before: as Kubernetes ratchets (KEP-4008), so that a
//! set that has become invalid, by a newer version of leadsman say, can still be corrected step by step. What was wrong
//! before comes as a warning. An edit that says nothing else about pods than before is not judged at all: finalizers,
//! labels and the status of any set can be written.
//!
//! The webhook may be away, and then nothing is refused. The index judges the same set by the same rules.

use std::sync::Arc;

use leadsman_api::{SidecarSet as SidecarSetWire, limits};
use serde_json::Value;

use super::container::{SetContainer, Upgrade};
use super::objection::{Objection, conflicts, forbidden_keys, unknown_pin};
use super::revision::{RevisionOwner, changed_fields};
use super::set::{JUDGED_ANNOTATIONS, PinnedRevision, SidecarSet, concerns_selection};
use super::snapshot::Snapshot;
use super::strategy::UpdateMode;
use crate::cluster::Invalid;
use crate::workload::object::text;
use crate::workload::revision::{revision_hash, revision_name};

/// The judgement of a set that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Why it is refused. Empty if it is accepted.
    pub errors: Vec<Invalid>,
    /// The faults that are tolerated, and consequences of the write.
    pub warnings: Vec<String>,
    /// Whether it would be judged otherwise if other objects were different.
    pub depends_on_others: bool,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    invalid: Invalid,
    /// The objection, for a fault that exists beside other objects only.
    objection: Option<Objection>,
}

impl From<Invalid> for Fault {
    fn from(invalid: Invalid) -> Self {
        Self {
            invalid,
            objection: None,
        }
    }
}

/// Judges a set, which replaces another one if `before` is given.
pub fn judge(
    after: &SidecarSetWire,
    before: Option<&SidecarSetWire>,
    known: &Snapshot,
) -> Judgement {
    let is_deleted = after.metadata.deletion_timestamp.is_some();
    // A write that changes nothing for pods is not judged: a finalizer or a label of a set that breaks a later rule
    // stays writable.
    if is_deleted || before.is_some_and(|before| says_the_same(before, after)) {
        return Judgement::default();
    }
    let before = before.map(|wire| (wire, SidecarSet::read(wire)));
    let (set, errors) = SidecarSet::read(after);
    let formerly = before.as_ref().map(|(_, (set, _))| set);
    let mut faults = faults(after, (&set, &errors), formerly, known);
    let mut remarks = Vec::new();
    if let Some((wire, (former, former_errors))) = &before {
        let known_faults = self::faults(wire, (former, former_errors), None, known);
        remarks = ratchet(&mut faults, known_faults);
        let edits = forbidden_edits(former, &set, after);
        faults.extend(edits.map(Fault::from));
    } else {
        // A set that is new has no revisions yet, as after a restore from a backup, so no pin could be written.
        remarks.extend(faults.extract_if(.., |fault| {
            matches!(fault.objection, Some(Objection::RevisionMissing(_)))
        }));
    }
    let is_new = before.is_none() && faults.is_empty();
    let remarks = remarks.into_iter();
    let mut warnings: Vec<_> = remarks.map(|fault| fault.invalid.to_string()).collect();
    if let Some((wire, (former, former_errors))) = &before
        && [&errors, former_errors]
            .iter()
            .all(|errors| errors.is_empty())
        && faults.is_empty()
    {
        warnings.extend(recreation(wire, former, &set));
    }
    warnings.extend(is_new.then(|| not_in_force_yet(&set, known)).flatten());
    Judgement {
        depends_on_others: faults.iter().any(|fault| fault.objection.is_some()),
        errors: faults.into_iter().map(|fault| fault.invalid).collect(),
        warnings,
    }
}

/// Whether two states of a set mean the same for its pods.
fn says_the_same(before: &SidecarSetWire, after: &SidecarSetWire) -> bool {
    let annotation = |wire: &SidecarSetWire, key: &str| {
        let annotations = wire.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(key).cloned())
    };
    let mut annotations = JUDGED_ANNOTATIONS.iter();
    before.spec == after.spec
        && annotations.all(|key| annotation(before, key) == annotation(after, key))
}

/// All that is wrong with a set, by itself and beside others. `former` is what it was, whose revision may be on its way.
fn faults(
    wire: &SidecarSetWire,
    (set, errors): (&SidecarSet, &[Invalid]),
    former: Option<&SidecarSet>,
    known: &Snapshot,
) -> Vec<Fault> {
    let own = errors.iter().cloned().map(Fault::from);
    let others = known
        .sets
        .iter()
        .map(|other| &*other.set)
        .filter(|other| other.name != set.name);
    let conflicts = others
        .filter(|_| !errors.iter().any(concerns_selection))
        .flat_map(|other| conflicts(set, other));
    let list = (&*known.own_namespace, known.whitelist_errors.first());
    let objections = conflicts
        .chain(unknown_revision(set, former, wire, known))
        .chain(forbidden_keys(set, known.allowed_keys(set), list));
    let beside_others = objections.map(|objection| Fault {
        invalid: objection.in_field(&wire.spec),
        objection: Some(objection),
    });
    own.chain(beside_others).collect()
}

/// The objection to the pin of a set. The revision of what it is now, or was until now, may not have been seen yet.
fn unknown_revision(
    set: &SidecarSet,
    former: Option<&SidecarSet>,
    wire: &SidecarSetWire,
    known: &Snapshot,
) -> Option<Objection> {
    let pinned = &set.pin.as_ref()?.revision;
    let is_own = |owner: &RevisionOwner| owner.uid.as_deref() == Some(&*set.uid);
    let owner = |name: &str| known.revisions.get(name).cloned();
    let present = || [Some(set), former].into_iter().flatten();
    let is_known = match pinned {
        PinnedRevision::Name(name) => {
            let status = wire.status.as_ref();
            let collisions = status.and_then(|status| status.collision_count);
            let is_revision_of = |set: &SidecarSet| {
                let hash = revision_hash(
                    &set.template.revision_data(),
                    collisions.unwrap_or_default(),
                );
                revision_name(&set.name, &hash) == **name
            };
            match known.revisions.get(name) {
                Some(owner) => is_own(owner),
                None => present().any(is_revision_of),
            }
        }
        PinnedRevision::CustomVersion(version) => {
            let mut owners = known.revisions.values().filter(|owner| is_own(owner));
            owners.any(|owner| owner.custom_version.as_ref() == Some(version))
                || present().any(|set| set.custom_version.as_ref() == Some(version))
        }
    };
    (!is_known).then(|| unknown_pin(pinned, owner))
}

/// Takes out what was wrong before, and returns it. Items of a list may have moved, so their indices count only where
/// several are alike.
fn ratchet(faults: &mut Vec<Fault>, known: Vec<Fault>) -> Vec<Fault> {
    let mut known: Vec<_> = known.into_iter().map(|fault| fault.invalid).collect();
    let mut tolerated = Vec::new();
    let ways: [fn(&Invalid, &Invalid) -> bool; 2] = [
        |one, other| one == other,
        |one, other| {
            one.message == other.message
                && without_indices(&one.path) == without_indices(&other.path)
        },
    ];
    // Equal ones first, so that a fault that has moved takes the place of none that has stayed.
    for is_same in ways {
        tolerated.extend(faults.extract_if(.., |fault| {
            let place = known
                .iter()
                .position(|known| is_same(known, &fault.invalid));
            place.map(|place| known.swap_remove(place)).is_some()
        }));
    }
    tolerated
}

fn without_indices(path: &str) -> String {
    let mut parts = path.split('[');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((index, rest)) if index.bytes().all(|c| c.is_ascii_digit()) => text.push_str(rest),
            _ => {
                text.push('[');
                text.push_str(part);
            }
        }
    }
    text
}

/// The changes that an edit must not make: whether a container that stays is upgraded cold or hot.
fn forbidden_edits<'a>(
    before: &'a SidecarSet,
    after: &'a SidecarSet,
    wire: &'a SidecarSetWire,
) -> impl Iterator<Item = Invalid> + 'a {
    let spec = &wire.spec;
    let lists = [
        (
            "containers",
            &before.template.containers,
            &after.template.containers,
            &spec.containers,
        ),
        (
            "initContainers",
            &before.template.init_containers,
            &after.template.init_containers,
            &spec.init_containers,
        ),
    ];
    let is_hot = |container: &SetContainer| matches!(container.upgrade, Upgrade::Hot { .. });
    lists
        .into_iter()
        .flat_map(move |(field, before, after, items)| {
            let changed = after.iter().filter(move |own| {
                let mut before = before.iter();
                let former = before.find(|former| former.name == own.name);
                former.is_some_and(|former| is_hot(former) != is_hot(own))
            });
            changed.map(move |own| {
                let mut names = items.iter().map(|item| text(item, "name"));
                let index = names.position(|name| name == Some(&*own.name));
                Invalid {
                    path: format!(
                        "spec.{field}[{}].upgradeStrategy.upgradeType",
                        index.unwrap_or_default()
                    ),
                    message: limits::UPGRADE_TYPE_IS_FIXED.to_owned(),
                }
            })
        })
}

/// The warning that pods which are created at once with a set do not get it, if so, and what to wait for. The API server cuts a
/// warning after 256 characters, and a name has at most 63.
fn not_in_force_yet(set: &SidecarSet, known: &Snapshot) -> Option<String> {
    if known.standing_rule.is_some() || set.is_injection_paused {
        return None;
    }
    let name = &set.name;
    Some(format!(
        "pods that are created before API servers call the webhook for this set do not get it: first run \
         `kubectl wait --for=condition=Ready sidecarset/{name}`"
    ))
}

/// The warning that the pods of a set will not be upgraded in place after an edit, if so.
fn recreation(wire: &SidecarSetWire, before: &SidecarSet, after: &SidecarSet) -> Option<String> {
    let matched = wire.status.as_ref().map_or(0, |status| status.matched_pods);
    let pull_policy = |name: &str| {
        let mut containers = before.template.all();
        let former = containers.find(|one| one.names_in_pod().any(|own| *own == *name))?;
        text(&former.container(), "imagePullPolicy").map(Arc::from)
    };
    // A pull policy that follows from the image is no difference.
    let without_image = after.template.hash_without_image_in(pull_policy);
    if matched == 0
        || after.update.mode == UpdateMode::NotUpdate
        || without_image == *before.hashes.without_image
    {
        return None;
    }
    let data: Value = serde_json::from_str(&before.template.revision_data()).ok()?;
    let mut fields = changed_fields(&data, after)
        .into_iter()
        .filter(|field| field.contains("ontainers") && field.rsplit('.').next() != Some("image"));
    let field = fields.next().unwrap_or_else(|| "containers".to_owned());
    let pods = if matched == 1 { "pod" } else { "pods" };
    Some(format!(
        "more than images changes, first in {field}: {matched} {pods} of this set cannot be upgraded in place, and will have \
         to be re-created"
    ))
}

#[cfg(test)]
mod tests;
