//! Equal values, kept in memory once. Labels repeat over the pods of a workload, entries over the pods of a marker, and
//! a container's id occurs in the pod, in its entry and in its verdict.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use super::{ObjectName, SortedMap};

/// The interners that every feature needs.
#[derive(Debug, Default)]
pub struct Interners {
    /// Keys, values, ids, messages.
    pub strings: Interner<str>,
    /// Names of objects.
    pub objects: Interner<ObjectName>,
    /// The labels of an object, which those of one workload have in common.
    pub labels: Interner<SortedMap<Arc<str>>>,
}

/// Shared values. Values that nobody else holds any more are dropped from time to time.
#[derive(Debug)]
pub struct Interner<T: ?Sized> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            sweep_at: 0,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    /// The number of values below which dropping unused ones is not worth the search.
    const FEW: usize = 1024;

    /// The shared form of a value.
    pub fn share(&mut self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(known) = self.known.get(value.borrow()) {
            return known.clone();
        }
        // A sweep at each doubling costs a constant for each value that was added.
        if self.known.len() >= self.sweep_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.known.shrink_to(2 * self.known.len());
            self.sweep_at = (2 * self.known.len()).max(Self::FEW);
        }
        let value = value.into();
        self.known.insert(value.clone());
        value
    }
}

impl Interner<str> {
    /// The shared form of a string that is likely to equal a known one: to compare the two is several times faster than
    /// to look the string up among those of all objects, which are not in the processor's caches.
    pub fn share_like(&mut self, known: Option<&Arc<str>>, text: &str) -> Arc<str> {
        match known {
            Some(known) if **known == *text => known.clone(),
            _ => self.share(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_forgotten_ones_go() {
        let mut names = Interner::<str>::default();
        let kept = names.share("kept");
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
        for number in 0..10 * Interner::<str>::FEW {
            names.share(number.to_string().as_str());
        }
        assert!(names.known.len() <= Interner::<str>::FEW + 1);
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }
}
