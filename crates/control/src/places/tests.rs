use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Places of which each flow tries to take so many.
fn taken(limit: usize, tries: &[usize]) -> Places {
    let mut places = Places::new(limit);
    places.add_flows(tries.len());
    for (flow, tries) in tries.iter().enumerate() {
        for _ in 0..*tries {
            places.try_take(flow);
        }
    }
    places
}

#[test]
fn a_flow_that_is_busy_alone_gets_all_places_but_the_others_own() {
    for (limit, flows, expected) in [(32, 1, 32), (32, 4, 26), (32, 8, 25), (4, 3, 2), (2, 3, 2)] {
        let mut tries = vec![0; flows];
        tries[0] = 99;
        assert_eq!(
            taken(limit, &tries).taken_by_flow()[0],
            expected,
            "{limit} {flows}"
        );
    }
}

#[test]
fn the_first_requests_of_a_flow_wait_for_nobodys_answer() {
    let mut places = taken(32, &[10_000, 0, 0, 0]);
    for flow in 1..4 {
        assert!(places.try_take(flow) && places.try_take(flow), "{flow}");
        assert!(!places.try_take(flow), "{flow}");
    }
    assert_eq!(places.taken_by_flow(), [26, 2, 2, 2]);
}

#[test]
fn ten_thousand_creations_do_not_starve_the_marks_of_another_feature() {
    // The creations have all they can get when the marks come; each answer is to a creation.
    let mut places = taken(32, &[10_000, 0]);
    for _ in 0..16 {
        while places.try_take(1) {}
        places.give_back(0);
        // The one with the creations is quicker to ask, each time.
        places.try_take(0);
    }
    while places.try_take(1) {}
    assert_eq!(places.taken_by_flow(), [16, 16]);
}

#[test]
fn a_flow_that_rests_leaves_its_share_to_the_others() {
    let mut places = taken(8, &[99, 99]);
    assert_eq!(places.taken_by_flow(), [7, 1]);
    places.give_back(0);
    assert!(!places.try_take(0), "the other one has fewer, and waits");
    places.take_changed();
    places.stop_waiting(1);
    assert!(places.take_changed(), "the first is to ask again");
    assert!(places.try_take(0));
}

/// What happens to the flow of this index, of those there are.
#[derive(Clone, Debug)]
enum Step {
    Take(Index),
    GiveBack(Index),
    StopWaiting(Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<Index>().prop_map(Step::Take),
        2 => any::<Index>().prop_map(Step::GiveBack),
        1 => any::<Index>().prop_map(Step::StopWaiting),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_the_limit_holds_and_nobody_starves(
        limit in 1..40_usize,
        flows in 1..9_usize,
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut places = Places::new(limit);
        places.add_flows(flows);
        let own = places.guaranteed_per_flow();
        for step in steps {
            let before = places.taken_by_flow();
            match step {
                Step::Take(index) => {
                    let flow = index.index(flows);
                    let took = places.try_take(flow);
                    prop_assert!(took || before[flow] >= own, "its own places are its own");
                }
                Step::GiveBack(index) => {
                    let flow = index.index(flows);
                    if before[flow] > 0 {
                        places.give_back(flow);
                    }
                }
                Step::StopWaiting(index) => places.stop_waiting(index.index(flows)),
            }
            prop_assert!(places.taken_by_flow().iter().sum::<usize>() <= limit);
        }
        // All become busy. As answers come, whoever asks first, the shares become equal.
        for _ in 0..4 * limit {
            for flow in 0..flows {
                while places.try_take(flow) {}
            }
            let most = (0..flows).max_by_key(|flow| places.taken_by_flow()[*flow]).unwrap();
            places.give_back(most);
            while places.try_take(most) {}
        }
        for flow in 0..flows {
            while places.try_take(flow) {}
        }
        let shares = places.taken_by_flow();
        let (fewest, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        prop_assert!(most - fewest <= 1, "{shares:?}");
        prop_assert_eq!(shares.iter().sum::<usize>(), limit);
    }
}
