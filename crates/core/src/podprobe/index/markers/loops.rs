//! Loops of markers: one marker sets a label that a second one selects by, and the second sets a label that the first
//! selects by. Their pods would be marked and unmarked without end.
//!
//! Loops are found in the specs alone, before any verdict. The markers of a namespace are examined from the oldest to
//! the youngest. A marker that closes a loop with older ones is stopped, which removes its entries and marks, and is
//! started again when the loop is open. (A marker that selects by a label of its own policies is invalid and in no
//! loop.)

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::iter::successors;
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

/// For each marker of a list, the places in it of those that read a label which this one sets on the same pods.
type Edges = Vec<Vec<usize>>;

/// The label keys of one namespace.
#[derive(Debug, Default)]
struct LabelKeys {
    set: MarkersByKey,
    read: MarkersByKey,
    /// Markers that are stopped for a loop.
    stopped: BTreeSet<MarkerName>,
    /// The number of pairs of markers that were compared.
    #[cfg(test)]
    compared: std::cell::Cell<usize>,
}

impl LabelUses {
    pub(super) fn insert_marker(&mut self, name: &MarkerName, marker: &Marker, is_stopped: bool) {
        let keys = self.by_namespace.entry(name.namespace.clone()).or_default();
        for (map, own) in [
            (&mut keys.set, label_keys_set_by(marker)),
            (&mut keys.read, label_keys_read_by(marker)),
        ] {
            for key in own {
                map.entry(key).or_default().insert(name.clone());
            }
        }
        if is_stopped {
            keys.stopped.insert(name.clone());
        }
        // Asked after the marker's own keys were added: it may read a label that it makes one that is set.
        if keys.may_change_loops(marker) {
            self.unchecked.insert(name.namespace.clone());
        }
    }

