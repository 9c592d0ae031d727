//! The writes that give a pod its marks: how each mark differs from its desired state, and the bodies of the requests.
//!
//! One server-side apply holds all our marks of a pod. A mark that the next apply leaves out is removed by the API server
//! if we alone own it (`prune`, `merge/update.go` in `sigs.k8s.io/structured-merge-diff`); a mark that others co-own is
//! removed by a patch. So is the last of our labels or annotations where nobody owns the others: an apply that gives it up
//! would take all of them away (`addBackOwnedItems` brings back what has an owner).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_reconcile::Purpose;
use serde_json::{Map, Value, json};

use super::{Mark, Want, Wants};
use crate::cluster::{SortedMap, whole_seconds};
use crate::podprobe::pod::{CoOwner, IndexedCondition, IndexedPod, SharedPairs};
use crate::podprobe::probe::State;
use crate::podprobe::verdict::Verdict;

/// The change that brings one mark of a pod to its desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing.
    Nothing,
    /// Our apply has to give it this value.
    Set,
    /// Our apply has to leave it out: nobody co-owns it, or the co-owner may keep it.
    Release,
    /// A patch has to remove it, since others co-own it.
    Remove,
}

impl Need {
    /// How to remove a mark that is present; `owner` is its co-owner, None if the mark is not ours.
    fn to_remove(owner: Option<CoOwner>) -> Self {
        match owner {
            Some(CoOwner::Nobody) => Self::Release,
            Some(_) | None => Self::Remove,
        }
    }

    /// The change of a mark that is somebody else's.
    fn to_leave(owner: Option<CoOwner>) -> Self {
        owner.map_or(Self::Nothing, |_| Self::Release)
    }

    /// The change of a label or an annotation. `want` is None where no marker names it.
    fn of_pair(
        want: Option<&Want<Arc<str>>>,
        seen: Option<&Arc<str>>,
        owner: Option<CoOwner>,
    ) -> Self {
        match (want, owner) {
            (Some(Want::Value(value)), Some(_)) if seen == Some(value) => Self::Nothing,
            (Some(Want::Value(_)), _) => Self::Set,
            (Some(Want::Absent), _) if seen.is_some() => Self::to_remove(owner),
            (Some(Want::Leave), _) => Self::to_leave(owner),
            (Some(Want::Absent | Want::Hold), _) => Self::Nothing,
            (None, owner) => Self::of_unclaimed(owner),
        }
    }

    /// The change of a mark that no marker names.
    fn of_unclaimed(owner: Option<CoOwner>) -> Self {
        match owner {
            None => Self::Nothing,
            // A mark that a user, a template or another applier co-owns stays with its value.
            Some(CoOwner::Nobody | CoOwner::Other) => Self::Release,
            Some(CoOwner::Status) => Self::Remove,
        }
    }

    /// The change of a condition. `want` is None where no marker names it.
    fn of_condition(
        want: Option<&Want<Verdict>>,
        seen: Option<&IndexedCondition>,
        owner: Option<CoOwner>,
        now: Timestamp,
    ) -> Self {
        match want {
            Some(Want::Value(verdict)) => {
                let is_right =
                    owner.is_some() && seen == Some(&desired_condition(verdict, seen, now));
                if is_right { Self::Nothing } else { Self::Set }
            }
            Some(Want::Leave) => Self::to_leave(owner),
            None => Self::of_unclaimed(owner),
            Some(Want::Hold | Want::Absent) => Self::Nothing,
        }
    }
}

/// The keys that markers claim, then those of our marks that no marker claims any more.
fn keys_to_compare<'a, T>(
    wants: &'a SortedMap<Want<T>>,
    ours: &'a SortedMap<CoOwner>,
) -> impl Iterator<Item = &'a Arc<str>> {
    let ours = ours.iter().map(|(key, _)| key);
    wants
        .keys()
        .chain(ours.filter(|key| !wants.contains_key(key)))
}

/// A mark, and whether it has the value that is wanted.
#[derive(Clone, Debug)]
pub(in crate::podprobe) struct ComparedMark {
    /// The mark.
    pub(in crate::podprobe) key: Mark,
    /// The mark and the wanted value.
    pub(in crate::podprobe) wanted: Purpose,
    /// Whether a write is needed.
    pub(in crate::podprobe) differs: bool,
}

