//! How many pods are created, deleted and updated: numbers in, numbers out.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use super::super::scale::{Difference, PodCounts, Targets};
use super::super::set::PodSet;

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

/// A set with these numbers of a row of the table.
fn targets_of(numbers: &str, options: &str) -> Targets {
    let amount = |text: &str| {
        text.parse::<i32>()
            .map_or_else(|_| json!(text), Value::from)
    };
    let [n, p, u, s] = numbers.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{numbers:?}");
    };
    let scale = options.strip_prefix("scale=").map(amount);
    let set = json!({"metadata": {}, "spec": {"selector": {}, "template": {}, "replicas": amount(n),
        "scaleStrategy": {"maxUnavailable": scale},
        "updateStrategy": {"partition": amount(p), "maxUnavailable": amount(u), "maxSurge": amount(s), "paused": options == "paused"}}});
    let mut targets = PodSet::read(&serde_json::from_value(set).unwrap()).targets();
    targets.excludes_held = options == "exclude";
    targets
}

fn counts_of(pods: &str) -> PodCounts {
    let mut counts = PodCounts::default();
    for pod in pods.chars() {
        counts.active += usize::from(pod != 'h');
        counts.held += usize::from(pod == 'h');
        counts.specified += usize::from("dx".contains(pod));
        counts.specified_unavailable += usize::from(pod == 'x');
        counts.unavailable += usize::from(pod == 'u');
    }
    counts
}

/// The results of a row, by name.
fn results_of(text: &str) -> impl Iterator<Item = (&str, i64)> {
    let words = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    words.map(|(name, number)| (name, number.parse().unwrap()))
}

/// Every row of `OpenKruise`'s own table, with its numbers or with ours and the rule that says why.
// CLS-5, CLS-19, CLS-20, CLS-21, CLS-22, CLS-23, CLS-31, CLS-34, CLD-30, CLD-65
#[test]
fn the_numbers_are_those_of_openkruise_but_where_a_rule_says_otherwise() {
    let rows = include_str!("numbers.txt").lines();
    let (mut count, mut differ) = (0, 0);
    for row in rows.filter(|row| !row.starts_with('#')) {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, old, new, numbers, options, theirs, ref ours @ ..] = columns[..] else {
            panic!("{row}");
        };
        let (old, new) = (counts_of(old), counts_of(new));
        let found = Difference::of(old, new, &targets_of(numbers, options));
        let number = |count: usize| i64::try_from(count).unwrap();
        let if_any = |any: usize, count: usize| if any > 0 { number(count) } else { 0 };
        let named = old.specified + new.specified;
        let available = if_any(found.delete + named, found.delete_available);
        let found = BTreeMap::from([
            ("missing", number(found.missing)),
            ("create", number(found.create)),
            ("create-old", if_any(found.missing, found.create_old)),
            ("delete", number(found.delete)),
            ("delete-old", if_any(found.delete, found.delete_old)),
            ("available", available),
            ("surge", number(found.surge)),
            ("update", number(found.update)),
            ("out", if_any(found.update, found.update_unavailable)),
        ]);
        let mut wanted: BTreeMap<_, _> = found.keys().map(|name| (*name, 0)).collect();
        wanted.extend(results_of(theirs));
        for ours in ours {
            let theirs = wanted.clone();
            wanted.extend(results_of(ours));
            assert_ne!(wanted, theirs, "{row}: no difference");
            assert!(ours.contains(" CL"), "{row}: no rule");
            differ += 1;
        }
        assert_eq!(found, wanted, "{row}");
        count += 1;
    }
    assert_eq!((count, differ), (80, 6));
}

// CLS-3
#[test]
fn what_a_set_does_not_say_is_as_with_openkruise() {
    let set = json!({"metadata": {}, "spec": {"selector": {}, "template": {}, "replicas": 11}});
    let wanted = Targets {
        replicas: 11,
        partition: 0,
        unavailable: 3,
        surge: 0,
        unavailable_to_scale: None,
        ..Targets::default()
    };
    let set = PodSet::read(&serde_json::from_value(set).unwrap());
    assert_eq!(set.targets(), wanted);
}
