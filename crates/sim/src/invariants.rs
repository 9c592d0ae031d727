//! Invariants: what always holds, whatever happens, judged at each change that is stored.

mod exclusive;
mod roll_out;
mod takeover;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::PodProbeMarker;
use leadsman_api::limits::EXCLUSIVE_ANNOTATION;
use leadsman_api_model::{ApiServer, StoredChange};
use leadsman_tests::oracle::{Mark, marks_after};
use serde::Deserialize;
use serde_json::Value;

use self::exclusive::Holders;
use self::roll_out::RollOuts;
use self::takeover::Takeover;
use crate::ground::Ground;
use crate::kubelet::text;
use crate::process::{Hosts, is_leadsman, is_manager};
use crate::resources::{LEASE, LEASE_NAMESPACE};
use crate::story::Story;
use crate::tenants::{BY_HAND, PRIMARY};

/// The time for which something may have been untrue when a mark says it. Longer than the longest outage and a Lease.
const WINDOW: Duration = Duration::from_mins(1);
/// The prefix of what sets write into pods.
const OF_SETS: &str = "kruise.io/sidecarset-";
const CONDITION_OF_SETS: &str = "SidecarSetUpgradable";

/// A mark that a marker has ever named.
#[derive(PartialEq)]
struct MarkClaim {
    mark: Mark,
    /// The value in this state.
    value: Option<String>,
    container: String,
    key: usize,
    succeeded: bool,
}

/// The judge of all changes.
pub(crate) struct Invariants {
    story: Story,
    ground: Ground,
    claims: Vec<MarkClaim>,
    /// The identities that were written into the Lease, each with the user that wrote it.
    candidates: Vec<(String, String)>,
    /// The identity in the Lease.
    holder: String,
    roll_outs: RollOuts,
    holders: Holders,
    takeover: Takeover,
    /// Whether anybody edits what leadsman governs.
    pub(crate) has_meddlers: bool,
    /// The time until which processes may act on what etcd had before it was restored.
    suspended_until: Duration,
}

impl Invariants {
    /// Nothing has happened yet.
    pub(crate) fn new(story: Story, ground: Ground, has_meddlers: bool) -> Self {
        let roll_outs = RollOuts::default();
        Self {
            story,
            ground,
            claims: Vec::new(),
            candidates: Vec::new(),
            holder: String::new(),
            roll_outs,
            holders: Holders::default(),
            takeover: Takeover::default(),
            has_meddlers,
            suspended_until: Duration::ZERO,
        }
    }

    /// Judges a change.
    pub(crate) fn observe(&mut self, change: &StoredChange, hosts: &Hosts) {
        let resource = &*change.resource;
        self.tell(change);
        match resource {
            "podprobemarkers" => {
                if let Some(marker) = &change.after {
                    self.holders.note_marker(marker);
                }
                self.note_claims(change.after.as_deref());
                self.check_contest(change);
            }
            "leases" => self.note_candidate(change, hosts),
            "nodepodprobes" => self.check_verdicts(change),
            "sidecarsets" => self.roll_outs.note_set(change),
            _ => {}
        }
        self.takeover.observe(change, &self.ground, &self.story);
        if resource == "pods" {
            let is_judged = !self.is_suspended();
            self.holders.observe_pod(change, is_judged, &self.story);
        }
        if self.is_suspended() {
            return;
        }
        if is_manager(&change.user) && resource != "leases" {
            self.check_leader(change);
        }
        if resource == "pods" {
            if is_manager(&change.user)
                && let (Some(before), Some(after)) = (&change.before, &change.after)
            {
                self.check_pod(before, after, &change.subresource);
            }
            self.roll_outs.observe_pod(change, &self.story);
        }
    }

    /// etcd was restored: the Lease is what it was. Not all know of it before `known_at`.
    pub(crate) fn note_restore(&mut self, server: &ApiServer, known_at: Duration) {
        self.suspended_until = known_at;
        self.takeover.note_restore(server);
        let lease = server.object("leases", LEASE_NAMESPACE, LEASE);
        self.holder = holder_of(lease.as_deref());
        self.roll_outs.note_restore(server);
        self.holders.note_restore(server);
    }

    /// Forgets what was changed before a time, and who wrote into the Lease before the present holder.
    pub(crate) fn forget_before(&mut self, time: Duration) {
        let holder = &self.holder;
        self.candidates.retain(|(identity, _)| identity == holder);
        self.takeover.forget_before(time);
    }

