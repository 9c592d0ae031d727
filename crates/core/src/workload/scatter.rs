//! Pods with a label are spread evenly over a roll-out, so that it does not take all of them one after another.
//!
//! The places are those of `OpenKruise` (`pkg/util/updatesort/scatter_sort.go`), so that a roll-out that one of the two has
//! begun goes on in the same order with the other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Pods that are spread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScatterLabel {
    /// Key of their label.
    pub key: Arc<str>,
    /// The label's value; `None` for each value that pods have.
    pub value: Option<Arc<str>>,
}

/// A label: its key and its value.
pub type LabelPair = (Arc<str>, Arc<str>);

/// The labels of a pod by which terms spread it.
pub fn scattered_labels<'a>(
    terms: &[ScatterLabel],
    label: impl Fn(&str) -> Option<&'a Arc<str>>,
) -> Box<[LabelPair]> {
    let named = |term: &ScatterLabel| {
        let value = label(&term.key)?;
        let is_named = term.value.as_ref().is_none_or(|named| named == value);
        is_named.then(|| (term.key.clone(), value.clone()))
    };
    // A label may be named by its value, and as one of all values.
    let labels: BTreeSet<_> = terms.iter().filter_map(named).collect();
    labels.into_iter().collect()
}

/// How many pods of a workload have each label.
#[derive(Debug, Default)]
pub struct LabelCounts(BTreeMap<LabelPair, LabelCount>);

/// How many pods have a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LabelCount {
    all: usize,
    /// The number of pods that can be upgraded.
    candidates: usize,
}

impl LabelCounts {
    /// Counts one more pod.
    pub fn add(&mut self, labels: &[LabelPair], is_candidate: bool) {
        for label in labels {
            let count = self.0.entry(label.clone()).or_default();
            count.all += 1;
            count.candidates += usize::from(is_candidate);
        }
    }

    /// The labels by which so many candidates among all pods are spread, one after the other.
    pub fn spreads(&self, terms: &[ScatterLabel], pods: usize, candidates: usize) -> Spreads {
        let mut seen = BTreeSet::new();
        let mut spreads = Vec::new();
        for term in terms {
            let first = term.value.clone().unwrap_or_default();
            let counts = self.0.range((term.key.clone(), first)..);
            let is_named = |label: &LabelPair| {
                let is_value = |value: &Arc<str>| *value == label.1;
                label.0 == term.key && term.value.as_ref().is_none_or(is_value)
            };
            for (label, count) in counts.take_while(|(label, _)| is_named(label)) {
                if seen.insert(label) {
                    spreads.push(Spread {
                        label: label.clone(),
                        total: (count.all, pods - count.all),
                        candidates: (count.candidates, candidates - count.candidates),
                    });
                }
            }
        }
        // One labelled pod, or one unlabelled, leaves nothing to spread.
        spreads.retain(|spread| spread.candidates.0 > 1 && spread.candidates.1 > 1);
        spreads.sort_by_key(|spread| Reverse(spread.candidates.0));
        Spreads(spreads)
    }
}

/// The labels by which pods are spread, one after the other.
#[derive(Debug)]
pub struct Spreads(Vec<Spread>);

impl Spreads {
    /// Spreads pods that are the first ones of an order, given by their labels. Returns the places in `first` of those
    /// that come first then, as far as these tell: all if these are all.
    pub fn apply<'a>(&self, first: impl Iterator<Item = &'a [LabelPair]>) -> Vec<usize> {
        // Each label is looked at once for each pod and spread: as a number, since texts differ in their last letters.
        let numbers: HashMap<_, usize> = self
            .0
            .iter()
            .zip(0..)
            .map(|(spread, number)| (&spread.label, number))
            .collect();
        let (mut labels, mut ends) = (Vec::new(), Vec::new());
        for own in first {
            labels.extend(own.iter().filter_map(|label| numbers.get(label).copied()));
            ends.push(labels.len());
        }
        let labels_at = |place: usize| {
            let begin = if place > 0 { ends[place - 1] } else { 0 };
            &labels[begin..ends[place]]
        };
        let spreads = self.0.iter().enumerate();
        spreads.fold((0..ends.len()).collect(), |order, (number, spread)| {
            spread.apply(order, |place| labels_at(*place).contains(&number))
        })
    }
}

/// Pods with a label are spread among the others. Pairs count those with it, and the others.
#[derive(Debug)]
struct Spread {
    label: LabelPair,
    /// The numbers of all pods, those that are not upgraded included.
    total: (usize, usize),
    candidates: (usize, usize),
}

impl Spread {
    /// Spreads one label, as [`Spreads::apply`] does it for all.
    fn apply<T>(&self, first: Vec<T>, has_label: impl Fn(&T) -> bool) -> Vec<T> {
        let (matched, others): (Vec<_>, Vec<_>) = first.into_iter().partition(has_label);
        let mut spread = Vec::with_capacity(matched.len() + others.len());
        let (mut matched, mut others) = (matched.into_iter(), others.into_iter());
        // One comes last of all.
        let mut left = (self.candidates.0 - 1, self.candidates.1);
        let groups = ScatterGroups::by_density((self.total.0 - 1, self.total.1), left);
        let mut take = |most: (usize, usize)| {
            let most = (most.0.min(left.0), most.1.min(left.1));
            left = (left.0 - most.0, left.1 - most.1);
            let before = spread.len();
            spread.extend(matched.by_ref().take(most.0));
            let is_known = spread.len() - before == most.0;
            spread.extend(others.by_ref().take(if is_known { most.1 } else { 0 }));
            spread.len() - before == most.0 + most.1
        };
        let groups_of = (0..groups.count).map(|_| (groups.matched, groups.others));
        let mut runs = std::iter::once((0, groups.others_ahead))
            .chain(groups_of)
            .chain([(usize::MAX, usize::MAX)]);
        if runs.all(&mut take) {
            spread.extend(matched);
        }
        spread
    }
}

/// How many pods with a label, and of the others, follow one another.
struct ScatterGroups {
    count: usize,
    matched: usize,
    others: usize,
    /// Others that come first of all.
    others_ahead: usize,
}

impl ScatterGroups {
    /// Groups for a number of matched pods and of others, both above 0.
    fn new(matched: usize, others: usize) -> Self {
        let count = matched.min(others);
        Self {
            count,
            matched: matched / count,
            // Rounded to the nearest: too few in a group would pile up at the end.
            others: (2 * others + count) / (2 * count),
            others_ahead: 0,
        }
    }

    /// Groups as dense as the pods of the whole workload, if those that are upgraded are less so.
    fn by_density(total: (usize, usize), upgraded: (usize, usize)) -> Self {
        let groups = Self::new(upgraded.0, upgraded.1);
        // Cross-multiplied: integer division would round.
        if total.1 * upgraded.0 >= upgraded.1 * total.0 {
            return groups;
        }
        let Self {
            matched, others, ..
        } = Self::new(total.0, total.1);
        let count = (upgraded.0 / matched).min(upgraded.1 / others);
        Self {
            count,
            matched,
            others,
            others_ahead: upgraded.1 - count * others,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
