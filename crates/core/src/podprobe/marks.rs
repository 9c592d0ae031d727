//! Which marks a pod should bear, and what has to be written so that it bears them.
//!
//! A mark is a label, an annotation or a condition. A key that a matching marker's policies name is governed: its
//! value, or its absence, is what the verdict says. All our marks of a pod are one apply; what the next apply leaves
//! out is removed by the API server where nobody else owns it, and taken away by a patch where somebody does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use super::event::PodMarks;
use super::marker::{Marker, Policy};
use super::plan::Verdict;
use super::pod::{CoOwner, Condition, Pairs, Pod, Sorted};
use super::probe::State;

/// What is wanted of a governed mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want<T> {
    /// This value.
    Value(T),
    /// That it is not there, whoever wrote it.
    Absent,
    /// There is no verdict: what is ours stays as it is.
    Hold,
}

/// The governed marks of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wants {
    /// Labels by key.
    pub labels: BTreeMap<Arc<str>, Want<Arc<str>>>,
    /// Annotations by key.
    pub annotations: BTreeMap<Arc<str>, Want<Arc<str>>>,
    /// Conditions by type.
    pub conditions: BTreeMap<Arc<str>, Want<Report>>,
}

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// The verdict.
    pub state: State,
    /// The probe's words.
    pub message: Arc<str>,
    /// When the verdict last changed.
    pub last_transition_time: Option<Timestamp>,
    /// When a probe last ran.
    pub last_probe_time: Option<Timestamp>,
}

/// A probe, by the place of its marker among those that match a pod, and its own place in the marker.
pub type Place = (usize, usize);

/// Two probes that claim the same mark of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Gets the mark.
    pub winner: Place,
    /// Does not.
    pub loser: Place,
}

/// Claims by key: the first to come has it.
struct Claims<'a, T> {
    wants: &'a mut BTreeMap<Arc<str>, Want<T>>,
    owners: BTreeMap<Arc<str>, Place>,
}

impl<'a, T> Claims<'a, T> {
    fn new(wants: &'a mut BTreeMap<Arc<str>, Want<T>>) -> Self {
        let owners = BTreeMap::new();
        Self { wants, owners }
    }

    fn claim(
        &mut self,
        key: &Arc<str>,
        place: Place,
        want: impl FnOnce() -> Want<T>,
        conflicts: &mut Vec<Conflict>,
    ) {
        match self.owners.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(place);
                self.wants.insert(key.clone(), want());
            }
            Entry::Occupied(owner) if *owner.get() == place => {}
            Entry::Occupied(owner) => conflicts.push(Conflict {
                winner: *owner.get(),
                loser: place,
            }),
        }
    }
}

impl Wants {
    /// What the markers want, the one that goes first in front. Claims are made over all policies, whatever the
    /// verdicts are, so that a verdict never changes whose a key is.
    pub fn new<'v>(
        markers: &[&Marker],
        verdict: impl Fn(Place) -> Option<&'v Verdict>,
    ) -> (Self, Vec<Conflict>) {
        let mut wants = Self::default();
        let mut conflicts = Vec::new();
        let mut labels = Claims::new(&mut wants.labels);
        let mut annotations = Claims::new(&mut wants.annotations);
        let mut conditions = Claims::new(&mut wants.conditions);
        for (first, marker) in markers.iter().enumerate() {
            for (second, probe) in marker.probes.iter().enumerate() {
                let place = (first, second);
                let verdict = verdict(place);
                if let Some(kind) = &probe.condition_type {
                    conditions.claim(kind, place, || report(verdict), &mut conflicts);
                }
                for policy in [&probe.succeeded, &probe.failed].into_iter().flatten() {
                    for key in policy.labels.keys() {
                        let want = || pair(verdict, probe, key, |policy| &policy.labels);
                        labels.claim(key, place, want, &mut conflicts);
                    }
                    for key in policy.annotations.keys() {
                        let want = || pair(verdict, probe, key, |policy| &policy.annotations);
                        annotations.claim(key, place, want, &mut conflicts);
                    }
                }
            }
        }
        (wants, conflicts)
    }

    /// Whether nothing is governed.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.conditions.is_empty()
    }
}