    fn tell(&self, change: &StoredChange) {
        let StoredChange {
            verb,
            resource,
            subresource,
            name,
            version,
            ..
        } = change;
        if resource == "leases" {
            return;
        }
        let detail = match (&**resource, &**subresource, &change.before, &change.after) {
            ("pods", _, Some(before), Some(after)) => {
                let changed = changed_marks(before, after);
                let marks = changed
                    .iter()
                    .map(|((_, key), value)| format!(" {key}={}", value.as_deref().unwrap_or("-")));
                marks.collect()
            }
            ("nodepodprobes", "status", _, Some(after)) => verdicts(after),
            _ => String::new(),
        };
        // A change by leadsman was told with its request.
        if !is_leadsman(&change.user) || !detail.is_empty() {
            self.story.tell(
                &change.user,
                format_args!("{verb} {resource} {subresource} {name} as {version}:{detail}"),
            );
        }
    }

    fn note_claims(&mut self, marker: Option<&Value>) {
        let marker = marker.and_then(|marker| PodProbeMarker::deserialize(marker).ok());
        for probe in marker.iter().flat_map(|marker| &marker.spec.probes) {
            let exec = probe
                .probe
                .exec
                .as_ref()
                .and_then(|exec| exec.command.as_ref());
            let key = exec
                .and_then(|command| command.get(1)?.parse().ok())
                .unwrap_or(0);
            for (state, succeeded) in [("Succeeded", true), ("Failed", false)] {
                let wanted = marks_after(probe, Some(state)).into_iter();
                let marks = wanted.flat_map(|(mark, value)| match value.as_deref() {
                    // The values that a probe of a role prints.
                    Some("$(role)") => ["key", PRIMARY]
                        .map(|value| (mark.clone(), Some(value.to_owned())))
                        .into(),
                    _ => vec![(mark, value)],
                });
                for (mark, value) in marks {
                    let container = probe.container_name.clone();
                    let claim = MarkClaim {
                        mark,
                        value,
                        container,
                        key,
                        succeeded,
                    };
                    if !self.claims.contains(&claim) {
                        self.claims.push(claim);
                    }
                }
            }
        }
    }

    fn note_candidate(&mut self, change: &StoredChange, hosts: &Hosts) {
        let holder = holder_of(change.after.as_deref());
        if holder != self.holder {
            self.story.tell(
                &change.user,
                format_args!("the Lease is held by {holder:?}"),
            );
        }
        if !holder.is_empty()
            && !self
                .candidates
                .iter()
                .any(|(identity, _)| *identity == holder)
        {
            self.candidates.push((holder.clone(), change.user.clone()));
        }
        if holder != self.holder {
            let behind = hosts.late_kinds(&change.user);
            let now = self.ground.elapsed();
            self.takeover
                .note_holder((&holder, &change.user), now, behind);
            if self.is_suspended() {
                self.takeover.forget_leader();
            }
        }
        self.holder = holder;
    }

    fn is_suspended(&self) -> bool {
        self.ground.elapsed() < self.suspended_until
    }

    /// The user who holds the Lease.
    pub(crate) fn leader(&self) -> Option<&str> {
        let mut candidates = self.candidates.iter();
        let leader = candidates.find(|(identity, _)| *identity == self.holder);
        leader.map(|(_, user)| &**user)
    }

    /// A marker says that it is fought over only if somebody does.
    fn check_contest(&self, change: &StoredChange) {
        let after = change.after.as_ref();
        let mut conditions = after
            .and_then(|marker| marker["status"]["conditions"].as_array())
            .into_iter()
            .flatten();
        if !self.has_meddlers && conditions.any(|one| one["reason"] == "Contested") {
            let name = &change.name;
            self.story
                .violate("who fights was there", format_args!("{name} is contested"));
        }
    }

    /// Checks that the leader alone writes. Who took the Lease by hand asks nobody: its leader hears of it later.
    fn check_leader(&self, change: &StoredChange) {
        if self.holder == BY_HAND {
            return;
        }
        let leader = self.leader();
        // Certificates are made by the first who needs them.
        let is_for_all = change.resource == "secrets" || change.resource == "events";
        if leader != Some(&*change.user) && !is_for_all {
            let StoredChange {
                user,
                verb,
                resource,
                name,
                ..
            } = change;
            self.story.violate(
                "only the leader writes",
                format_args!("{user}: {verb} {resource} {name}, while the leader is {leader:?}"),
            );
        }
    }

    /// A verdict follows from a run in the container that it names, or from its end.
    fn check_verdicts(&self, change: &StoredChange) {
        let states = |object: &Option<Arc<Value>>| -> Vec<Value> {
            let pods = object
                .iter()
                .filter_map(|it| it["status"]["podProbeStatuses"].as_array());
            let states = pods
                .flatten()
                .filter_map(|pod| pod["probeStates"].as_array());
            states.flatten().cloned().collect()
        };
        let known = states(&change.before);
        for state in states(&change.after) {
            let is_positive = match state["state"].as_str() {
                Some("Succeeded") => true,
                Some("Failed") => false,
                _ => continue,
            };
            let Some(id) = state["containerID"].as_str() else {
                continue;
            };
            if !known.contains(&state) && !self.ground.lock().follows(id, is_positive) {
                self.story
                    .violate("a verdict is of the container that it names", state);
            }
        }
    }

