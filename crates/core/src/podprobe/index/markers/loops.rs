//! Loops of markers: one marker sets a label that a second one selects by, and the second sets a label that the first
//! selects by. Their pods would be marked and unmarked without end.
//!
//! Loops are found in the specs alone, before any verdict. The markers of a namespace are examined from the oldest to
//! the youngest. A marker that closes a loop with older ones is stopped, which removes its entries and marks, and is
//! started again when the loop is open. (A marker that selects by a label of its own policies is invalid and in no
//! loop.)

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use leadsman_api::PodProbeMarker;

use super::{MarkerChange, Markers, StopReason};
use crate::podprobe::index::context::{IndexContext, MarkerName};
use crate::podprobe::marker::Marker;

/// The label keys that the markers of each namespace set and read.
#[derive(Debug, Default)]
pub(super) struct LabelUses {
    by_namespace: HashMap<String, LabelKeys>,
    /// Namespaces whose loops have to be searched again.
    unchecked: BTreeSet<String>,
}

type MarkersByKey = BTreeMap<Arc<str>, BTreeSet<MarkerName>>;

/// The label keys of one namespace.
#[derive(Debug, Default)]
struct LabelKeys {
    set: MarkersByKey,
    read: MarkersByKey,
    /// Markers that are stopped for a loop.
    stopped: BTreeSet<MarkerName>,
}

impl LabelUses {
    pub(super) fn insert(&mut self, name: &MarkerName, marker: &Marker, is_stopped: bool) {
        let keys = self.by_namespace.entry(name.namespace.clone()).or_default();
        for (map, own) in [
            (&mut keys.set, labels_set(marker)),
            (&mut keys.read, labels_read(marker)),
        ] {
            for key in own {
                map.entry(key).or_default().insert(name.clone());
            }
        }
        if is_stopped {
            keys.stopped.insert(name.clone());
        }
        if keys.may_change_loops(marker) {
            self.unchecked.insert(name.namespace.clone());
        }
    }

    pub(super) fn remove(&mut self, name: &MarkerName, marker: &Marker) {
        let Some(keys) = self.by_namespace.get_mut(&name.namespace) else {
            return;
        };
        if keys.may_change_loops(marker) {
            self.unchecked.insert(name.namespace.clone());
        }
        for (map, own) in [
            (&mut keys.set, labels_set(marker)),
            (&mut keys.read, labels_read(marker)),
        ] {
            for key in own {
                if let Some(markers) = map.get_mut(&key) {
                    markers.remove(name);
                    if markers.is_empty() {
                        map.remove(&key);
                    }
                }
            }
        }
        keys.stopped.remove(name);
        if keys.set.is_empty() && keys.read.is_empty() {
            self.by_namespace.remove(&name.namespace);
        }
    }

    /// Marks all namespaces for a search of loops.
    fn recheck_all(&mut self) {
        self.unchecked = self.by_namespace.keys().cloned().collect();
    }
}

impl LabelKeys {
    /// Whether loops may change with this marker. One that sets a label which is read may close a loop. Even if it
    /// reads no label that is set, markers that select by its label may now match the same pods.
    fn may_change_loops(&self, marker: &Marker) -> bool {
        labels_set(marker)
            .iter()
            .any(|key| self.read.contains_key(key))
    }

    /// The markers that both set a label that is read and read one that is set, and those that are stopped.
    fn members(&self) -> BTreeSet<MarkerName> {
        let using_both = |own: &MarkersByKey, others: &MarkersByKey| {
            let both = own.iter().filter(|(key, _)| others.contains_key(*key));
            let markers = both.flat_map(|(_, markers)| markers).cloned();
            markers.collect::<BTreeSet<_>>()
        };
        let setters = using_both(&self.set, &self.read);
        let readers = using_both(&self.read, &self.set);
        let mut members: BTreeSet<_> = setters.intersection(&readers).cloned().collect();
        members.extend(self.stopped.iter().cloned());
        members
    }

    /// The first key that one marker sets and the other reads on the same pods.
    fn fed_key(&self, from: &Marker, to: &Marker) -> Option<Arc<str>> {
        let read = labels_read(to);
        let mut set = labels_set(from).into_iter();
        let key = set.find(|key| read.contains(key))?;
        (!self.are_disjoint(from, to)).then_some(key)
    }

    /// Whether no pod is ever selected by both: they require different values of a label that no marker sets.
    fn are_disjoint(&self, one: &Marker, other: &Marker) -> bool {
        let of_one = one.selector.pairs();
        let mut fixed = of_one.filter(|(key, _)| !self.set.contains_key(*key));
        fixed.any(|(key, values)| {
            let mut of_other = other.selector.pairs().filter(|(own, _)| *own == key);
            of_other.any(|(_, others)| !values.iter().any(|value| others.contains(value)))
        })
    }

