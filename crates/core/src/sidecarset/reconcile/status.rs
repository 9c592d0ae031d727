//! The status of a set as it is to be: its counts, the generation in force, and one condition that says what is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use leadsman_api::{SidecarSetStatus, limits};
use leadsman_reconcile::{Notice, Plan, Purpose, Regarding, Stored};
use serde_json::{Value, json};

use super::SidecarSets;
use super::conflicts::overlap_of_sets;
use super::history::DueRevision;
use super::member::{Lack, missing_variable};
use super::reason::{READY, Reason};
use super::review::{SetReview, SetView};
use super::world::{SetWorld, set_object};
use super::writes::{ACTION, SET_STATUS};
use super::{Drift, SetMemory, WrittenHashes};
use crate::cluster::{Invalid, truncate, whole_seconds};
use crate::sidecarset::objection;
use crate::sidecarset::revision::{changed_fields, changed_outside_of_hash};
use crate::sidecarset::set::{ADOPT_PODS, SidecarSet};
use crate::sidecarset::status::status;
use crate::sidecarset::strategy::UpdateMode;

impl SidecarSets {
    /// Plans the status of a set, if it differs from what is stored. It names the newest revision, so that is created first,
    /// unless it is refused; and it waits for the annotations of the set, since both writes of the set at a time would be a
    /// conflict, as the status has its version.
    pub(super) fn plan_status(
        &self,
        view: SetView<'_>,
        revision: Option<&DueRevision>,
        hashes: WrittenHashes,
        plan: &mut Plan<'_, Self>,
    ) {
        let refused = revision.and_then(|due| due.refused.as_deref());
        let awaits_revision = revision.is_some_and(|due| due.is_creation) && refused.is_none();
        if awaits_revision || hashes == WrittenHashes::Awaited {
            return;
        }
        let stored = view.stored;
        let present = stored.status();
        let (reason, message) = self.first_problem(view, refused);
        let mut wanted = match (&view.known.parsed, view.review) {
            (Ok(set), Some(review)) => counted_status(set, view, review),
            // The counts stay: a set that breaks a rule has no members here, but its pods still run
            // its containers.
            _ => SidecarSetStatus {
                observed_generation: stored.generation(),
                in_force: None,
                ..present.cloned().unwrap_or_default()
            },
        };
        let conditions: Vec<_> = present
            .into_iter()
            .flat_map(|status| &status.conditions)
            .cloned()
            .collect();
        if view.world.drops_fields {
            // Fields that the API server drops would differ from what is wanted after each write.
            wanted.in_force = None;
            wanted.conditions = conditions;
        } else {
            let now = plan.now().wall;
            let said = (reason, message.clone());
            wanted.conditions = with_condition(conditions, said, stored.generation(), now);
        }
        if present == Some(&wanted) {
            return;
        }
        let before = present.and_then(ready_reason);
        // Nobody knows what was said before if the condition is dropped, and each restart would say it again.
        let is_news =
            !view.world.drops_fields && reason.facts().is_told && before != Some(reason.as_str());
        let purpose = Purpose::of(serde_json::to_string(&wanted).ok());
        let patch = status_patch(&stored.wire.metadata, &wanted);
        let write = plan.patch(&SET_STATUS, set_object(view.name), &patch);
        write.with_purpose(purpose);
        if is_news {
            // The event follows the status, so that whoever reads it finds the condition that it tells of.
            write.tell_when_done(Notice {
                regarding: regarding(view),
                is_warning: !reason.is_ready(),
                reason: reason.as_str(),
                action: ACTION,
                note: message,
            });
        }
    }