    /// A mark was true, and nothing changes that nobody asked to change.
    fn check_pod(&self, before: &Value, after: &Value, subresource: &str) {
        let (name, uid) = (text(after, "name"), text(after, "uid"));
        let since = self.ground.elapsed().saturating_sub(WINDOW);
        for (mark, value) in changed_marks(before, after) {
            let mut own = self
                .claims
                .iter()
                .filter(|claim| claim.mark == mark)
                .peekable();
            if mark.1 == EXCLUSIVE_ANNOTATION {
                continue;
            }
            if own.peek().is_none() {
                // Annotations of sets come with images, which are no part of the status.
                let is_of_sets = match subresource {
                    "status" => mark.1 == CONDITION_OF_SETS,
                    _ => mark.1.starts_with(OF_SETS),
                };
                if !is_of_sets {
                    self.story.violate(
                        "what nobody governs stays",
                        format_args!("{name}: {mark:?} became {value:?}"),
                    );
                }
                continue;
            }
            // Absent marks may be those of any verdict, and Unknown follows a restart.
            let Some(value) = value.filter(|value| value != "Unknown") else {
                continue;
            };
            let ground = self.ground.lock();
            let was_true = own.any(|claim| {
                claim.value.as_ref() == Some(&value)
                    && ground.was_true((uid, &claim.container), claim.key, claim.succeeded, since)
            });
            drop(ground);
            if !was_true {
                let what = format_args!("{name} ({uid}): {mark:?} became {value:?}");
                self.story.violate("a mark was true in its window", what);
            }
        }
        if rest_of(before) != rest_of(after) {
            let (before, after) = (rest_of(before), rest_of(after));
            self.story.violate(
                "what nobody governs stays",
                format_args!("{name}: {before} became {after}"),
            );
        }
    }
}

/// The identity in a Lease; empty if nobody holds it.
fn holder_of(lease: Option<&Value>) -> String {
    let holder = lease.and_then(|lease| lease["spec"]["holderIdentity"].as_str());
    holder.unwrap_or_default().to_owned()
}

/// The verdicts in the status of a `NodePodProbe`.
fn verdicts(object: &Value) -> String {
    let pods = object["status"]["podProbeStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|pod| {
            let states = pod["probeStates"].as_array().into_iter().flatten();
            states.map(move |state| (&pod["name"], &state["name"], &state["state"]))
        });
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let verdicts =
        pods.map(|(pod, name, state)| format!(" {}/{}={}", text(pod), text(name), text(state)));
    verdicts.collect()
}

/// The labels, annotations and conditions that differ, with their new values.
fn changed_marks(before: &Value, after: &Value) -> Vec<(Mark, Option<String>)> {
    let mut changed = Vec::new();
    for (kind, place) in [
        ("label", "/metadata/labels"),
        ("annotation", "/metadata/annotations"),
    ] {
        let maps = [before, after].map(|pod| pod.pointer(place).and_then(Value::as_object));
        let keys: BTreeSet<_> = maps.iter().flatten().flat_map(|map| map.keys()).collect();
        for key in keys {
            let [old, new] = maps.map(|map| map.and_then(|map| map.get(key)?.as_str()));
            if old != new {
                changed.push(((kind, key.clone()), new.map(str::to_owned)));
            }
        }
    }
    let conditions = |pod: &Value| {
        let conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let pair = |one: &Value| {
            Some((
                one["type"].as_str()?.to_owned(),
                one["status"].as_str()?.to_owned(),
            ))
        };
        conditions.iter().filter_map(pair).collect::<BTreeSet<_>>()
    };
    let (old, new) = (conditions(before), conditions(after));
    let came = new
        .difference(&old)
        .map(|(kind, status)| (kind, Some(status)));
    let went = old
        .difference(&new)
        .filter(|(kind, _)| !new.iter().any(|(other, _)| other == kind));
    for (kind, status) in came.chain(went.map(|(kind, _)| (kind, None))) {
        changed.push((("condition", kind.clone()), status.cloned()));
    }
    changed
}

/// A pod without what leadsman may change: marks, the images of sidecars, and what the API server keeps by itself.
fn rest_of(pod: &Value) -> Value {
    let mut rest = pod.clone();
    for field in [
        "labels",
        "annotations",
        "managedFields",
        "resourceVersion",
        "generation",
    ] {
        if let Some(metadata) = rest["metadata"].as_object_mut() {
            metadata.remove(field);
        }
    }
    if let Some(status) = rest["status"].as_object_mut() {
        status.remove("conditions");
        status.remove("observedGeneration");
    }
    for container in rest["spec"]["containers"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        if container["image"]
            .as_str()
            .is_some_and(|image| image.starts_with("side:"))
        {
            container["image"] = Value::Null;
        }
    }
    rest
}
