//! The status of a set as it is to be: its counts, the generation in force, and one condition that says what is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use leadsman_api::{SidecarSetStatus, limits};
use serde_json::{Value, json};

use super::Index;
use super::classify::missing_variable;
use super::conflicts::overlap_of_sets;
use super::context::PodName;
use super::pods::{Hold, Lack};
use super::reason::{READY, Reason};
use super::refusals::Purpose;
use super::sets::SetEntry;
use crate::cluster::{Invalid, ObjectName, truncate, whole_seconds};
use crate::sidecarset::event::{EventNote, Write, WriteTarget};
use crate::sidecarset::objection;
use crate::sidecarset::revision::{changed_fields, changed_outside_of_hash};
use crate::sidecarset::set::{ADOPT_PODS, SidecarSet};
use crate::sidecarset::status::status;
use crate::sidecarset::strategy::UpdateMode;

/// A status that is due.
pub(super) struct DueStatus {
    pub(super) write: Write,
    pub(super) purpose: Purpose,
    pub(super) event: Option<EventNote>,
}

/// A status that differs from what is stored.
struct WantedStatus {
    status: SidecarSetStatus,
    reason: Reason,
    message: String,
}

impl Index {
    /// Whether the status of a set differs from what is stored. Each event of a pod asks this, so nothing is written here.
    pub(super) fn is_status_due(&self, name: &str) -> bool {
        self.wanted_status(name).is_some()
    }

    fn wanted_status(&self, name: &str) -> Option<WantedStatus> {
        let entry = self.sets.get(name)?;
        // A status names the newest revision, so that is created first. And both writes of the set at a time would be a
        // conflict, as the status has its version.
        if entry.wire.metadata.deletion_timestamp.is_some()
            || self.awaits_revision(name, entry)
            || self.awaits_hashes(name, entry)
        {
            return None;
        }
        let present = entry.status();
        let (reason, message) = self.first_problem(name, entry);
        let mut wanted = match entry.parsed.as_ref() {
            Ok(set) => counted_status(set, entry),
            // The counts stay: a set that breaks a rule has no members here, but its pods still run
            // its containers.
            Err(_) => SidecarSetStatus {
                observed_generation: entry.generation(),
                in_force: None,
                ..present.cloned().unwrap_or_default()
            },
        };
        if self.keeps_fields {
            let before = present.into_iter().flat_map(|status| &status.conditions);
            let before: Vec<_> = before.cloned().collect();
            let generation = entry.generation();
            wanted.conditions = with_condition(
                before,
                (reason, message.clone()),
                generation,
                self.cx.now.wall,
            );
        } else {
            // What the API server drops would differ from what is wanted after each write.
            wanted.in_force = None;
            wanted.conditions = present
                .map(|present| present.conditions.clone())
                .unwrap_or_default();
        }
        (present != Some(&wanted)).then_some(WantedStatus {
            status: wanted,
            reason,
            message,
        })
    }

    /// The write of the status of a set, if it differs from what is stored.
    pub(super) fn due_status(&self, name: &str) -> Option<DueStatus> {
        let WantedStatus {
            status: wanted,
            reason,
            message,
        } = self.wanted_status(name)?;
        let entry = self.sets.get(name)?;
        let before = entry.status().and_then(ready_reason);
        let is_news = reason.facts().is_told && before != Some(reason.as_str());
        let event = is_news.then(|| EventNote {
            regarding: set_name(name),
            uid: entry.uid().unwrap_or_default().to_owned(),
            is_warning: !reason.is_ready(),
            reason: reason.as_str(),
            note: message,
        });
        Some(DueStatus {
            purpose: Purpose::of_fingerprint(serde_json::to_string(&wanted).ok()),
            write: Write::SetStatus {
                set: name.to_owned(),
                patch: Box::new(status_patch(&entry.wire.metadata, &wanted)),
            },
            // Without a stored condition nobody knows what was said before, and each restart would say it again.
            event: event.filter(|_| self.keeps_fields),
        })
    }

    /// Whether the status waits for the newest revision, which it names. It does not where that was refused.
    fn awaits_revision(&self, name: &str, entry: &SetEntry) -> bool {
        if entry.active_set().is_none() || entry.history.has_newest() {
            return false;
        }
        self.revision_write(name).is_some() && self.refused_revision(name).is_none()
    }

    /// Whether the status waits for the annotations of the set. They are waited for once: whoever keeps taking them away would
    /// keep the status from being written too.
    fn awaits_hashes(&self, name: &str, entry: &SetEntry) -> bool {
        let due = self.due_hash_write(name);
        let target = WriteTarget::SetHashes(name.to_owned());
        due.is_some_and(|(_, purpose)| {
            entry.written_hashes != Some(purpose)
                && self.refusals.refusal_reason(&target, purpose).is_none()
        })
    }

