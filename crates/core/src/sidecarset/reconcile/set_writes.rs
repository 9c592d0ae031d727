//! The writes of a set: its hashes, its revisions, the upgrades of its pods, its status.

use std::collections::BTreeMap;
use std::sync::Arc;

use leadsman_reconcile::{Plan, Purpose};
use serde_json::json;

use super::pod_writes::{assume_sent, monotonic};
use super::review::{Resting, ReviewedPod, SetReview, SetView, upgrade_purpose};
use super::world::{SetWorld, StoredSet, set_object};
use super::writes::{SET_HASHES, UPGRADE_POD, rest_reason};
use super::{SetMemory, SetName, SidecarSets, WrittenHashes};
use crate::sidecarset::annotations::{HASH, HASH_WITHOUT_IMAGE};
use crate::sidecarset::rollout::recorded_by_upgrade;
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::upgrade;

/// The most upgrades that a run plans. The next ones follow when these have been answered.
const MOST_UPGRADES: usize = 64;

impl SidecarSets {
    /// Plans the writes of a set.
    pub(super) fn plan_set(
        &self,
        name: &SetName,
        world: &SetWorld,
        memory: &mut SetMemory,
        plan: &mut Plan<'_, Self>,
    ) {
        let Some((stored, known)) = world.set(name) else {
            return;
        };
        let now = plan.now();
        self.update_in_force((stored, known), world, &mut memory.in_force, now);
        let set = known.active_set();
        Self::find_lacking(set, world, memory);
        let (mut hashes, mut revision) = (WrittenHashes::Over, None);
        let review = set.map(|set| {
            let resting = resting_writes(plan);
            let review = self.review(set, world, &resting, now);
            hashes = plan_hashes(set, stored, plan);
            let used = review.revisions.keys().chain(review.injected.keys());
            revision = self.plan_revision((set, stored), used.cloned(), world, plan);
            self.plan_upgrades(set, &review, world, plan);
            self.note_drift(set, &review, world, memory);
            wake(&review, &resting, plan);
            review
        });
        let lacking = memory.lacking.len();
        memory.sums = review
            .as_ref()
            .map(|review| review.sums(lacking))
            .unwrap_or_default();
        let view = SetView {
            name,
            stored,
            known,
            world,
            memory,
            review: review.as_ref(),
        };
        self.plan_status(view, revision.as_ref(), hashes, plan);
    }

    fn plan_upgrades(
        &self,
        set: &Arc<SidecarSet>,
        review: &SetReview,
        world: &SetWorld,
        plan: &mut Plan<'_, Self>,
    ) {
        let rollout = &review.rollout;
        let places = rollout.again.iter().chain(&rollout.next);
        let allowed = self.allowed_keys(set, world);
        for place in places.take(MOST_UPGRADES) {
            let ReviewedPod { pod, state, .. } = &review.pods[*place];
            let revision = world.known[&set.name].history.newest_name();
            let found = (&*pod.pod, recorded_by_upgrade(*state));
            let upgrade = upgrade::plan_upgrade(set, revision, found, &allowed, plan.now().wall);
            let write = plan
                .patch(&UPGRADE_POD, (**pod.name()).clone(), &upgrade.patch)
                .with_purpose(upgrade_purpose(set, pod));
            assume_sent(write, &set.name, pod);
        }
    }
}

fn resting_writes(plan: &Plan<'_, SidecarSets>) -> Resting {
    let resting = plan.refused_or_undone(&UPGRADE_POD);
    resting
        .map(|(name, rest)| {
            (
                (name.clone(), rest.purpose),
                (rest_reason(rest.fate), rest.until),
            )
        })
        .collect()
}

/// Looks at the set again when a pod is something else to it, or may be written again.
fn wake(review: &SetReview, resting: &Resting, plan: &mut Plan<'_, SidecarSets>) {
    let now = plan.now();
    if let Some(until) = review.until {
        plan.wake_at(monotonic(until, now));
    }
    let ends = resting.values().map(|(_, until)| *until);
    if let Some(until) = ends.filter(|until| *until > now.monotonic).min()
        && review.refused.count > 0
    {
        plan.wake_at(until);
    }
}

/// Plans the write of the hashes. They are waited for once: whoever keeps taking them away would keep the status from being
/// written too.
fn plan_hashes(
    set: &SidecarSet,
    stored: &StoredSet,
    plan: &mut Plan<'_, SidecarSets>,
) -> WrittenHashes {
    let wanted = [
        (HASH, &set.hashes.hash),
        (HASH_WITHOUT_IMAGE, &set.hashes.without_image),
    ];
    let meta = &stored.wire.metadata;
    let present = |key: &str| meta.annotations.as_ref()?.get(key);
    let is_present =
        |(key, hash): &(&str, &Arc<str>)| present(key).is_some_and(|present| **present == ***hash);
    if wanted.iter().all(is_present) {
        return WrittenHashes::Over;
    }
    let annotations: BTreeMap<_, _> = wanted
        .into_iter()
        .map(|(key, hash)| (key, &**hash))
        .collect();
    let purpose = Purpose::of((&meta.uid, &annotations));
    // The patch has no version: nobody else's is overwritten, and a set that is edited meanwhile is patched again.
    let patch = json!({"metadata": {"uid": meta.uid, "annotations": annotations}});
    let name = set_object(&set.name);
    plan.patch(&SET_HASHES, name.clone(), &patch)
        .with_purpose(purpose);
    match plan.fate_of(&SET_HASHES, &name, purpose) {
        Some(_) => WrittenHashes::Over,
        None => WrittenHashes::Awaited,
    }
}