    pub(super) fn remove_marker(&mut self, name: &MarkerName, marker: &Marker) {
        let Some(keys) = self.by_namespace.get_mut(&name.namespace) else {
            return;
        };
        // Asked before its own keys are removed, as it was asked after they were added.
        if keys.may_change_loops(marker) {
            self.unchecked.insert(name.namespace.clone());
        }
        for (map, own) in [
            (&mut keys.set, label_keys_set_by(marker)),
            (&mut keys.read, label_keys_read_by(marker)),
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
    fn mark_all_for_recheck(&mut self) {
        self.unchecked = self.by_namespace.keys().cloned().collect();
    }
}

impl LabelKeys {
    /// Whether loops may change with this marker. One that sets a label which is read may close a loop. Even if it
    /// reads no label that is set, markers that select by its label may now match the same pods.
    fn may_change_loops(&self, marker: &Marker) -> bool {
        label_keys_set_by(marker)
            .iter()
            .any(|key| self.read.contains_key(key))
    }

    /// The markers that both set a label that is read and read one that is set, and those that are stopped.
    fn possible_loop_members(&self) -> BTreeSet<MarkerName> {
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

    /// Whether no pod is ever selected by both: they require different values of a label that no marker sets.
    fn are_disjoint(&self, one: &Marker, other: &Marker) -> bool {
        #[cfg(test)]
        self.compared.update(|compared| compared + 1);
        let of_one = one.selector.pairs();
        // A label that some marker sets may get the other value later.
        let mut fixed = of_one.filter(|(key, _)| !self.set.contains_key(*key));
        fixed.any(|(key, values)| {
            let mut of_other = other.selector.pairs().filter(|(own, _)| *own == key);
            of_other.any(|(_, others)| !values.iter().any(|value| others.contains(value)))
        })
    }

    /// For each of these markers, the places of those that it feeds, sorted. Only markers that share a key are compared: a
    /// namespace may have any number of them.
    fn find_edges(&self, members: &[&Marker]) -> Edges {
        let mut readers: BTreeMap<Arc<str>, Vec<usize>> = BTreeMap::new();
        for (place, marker) in members.iter().enumerate() {
            for key in label_keys_read_by(marker) {
                readers.entry(key).or_default().push(place);
            }
        }
        let fed_by = |(place, from): (usize, &&Marker)| {
            let keys = label_keys_set_by(from);
            let fed = keys.iter().filter_map(|key| readers.get(key)).flatten();
            // A loop of one marker is an invalid marker.
            let mut fed: BTreeSet<_> = fed.copied().filter(|to| *to != place).collect();
            fed.retain(|to| !self.are_disjoint(from, members[*to]));
            fed.into_iter().collect()
        };
        members.iter().enumerate().map(fed_by).collect()
    }
}

/// The shortest path from a marker through those in force back to it, by their places.
fn find_closed_loop(edges: &Edges, in_force: &[bool], new: usize) -> Option<Vec<usize>> {
    let mut before = vec![None; edges.len()];
    // Breadth first, since the shortest loop is the easiest one to understand in a status.
    let mut queue = VecDeque::from([new]);
    while let Some(at) = queue.pop_front() {
        if edges[at].binary_search(&new).is_ok() {
            let mut way = vec![new, at];
            way.extend(successors(before[at], |at| before[*at]));
            way.reverse();
            return Some(way);
        }
        // This never queues `new` again: the search ends where an edge leads back to it.
        for next in &edges[at] {
            if in_force[*next] && before[*next].is_none() {
                before[*next] = Some(at);
                queue.push_back(*next);
            }
        }
    }
    None
}

/// The first key that one marker sets and the other reads.
fn find_fed_key(from: &Marker, to: &Marker) -> Option<Arc<str>> {
    let read = label_keys_read_by(to);
    let mut set = label_keys_set_by(from).into_iter();
    set.find(|key| read.contains(key))
}

/// The label keys that a marker's policies set.
pub(super) fn label_keys_set_by(marker: &Marker) -> BTreeSet<Arc<str>> {
    let probes = marker.probes.iter();
    let policies = probes.flat_map(|probe| probe.succeeded.iter().chain(&probe.failed));
    policies
        .flat_map(|policy| policy.labels.keys())
        .cloned()
        .collect()
}

/// The label keys that a marker's selector reads.
fn label_keys_read_by(marker: &Marker) -> BTreeSet<Arc<str>> {
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

/// How many other markers a message names.
const NAMED_MARKERS: usize = 3;

/// The message for the first marker of a path, which is also its last.
fn loop_message(way: &[&Marker]) -> String {
    let name = |place: usize| match place {
        0 => "this marker".to_owned(),
        last if last + 1 == way.len() => "this marker".to_owned(),
        _ => format!("marker {}", way[place].name.name),
    };
    let steps = way.windows(2).enumerate().map(|(place, pair)| {
        let (setter, reader) = (name(place), name(place + 1));
        let key = find_fed_key(pair[0], pair[1]).unwrap_or_default();
        format!("{setter} sets label {key}, by which {reader} selects")
    });
    let mut steps: Vec<_> = steps.collect();
    let others = steps.len() - 1;
    if others > NAMED_MARKERS {
        let more = format!("(markers in between: {})", others - NAMED_MARKERS);
        steps.splice(NAMED_MARKERS - 1..others, [more]);
    }
    format!(
        "stopped: the markers would mark and unmark the same pods without end: {}; choose other labels or delete one of the markers",
        steps.join("; ")
    )
}

impl Markers {
    /// How many pairs of a namespace's markers were compared.
    #[cfg(test)]
    pub(in crate::podprobe::index) fn compared_pairs(&self, namespace: &str) -> usize {
        let keys = self.labels.by_namespace.get(namespace);
        keys.map_or(0, |keys| keys.compared.get())
    }

    /// Marks all namespaces for a search of loops.
    pub(in crate::podprobe::index) fn recheck_loops(&mut self) {
        self.labels.mark_all_for_recheck();
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
        let members = keys.possible_loop_members().into_iter();
        let known = members.filter_map(|name| {
            let phase = &self.by_name.get(&name)?.phase;
            Some((phase.loop_member()?, name))
        });
        let mut members: Vec<_> = known.collect();
        // From the oldest on, so that a marker which worked is never stopped by one that came later.
        members.sort_by_key(|(marker, name)| (marker.created, name.clone()));
        let (markers, names): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let edges = keys.find_edges(&markers);
        let mut in_force = vec![false; markers.len()];
        let judged = names.into_iter().enumerate().map(|(place, name)| {
            let closed = find_closed_loop(&edges, &in_force, place);
            // One that is stopped sets no labels, so it closes no further loop.
            in_force[place] = closed.is_none();
            let reason = closed.map(|way| {
                let way: Vec<_> = way.into_iter().map(|place| markers[place]).collect();
                StopReason::Loop(loop_message(&way))
            });
            (name, reason)
        });
        judged.collect()
    }
}