    /// Finds the first thing that is wrong with a set, to be told. `refused` is why a write of its revisions was refused.
    pub(super) fn first_problem(
        &self,
        view: SetView<'_>,
        refused: Option<&str>,
    ) -> (Reason, String) {
        let (set, review) = match (&view.known.parsed, view.review) {
            (Err(errors), _) => {
                let refuses_pods = SidecarSet::read_refusing(&view.stored.wire).is_some();
                return (Reason::InvalidSpec, invalid_message(errors, refuses_pods));
            }
            (Ok(set), Some(review)) => (set, review),
            // The set is being deleted, and nothing is said of it.
            (Ok(set), None) => return (Reason::InForce, in_force(set)),
        };
        // One is reported: first what keeps the whole set from acting, then what concerns some of its pods.
        let found = conflict_problem(set, view.world)
            .or_else(|| self.missing_pin(set, view))
            .or_else(|| self.not_allowed(set, view.world))
            .or_else(|| refused_write(refused, review))
            .or_else(|| lacking_problem(view.memory))
            .or_else(|| not_in_force(view))
            .or_else(|| self.not_upgradable(set, review, view.world))
            .or_else(|| former_pods_problem(review))
            .or_else(|| pinned_pods(view, review));
        let (reason, mut message) = found.unwrap_or_else(|| (Reason::InForce, in_force(set)));
        if reason.is_ready() {
            message.push_str(&drifted_pods_note(review, view.memory));
            message.push_str(&without_variable(set, review));
        }
        // The event has the same text.
        message.truncate(truncate(&message, limits::EVENT_NOTE_BYTES).len());
        (reason, message)
    }

    fn missing_pin(&self, set: &SidecarSet, view: SetView<'_>) -> Option<(Reason, String)> {
        let has_pinned = view.known.history.pinned.is_some();
        let pin = set.pin.as_ref().filter(|_| !has_pinned)?;
        let owner = |name: &str| {
            let revision = self.revision(name, view.world)?.revision_owner();
            (revision.uid.as_deref() != Some(&*set.uid)).then_some(revision)
        };
        let objection = objection::unknown_pin(&pin.revision, owner);
        Some((Reason::RevisionMissing, objection.to_string()))
    }

    fn not_allowed(&self, set: &SidecarSet, world: &SetWorld) -> Option<(Reason, String)> {
        let errors = world.whitelist().and_then(|list| list.errors.first());
        let list = (&*self.config.namespace, errors);
        let allowed = self.allowed_keys(set, world);
        let forbidden = objection::forbidden_keys(set, allowed, list).next()?;
        Some((Reason::MetadataNotAllowed, forbidden.to_string()))
    }

    fn not_upgradable(
        &self,
        set: &SidecarSet,
        review: &SetReview,
        world: &SetWorld,
    ) -> Option<(Reason, String)> {
        let first = review.not_upgradable.first(review)?;
        if set.update.mode == UpdateMode::NotUpdate {
            return None;
        }
        let name = first.member.revision.as_ref();
        let revision = name.and_then(|name| self.revision(name, world));
        let changed = revision.map(|revision| changed_fields(revision.data(), set));
        // Images alone would not keep the pod from being upgraded.
        let mut fields = changed.into_iter().flatten();
        let found = fields.find(|field| field.rsplit('.').next() != Some("image"));
        let field = found.map(|field| format!(", first in {field}"));
        let message = format!(
            "{} to be re-created, as more than images differ: {}{}",
            count_of_pods(review.not_upgradable.count),
            first.pod.name(),
            field.unwrap_or_default()
        );
        Some((Reason::NotUpgradablePods, message))
    }

    /// Finds what differs in the revisions that pods were injected with, and is in no hash. A revision with a name has one
    /// content, so each is compared once for each content of the set.
    pub(super) fn note_drift(
        &self,
        set: &Arc<SidecarSet>,
        review: &SetReview,
        world: &SetWorld,
        memory: &mut SetMemory,
    ) {
        let Drift { of, parts: known } = &mut memory.drift;
        if of.as_ref().is_none_or(|of| !Arc::ptr_eq(of, set)) {
            *of = Some(set.clone());
            known.clear();
        }
        for revision in review.injected.keys() {
            if !known.contains_key(revision)
                && let Some(stored) = self.revision(revision, world)
            {
                let parts = changed_outside_of_hash(stored.data(), set);
                known.insert(revision.clone(), parts);
            }
        }
    }
}

