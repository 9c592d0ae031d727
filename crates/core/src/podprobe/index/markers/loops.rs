//! Loops of markers: one marker sets a label that a second one selects by, and the second sets a label that the first
//! selects by. Their pods would be marked and unmarked without end.
//!
//! Loops are found in the specs alone, before any verdict. The markers of a namespace are examined from the oldest to
//! the youngest. A marker that closes a loop with older ones is stopped, which removes its entries and marks, and is
//! started again when the loop is open. (A marker that selects by a label of its own policies is invalid and in no
//! loop.) Where more markers than are compared may be in loops, the youngest are stopped too.

use std::collections::{BTreeSet, VecDeque};
use std::iter::successors;

use leadsman_api::PodProbeMarker;

use super::label_uses::{COMPARED_MARKERS, NamespaceUses};
use super::{MarkerChange, Markers, StopReason};
use crate::podprobe::index::context::{IndexContext, MarkerName};

/// The shortest path from a marker through those in force back to it, by their places. Sets of places are bits.
fn find_closed_loop(edges: &[u128], in_force: u128, new: usize) -> Option<Vec<usize>> {
    let mut before = vec![None; edges.len()];
    let mut unseen = in_force;
    // Breadth first, since the shortest loop is the easiest one to understand in a status.
    let mut queue = VecDeque::from([new]);
    while let Some(at) = queue.pop_front() {
        if edges[at] & (1 << new) != 0 {
            let mut way = vec![new, at];
            way.extend(successors(before[at], |at| before[*at]));
            way.reverse();
            return Some(way);
        }
        // `new` is never queued again: the search ends where an edge leads back to it.
        let mut next = edges[at] & unseen;
        unseen &= !next;
        while next != 0 {
            let place = next.trailing_zeros() as usize;
            next &= next - 1;
            before[place] = Some(at);
            queue.push_back(place);
        }
    }
    None
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
fn loop_message(uses: &NamespaceUses, way: &[&MarkerName]) -> String {
    let name = |place: usize| match place {
        0 => "this marker".to_owned(),
        last if last + 1 == way.len() => "this marker".to_owned(),
        _ => format!("marker {}", way[place].name),
    };
    let mut steps: Vec<_> = way
        .windows(2)
        .enumerate()
        .map(|(place, pair)| {
            let (setter, reader) = (name(place), name(place + 1));
            let key = uses.find_fed_key(pair[0], pair[1]).unwrap_or_default();
            format!("{setter} sets label {key}, by which {reader} selects")
        })
        .collect();
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

/// The message for a marker that is too many to be compared with the others.
fn surplus_message() -> String {
    format!(
        "stopped: more than {COMPARED_MARKERS} markers of this namespace set labels by which others of them select; only the oldest are searched for loops, and the others are stopped; choose other labels or delete some of these markers"
    )
}

impl Markers {
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
        for namespace in self.labels.take_unchecked() {
            // Stopping or starting a marker inserts it anew, which changes no loop.
            for (marker, reason) in self.judge_members(&namespace) {
                changes.extend(self.set_stopped(&marker, reason, cx));
            }
        }
        changes
    }

    /// The markers of a namespace that may be in a loop, and why they are stopped, if they are.
    fn judge_members(&self, namespace: &str) -> Vec<(MarkerName, Option<StopReason>)> {
        let Some(uses) = self.labels.in_namespace(namespace) else {
            return Vec::new();
        };
        // The oldest come first, so that a marker which worked is never stopped by one that came later.
        let members: Vec<_> = uses.members().collect();
        let edges = uses.find_edges();
        let mut in_force = 0;
        let judged = members.iter().enumerate().map(|(place, name)| {
            let closed = find_closed_loop(&edges, in_force, place);
            // One that is stopped sets no labels, so it closes no further loop.
            in_force |= u128::from(closed.is_none()) << place;
            let reason = closed.map(|way| {
                let way: Vec<_> = way.into_iter().map(|place| members[place]).collect();
                StopReason::Loop(loop_message(uses, &way))
            });
            ((*name).clone(), reason)
        });
        let mut judged: Vec<_> = judged.collect();
        let surplus = uses.surplus_members().cloned();
        judged.extend(surplus.map(|name| (name, Some(StopReason::Loop(surplus_message())))));
        let strangers = uses.stopped_strangers().cloned();
        judged.extend(strangers.map(|name| (name, None)));
        judged
    }
}
