//! Who is to have a value, by claims, labels and records.

use rstest::rstest;

use super::*;
use crate::cluster::ObjectName;

fn name(pod: &str) -> PodName {
    Arc::new(ObjectName {
        namespace: "ns".to_owned(),
        name: pod.to_owned(),
    })
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A claim of a version at a time.
fn claims(version: u64, second: i64) -> Stance {
    Stance::Claims(Claim {
        version: Some(version),
        since: Some(at(second)),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "most pods of the tables have one")]
fn record(holds: bool, version: u64, second: i64) -> Option<Record> {
    Some(Record {
        holds,
        version: Some(version),
        since: Some(Time(at(second))),
        group: None,
    })
}

const HOLDS: bool = true;

fn group(is_versioned: bool, members: &[(Stance, bool, Option<Record>)]) -> Group {
    let mut group = Group {
        is_versioned,
        ..Group::default()
    };
    for (pod, (stance, shows, record)) in ["a", "b", "c"].into_iter().zip(members) {
        let member = ValueMember {
            stance: *stance,
            shows: *shows,
            record: record.clone(),
            is_watched: true,
        };
        group.set_member(&name(pod), Some(member));
    }
    group
}

// PPM-23
#[rstest]
#[case::nobody_claims(true, &[(Stance::Declines, false, None), (Stance::Silent, false, None)], "")]
#[case::the_higher_version(true, &[(claims(7, 9), true, record(HOLDS, 7, 9)), (claims(8, 1), false, None)], "b")]
#[case::of_equal_ones_who_has_it(true, &[(claims(7, 9), false, None), (claims(7, 1), true, record(HOLDS, 7, 1))], "b")]
#[case::of_equal_ones_the_later(true, &[(claims(7, 1), false, None), (claims(7, 9), false, None)], "b")]
#[case::of_equal_times_the_first_name(true, &[(claims(7, 1), false, None), (claims(7, 1), false, None)], "a")]
#[case::none_below_what_was_proved(true, &[(claims(7, 1), false, None), (Stance::Declines, false, record(!HOLDS, 8, 0))], "")]
#[case::what_an_ended_pod_had_counts(true, &[(claims(7, 1), false, None), (Stance::Gone, true, record(HOLDS, 8, 0))], "")]
#[case::an_ended_pod_defends_nothing(true, &[(claims(7, 1), false, None), (Stance::Gone, true, record(HOLDS, 7, 0))], "a")]
#[case::a_silent_pod_keeps_it(true, &[(claims(7, 9), false, None), (Stance::Silent, true, record(HOLDS, 7, 1))], "b")]
#[case::until_a_newer_version(true, &[(claims(8, 1), false, None), (Stance::Silent, true, record(HOLDS, 7, 9))], "a")]
#[case::not_if_it_never_had_it(true, &[(claims(7, 1), false, None), (Stance::Silent, false, record(HOLDS, 7, 9))], "a")]
#[case::nor_by_a_label_without_a_record(true, &[(claims(0, 1), false, None), (Stance::Silent, true, None)], "a")]
#[case::without_versions_the_later(false, &[(claims(9, 1), true, record(HOLDS, 9, 1)), (claims(0, 2), false, None)], "b")]
#[case::and_of_equal_times_who_has_it(false, &[(claims(0, 1), false, None), (claims(0, 1), true, record(HOLDS, 0, 1))], "b")]
#[case::a_silent_one_by_its_record(false, &[(claims(0, 1), false, None), (Stance::Silent, true, record(HOLDS, 0, 2))], "b")]
fn the_best_claim_is_elected(
    #[case] is_versioned: bool,
    #[case] members: &[(Stance, bool, Option<Record>)],
    #[case] expected: &str,
) {
    let group = group(is_versioned, members);
    let holder = group.election().holder.as_ref();
    assert_eq!(holder.map_or("", |holder| &*holder.name), expected);
}

// PPM-23
#[test]
fn a_value_moves_by_announcing_taking_and_giving() {
    let a = name("a");
    let b = name("b");
    let took = [
        (claims(7, 1), true, record(HOLDS, 7, 1)),
        (claims(8, 2), false, None),
    ];
    let mut group = group(true, &took);
    assert_eq!(group.ruling(&b), Ruling::Announced);
    assert_eq!(group.ruling(&a), Ruling::Lost(b.clone()));
    let known = group.wanted_record(&a, &group.ruling(&a));
    assert_eq!(
        known.unwrap().version,
        Some(8),
        "its own claim is outdated for good"
    );
    let announced = ValueMember {
        stance: claims(8, 2),
        shows: false,
        record: record(HOLDS, 8, 2),
        is_watched: false,
    };
    assert!(group.set_member(&b, Some(announced.clone())));
    assert_eq!(group.ruling(&b), Ruling::Awaits(vec![a.clone()]));
    assert!(!group.may_give(&b));
    // The label is gone, but not what says that a write may be under way.
    let half = ValueMember {
        stance: claims(7, 1),
        shows: false,
        record: record(HOLDS, 7, 1),
        is_watched: true,
    };
    group.set_member(&a, Some(half.clone()));
    assert_eq!(group.ruling(&b), Ruling::Awaits(vec![a.clone()]));
    let taken = ValueMember {
        record: record(!HOLDS, 8, 0),
        ..half
    };
    group.set_member(&a, Some(taken));
    assert_eq!(
        group.ruling(&b),
        Ruling::Announced,
        "the watch has not shown it"
    );
    group.set_member(
        &b,
        Some(ValueMember {
            is_watched: true,
            ..announced
        }),
    );
    assert_eq!(group.ruling(&b), Ruling::Has);
    assert!(group.may_give(&b));
}

// PPM-23
#[test]
fn a_record_is_read_as_it_is_written() {
    let records: Records = [("m#p".to_owned(), record(HOLDS, u64::MAX, 1).unwrap())].into();
    let text = serde_json::to_string(&records).unwrap();
    let expected =
        r#"{"m#p":{"holds":true,"version":18446744073709551615,"since":"1970-01-01T00:00:01Z"}}"#;
    assert_eq!(text, expected);
    assert_eq!(serde_json::from_str::<Records>(&text).unwrap(), records);
}
