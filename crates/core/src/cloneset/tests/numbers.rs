//! How many pods are created, deleted and updated: numbers in, numbers out.

use rstest::rstest;

use super::super::scale::{Difference, PodCounts, Targets};

/// Pods: active, specified, unavailable of the others, held.
type Pods = (usize, usize, usize, usize);

fn pods((active, specified, unavailable, held): Pods) -> PodCounts {
    PodCounts {
        active,
        specified,
        unavailable,
        held,
        ..PodCounts::default()
    }
}

const NONE: Pods = (0, 0, 0, 0);

/// Replicas, partition, and how many may be unavailable or too many.
fn difference(old: Pods, new: Pods, (n, p, u, s): (usize, usize, usize, usize)) -> Difference {
    let targets = Targets {
        replicas: n,
        partition: p,
        unavailable: u,
        surge: s,
        ..Targets::default()
    };
    Difference::of(pods(old), pods(new), &targets)
}

// CLS-22
#[rstest]
#[case("nothing is asked for", NONE, (0, 1), 0)]
#[case("five are missing", NONE, (5, 1), 5)]
#[case("five are there", (5, 0, 0, 0), (5, 1), 0)]
#[case("one has gone", (4, 0, 0, 0), (5, 1), 1)]
#[case("one that is named has gone, and another one is named", (4, 1, 0, 0), (5, 1), 1)]
#[case("one is named, and others are enough", (5, 1, 0, 0), (4, 1), 0)]
#[case("a held one counts", (4, 0, 0, 1), (5, 1), 0)]
fn pods_are_created_that_are_missing(
    #[case] case: &str,
    #[case] new: Pods,
    #[case] (n, u): (usize, usize),
    #[case] missing: usize,
) {
    let found = difference(NONE, new, (n, 0, u, 0));
    assert_eq!((found.missing, found.create), (missing, missing), "{case}");
}

// CLS-22, CLS-25, CLD-11
#[rstest]
#[case("five for three", (5, 0, 0, 0), (3, 1), 2, 3)]
#[case("two are named, one is still too many", (5, 2, 0, 0), (2, 1), 1, 4)]
#[case("two are named, and none is too many", (5, 2, 0, 0), (3, 1), 0, 3)]
#[case("two are held, which go already", (4, 0, 0, 2), (4, 1), 0, 1)]
#[case("two are held, and two more are too many", (4, 0, 0, 2), (2, 1), 2, 3)]
#[case("not available ones take from those that may go", (5, 0, 2, 0), (5, 2), 0, 0)]
#[case("all may go where nothing is asked for", (3, 0, 0, 0), (0, 0), 3, 3)]
fn pods_are_deleted_that_are_too_many(
    #[case] case: &str,
    #[case] new: Pods,
    #[case] (n, u): (usize, usize),
    #[case] delete: usize,
    #[case] delete_available: usize,
) {
    let found = difference(NONE, new, (n, 0, u, 0));
    let numbers = (found.delete, found.delete_available);
    assert_eq!(numbers, (delete, delete_available), "{case}");
}

// CLS-20, CLS-23
#[rstest]
#[case("all are old", (5, 0, 0, 0), NONE, (5, 0, 1), 5)]
#[case("three stay", (5, 0, 0, 0), NONE, (5, 3, 1), 2)]
#[case("one of two is done", (4, 0, 0, 0), (1, 0, 0, 0), (5, 3, 1), 1)]
#[case("both are done", (3, 0, 0, 0), (2, 0, 0, 0), (5, 3, 1), 0)]
#[case("a partition that is raised takes nobody back", (1, 0, 0, 0), (4, 0, 0, 0), (5, 4, 2), 0)]
#[case("too many old ones are there, and enough new ones", (4, 0, 0, 0), (5, 0, 0, 0), (5, 0, 1), 0)]
fn pods_are_updated_beyond_the_partition(
    #[case] case: &str,
    #[case] old: Pods,
    #[case] new: Pods,
    #[case] (n, p, u): (usize, usize, usize),
    #[case] update: usize,
) {
    let found = difference(old, new, (n, p, u, 0));
    assert_eq!(found.update, update, "{case}");
    assert_eq!(found.update_unavailable, u + old.0 + new.0 - n, "{case}");
}

// CLS-21
#[rstest]
#[case("for those that are updated", (5, 0, 0, 0), NONE, (5, 0, 1, 2), (2, 2))]
#[case("no more than are updated", (5, 0, 0, 0), NONE, (5, 4, 1, 2), (1, 1))]
#[case("it is there", (5, 0, 0, 0), (2, 0, 0, 0), (5, 0, 1, 2), (2, 0))]
#[case("for one that is named, which may be missed", NONE, (5, 1, 0, 0), (5, 0, 1, 1), (0, 0))]
#[case("for one that is named, which may not be missed", NONE, (5, 1, 0, 0), (5, 0, 0, 1), (1, 1))]
#[case("without one", (5, 0, 0, 0), NONE, (5, 0, 1, 0), (0, 0))]
fn a_surge_stands_in_for_those_that_go(
    #[case] case: &str,
    #[case] old: Pods,
    #[case] new: Pods,
    #[case] targets: (usize, usize, usize, usize),
    #[case] (surge, create): (usize, usize),
) {
    let found = difference(old, new, targets);
    assert_eq!((found.surge, found.create), (surge, create), "{case}");
}

// CLS-22
#[rstest]
#[case("old ones first are missing", (1, 0, 0, 0), (1, 0, 0, 0), (5, 3), 2)]
#[case("old ones are enough", (3, 0, 0, 0), NONE, (5, 3), 0)]
#[case("a named old one counts until it goes", (3, 1, 0, 0), NONE, (5, 3), 0)]
fn missing_pods_are_of_the_revision_that_is_missing(
    #[case] case: &str,
    #[case] old: Pods,
    #[case] new: Pods,
    #[case] (n, p): (usize, usize),
    #[case] create_old: usize,
) {
    assert_eq!(
        difference(old, new, (n, p, 1, 0)).create_old,
        create_old,
        "{case}"
    );
}

// CLS-22, CLS-26
#[test]
fn creations_are_fewer_where_others_are_not_available() {
    let of = |unavailable: usize, most: usize| {
        let targets = Targets {
            replicas: 10,
            unavailable: 1,
            unavailable_to_scale: Some(most),
            ..Targets::default()
        };
        let found = Difference::of(PodCounts::default(), pods((3, 0, unavailable, 0)), &targets);
        (found.missing, found.create)
    };
    assert_eq!(of(0, 2), (7, 2));
    assert_eq!(of(1, 2), (7, 1));
    assert_eq!(of(3, 2), (7, 0));
    assert_eq!(of(3, 100), (7, 7));
}

// CLS-31
#[test]
fn pods_stand_in_for_held_ones_where_the_set_says_so() {
    let of = |excludes_held: bool| {
        let targets = Targets {
            replicas: 3,
            unavailable: 1,
            excludes_held,
            ..Targets::default()
        };
        Difference::of(PodCounts::default(), pods((2, 0, 0, 1)), &targets).create
    };
    assert_eq!((of(false), of(true)), (0, 1));
}
