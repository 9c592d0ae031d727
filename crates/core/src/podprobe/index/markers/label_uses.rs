//! The labels that the markers of each namespace set and read, and which markers can feed each other: the input of the
//! search for [`loops`](super::loops).
//!
//! Anybody who may create markers decides how many there are and what they select by, so each bound here is a bound on
//! what one edit costs everybody: [`COMPARED_MARKERS`] of a namespace are compared, the oldest ones, by requirements of up to
//! [`COMPARED_VALUES`] values. What was found of a pair is kept until one of the two is edited.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use crate::cluster::Operator;
use crate::podprobe::index::context::MarkerName;
use crate::podprobe::marker::{Marker, MarkerProbe};

/// Markers of one namespace that are compared with one another, at most.
pub(super) const COMPARED_MARKERS: usize = 128;
/// A requirement `In` of more values keeps no two markers apart.
pub(super) const COMPARED_VALUES: usize = 16;

// The places of markers are bits of a `u128`, the keys that one reads are bits of a `u32`.
const _: () = assert!(COMPARED_MARKERS <= 128);
const _: () = assert!(2 * leadsman_api::limits::SELECTOR_EXPRESSIONS <= 32);

/// The label keys that the markers of each namespace set and read.
#[derive(Debug, Default)]
pub(super) struct LabelUses {
    by_namespace: HashMap<String, NamespaceUses>,
    /// Namespaces whose loops have to be searched again.
    unchecked: BTreeSet<String>,
}

/// The markers of one namespace.
#[derive(Debug, Default)]
pub(super) struct NamespaceUses {
    by_marker: HashMap<MarkerName, MarkerLabels>,
    by_key: HashMap<Arc<str>, KeyUse>,
    /// Markers that set a label which is read and read one which is set, from the oldest to the youngest.
    possible_members: BTreeSet<(Timestamp, MarkerName)>,
    /// Markers that are stopped for a loop.
    stopped: BTreeSet<MarkerName>,
    /// Markers whose pairs with one another have been compared.
    compared: BTreeSet<MarkerName>,
    /// The pairs of compared markers in which one can feed the other. The first name is the lesser one.
    pairs: BTreeMap<(MarkerName, MarkerName), Pair>,
}

/// The markers that set and read one label.
#[derive(Debug, Default)]
struct KeyUse {
    setters: BTreeSet<MarkerName>,
    readers: BTreeSet<MarkerName>,
}

/// A marker, with how many of its keys others use too.
#[derive(Debug)]
struct MarkerLabels {
    labels: LabelUse,
    /// How many of the keys that it sets are read by some marker.
    sets_read: usize,
    /// How many of the keys that it reads are set by some marker.
    reads_set: usize,
}

/// The labels that one marker sets and reads.
#[derive(Debug, PartialEq, Eq)]
struct LabelUse {
    created: Timestamp,
    sets: BTreeSet<Arc<str>>,
    /// Each key with the values of which a pod must have one, if they are few enough to be compared.
    reads: BTreeMap<Arc<str>, Option<Vec<Arc<str>>>>,
}

/// Two markers, one of which sets a label that the other reads.
#[derive(Clone, Copy, Debug)]
struct Pair {
    feeds: bool,
    is_fed: bool,
    /// The keys, by their places in what the first one reads, of which both require different values.
    apart_by: u32,
}

impl LabelUses {
    /// Records a marker, or that there is none any more that may be part of a loop.
    pub(super) fn observe_marker(
        &mut self,
        name: &MarkerName,
        marker: Option<&Marker>,
        is_stopped: bool,
    ) {
        let uses = match marker {
            Some(_) => self.by_namespace.entry(name.namespace.clone()).or_default(),
            None => match self.by_namespace.get_mut(&name.namespace) {
                Some(uses) => uses,
                None => return,
            },
        };
        if is_stopped && marker.is_some() {
            uses.stopped.insert(name.clone());
        } else {
            uses.stopped.remove(name);
        }
        let new = marker.map(LabelUse::new);
        let known = uses.by_marker.get(name).map(|member| &member.labels);
        // Stopping or restarting a marker changes no loop, nor does an edit of anything else.
        if known == new.as_ref() {
            return;
        }
        let mut may_change_loops = uses.remove_use(name);
        if let Some(new) = new {
            may_change_loops |= uses.insert_use(name, new);
        }
        if may_change_loops {
            uses.compare_new_members();
            self.unchecked.insert(name.namespace.clone());
        }
        if uses.by_marker.is_empty() {
            self.by_namespace.remove(&name.namespace);
        }
    }

    /// Marks all namespaces for a search of loops.
    pub(super) fn mark_all_for_recheck(&mut self) {
        self.unchecked = self.by_namespace.keys().cloned().collect();
    }

    /// The namespaces marked for a search, which are marked no more.
    pub(super) fn take_unchecked(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.unchecked)
    }

    pub(super) fn in_namespace(&self, namespace: &str) -> Option<&NamespaceUses> {
        self.by_namespace.get(namespace)
    }
}