    /// Why the write that is due for the revisions of a set was refused, if it was.
    fn refused_revision(&self, name: &str) -> Option<&Arc<str>> {
        if self.refusals.is_empty() {
            return None;
        }
        let write = self.revision_write(name)?;
        let target = WriteTarget::Revisions(name.to_owned());
        let purpose = super::write::revision_purpose(&write);
        self.refusals.refusal_reason(&target, purpose)
    }

    /// What is to be said of a set: the first thing that is wrong.
    pub(super) fn first_problem(&self, name: &str, entry: &SetEntry) -> (Reason, String) {
        let set = match entry.parsed.as_ref() {
            Ok(set) => set,
            Err(errors) => {
                let refuses = SidecarSet::read_refusing(&entry.wire).is_some();
                return (Reason::InvalidSpec, invalid_message(errors, refuses));
            }
        };
        // One is reported: first what keeps the whole set from acting, then what concerns some of its pods.
        let found = self
            .conflict_problem(set)
            .or_else(|| self.missing_pin(set, entry))
            .or_else(|| self.not_allowed(set))
            .or_else(|| self.refused_write(name, entry))
            .or_else(|| lacking_problem(entry))
            .or_else(|| not_in_force(entry))
            .or_else(|| self.not_upgradable(set, entry))
            .or_else(|| former_pods_problem(entry))
            .or_else(|| pinned_pods(entry));
        let (reason, mut message) = found.unwrap_or_else(|| (Reason::InForce, in_force(set)));
        if reason.is_ready() {
            message.push_str(&drifted_pods_note(entry));
            message.push_str(&self.without_variable(set, entry));
        }
        // The event has the same text.
        message.truncate(truncate(&message, limits::EVENT_NOTE_BYTES).len());
        (reason, message)
    }

    fn conflict_problem(&self, set: &SidecarSet) -> Option<(Reason, String)> {
        let winner = self.sets.conflicts.winners(&set.name).next()?;
        let objection = objection::conflict(set, winner, overlap_of_sets(set, winner)?);
        Some((Reason::Conflict, objection.to_string()))
    }

    fn missing_pin(&self, set: &SidecarSet, entry: &SetEntry) -> Option<(Reason, String)> {
        let pin = set
            .pin
            .as_ref()
            .filter(|_| entry.history.pinned.is_none())?;
        let owner = |name: &str| {
            let revision = self.revisions.get(name)?.revision_owner();
            (revision.uid.as_deref() != Some(&*set.uid)).then_some(revision)
        };
        let objection = objection::unknown_pin(&pin.revision, owner);
        Some((Reason::RevisionMissing, objection.to_string()))
    }

    fn not_allowed(&self, set: &SidecarSet) -> Option<(Reason, String)> {
        let list = (&*self.config.namespace, self.whitelist_errors.first());
        let forbidden = objection::forbidden_keys(set, self.allowed_keys(set), list).next()?;
        Some((Reason::MetadataNotAllowed, forbidden.to_string()))
    }

    fn refused_write(&self, name: &str, entry: &SetEntry) -> Option<(Reason, String)> {
        if let Some(reason) = self.refused_revision(name) {
            let message =
                format!("a ControllerRevision was refused, trying again in minutes: {reason}");
            return Some((Reason::WriteRefused, message));
        }
        let refused = &entry.members.refused;
        let first = refused.first()?;
        let member = self.pods.get(first)?.membership_in(name)?;
        let Some(Hold::Refused(reason)) = &member.hold else {
            return None;
        };
        let message = format!(
            "the upgrade of {} was refused, trying again in minutes; {first}: {reason}",
            count_of_pods(refused.len())
        );
        Some((Reason::WriteRefused, message))
    }

    fn not_upgradable(&self, set: &SidecarSet, entry: &SetEntry) -> Option<(Reason, String)> {
        let waiting = &entry.members.not_upgradable;
        let first = waiting.first()?;
        if set.update.mode == UpdateMode::NotUpdate {
            return None;
        }
        let field = self.first_difference(first, set);
        let field = field.map(|field| format!(", first in {field}"));
        let message = format!(
            "{} to be re-created, as more than images differ: {first}{}",
            count_of_pods(waiting.len()),
            field.unwrap_or_default()
        );
        Some((Reason::NotUpgradablePods, message))
    }

