//! The writes of a pod that no roll-out decides: the condition that says whether it can be upgraded, and the end of a hot
//! upgrade.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::slim::Pod;
use leadsman_reconcile::{Notice, Now, Plan, Purpose, Regarding, Write};
use serde_json::{Value, json};

use super::world::{SetWorld, StoredPod};
use super::writes::{ACTION, POD_CONDITION, UPGRADE_POD};
use super::{SetName, SidecarSets};
use crate::cluster::{PodName, whole_seconds};
use crate::sidecarset::annotations::{HASH, HashEntry};
use crate::sidecarset::condition::{UPGRADABLE, UpgradableCondition};
use crate::sidecarset::pod::is_former;
use crate::sidecarset::strategy::UpdateMode;
use crate::sidecarset::upgrade;

impl SidecarSets {
    /// Plans the writes of a pod.
    pub(super) fn plan_pod(&self, name: &PodName, world: &SetWorld, plan: &mut Plan<'_, Self>) {
        let Some(pod) = world.pods.observed(name) else {
            return;
        };
        if !pod.pod.is_active() {
            return;
        }
        self.plan_reset(pod, world, plan);
        self.plan_condition(pod, world, plan);
    }

    /// Plans the end of a hot upgrade. It takes no place in a roll-out: a pod whose hot upgrade has not ended counts as one
    /// that is down already. So it is due whatever the set says about upgrades, and also if the pod does not belong to the
    /// set any more, by its labels or for want of a container that the set has got since. It goes before any upgrade: the
    /// next image goes to the container that it makes idle.
    fn plan_reset(&self, pod: &StoredPod, world: &SetWorld, plan: &mut Plan<'_, Self>) {
        let now = plan.now();
        let assumed = world.pods.assumed(pod.name());
        let sent_by = assumed.and_then(|assumed| assumed.sent.as_ref());
        for name in pod.injected.iter() {
            let Some(set) = world.active_set(name) else {
                continue;
            };
            // The pod's state may have to settle before it can be told that another container has taken over.
            let until = self.member(set, pod, world, now.wall).until;
            if let Some(until) = until {
                plan.wake_at(monotonic(until, now));
            }
            // The outcome of another set's write has to be known first.
            if sent_by.is_some_and(|other| other != name) {
                continue;
            }
            let hash = HashEntry::of_set(pod.pod.annotation(HASH), name);
            let Some(reset) = upgrade::reset(set, &pod.pod, now.wall)
                .filter(|_| !is_former(set, &pod.pod, hash.as_ref()))
            else {
                continue;
            };
            let purpose = Purpose::of(("reset", name, &pod.pod.uid));
            let fate = plan.fate_of(&UPGRADE_POD, pod.name(), purpose);
            let until = fate.map(|fate| fate.until);
            if let Some(until) = until.filter(|until| *until > now.monotonic) {
                plan.wake_at(until);
                continue;
            }
            let write = plan.patch(&UPGRADE_POD, (**pod.name()).clone(), &reset.patch);
            assume_sent(write.with_purpose(purpose), name, pod);
            tell_of_reset(write, pod);
            return;
        }
    }

    fn plan_condition(&self, pod: &StoredPod, world: &SetWorld, plan: &mut Plan<'_, Self>) {
        // Whether a set that breaks a rule can upgrade the pod is not known.
        let is_unknown = |set: &SetName| world.known.get(set).is_some_and(|it| it.parsed.is_err());
        if !pod.has_writes() || pod.injected.iter().any(is_unknown) {
            return;
        }
        let now = plan.now().wall;
        let versions: BTreeMap<_, _> = pod
            .injected
            .iter()
            .filter_map(|name| {
                let set = world.active_set(name)?;
                let state = self.member(set, pod, world, now).state?;
                let upgrades = set.update.mode != UpdateMode::NotUpdate;
                upgrades.then(|| (name.clone(), state.version))
            })
            .collect();
        let present = pod.condition.as_ref();
        let wanted = UpgradableCondition::of(&versions, present.is_some(), self.config.condition);
        let is_equal = match (&wanted, present) {
            (None, None) => true,
            (Some(wanted), Some(present)) => {
                wanted.is_upgradable == present.is_upgradable && *wanted.message == *present.message
            }
            _ => false,
        };
        if !is_equal {
            let said = wanted.as_ref().map(|one| (one.is_upgradable, &one.message));
            let purpose = Purpose::of(said);
            let patch = condition_patch(pod, wanted.as_ref(), now);
            plan.patch(&POD_CONDITION, (**pod.name()).clone(), &patch)
                .with_purpose(purpose);
        }
    }
}

/// Tells people what becomes of the end of a hot upgrade, in the words of `OpenKruise`.
fn tell_of_reset(write: &mut Write<SidecarSets>, pod: &StoredPod) {
    let regarding = Regarding {
        api_version: "v1",
        kind: "Pod",
        name: (**pod.name()).clone(),
        uid: pod.pod.uid.to_string(),
    };
    let done = Notice {
        regarding,
        is_warning: false,
        reason: "ResetContainerSucceed",
        action: ACTION,
        note: "reset sidecar container image empty successfully".to_owned(),
    };
    write.tell_when_done(done.clone());
    write.tell_when_refused(move |refusal| {
        let refused = refusal.clone().into_reason();
        Notice {
            is_warning: true,
            reason: "ResetContainerFailed",
            note: format!(
                "reset sidecar container image empty failed, trying again in minutes: {refused}"
            ),
            ..done.clone()
        }
    });
}

/// Assumes that a patch of this version of a pod is carried out. Another version proves that it was, or never will be.
pub(super) fn assume_sent(write: &mut Write<SidecarSets>, set: &SetName, pod: &StoredPod) {
    let (set, version) = (set.clone(), pod.pod.resource_version.clone());
    write.assuming_changed::<Pod>(move |pod| StoredPod {
        sent: Some(set.clone()).filter(|_| pod.pod.resource_version == version),
        ..pod.clone()
    });
}

/// A time of the wall clock on the monotonic one. In whole seconds and not before, so that the events of a pod until then set
/// few timers.
pub(super) fn monotonic(time: Timestamp, now: Now) -> Duration {
    let left = time.duration_since(now.wall).unsigned_abs();
    Duration::from_secs(now.monotonic.saturating_add(left).as_secs() + 1)
}

fn condition_patch(pod: &StoredPod, wanted: Option<&UpgradableCondition>, now: Timestamp) -> Value {
    let condition = match wanted {
        None => json!({"type": UPGRADABLE, "$patch": "delete"}),
        Some(wanted) => {
            let status = if wanted.is_upgradable {
                "True"
            } else {
                "False"
            };
            let mut condition = json!({
                "type": UPGRADABLE, "status": status, "reason": wanted.reason(), "message": wanted.message,
            });
            let before = pod.condition.as_ref().map(|before| before.is_upgradable);
            // Left out otherwise: a strategic merge patch then keeps the time of the last change.
            if before != Some(wanted.is_upgradable) {
                condition["lastTransitionTime"] = json!(Time(whole_seconds(now)));
            }
            condition
        }
    };
    json!({"metadata": {"uid": &*pod.pod.uid}, "status": {"conditions": [condition]}})
}