impl NamespaceUses {
    /// Adds what a marker sets and reads. Returns whether loops may change with it.
    fn insert_use(&mut self, name: &MarkerName, labels: LabelUse) -> bool {
        let (mut sets_read, mut reads_set) = (0, 0);
        for key in &labels.sets {
            let key = self.by_key.entry(key.clone()).or_default();
            key.setters.insert(name.clone());
            sets_read += usize::from(!key.readers.is_empty());
        }
        for key in labels.reads.keys() {
            let key = self.by_key.entry(key.clone()).or_default();
            key.readers.insert(name.clone());
            reads_set += usize::from(!key.setters.is_empty());
        }
        let changes_others = self.count_in_others(&labels, 1);
        let member = MarkerLabels {
            labels,
            sets_read,
            reads_set,
        };
        if member.may_be_in_loop() {
            let place = (member.labels.created, name.clone());
            self.possible_members.insert(place);
        }
        self.by_marker.insert(name.clone(), member);
        changes_others || sets_read > 0
    }

    /// Removes what a marker sets and reads. Returns whether loops may change with it.
    fn remove_use(&mut self, name: &MarkerName) -> bool {
        let Some(member) = self.by_marker.remove(name) else {
            return false;
        };
        let labels = &member.labels;
        self.possible_members
            .remove(&(labels.created, name.clone()));
        let changes_others = self.count_in_others(labels, -1);
        for key in labels.sets.iter().chain(labels.reads.keys()) {
            if let Some(uses) = self.by_key.get_mut(key) {
                uses.setters.remove(name);
                uses.readers.remove(name);
                if uses.setters.is_empty() && uses.readers.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
        if self.compared.remove(name) {
            self.pairs
                .retain(|(one, other), _| one != name && other != name);
        }
        changes_others || member.sets_read > 0
    }

    /// Counts in all other markers the keys of which one marker, which is listed by them, is the only setter or reader.
    /// Returns whether others may be in a loop by that, or may not any more.
    fn count_in_others(&mut self, labels: &LabelUse, by: isize) -> bool {
        let mut changes_others = false;
        let mut count = |others: &BTreeSet<MarkerName>,
                         counter: fn(&mut MarkerLabels) -> &mut usize| {
            for other in others {
                let Some(member) = self.by_marker.get_mut(other) else {
                    continue;
                };
                let could_be = member.may_be_in_loop();
                let counter = counter(member);
                *counter = counter.saturating_add_signed(by);
                if member.may_be_in_loop() == could_be {
                    continue;
                }
                changes_others = true;
                let place = (member.labels.created, other.clone());
                if could_be {
                    self.possible_members.remove(&place);
                } else {
                    self.possible_members.insert(place);
                }
            }
        };
        for key in &labels.sets {
            let uses = self.by_key.get(key);
            if let Some(uses) = uses.filter(|uses| uses.setters.len() == 1) {
                count(&uses.readers, |member| &mut member.reads_set);
            }
        }
        for key in labels.reads.keys() {
            let uses = self.by_key.get(key);
            if let Some(uses) = uses.filter(|uses| uses.readers.len() == 1) {
                count(&uses.setters, |member| &mut member.sets_read);
            }
        }
        changes_others
    }

    /// The markers among which loops are searched, from the oldest to the youngest.
    pub(super) fn members(&self) -> impl Iterator<Item = &MarkerName> {
        let members = self.possible_members.iter().take(COMPARED_MARKERS);
        members.map(|(_, name)| name)
    }

    /// The markers that may be in a loop and are too many to be compared.
    pub(super) fn surplus_members(&self) -> impl Iterator<Item = &MarkerName> {
        let surplus = self.possible_members.iter().skip(COMPARED_MARKERS);
        surplus.map(|(_, name)| name)
    }

    /// The markers that are stopped for a loop and cannot be in one any more.
    pub(super) fn stopped_strangers(&self) -> impl Iterator<Item = &MarkerName> {
        let stopped = self.stopped.iter();
        stopped.filter(|name| {
            let member = self.by_marker.get(*name);
            !member.is_some_and(MarkerLabels::may_be_in_loop)
        })
    }

    /// Compares the members that were not compared yet with the others.
    fn compare_new_members(&mut self) {
        let members: BTreeSet<_> = self.members().cloned().collect();
        let new: Vec<_> = members.difference(&self.compared).cloned().collect();
        // Results about markers that are no members now are kept: an edit of another marker may make them members
        // again.
        if self.compared.len() + new.len() > 2 * COMPARED_MARKERS {
            self.compared.retain(|name| members.contains(name));
            self.pairs
                .retain(|(one, other), _| members.contains(one) && members.contains(other));
        }
        for name in new {
            for other in &self.compared {
                let (one, other) = (name.clone().min(other.clone()), other.max(&name).clone());
                let (Some(first), Some(second)) =
                    (self.by_marker.get(&one), self.by_marker.get(&other))
                else {
                    continue;
                };
                let (first, second) = (&first.labels, &second.labels);
                let (feeds, is_fed) = (first.feeds(second), second.feeds(first));
                if feeds || is_fed {
                    let pair = Pair {
                        feeds,
                        is_fed,
                        apart_by: first.keys_apart_from(second),
                    };
                    self.pairs.insert((one, other), pair);
                }
            }
            self.compared.insert(name);
        }
    }

    /// Returns, for each of the members by its place, the places of those that it feeds: they read a label which it sets on
    /// pods that both may select.
    pub(super) fn find_edges(&self) -> Vec<u128> {
        let places: HashMap<_, _> = self.members().zip(0_usize..).collect();
        let fixed: Vec<_> = self.members().map(|name| self.fixed_keys(name)).collect();
        let mut edges = vec![0; places.len()];
        for ((one, other), pair) in &self.pairs {
            let (Some(&one), Some(&other)) = (places.get(one), places.get(other)) else {
                continue;
            };
            if pair.apart_by & fixed[one] != 0 {
                continue;
            }
            if pair.feeds {
                edges[one] |= 1 << other;
            }
            if pair.is_fed {
                edges[other] |= 1 << one;
            }
        }
        edges
    }

    /// The keys, by their places in what a marker reads, that no marker sets: a label that some marker sets may get
    /// another value later.
    fn fixed_keys(&self, name: &MarkerName) -> u32 {
        let reads = self.by_marker.get(name).map(|member| &member.labels.reads);
        let keys = reads.into_iter().flat_map(BTreeMap::keys).zip(0..);
        let is_set = |key: &Arc<str>| {
            self.by_key
                .get(key)
                .is_some_and(|uses| !uses.setters.is_empty())
        };
        let fixed = keys.filter(|(key, _)| !is_set(key));
        fixed.fold(0, |fixed, (_, place)| fixed | 1 << place)
    }

    /// The first key that one marker sets and another reads.
    pub(super) fn find_fed_key(&self, from: &MarkerName, to: &MarkerName) -> Option<&str> {
        let (from, to) = (self.by_marker.get(from)?, self.by_marker.get(to)?);
        from.labels.fed_keys(&to.labels).next()
    }
}

impl MarkerLabels {
    fn may_be_in_loop(&self) -> bool {
        self.sets_read > 0 && self.reads_set > 0
    }
}

impl LabelUse {
    fn new(marker: &Marker) -> Self {
        let mut reads = BTreeMap::<_, Option<Vec<_>>>::new();
        for (key, operator) in marker.selector.requirements() {
            let known = reads.entry(key.clone()).or_default();
            let Operator::In(values) = operator else {
                continue;
            };
            // The requirement with the fewest values says the most, if there are several of one label.
            let fewest = known.as_ref().map_or(COMPARED_VALUES + 1, Vec::len);
            if values.len() < fewest {
                *known = Some(values.clone());
            }
        }
        Self {
            created: marker.created,
            sets: label_keys_set_by(marker),
            reads,
        }
    }

    /// The keys that this marker sets and the other one reads.
    fn fed_keys(&self, other: &Self) -> impl Iterator<Item = &str> {
        // The number of labels read has a small bound, that of labels set a large one.
        let read = other.reads.keys();
        read.filter_map(|key| self.sets.get(key)).map(|key| &**key)
    }

    fn feeds(&self, other: &Self) -> bool {
        self.fed_keys(other).next().is_some()
    }

    /// The keys, by their places in what this marker reads, of which the other one requires other values.
    fn keys_apart_from(&self, other: &Self) -> u32 {
        #[cfg(test)]
        comparisons::PAIRS.with(|pairs| pairs.update(|pairs| pairs + 1));
        let apart = self.reads.iter().zip(0..).filter(|((key, own), _)| {
            let others = other.reads.get(*key);
            match (own, others.and_then(Option::as_deref)) {
                (Some(own), Some(others)) => !have_common_value(own, others),
                _ => false,
            }
        });
        apart.fold(0, |apart, (_, place)| apart | 1 << place)
    }
}

/// Whether two sorted lists have a value in common.
fn have_common_value(one: &[Arc<str>], other: &[Arc<str>]) -> bool {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(first), Some(second)) = (one.peek(), other.peek()) {
        #[cfg(test)]
        comparisons::VALUES.with(|values| values.update(|values| values + 1));
        match first.cmp(second) {
            Ordering::Less => one.next(),
            Ordering::Equal => return true,
            Ordering::Greater => other.next(),
        };
    }
    false
}

/// The label keys that a marker's policies set.
pub(super) fn label_keys_set_by(marker: &Marker) -> BTreeSet<Arc<str>> {
    let probes = marker.probes.iter();
    let pairs = probes.flat_map(MarkerProbe::all_pairs);
    pairs
        .flat_map(|pairs| pairs.labels.keys())
        .cloned()
        .collect()
}

/// How many pairs of markers, and of their values, were compared by a test.
#[cfg(test)]
pub(in crate::podprobe::index) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        pub(super) static PAIRS: Cell<usize> = const { Cell::new(0) };
        pub(super) static VALUES: Cell<usize> = const { Cell::new(0) };
    }

    pub(in crate::podprobe::index) fn counts() -> (usize, usize) {
        (PAIRS.get(), VALUES.get())
    }
}