    /// How many pods lack a variable that the set transfers, which stays so until they are created again.
    fn without_variable(&self, set: &SidecarSet, entry: &SetEntry) -> String {
        let all = &entry.members.without_variable;
        let found = all.first().and_then(|first| {
            let pod = &self.pods.get(first)?.pod;
            Some((first, missing_variable(pod, set)?))
        });
        let Some((first, (container, variable))) = found else {
            return String::new();
        };
        format!(
            "; {} without a variable of transferEnv: {first} has no {variable:?} from container {container:?}",
            count_of_pods(all.len())
        )
    }

    /// Finds what differs in the revisions that pods were injected with, and is in no hash. A revision with a name has one
    /// content, so each is compared once for each content of the set.
    pub(super) fn note_drift(&mut self, name: &str) {
        let Some(entry) = self.sets.get_mut(name) else {
            return;
        };
        let Some(set) = entry.active_set().cloned() else {
            return;
        };
        for revision in entry.members.injected.keys() {
            if !entry.drift.contains_key(revision)
                && let Some(stored) = self.revisions.get(revision)
            {
                let parts = changed_outside_of_hash(stored.data(), &set);
                entry.drift.insert(revision.clone(), parts);
            }
        }
    }

    /// The first field of the set's containers that a pod has in another form, by its revision.
    fn first_difference(&self, pod: &PodName, set: &SidecarSet) -> Option<String> {
        let revision = self
            .pods
            .get(pod)?
            .membership_in(&set.name)?
            .revision
            .clone()?;
        let data = self.revisions.get(&revision)?.data();
        changed_fields(data, set)
            .into_iter()
            // Images alone would not keep the pod from being upgraded.
            .find(|field| field.rsplit('.').next() != Some("image"))
    }
}

fn counted_status(set: &SidecarSet, entry: &SetEntry) -> SidecarSetStatus {
    let present = entry.status();
    let collisions = entry.history.newest.as_ref();
    let collisions = collisions.map_or(0, |newest| newest.collisions);
    let mut wanted = status(set, entry.members.counts, "", collisions, present);
    wanted.latest_revision = if entry.history.has_newest() {
        Some(entry.history.newest_name().to_owned())
    } else {
        present.and_then(|present| present.latest_revision.clone())
    };
    wanted.in_force.clone_from(&entry.in_force);
    wanted
}

fn not_in_force(entry: &SetEntry) -> Option<(Reason, String)> {
    let in_force = entry.in_force.as_ref().map(|in_force| in_force.generation);
    if in_force == Some(entry.generation()) {
        return None;
    }
    let message = match in_force {
        Some(generation) => {
            format!("new pods may still be injected as generation {generation} says")
        }
        None => "new pods are not injected yet: no webhook of leadsman has the set; if it stays so, `kubectl leadsman doctor` says \
              why"
            .to_owned(),
    };
    Some((Reason::NotInForce, message))
}

fn set_name(name: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: name.to_owned(),
    }
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

fn lacking_problem(entry: &SetEntry) -> Option<(Reason, String)> {
    let (first, lack) = entry.lacking.first_key_value()?;
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
        count_of_pods(entry.lacking.len())
    );
    Some((Reason::NotInjected, message))
}

fn former_pods_problem(entry: &SetEntry) -> Option<(Reason, String)> {
    let former = &entry.members.former;
    let first = former.first()?;
    let message = format!(
        "{} of an earlier SidecarSet of this name, {first} among them, not upgraded: annotate this one with \
         {ADOPT_PODS}=true to take them over",
        count_of_pods(former.len())
    );
    Some((Reason::FormerPods, message))
}

/// The pods that keep the pinned revision.
fn pinned_pods(entry: &SetEntry) -> Option<(Reason, String)> {
    let pods = &entry.members.pinned;
    let (first, pinned) = (pods.first()?, entry.history.pinned.as_ref()?);
    let message = format!(
        "{} injected with the pinned revision {}, {first} among them, not upgraded: change or remove injectionStrategy.revision to \
         upgrade them",
        count_of_pods(pods.len()),
        pinned.revision.name
    );
    Some((Reason::PinnedPods, message))
}

/// How many pods differ in what no upgrade changes and no other count shows.
fn drifted_pods_note(entry: &SetEntry) -> String {
    let mut counts = BTreeMap::new();
    for (revision, pods) in &entry.members.injected {
        for part in entry.drift.get(revision).into_iter().flatten() {
            *counts.entry(*part).or_insert(0) += pods;
        }
    }
    let counts = counts.into_iter();
    let counts: Vec<_> = counts
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
    let before = place.map(|place| &conditions[place]);
    let before = before.filter(|before| before.status == status);
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
