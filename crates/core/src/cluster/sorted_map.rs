//! A map of a few entries by name, kept as a sorted slice without spare room: every pod has several of them, and a
//! `BTreeMap` allocates room for eleven entries with the first one.

use std::sync::Arc;

/// Entries by name, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SortedMap<V>(Box<[(Arc<str>, V)]>);

impl<V> Default for SortedMap<V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<V> SortedMap<V> {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.place(name).map(|place| &self.0[place].1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        self.place(name).map(|place| &mut self.0[place].1)
    }

    /// Whether the name is there.
    pub fn contains_key(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// The names, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|(name, _)| name)
    }

    /// The values in the order of their names, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, name: &str) -> Option<usize> {
        let place = self.0.binary_search_by(|(known, _)| (**known).cmp(name));
        place.ok()
    }
}

impl<V: Clone> Extend<(Arc<str>, V)> for SortedMap<V> {
    fn extend<I: IntoIterator<Item = (Arc<str>, V)>>(&mut self, entries: I) {
        let known = std::mem::take(self).0;
        *self = known.into_iter().chain(entries).collect();
    }
}

impl<V> FromIterator<(Arc<str>, V)> for SortedMap<V> {
    /// Keeps the last of several entries of the same name, as any map does.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, V)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        // A stable sort: of equal names the one that came last has to stay last.
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|later, earlier| {
            // `dedup_by` drops the later one, so the two change places before.
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        Self(entries.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_map(entries in proptest::collection::vec(("[a-d]{0,2}", any::<u8>()), 0..12)) {
            let named = || entries.iter().map(|(name, value)| (Arc::from(name.as_str()), *value));
            let mut sorted: SortedMap<u8> = named().collect();
            let map: BTreeMap<Arc<str>, u8> = named().collect();
            prop_assert!(sorted.iter().eq(map.iter()));
            prop_assert_eq!(sorted.is_empty(), map.is_empty());
            for name in ["", "a", "b", "ad", "da", "e"] {
                prop_assert_eq!(sorted.get(name), map.get(name));
                prop_assert_eq!(sorted.contains_key(name), map.contains_key(name));
                prop_assert_eq!(sorted.get_mut(name).copied(), map.get(name).copied());
            }
        }
    }
}