    /// The path from a marker through the active ones back to it: each label key that is set, and the marker that reads
    /// it.
    fn closed_loop<'a>(
        &self,
        in_force: &[&'a Marker],
        new: &'a Marker,
    ) -> Option<Vec<(Arc<str>, &'a Marker)>> {
        let mut ways = VecDeque::from([(new, Vec::new())]);
        let mut reached = BTreeSet::new();
        while let Some((at, way)) = ways.pop_front() {
            let extended =
                |to: &'a Marker| Some([way.clone(), vec![(self.fed_key(at, to)?, to)]].concat());
            // A loop of one marker is an invalid marker.
            if !way.is_empty()
                && let Some(closed) = extended(new)
            {
                return Some(closed);
            }
            for next in in_force {
                if !reached.contains(&next.name)
                    && let Some(way) = extended(next)
                {
                    reached.insert(&next.name);
                    ways.push_back((next, way));
                }
            }
        }
        None
    }
}

/// The label keys that a marker's policies set.
pub(super) fn labels_set(marker: &Marker) -> BTreeSet<Arc<str>> {
    let probes = marker.probes.iter();
    let policies = probes.flat_map(|probe| probe.succeeded.iter().chain(&probe.failed));
    policies
        .flat_map(|policy| policy.labels.keys())
        .cloned()
        .collect()
}

/// The label keys that a marker's selector reads.
fn labels_read(marker: &Marker) -> BTreeSet<Arc<str>> {
    marker.selector.keys().cloned().collect()
}

/// Whether a marker, which need not be valid, sets a label that its own selector reads.
pub(super) fn selects_by_own_label(wire: &PodProbeMarker) -> bool {
    let selector = &wire.spec.selector;
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    let read: BTreeSet<_> = labels
        .map(|(key, _)| key)
        .chain(expressions.map(|expression| &expression.key))
        .collect();
    let probes = wire.spec.probes.iter();
    let policies = probes.flat_map(|probe| &probe.marker_policy);
    let mut set = policies.flat_map(|policy| policy.labels.keys());
    set.any(|key| read.contains(key))
}

fn loop_message(way: &[(Arc<str>, &Marker)]) -> String {
    let mut setter = "this marker".to_owned();
    let steps = way.iter().enumerate().map(|(place, (key, reader))| {
        let reader = match place + 1 {
            last if last == way.len() => "this marker".to_owned(),
            _ => format!("marker {}", reader.name.name),
        };
        let step = format!("{setter} sets label {key}, by which {reader} selects");
        setter = reader;
        step
    });
    let steps: Vec<_> = steps.collect();
    format!(
        "stopped: the markers would mark and unmark the same pods without end: {}; choose other labels or delete one of the markers",
        steps.join("; ")
    )
}

impl Markers {
    /// Marks all namespaces for a search of loops.
    pub(in crate::podprobe::index) fn recheck_loops(&mut self) {
        self.labels.recheck_all();
    }

    /// Stops the markers that close a loop, and restarts those whose loop is open, in the namespaces marked for a
    /// search.
    pub(in crate::podprobe::index) fn break_loops(
        &mut self,
        cx: &mut IndexContext,
    ) -> Vec<MarkerChange> {
        let mut changes = Vec::new();
        for namespace in std::mem::take(&mut self.labels.unchecked) {
            for (marker, reason) in self.loop_members(&namespace) {
                changes.extend(self.set_stopped(&marker, reason, cx));
            }
        }
        // Stopping or starting a marker inserts it anew, which changes no loop.
        self.labels.unchecked.clear();
        changes
    }

    /// The markers of a namespace that may be in a loop, and why they are stopped, if they are.
    fn loop_members(&self, namespace: &str) -> Vec<(MarkerName, Option<StopReason>)> {
        let Some(keys) = self.labels.by_namespace.get(namespace) else {
            return Vec::new();
        };
        let members = keys.members().into_iter();
        let known = members.filter_map(|name| {
            let phase = &self.by_name.get(&name)?.phase;
            Some((phase.loop_member()?, name))
        });
        let mut members: Vec<_> = known.collect();
        members.sort_by_key(|(marker, name)| (marker.created, name.clone()));
        let (mut in_force, mut judged) = (Vec::new(), Vec::new());
        for (marker, name) in members {
            let closed = keys.closed_loop(&in_force, marker);
            if closed.is_none() {
                in_force.push(marker);
            }
            let reason = closed.map(|way| StopReason::Loop(loop_message(&way)));
            judged.push((name, reason));
        }
        judged
    }
}
