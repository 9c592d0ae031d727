//! The namespaces whose messages are cut while the status of a node is too large.
//!
//! The messages of a node share a room in bytes. While they take more, the namespace whose messages take the most gets
//! the next of four limits. So one that takes no more than an equal part of the room keeps its messages whole, whatever
//! the others print. A namespace has one limit for all its messages: if they were cut one by one, which of them are
//! whole would depend on their order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::podprobe::verdict::VERDICT_MESSAGE_BYTES;

/// Limits of the bytes of each message of a namespace.
pub(super) const MESSAGE_LIMITS: [usize; 4] = [VERDICT_MESSAGE_BYTES, 256, 64, 0];
const LAST: usize = MESSAGE_LIMITS.len() - 1;
const _: () = assert!(
    MESSAGE_LIMITS[0] > MESSAGE_LIMITS[1]
        && MESSAGE_LIMITS[1] > MESSAGE_LIMITS[2]
        && MESSAGE_LIMITS[2] > MESSAGE_LIMITS[3],
    "each limit makes the status smaller than the one before"
);
/// A namespace is given a larger limit only where that leaves a quarter of the room free. Otherwise one that prints a little
/// more and a little less in turn would have its messages cut and written again each time.
const REFILLED: (usize, usize) = (3, 4);

/// The namespaces whose messages are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageLimits {
    /// The place of its limit in [`MESSAGE_LIMITS`]; those that are absent have the first.
    cut: BTreeMap<Arc<str>, usize>,
}

/// The bytes that the messages of each namespace take, for each of [`MESSAGE_LIMITS`].
#[derive(Debug, Default)]
pub(super) struct MessageSizes<'a> {
    by_namespace: BTreeMap<&'a Arc<str>, [usize; MESSAGE_LIMITS.len()]>,
}

impl MessageLimits {
    /// No message for any of these namespaces.
    pub(super) fn none_for(sizes: &MessageSizes<'_>) -> Self {
        let namespaces = sizes.by_namespace.keys();
        Self {
            cut: namespaces.map(|name| ((*name).clone(), LAST)).collect(),
        }
    }

    /// Whether no message is cut.
    pub(super) fn is_empty(&self) -> bool {
        self.cut.is_empty()
    }

    /// The most bytes that a message of a namespace may have.
    pub(super) fn limit_of(&self, namespace: &str) -> usize {
        MESSAGE_LIMITS[self.place_of(namespace)]
    }

    fn place_of(&self, namespace: &str) -> usize {
        self.cut.get(namespace).copied().unwrap_or_default()
    }

    /// The limits with which all messages take at most `room` bytes; the present ones stay where they do.
    pub(super) fn fit_room(&self, sizes: &MessageSizes<'_>, room: usize) -> Self {
        let most = sizes.places_within(room / REFILLED.1 * REFILLED.0);
        let least = sizes.places_within(room);
        let cut = most.into_iter().map(|(namespace, most)| {
            let least = least.get(namespace).copied().unwrap_or_default();
            let place = self.place_of(namespace).clamp(least, most);
            (namespace.clone(), place)
        });
        Self {
            cut: cut.filter(|(_, place)| *place > 0).collect(),
        }
    }
}

impl<'a> MessageSizes<'a> {
    /// Adds a message of a namespace with its bytes for each limit.
    pub(super) fn add_message(
        &mut self,
        namespace: &'a Arc<str>,
        bytes: [usize; MESSAGE_LIMITS.len()],
    ) {
        let sum = self.by_namespace.entry(namespace).or_default();
        let mut most = 0;
        // The sizes are added from the smallest limit on: a message that is not sent yet may be shorter and still take
        // more, by its escapes. A smaller limit must not count as the larger size.
        for (sum, bytes) in sum.iter_mut().zip(bytes).rev() {
            most = bytes.max(most);
            *sum += most;
        }
    }

    /// The bytes that all messages take with these limits.
    pub(super) fn total(&self, limits: &MessageLimits) -> usize {
        let sizes = self.by_namespace.iter();
        sizes
            .map(|(namespace, sizes)| sizes[limits.place_of(namespace)])
            .sum()
    }