fn report(verdict: Option<&Verdict>) -> Want<Report> {
    verdict.map_or(Want::Hold, |verdict| {
        Want::Value(Report {
            state: verdict.state,
            message: verdict.message.clone(),
            last_transition_time: verdict.last_transition_time,
            last_probe_time: verdict.last_probe_time,
        })
    })
}

/// A key is there with the value of the policy that holds, or not at all.
fn pair(
    verdict: Option<&Verdict>,
    probe: &super::marker::MarkerProbe,
    key: &Arc<str>,
    pairs: fn(&Policy) -> &BTreeMap<Arc<str>, Arc<str>>,
) -> Want<Arc<str>> {
    let Some(verdict) = verdict else {
        return Want::Hold;
    };
    let policy = match verdict.state {
        State::Succeeded => probe.succeeded.as_ref(),
        State::Failed => probe.failed.as_ref(),
        State::Unknown => None,
    };
    let value = policy.and_then(|policy| pairs(policy).get(key));
    value.map_or(Want::Absent, |value| Want::Value(value.clone()))
}

/// What a condition's status is called for a verdict.
fn status(state: State) -> &'static str {
    match state {
        State::Succeeded => "True",
        State::Failed => "False",
        State::Unknown => "Unknown",
    }
}

/// A difference between marks wanted and observed, as it is being found.
#[derive(Default)]
struct Difference {
    /// Our apply entry has to change.
    apply: bool,
    /// Goes by a patch.
    remove: Vec<Arc<str>>,
}

impl Difference {
    /// A mark that must go, present on the pod; `owner` is who owns it beside us, None if we do not.
    fn take_away(&mut self, key: &Arc<str>, owner: Option<CoOwner>) {
        match owner {
            Some(CoOwner::Nobody) => self.apply = true,
            Some(CoOwner::Other | CoOwner::Status) | None => self.remove.push(key.clone()),
        }
    }
}

/// What is due on a pod, none if it bears what is wanted and nothing more of ours. `now` stands in for a time of
/// transition that the agent left out.
pub fn difference(pod: &Pod, wants: &Wants, now: Timestamp) -> Option<PodMarks> {
    let (labels, label_values) = pairs_difference(&wants.labels, &pod.labels, &pod.ours.labels);
    let (annotations, annotation_values) =
        pairs_difference(&wants.annotations, &pod.annotations, &pod.ours.annotations);
    let (conditions, condition_values) = conditions_difference(wants, pod, now);
    let apply = labels.apply || annotations.apply || conditions.apply;
    let remove = [&labels, &annotations, &conditions];
    let remove = remove
        .iter()
        .any(|difference| !difference.remove.is_empty());
    if !apply && !remove {
        return None;
    }
    Some(PodMarks {
        pod: (*pod.name).clone(),
        uid: pod.uid.to_string(),
        remove: remove.then(|| removal(pod, &labels, &annotations, &conditions)),
        apply: apply.then(|| application(pod, label_values, annotation_values, &condition_values)),
    })
}

/// Whether a pod bears a mark of ours that no matching marker names.
pub fn has_unclaimed(pod: &Pod, wants: &Wants) -> bool {
    let ours = &pod.ours;
    let labels = ours.labels.iter();
    let annotations = ours.annotations.iter();
    let conditions = ours.conditions.iter();
    labels
        .map(|(key, _)| wants.labels.contains_key(key))
        .chain(annotations.map(|(key, _)| wants.annotations.contains_key(key)))
        .chain(conditions.map(|(kind, _)| wants.conditions.contains_key(kind)))
        .any(|claimed| !claimed)
}

fn pairs_difference(
    wants: &BTreeMap<Arc<str>, Want<Arc<str>>>,
    observed: &Pairs,
    ours: &Sorted<CoOwner>,
) -> (Difference, Map<String, Value>) {
    let mut difference = Difference::default();
    let mut values = Map::new();
    for (key, want) in wants {
        let (seen, owner) = (observed.get(key), ours.get(key).copied());
        match want {
            Want::Value(value) => {
                difference.apply |= seen != Some(value) || owner.is_none();
                values.insert(key.to_string(), json!(value));
            }
            Want::Absent if seen.is_some() => difference.take_away(key, owner),
            Want::Absent => {}
            Want::Hold => {
                if let (Some(seen), Some(_)) = (seen, owner) {
                    values.insert(key.to_string(), json!(seen));
                }
            }
        }
    }
    // Governed no more. What a user or a template wants too stays with its value.
    for (key, owner) in ours.iter().filter(|(key, _)| !wants.contains_key(*key)) {
        match owner {
            CoOwner::Nobody | CoOwner::Other => difference.apply = true,
            CoOwner::Status => difference.remove.push(key.clone()),
        }
    }
    (difference, values)
}