fn regarding(view: SetView<'_>) -> Regarding {
    Regarding {
        api_version: "apps.kruise.io/v1beta1",
        kind: "SidecarSet",
        name: set_object(view.name),
        uid: view.stored.uid().to_owned(),
    }
}

fn conflict_problem(set: &SidecarSet, world: &SetWorld) -> Option<(Reason, String)> {
    let winner = world.conflicts.winners(&set.name).next()?;
    let objection = objection::conflict(set, winner, overlap_of_sets(set, winner)?);
    Some((Reason::Conflict, objection.to_string()))
}

fn refused_write(revision: Option<&str>, review: &SetReview) -> Option<(Reason, String)> {
    if let Some(reason) = revision {
        let message =
            format!("a ControllerRevision was refused, trying again in minutes: {reason}");
        return Some((Reason::WriteRefused, message));
    }
    let first = review.refused.first(review)?;
    let reason = first.refused.as_ref()?;
    let message = format!(
        "the upgrade of {} was refused, trying again in minutes; {}: {reason}",
        count_of_pods(review.refused.count),
        first.pod.name()
    );
    Some((Reason::WriteRefused, message))
}

/// How many pods lack a variable that the set transfers, which stays so until they are created again.
fn without_variable(set: &SidecarSet, review: &SetReview) -> String {
    let all = review.without_variable;
    let first = all.first(review);
    let found = first.and_then(|first| Some((first, missing_variable(&first.pod.pod, set)?)));
    let Some((first, (container, variable))) = found else {
        return String::new();
    };
    format!(
        "; {} without a variable of transferEnv: {} has no {variable:?} from container {container:?}",
        count_of_pods(all.count),
        first.pod.name()
    )
}

fn counted_status(set: &SidecarSet, view: SetView<'_>, review: &SetReview) -> SidecarSetStatus {
    let present = view.stored.status();
    let history = &view.known.history;
    let newest = history.newest.as_ref();
    let collisions = newest.map_or(0, |newest| newest.collisions);
    let mut wanted = status(set, review.counts, "", collisions, present);
    wanted.latest_revision = if history.has_newest() {
        Some(history.newest_name().to_owned())
    } else {
        present.and_then(|present| present.latest_revision.clone())
    };
    wanted.in_force.clone_from(&view.memory.in_force.in_force);
    wanted
}

fn not_in_force(view: SetView<'_>) -> Option<(Reason, String)> {
    let in_force = view.memory.in_force.in_force.as_ref();
    let generation = in_force.map(|in_force| in_force.generation);
    if generation == Some(view.stored.generation()) {
        return None;
    }
    let message = match generation {
        Some(generation) => {
            format!("new pods may still be injected as generation {generation} says")
        }
        None => "new pods are not injected yet: no webhook of leadsman has the set; if it stays so, `kubectl leadsman doctor` says \
              why"
            .to_owned(),
    };
    Some((Reason::NotInForce, message))
}

fn count_of_pods(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        count => format!("{count} pods"),
    }
}

fn invalid_message(errors: &[Invalid], refuses: bool) -> String {
    let errors: Vec<_> = errors.iter().map(Invalid::to_string).collect();
    let refuses = if refuses {
        ", and its new pods are refused, as it asks for"
    } else {
        ""
    };
    let message = format!(
        "nothing is injected or upgraded{refuses}: {}",
        errors.join("; ")
    );
    truncate(&message, limits::EVENT_NOTE_BYTES).to_owned()
}

