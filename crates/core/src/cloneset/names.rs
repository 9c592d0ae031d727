//! The names of new pods.

use std::collections::HashSet;

use leadsman_reconcile::{ObjectName, Store};

use super::claim::ClaimTemplate;
use super::claims::Claims;
use super::pod::ClonePod;
use super::set::PodSet;
use crate::workload::hash::fnv1_32;

/// Refused creations of a set beside which no further name is tried. What refuses so many, as a quota does, refuses all.
pub(super) const REFUSED: usize = 10;
/// The letters at the end of a pod's name.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The names of new pods of a set that are free, always in the same order: what is created twice has one name. Those come first
/// whose claims are there.
pub(super) fn free_names<'a>(
    set: &'a PodSet,
    pods: &'a Store<ClonePod>,
    (claims, templates): (&'a Claims<'_>, &'a [&ClaimTemplate]),
) -> impl Iterator<Item = ObjectName> {
    // Any pod takes the name: one of another owner, too, and one that terminates. A pod named to be deleted would go again.
    let is_free = move |name: &ObjectName| {
        !set.spec.pods_to_delete.contains(&name.name)
            && pods.observed(name).is_none()
            && !pods.is_asked(name)
            && !pods.is_coming(name)
            && !pods.undecodable().contains(name)
    };
    // Each run begins with the first number, so most names that are looked at have a pod of the set.
    let taken: HashSet<_> = pods
        .find_in(&set.name.namespace, &set.uid)
        .map(|pod| &*pod.name.name)
        .collect();
    let mut next = set.name.beside(format!("{}-", set.name.name));
    let begin = next.name.len();
    let names = (0_u32..).filter_map(move |number| {
        let number = number.to_string();
        let seed = number.bytes().chain([b'/']).chain(set.uid.bytes());
        let mut hash = fnv1_32(seed);
        next.name.truncate(begin);
        for _ in 0..5 {
            next.name
                .push(char::from(LETTERS[hash as usize % LETTERS.len()]));
            hash /= 27;
        }
        let is_next =
            !taken.contains(&*next.name) && is_free(&next) && claims.are_free(&next, templates);
        is_next.then(|| next.clone())
    });
    claims.unused(templates).filter(is_free).chain(names)
}

/// Pods that may be the set's and cannot be looked at.
pub(super) fn count_undecodable(set: &PodSet, pods: &Store<ClonePod>) -> usize {
    let first = set.name.beside(format!("{}-", set.name.name));
    let from_first = pods.undecodable().range(&first..);
    let named = from_first
        .take_while(|name| name.namespace == first.namespace && name.name.starts_with(&first.name));
    // The name of another set may begin with that of this one.
    named
        .filter(|name| !name.name[first.name.len()..].contains('-'))
        .count()
}
