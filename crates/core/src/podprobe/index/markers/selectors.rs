//! Markers by the labels that they require, so that a pod is not compared with all markers of its namespace.
//!
//! A marker is listed under one of the label pairs that it requires: the pair under which the fewest markers were
//! listed when it was added. Markers of a namespace often have one pair in common; listed under it, all of them would
//! be compared with every pod that has it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::cluster::Selector;
use crate::podprobe::index::context::MarkerName;
use crate::podprobe::pod::IndexedPod;

/// The markers of all namespaces.
#[derive(Debug, Default)]
pub(super) struct SelectorIndex {
    by_namespace: HashMap<String, NamespaceMarkers>,
}

type MarkersByValue = BTreeMap<Arc<str>, BTreeSet<MarkerName>>;

/// The markers of one namespace.
#[derive(Debug, Default)]
struct NamespaceMarkers {
    by_pair: HashMap<Arc<str>, MarkersByValue>,
    /// Markers that require no pair.
    others: BTreeSet<MarkerName>,
}

impl NamespaceMarkers {
    /// How many markers are listed under a label with one of these values.
    fn count_listed(&self, key: &str, values: &[Arc<str>]) -> usize {
        let by_value = self.by_pair.get(key);
        let listed = |value| by_value.and_then(|by_value| by_value.get(value));
        values.iter().filter_map(listed).map(BTreeSet::len).sum()
    }
}

impl SelectorIndex {
    pub(super) fn insert_marker(&mut self, marker: &MarkerName, selector: &Selector) {
        let namespace = self
            .by_namespace
            .entry(marker.namespace.clone())
            .or_default();
        let least = selector
            .pairs()
            // The fewest values decide between equal pairs, since the marker is listed under each value.
            .min_by_key(|(key, values)| (namespace.count_listed(key, values), values.len()));
        match least {
            Some((key, values)) => {
                let by_value = namespace.by_pair.entry(key.clone()).or_default();
                for value in values {
                    let markers = by_value.entry(value.clone()).or_default();
                    markers.insert(marker.clone());
                }
            }
            None => {
                namespace.others.insert(marker.clone());
            }
        }
    }

    pub(super) fn remove_marker(&mut self, marker: &MarkerName, selector: &Selector) {
        let Some(namespace) = self.by_namespace.get_mut(&marker.namespace) else {
            return;
        };
        namespace.others.remove(marker);
        // The marker is listed under one of its pairs.
        for (key, values) in selector.pairs() {
            let Some(by_value) = namespace.by_pair.get_mut(key) else {
                continue;
            };
            for value in values {
                if let Some(markers) = by_value.get_mut(value)
                    && markers.remove(marker)
                    && markers.is_empty()
                {
                    by_value.remove(value);
                }
            }
            if by_value.is_empty() {
                namespace.by_pair.remove(key);
            }
        }
        if namespace.others.is_empty() && namespace.by_pair.is_empty() {
            self.by_namespace.remove(&marker.namespace);
        }
    }

    /// The markers that may match the pod, each once. All that do match are among them.
    pub(super) fn candidates_for<'a>(
        &'a self,
        pod: &IndexedPod,
    ) -> impl Iterator<Item = &'a MarkerName> {
        let namespace = self.by_namespace.get(&pod.name.namespace);
        namespace.into_iter().flat_map(|namespace| {
            // A marker is listed under one key, of which the pod has one value: no marker comes
            // twice.
            let pairs = pod.labels.iter();
            let by_pair = pairs
                .filter_map(|(key, value)| namespace.by_pair.get(key)?.get(value))
                .flatten();
            by_pair.chain(&namespace.others)
        })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }
}