fn lacking_problem(memory: &SetMemory) -> Option<(Reason, String)> {
    let (first, lack) = memory.lacking.first_key_value()?;
    let why = match lack {
        Lack::Missed => {
            "was created while no webhook of leadsman answered, or cannot have them (kubectl leadsman explain \
             tells); re-create it to inject it"
                .to_owned()
        }
        Lack::OwnContainer(name) => {
            format!("has a container {name:?} of its own; rename one of the two")
        }
    };
    let message = format!(
        "{} without its containers that it selects: {first} {why}",
        count_of_pods(memory.lacking.len())
    );
    Some((Reason::NotInjected, message))
}

fn former_pods_problem(review: &SetReview) -> Option<(Reason, String)> {
    let former = review.former;
    let first = former.first(review)?.pod.name();
    let message = format!(
        "{} of an earlier SidecarSet of this name, {first} among them, not upgraded: annotate this one with \
         {ADOPT_PODS}=true to take them over",
        count_of_pods(former.count)
    );
    Some((Reason::FormerPods, message))
}

/// The pods that keep the pinned revision.
fn pinned_pods(view: SetView<'_>, review: &SetReview) -> Option<(Reason, String)> {
    let pods = review.pinned;
    let first = pods.first(review)?.pod.name();
    let pinned = view.known.history.pinned.as_ref()?;
    let message = format!(
        "{} injected with the pinned revision {}, {first} among them, not upgraded: change or remove injectionStrategy.revision to \
         upgrade them",
        count_of_pods(pods.count),
        pinned.revision.name
    );
    Some((Reason::PinnedPods, message))
}

/// How many pods differ in what no upgrade changes and no other count shows.
fn drifted_pods_note(review: &SetReview, memory: &SetMemory) -> String {
    let mut counts = BTreeMap::new();
    for (revision, pods) in &review.injected {
        for part in memory.drift.parts.get(revision).into_iter().flatten() {
            *counts.entry(*part).or_insert(0) += pods;
        }
    }
    let counts: Vec<_> = counts
        .into_iter()
        .map(|(part, count)| format!("{} in {part}", count_of_pods(count)))
        .collect();
    if counts.is_empty() {
        return String::new();
    }
    format!(
        "; old in what no upgrade changes, until they are re-created: {}",
        counts.join(", ")
    )
}

fn in_force(set: &SidecarSet) -> String {
    match set.update.mode {
        _ if set.is_injection_paused => "injection is paused: new pods get nothing".to_owned(),
        UpdateMode::Paused => "new pods are injected; upgrades are paused".to_owned(),
        _ => "new pods are injected".to_owned(),
    }
}

fn ready_reason(status: &SidecarSetStatus) -> Option<&str> {
    let mut conditions = status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == READY);
    ready.map(|ready| ready.reason.as_str())
}

/// The conditions with ours among them; those of others stay.
fn with_condition(
    mut conditions: Vec<Condition>,
    (reason, message): (Reason, String),
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let status = if reason.is_ready() { "True" } else { "False" };
    let place = conditions.iter().position(|one| one.type_ == READY);
    let present = place.map(|place| &conditions[place]);
    let before = present.filter(|before| before.status == status);
    let since = before.map(|before| before.last_transition_time.clone());
    let condition = Condition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time: since.unwrap_or(Time(whole_seconds(now))),
    };
    match place {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
    conditions
}

/// A merge patch of a status. Fields that are left out where they are nothing must be taken away by name (RFC 7396), and lists
/// are replaced as a whole: with the version that they were read in, so that no condition of another client is lost.
fn status_patch(read: &ObjectMeta, status: &SidecarSetStatus) -> Value {
    let mut fields = json!({
        "updatedReadyPods": null, "latestRevision": null, "inForce": null, "conditions": null,
    });
    let written = serde_json::to_value(status).unwrap_or_default();
    if let (Value::Object(fields), Value::Object(written)) = (&mut fields, written) {
        fields.extend(written);
    }
    let ObjectMeta {
        uid,
        resource_version,
        ..
    } = read;
    json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "status": fields})
}
