//! Whatever the order of events, lists, replies and failures: what is known in the end is what is there, what is wanted is
//! done, nothing is written twice without need, and a budget that counts what was asked is never exceeded.

#![allow(
    clippy::unwrap_used,
    reason = "clippy takes only functions with #[test] for tests"
)]

#[path = "history/feature.rs"]
mod feature;
#[path = "history/server.rs"]
mod server;

use std::time::Duration;

use proptest::prelude::*;

use self::server::{Answer, Play, Step};

const COLOURS: [Option<&str>; 3] = [None, Some("blue"), Some("red")];

fn step() -> impl Strategy<Value = Step> {
    let map = 0..2_usize;
    let pod = 0..3_usize;
    let colour = prop::sample::select(&COLOURS[..]);
    prop_oneof![
        4 => (map.clone(), colour.clone()).prop_map(|(map, colour)| Step::Paint { map, colour }),
        1 => map.clone().prop_map(|map| Step::DeleteMap { map }),
        4 => (pod.clone(), map).prop_map(|(pod, map)| Step::CreatePod { pod, map }),
        2 => pod.clone().prop_map(|pod| Step::DeletePod { pod }),
        2 => (pod.clone(), colour).prop_map(|(pod, colour)| Step::Scratch { pod, colour }),
        6 => pod.prop_map(|pod| Step::Dry { pod }),
        2 => pod_number().prop_map(|pod| Step::Touch { pod }),
        4 => (any::<bool>(), 1..4_usize).prop_map(|(pods, events)| Step::WatchAndSend { pods, events }),
        8 => (any::<bool>(), 1..4_usize).prop_map(|(pods, events)| Step::Watch { pods, events }),
        2 => any::<bool>().prop_map(|pods| Step::List { pods }),
        1 => any::<bool>().prop_map(|pods| Step::TakeListBeside { pods }),
        2 => Just(Step::ShowListBeside),
        1 => Just(Step::Restore),
        1 => Just(Step::NewTerm),
        8 => answer().prop_map(Step::Answer),
        6 => (0..3_000_u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

fn pod_number() -> impl Strategy<Value = usize> {
    0..3_usize
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::Done),
        2 => Just(Answer::DoneAndLost),
        2 => Just(Answer::Lost),
        1 => Just(Answer::Conflict),
        1 => Just(Answer::Refused),
        1 => Just(Answer::Undone),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn the_end_does_not_depend_on_the_way(steps in prop::collection::vec(step(), 1..60)) {
        let mut play = Play::new();
        for step in &steps {
            play.step(step);
        }
        play.heal();
    }
}

#[test]
fn a_key_runs_again_when_the_write_of_another_key_is_over() {
    let mut play = Play::new();
    let (paint, blue) = (|map, colour| Step::Paint { map, colour }, COLOURS[2]);
    let steps = [
        paint(1, blue),
        Step::CreatePod { pod: 2, map: 1 },
        Step::Watch {
            pods: true,
            events: 1,
        },
        Step::CreatePod { pod: 0, map: 0 },
        Step::WatchAndSend {
            pods: false,
            events: 1,
        },
        // The pod that is being painted for one map becomes another one's, whose other pod waits for it.
        Step::DeletePod { pod: 2 },
        Step::Scratch {
            pod: 0,
            colour: blue,
        },
        Step::CreatePod { pod: 2, map: 0 },
        Step::Dry { pod: 0 },
        Step::List { pods: true },
    ];
    for step in &steps {
        play.step(step);
    }
    play.heal();
}

#[test]
fn what_somebody_undoes_comes_again_at_growing_distance() {
    let mut play = Play::new();
    play.step(&Step::Paint {
        map: 0,
        colour: COLOURS[2],
    });
    play.step(&Step::CreatePod { pod: 0, map: 0 });
    play.show_all();
    let mut sent = Vec::new();
    for second in 0..200 {
        // What is sent at once after a reply counts for the same second.
        while play.writes_under_way() > 0 {
            sent.push(second);
            play.step(&Step::Answer(Answer::Undone));
        }
        play.wait(Duration::from_secs(1));
    }
    assert_eq!(sent, [0, 0, 1, 3, 7, 15, 31, 63, 123, 183]);
}

#[test]
fn what_is_refused_rests_and_another_wish_is_written_at_once() {
    let mut play = Play::new();
    play.step(&Step::Paint {
        map: 0,
        colour: COLOURS[2],
    });
    play.step(&Step::CreatePod { pod: 0, map: 0 });
    play.show_all();
    play.step(&Step::Answer(Answer::Refused));
    play.wait(Duration::from_secs(299));
    assert_eq!(play.writes_under_way(), 0);
    play.wait(Duration::from_secs(2));
    assert_eq!(play.writes_under_way(), 1);
    play.step(&Step::Answer(Answer::Refused));
    play.step(&Step::Paint {
        map: 0,
        colour: COLOURS[1],
    });
    play.show_all();
    assert_eq!(play.writes_under_way(), 1);
}

#[test]
fn a_write_whose_fate_is_unknown_keeps_its_place_until_an_event_or_for_five_minutes() {
    let mut play = Play::new();
    for pod in 0..2 {
        play.step(&Step::CreatePod { pod, map: 0 });
    }
    play.step(&Step::Paint {
        map: 0,
        colour: COLOURS[2],
    });
    play.show_all();
    assert_eq!(play.writes_under_way(), 1);
    // The wish is gone, and the pod may get wet all the same.
    play.step(&Step::Paint {
        map: 0,
        colour: None,
    });
    play.show_all();
    play.step(&Step::Answer(Answer::Lost));
    assert!(play.is_asked(0) && play.writes_under_way() == 0);
    play.wait(Duration::from_secs(290));
    assert!(play.is_asked(0));
    play.wait(Duration::from_secs(11));
    assert!(!play.is_asked(0));
}

/// A write is sent again after a lost reply. What the first attempt did, and what becomes of the second, says nothing of the
/// other one.
#[test]
fn a_write_that_was_sent_twice_keeps_its_place_until_both_are_known() {
    use Step::{CreatePod, NewTerm, Paint, Scratch, WatchAndSend};
    let blue = COLOURS[1];
    let events = |pods, events| WatchAndSend { pods, events };
    let shown_by_the_first = [
        Paint {
            map: 0,
            colour: blue,
        },
        CreatePod { pod: 2, map: 0 },
        events(false, 1),
        CreatePod { pod: 0, map: 0 },
        events(true, 1),
        Step::Answer(Answer::DoneAndLost),
        Scratch {
            pod: 2,
            colour: None,
        },
        events(true, 3),
    ];
    let refused_the_second_time = [
        CreatePod { pod: 1, map: 0 },
        Scratch {
            pod: 1,
            colour: blue,
        },
        Step::Dry { pod: 1 },
        events(true, 2),
        CreatePod { pod: 0, map: 0 },
        NewTerm,
        Step::List { pods: true },
        Paint {
            map: 0,
            colour: blue,
        },
        Step::Dry { pod: 1 },
        events(false, 1),
        events(true, 1),
        Step::Answer(Answer::DoneAndLost),
        Step::Answer(Answer::Conflict),
    ];
    for steps in [&shown_by_the_first[..], &refused_the_second_time] {
        let mut play = Play::new();
        for step in steps {
            play.step(step);
        }
        play.heal();
    }
}