    /// The place of the limit of each namespace with which all messages take at most `room` bytes. The steps to it do not
    /// depend on the room, only their number does: less room means no larger limit for anybody.
    fn places_within(&self, room: usize) -> BTreeMap<&'a Arc<str>, usize> {
        let sizes = self.by_namespace.iter();
        let mut places: BTreeMap<_, _> = sizes.clone().map(|(name, _)| (*name, 0)).collect();
        let mut total: usize = sizes.clone().map(|(_, sizes)| sizes[0]).sum();
        // The first by name is cut first if two take as much.
        let mut largest: BinaryHeap<_> = sizes
            .map(|(name, sizes)| (sizes[0], Reverse(*name)))
            .collect();
        while total > room
            && let Some((bytes, Reverse(namespace))) = largest.pop()
        {
            let (Some(place), Some(sizes)) =
                (places.get_mut(namespace), self.by_namespace.get(namespace))
            else {
                continue;
            };
            if *place < LAST {
                *place += 1;
                total = total - bytes + sizes[*place];
                largest.push((sizes[*place], Reverse(namespace)));
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// Each namespace with so many messages of so many bytes.
    fn sizes_of(namespaces: &[(Arc<str>, usize, usize)]) -> MessageSizes<'_> {
        let mut sizes = MessageSizes::default();
        for (namespace, messages, bytes) in namespaces {
            for _ in 0..*messages {
                sizes.add_message(namespace, MESSAGE_LIMITS.map(|limit| limit.min(*bytes)));
            }
        }
        sizes
    }

    fn limits_of(limits: &MessageLimits) -> Vec<usize> {
        ["a", "b", "c"].map(|one| limits.limit_of(one)).into()
    }

    // PRB-17, DEF-23
    #[rstest]
    #[case::all_fit(100_000, [1024, 1024, 1024])]
    #[case::the_largest_is_cut(50_000, [256, 1024, 1024])]
    #[case::then_the_next(30_000, [256, 256, 1024])]
    #[case::then_the_first_again(20_000, [64, 256, 1024])]
    #[case::none_is_left(0, [0, 0, 0])]
    fn the_namespace_that_takes_most_is_cut_first(
        #[case] room: usize,
        #[case] expected: [usize; 3],
    ) {
        let namespaces = [
            ("a".into(), 60, 1024),
            ("b".into(), 20, 1024),
            ("c".into(), 2, 1024),
        ];
        let limits = MessageLimits::default().fit_room(&sizes_of(&namespaces), room);
        assert_eq!(limits_of(&limits), expected);
    }

    // PRB-17, DEF-23
    #[test]
    fn a_limit_grows_again_only_with_room_to_spare() {
        let fit = |before: &MessageLimits, messages: usize| {
            let namespaces = [("a".into(), messages, 1000), ("b".into(), 10, 1000)];
            before.fit_room(&sizes_of(&namespaces), 100_000)
        };
        let whole = fit(&MessageLimits::default(), 90);
        assert_eq!(limits_of(&whole), [1024, 1024, 1024]);
        let cut = fit(&whole, 91);
        assert_eq!(limits_of(&cut), [256, 1024, 1024]);
        assert_eq!(fit(&cut, 89), cut);
        assert_eq!(fit(&cut, 66), cut);
        assert_eq!(fit(&cut, 65), whole);
    }

    proptest! {
        // PRB-17, DEF-23
        #[test]
        fn all_fit_and_who_takes_an_equal_part_is_whole(
            namespaces in prop::collection::vec((0_usize..40, 0_usize..1025), 1..6),
            before in prop::collection::vec(0..MESSAGE_LIMITS.len(), 6),
            room in 0_usize..60_000,
        ) {
            let namespaces: Vec<(Arc<str>, _, _)> = namespaces
                .into_iter()
                .enumerate()
                .map(|(place, (messages, bytes))| (place.to_string().into(), messages, bytes))
                .collect();
            let sizes = sizes_of(&namespaces);
            let cut = namespaces.iter().zip(before);
            let before = MessageLimits { cut: cut.map(|((name, ..), place)| (name.clone(), place)).collect() };
            let limits = before.fit_room(&sizes, room);
            prop_assert!(sizes.total(&limits) <= room);
            prop_assert_eq!(&limits.fit_room(&sizes, room), &limits);
            let fresh = MessageLimits::default().fit_room(&sizes, room);
            prop_assert!(sizes.total(&fresh) <= room);
            let part = room / namespaces.len();
            for (name, messages, bytes) in &namespaces {
                prop_assert!(messages * bytes > part || fresh.limit_of(name) == VERDICT_MESSAGE_BYTES);
                let is_small = messages * bytes <= part / 4 * 3;
                prop_assert!(!is_small || limits.limit_of(name) == VERDICT_MESSAGE_BYTES);
            }
        }
    }
}