/// Compares all marks that are ours or claimed with their desired states.
pub(in crate::podprobe) fn compare_marks(
    pod: &IndexedPod,
    wants: &Wants,
    now: Timestamp,
) -> Vec<ComparedMark> {
    let mut compared = Vec::new();
    let mut add = |mark: Mark, wanted: Purpose, need: Need| {
        compared.push(ComparedMark {
            wanted: Purpose::of((&mark, wanted)),
            key: mark,
            differs: need != Need::Nothing,
        });
    };
    let [labels, annotations] = pairs_of(pod, wants);
    for key in keys_to_compare(labels.wants, labels.ours) {
        let (wanted, need) = labels.need_of_key(key);
        add(Mark::Label(key.clone()), wanted, need);
    }
    for key in keys_to_compare(annotations.wants, annotations.ours) {
        let (wanted, need) = annotations.need_of_key(key);
        add(Mark::Annotation(key.clone()), wanted, need);
    }
    for kind in keys_to_compare(&wants.conditions, &pod.ours.conditions) {
        let want = wants.conditions.get(kind);
        let owner = pod.ours.conditions.get(kind).copied();
        let need = Need::of_condition(want, pod.conditions.get(kind), owner, now);
        // The times of the verdict are left out: they change while the desired mark does not.
        let wanted = match want {
            Some(Want::Value(verdict)) => Purpose::of((verdict.state, &verdict.message)),
            Some(Want::Hold | Want::Absent | Want::Leave) => Purpose::of("stays"),
            None => Purpose::of("goes"),
        };
        add(Mark::Condition(kind.clone()), wanted, need);
    }
    compared
}

/// The writes that are due on a pod; None if its marks are as desired. `now` replaces a time of transition that the agent
/// left out.
///
/// A held mark stays as it is. As a server-side apply removes what it leaves out and we alone own, the apply repeats a held
/// mark of ours with its present value, and leaves out one that is not ours.
///
/// `is_fenced` makes the writes ones of the pod's present version: carried out late, an apply would bring back an exclusive label
/// that was taken away meanwhile. A patch before it changes the version, so the apply follows in a write of its own.
pub(in crate::podprobe) fn diff_marks(
    pod: &IndexedPod,
    wants: &Wants,
    is_resting: impl Fn(&Mark) -> bool,
    is_fenced: bool,
    now: Timestamp,
) -> Option<DueMarks> {
    let [labels, annotations] = pairs_of(pod, wants);
    let labels = labels.diff_pairs(|key| is_resting(&Mark::Label(key.clone())));
    let annotations = annotations.diff_pairs(|key| is_resting(&Mark::Annotation(key.clone())));
    let conditions = conditions_difference(wants, pod, &is_resting, now);
    let apply = labels.apply || annotations.apply || conditions.apply;
    let mut removals = [&labels.remove, &annotations.remove, &conditions.remove].into_iter();
    let remove = removals.any(|keys| !keys.is_empty());
    if !apply && !remove {
        return None;
    }
    let apply = apply && !(is_fenced && remove);
    let version = pod.version.number().filter(|_| is_fenced);
    Some(DueMarks {
        remove: remove.then(|| {
            let mut patch =
                removal_patch(pod, &labels.remove, &annotations.remove, &conditions.remove);
            require_version(&mut patch, version);
            patch
        }),
        apply: apply.then(|| {
            apply_body(
                pod,
                version,
                labels.values,
                annotations.values,
                &conditions.values,
            )
        }),
    })
}

/// The due changes of a pod's labels, annotations or conditions.
#[derive(Default)]
struct MarkChanges<T> {
    /// Whether an apply is due.
    apply: bool,
    /// The part of the apply's body.
    values: T,
    /// The keys that a patch removes.
    remove: Vec<Arc<str>>,
}

/// The labels or the annotations of a pod, desired and observed.
struct ComparedPairs<'a> {
    wants: &'a SortedMap<Want<Arc<str>>>,
    observed: &'a SharedPairs,
    ours: &'a SortedMap<CoOwner>,
    /// Whether there are others, which nobody owns.
    unowned: bool,
}

