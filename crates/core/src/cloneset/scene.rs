//! All that a round is worked out from, and the actions that it wants.

use std::collections::BTreeSet;

use jiff::Timestamp;
use leadsman_reconcile::{ObjectName, Store, WriteKind};

use super::claim::{ClaimTemplate, SetClaim};
use super::claims::Claims;
use super::history::Revisions;
use super::pod::{ClonePod, PodChange};
use super::set::PodSet;

/// An action that is wanted on a pod, or on a claim of one.
#[derive(Debug)]
pub(super) enum Action<'a> {
    /// Creates a claim for a pod of this name, which is created once all its claims have been seen.
    CreateClaim(ObjectName, ClaimTemplate),
    /// Deletes the claim of a pod that the set has deleted.
    DeleteClaim(&'a SetClaim),
    /// Creates it, of the revision with this hash.
    Create(ObjectName, String),
    /// Deletes it.
    Delete(&'a ClonePod),
    /// Holds it before it is deleted, restores it, drains it or brings it back.
    Mark(&'a ClonePod, PodChange),
    /// Gives it another revision in place, or releases it.
    Update(&'a ClonePod, PodChange),
}

/// The writes of a namespace that the API server has refused: kinds by their labels, and objects.
pub(super) type Refusals<'a> = BTreeSet<(&'static str, &'a ObjectName)>;

/// Whether the API server has refused a write of a pod: the last one, or the one of this change.
pub(super) type Refused<'r> = &'r dyn Fn(&WriteKind, &ObjectName, Option<&PodChange>) -> bool;

/// All that a round is worked out from.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a, 'r> {
    pub(super) set: &'a PodSet,
    pub(super) revisions: &'r Revisions<'a>,
    pub(super) pods: &'a Store<ClonePod>,
    pub(super) claims: &'r Claims<'a>,
    pub(super) refused: Refused<'r>,
    pub(super) now: Timestamp,
}

impl Scene<'_, '_> {
    /// Whether the API server has refused one of these writes of a pod.
    pub(super) fn refuses(&self, pod: &ClonePod, kinds: &[WriteKind]) -> bool {
        let mut kinds = kinds.iter();
        kinds.any(|kind| (self.refused)(kind, &pod.name, None))
    }
}

impl<'a> Action<'a> {
    /// The pod, if it is there.
    pub(super) fn pod(&self) -> Option<&'a ObjectName> {
        match self {
            Self::CreateClaim(..) | Self::DeleteClaim(_) | Self::Create(..) => None,
            Self::Delete(pod) | Self::Mark(pod, _) | Self::Update(pod, _) => Some(&pod.name),
        }
    }
}