fn conditions_difference(wants: &Wants, pod: &Pod, now: Timestamp) -> (Difference, Vec<Value>) {
    let mut difference = Difference::default();
    let mut values = Vec::new();
    for (kind, want) in &wants.conditions {
        let (seen, ours) = (
            pod.conditions.get(kind),
            pod.ours.conditions.contains_key(kind),
        );
        match (want, seen) {
            (Want::Value(report), _) => {
                let wanted = condition(report, seen, now);
                difference.apply |= seen != Some(&wanted) || !ours;
                let mut value = condition_value(kind, &wanted);
                if wanted.message.is_empty() && seen.is_some_and(|seen| !seen.message.is_empty()) {
                    // Left out, a message that somebody else wrote there would stay.
                    value["message"] = json!("");
                }
                values.push(value);
            }
            (Want::Hold, Some(seen)) if ours => values.push(condition_value(kind, seen)),
            (Want::Hold | Want::Absent, _) => {}
        }
    }
    let ours = pod.ours.conditions.iter();
    for (kind, owner) in ours.filter(|(kind, _)| !wants.conditions.contains_key(*kind)) {
        difference.take_away(kind, Some(*owner));
    }
    (difference, values)
}

/// The condition for a report. It keeps both times where nothing else changes, and the time of transition while the
/// status does not: time passing alone is no reason to write a pod.
fn condition(report: &Report, seen: Option<&Condition>, now: Timestamp) -> Condition {
    let status = status(report.state);
    if let Some(seen) = seen
        && *seen.status == *status
    {
        let transition = seen.last_transition_time.or(report.last_transition_time);
        let probe = if seen.message == report.message {
            seen.last_probe_time
        } else {
            report.last_probe_time
        };
        return Condition {
            status: seen.status.clone(),
            message: report.message.clone(),
            last_transition_time: transition,
            last_probe_time: probe,
        };
    }
    Condition {
        status: status.into(),
        message: report.message.clone(),
        last_transition_time: Some(report.last_transition_time.unwrap_or_else(|| seconds(now))),
        last_probe_time: report.last_probe_time,
    }
}

/// Kubernetes keeps whole seconds.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn condition_value(kind: &str, condition: &Condition) -> Value {
    let mut value = json!({ "type": kind, "status": condition.status });
    if !condition.message.is_empty() {
        value["message"] = json!(condition.message);
    }
    if let Some(time) = condition.last_transition_time {
        value["lastTransitionTime"] = json!(Time(time));
    }
    if let Some(time) = condition.last_probe_time {
        value["lastProbeTime"] = json!(Time(time));
    }
    value
}

fn removal(
    pod: &Pod,
    labels: &Difference,
    annotations: &Difference,
    conditions: &Difference,
) -> Value {
    let mut body = json!({ "metadata": { "uid": pod.uid } });
    for (field, difference) in [("labels", labels), ("annotations", annotations)] {
        if !difference.remove.is_empty() {
            let keys = difference.remove.iter();
            let keys: Map<_, _> = keys.map(|key| (key.to_string(), Value::Null)).collect();
            body["metadata"][field] = Value::Object(keys);
        }
    }
    if !conditions.remove.is_empty() {
        let kinds = conditions.remove.iter();
        let kinds: Vec<_> = kinds
            .map(|kind| json!({ "$patch": "delete", "type": kind }))
            .collect();
        body["status"] = json!({ "conditions": kinds });
    }
    body
}

fn application(
    pod: &Pod,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    conditions: &[Value],
) -> Value {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod.name.name, "namespace": pod.name.namespace, "uid": pod.uid },
    });
    for (field, values) in [("labels", labels), ("annotations", annotations)] {
        if !values.is_empty() {
            body["metadata"][field] = Value::Object(values);
        }
    }
    if !conditions.is_empty() {
        body["status"] = json!({ "conditions": conditions });
    }
    body
}