impl ComparedPairs<'_> {
    /// The desired state of a key, and the change that it needs.
    fn need_of_key(&self, key: &Arc<str>) -> (Purpose, Need) {
        let want = self.wants.get(key);
        let owner = self.ours.get(key).copied();
        let need = Need::of_pair(want, self.observed.get(key), owner);
        (Purpose::of(want), need)
    }

    fn diff_pairs(
        &self,
        is_resting: impl Fn(&Arc<str>) -> bool,
    ) -> MarkChanges<Map<String, Value>> {
        let mut difference = MarkChanges::<Map<String, Value>>::default();
        let mut released = Vec::new();
        for key in keys_to_compare(self.wants, self.ours) {
            let (want, seen) = (self.wants.get(key), self.observed.get(key));
            let owner = self.ours.get(key).copied();
            let need = match Need::of_pair(want, seen, owner) {
                Need::Nothing => Need::Nothing,
                _ if is_resting(key) => Need::Nothing,
                need => need,
            };
            let value = match (need, want) {
                (Need::Release, _) => {
                    released.push(key.clone());
                    None
                }
                (Need::Remove, _) => {
                    difference.remove.push(key.clone());
                    None
                }
                (Need::Set, Some(Want::Value(value))) => {
                    difference.apply = true;
                    Some(value)
                }
                // A mark of ours stays in the apply, or the API server would remove it.
                (Need::Nothing | Need::Set, _) => seen.filter(|_| owner.is_some()),
            };
            if let Some(value) = value {
                difference.values.insert(key.to_string(), json!(value));
            }
        }
        if self.unowned && difference.values.is_empty() {
            difference.remove.extend(released);
        } else {
            difference.apply |= !released.is_empty();
        }
        difference
    }
}

/// Labels and annotations of a pod.
fn pairs_of<'a>(pod: &'a IndexedPod, wants: &'a Wants) -> [ComparedPairs<'a>; 2] {
    [
        ComparedPairs {
            wants: &wants.labels,
            observed: &pod.labels,
            ours: &pod.ours.labels,
            unowned: pod.ours.unowned_labels,
        },
        ComparedPairs {
            wants: &wants.annotations,
            observed: &pod.annotations,
            ours: &pod.ours.annotations,
            unowned: pod.ours.unowned_annotations,
        },
    ]
}

fn conditions_difference(
    wants: &Wants,
    pod: &IndexedPod,
    is_resting: impl Fn(&Mark) -> bool,
    now: Timestamp,
) -> MarkChanges<Vec<Value>> {
    let mut difference = MarkChanges::<Vec<Value>>::default();
    for kind in keys_to_compare(&wants.conditions, &pod.ours.conditions) {
        let (want, seen) = (wants.conditions.get(kind), pod.conditions.get(kind));
        let owner = pod.ours.conditions.get(kind).copied();
        let need = match Need::of_condition(want, seen, owner, now) {
            Need::Nothing => Need::Nothing,
            _ if is_resting(&Mark::Condition(kind.clone())) => Need::Nothing,
            need => need,
        };
        match (need, want, seen) {
            (Need::Release, _, _) => difference.apply = true,
            // Left out even while a release is held: the apply would force a value that may be outdated.
            (_, Some(Want::Leave), _) => {}
            (Need::Remove, _, _) => difference.remove.push(kind.clone()),
            (Need::Set, Some(Want::Value(verdict)), _) => {
                difference.apply = true;
                let wanted = desired_condition(verdict, seen, now);
                let mut value = condition_value(kind, &wanted);
                if wanted.message.is_empty() && seen.is_some_and(|seen| !seen.message.is_empty()) {
                    // If the apply left the field out, a message of another writer would stay.
                    value["message"] = json!("");
                }
                difference.values.push(value);
            }
            // A condition of ours stays in the apply, or the API server would remove it.
            (Need::Nothing | Need::Set, _, Some(seen)) if owner.is_some() => {
                difference.values.push(condition_value(kind, seen));
            }
            (Need::Nothing | Need::Set, _, _) => {}
        }
    }
    difference
}

/// The condition for a verdict. Both times stay if nothing else changes, and the time of transition stays while the status
/// does: a pod is not written merely because time passes.
fn desired_condition(
    verdict: &Verdict,
    seen: Option<&IndexedCondition>,
    now: Timestamp,
) -> IndexedCondition {
    let status = condition_status(verdict.state);
    if let Some(seen) = seen
        && *seen.status == *status
    {
        // The time is of the last change of status (`UpdatePodCondition`, `pkg/api/v1/pod/util.go`).
        let transition = seen.last_transition_time.or(verdict.since.map(Into::into));
        // A newer time alone is not worth a write, or each run of a probe would be one.
        let probe = if seen.message == verdict.message {
            seen.last_probe_time
        } else {
            verdict.probed.map(Into::into)
        };
        return IndexedCondition {
            status: seen.status.clone(),
            message: verdict.message.clone(),
            last_transition_time: transition,
            last_probe_time: probe,
        };
    }
    IndexedCondition {
        status: status.into(),
        message: verdict.message.clone(),
        last_transition_time: Some(verdict.since.unwrap_or_else(|| whole_seconds(now)).into()),
        last_probe_time: verdict.probed.map(Into::into),
    }
}

/// The status of a condition.
pub(in crate::podprobe) fn condition_status(state: State) -> &'static str {
    match state {
        State::Succeeded => "True",
        State::Failed => "False",
        State::Unknown => "Unknown",
    }
}

fn condition_value(kind: &str, condition: &IndexedCondition) -> Value {
    let mut value = json!({ "type": kind, "status": condition.status });
    if !condition.message.is_empty() {
        value["message"] = json!(condition.message);
    }
    if let Some(time) = condition.last_transition_time {
        value["lastTransitionTime"] = json!(Time(time.into()));
    }
    if let Some(time) = condition.last_probe_time {
        value["lastProbeTime"] = json!(Time(time.into()));
    }
    value
}

fn removal_patch(
    pod: &IndexedPod,
    labels: &[Arc<str>],
    annotations: &[Arc<str>],
    conditions: &[Arc<str>],
) -> Value {
    // A new pod of the same name has another uid, and the API server refuses to change that
    // (`ValidateObjectMetaAccessorUpdate`,
    // `staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
    let mut body = json!({ "metadata": { "uid": pod.uid } });
    for (field, keys) in [("labels", labels), ("annotations", annotations)] {
        if !keys.is_empty() {
            let keys: Map<_, _> = keys
                .iter()
                .map(|key| (key.to_string(), Value::Null))
                .collect();
            body["metadata"][field] = Value::Object(keys);
        }
    }
    if !conditions.is_empty() {
        let kinds = conditions.iter();
        let deletions: Vec<_> = kinds
            // Conditions are merged by their type (`patchMergeKey` of `PodStatus.Conditions`,
            // `staging/src/k8s.io/api/core/v1/types.go`).
            .map(|kind| json!({ "$patch": "delete", "type": kind }))
            .collect();
        body["status"] = json!({ "conditions": deletions });
    }
    body
}

fn require_version(body: &mut Value, version: Option<u64>) {
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = json!(version.to_string());
    }
}

fn apply_body(
    pod: &IndexedPod,
    version: Option<u64>,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    conditions: &[Value],
) -> Value {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod.name.name, "namespace": pod.name.namespace, "uid": pod.uid },
    });
    require_version(&mut body, version);
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

/// The bodies of the requests that give a pod its marks.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::podprobe) struct DueMarks {
    /// A strategic merge patch that removes marks that others co-own.
    pub(in crate::podprobe) remove: Option<Value>,
    /// A forced server-side apply of all our marks.
    pub(in crate::podprobe) apply: Option<Value>,
}

impl DueMarks {
    /// Whether the patch removes a mark.
    pub(in crate::podprobe) fn removes(&self, mark: &Mark) -> bool {
        let Some(patch) = &self.remove else {
            return false;
        };
        let has = |field: &str, key: &str| patch["metadata"][field].get(key).is_some();
        match mark {
            Mark::Label(key) => has("labels", key),
            Mark::Annotation(key) => has("annotations", key),
            Mark::Condition(kind) => {
                let mut conditions = patch["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                conditions.any(|one| one["type"].as_str() == Some(kind))
            }
        }
    }
}
