//! Budgets, partitions and orders, and what holds for any pods.

pub(crate) mod naive;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use self::naive::{Member, Rollout, plan};
use super::{RollingPod, UpgradePlace, is_down, recorded_by_upgrade};
use crate::sidecarset::pod::{LastUpgrade, PodReadiness, PodState, PodVersion, Progress};
use crate::sidecarset::set::SidecarSet;
use crate::workload::pod::ObservedPod;
use crate::workload::scatter::ScatterLabel;

fn set(strategy: &Value) -> SidecarSet {
    let wire = json!({
        "metadata": {"name": "s"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "side", "image": "i:1"}],
            "updateStrategy": strategy,
        },
    });
    SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
}

/// A pod by a letter: `o` old and ready, `O` old and not ready, `x` not upgradable, `u` updated and ready, `U` updated and
/// starting, `d` updated and not ready though its sidecars are, `D` updated with a sidecar that is not ready, `p` updated and
/// not yet restarted; `b` old and not yet restarted, `s` old and starting, `f` old and not ready, `h` old with a hot
/// upgrade that has not ended, all four after an upgrade to what the set was before; `n` updated and ready, `N` updated and
/// not ready though its sidecars are, `e` old and ready after an upgrade, all three for a short time only; `a` updated and
/// not ready though its sidecars are, as it was before, `A` the same with a sidecar that is not ready, `P` the same, ready
/// since, and not yet restarted; `i` created with other containers that do not run yet, `m` old, not ready, and with a record that cannot
/// be read; `c` created with these containers and not ready though its sidecars are, `C` the same with a
/// sidecar that is not ready; `w` updated, not ready as it was before, and not yet restarted; `v` created with these
/// containers, which nobody has tried to start.
fn state(letter: char) -> PodState {
    PodState {
        version: match letter {
            letter if "uUdDpnNaAPcCwv".contains(letter) => PodVersion::Updated,
            'x' => PodVersion::NotUpgradable,
            _ => PodVersion::Upgradable,
        },
        progress: match letter {
            'p' | 'b' | 'P' | 'w' => Progress::BeforeRestart,
            'U' | 's' | 'i' | 'm' | 'v' => Progress::Starting,
            'D' | 'f' | 'A' | 'C' => Progress::Unready,
            _ => Progress::Consistent,
        },
        readiness: match letter {
            'h' => PodReadiness::AwaitsReset,
            letter if "OUdDsfNaAcCimwv".contains(letter) => PodReadiness::NotReady,
            _ => PodReadiness::Ready,
        },
        last_upgrade: match letter {
            'a' | 'A' | 'P' | 'w' => LastUpgrade::OfUnready,
            'm' => LastUpgrade::Unreadable,
            letter if "uUdDpbsfhnNe".contains(letter) => LastUpgrade::OfReady,
            _ => LastUpgrade::None,
        },
        is_selected: true,
        is_fresh: "nNe".contains(letter),
        is_untried: letter == 'v',
    }
}

fn pods(count: usize) -> Vec<ObservedPod> {
    let pods = (0..count).map(|number| {
        let zone = if number % 2 == 0 { "a" } else { "b" };
        let pod = json!({"metadata": {"name": format!("p{number:02}"), "labels": {"zone": zone}}});
        ObservedPod::new(&serde_json::from_value(pod).unwrap())
    });
    pods.collect()
}

fn member(pod: &ObservedPod, state: PodState) -> Member<'_> {
    Member {
        pod,
        state,
        is_refused: false,
    }
}

fn plan_of(strategy: &Value, letters: &str) -> Rollout {
    let pods = pods(letters.len());
    let states = letters.chars().map(state);
    let members: Vec<_> = pods
        .iter()
        .zip(states)
        .map(|(pod, state)| member(pod, state))
        .collect();
    plan(&set(strategy), &members)
}

// SCS-49, SCS-50, SCS-51, SDF-36, SDF-37
#[rstest]
// One at a time unless the set says otherwise.
#[case(json!({}), "oooo", &[0])]
#[case(json!({"maxUnavailable": 2}), "oooo", &[0, 1])]
#[case(json!({"maxUnavailable": "25%"}), "ooooo", &[0, 1])]
#[case(json!({"maxUnavailable": "100%"}), "ooo", &[0, 1, 2])]
// Updated pods that are down, or not yet restarted, count.
#[case(json!({"maxUnavailable": 2}), "ooUo", &[0])]
#[case(json!({"maxUnavailable": 2}), "oopo", &[0])]
#[case(json!({"maxUnavailable": 2}), "oUpo", &[])]
#[case(json!({"maxUnavailable": 2}), "ouuo", &[0, 3])]
// Pods that are down anyway have a budget of their own, against which those not yet restarted count.
#[case(json!({"maxUnavailable": 1}), "OOoo", &[0, 2])]
#[case(json!({"maxUnavailable": 1}), "OOpo", &[])]
#[case(json!({"maxUnavailable": 1}), "OOUo", &[])]
#[case(json!({"maxUnavailable": 1}), "OOdo", &[])]
// A sidecar that runs and never gets ready stops them, an application that is broken does not.
#[case(json!({"maxUnavailable": 1}), "OODo", &[])]
#[case(json!({"maxUnavailable": 2}), "OODD", &[])]
// The partition keeps the last, those that cannot be upgraded among them.
#[case(json!({"partition": 2, "maxUnavailable": 9}), "oooo", &[0, 1])]
#[case(json!({"partition": 2, "maxUnavailable": 9}), "xooo", &[1, 2])]
#[case(json!({"partition": 4, "maxUnavailable": 9}), "xxxxoooooo", &[4, 5, 6, 7, 8, 9])]
#[case(json!({"partition": "50%", "maxUnavailable": 9}), "uooo", &[1])]
#[case(json!({"partition": "99%", "maxUnavailable": 9}), "oo", &[0])]
#[case(json!({"partition": "100%"}), "oo", &[])]
#[case(json!({"partition": 9}), "oo", &[])]
// A pod whose last upgrade has not taken effect waits.
#[case(json!({"maxUnavailable": 9}), "bo", &[1])]
// A pod that an earlier upgrade has taken down counts, and goes first.
#[case(json!({"maxUnavailable": 1}), "so", &[0])]
#[case(json!({"maxUnavailable": 1}), "bo", &[])]
#[case(json!({"maxUnavailable": 2}), "so", &[0, 1])]
#[case(json!({"maxUnavailable": 2}), "ffoo", &[0, 1])]
#[case(json!({"maxUnavailable": 2}), "fooo", &[0, 1])]
#[case(json!({"maxUnavailable": 1}), "Oo", &[0, 1])]
// A hot upgrade is ended before the next one begins, and counts until then.
#[case(json!({"maxUnavailable": 1}), "ho", &[])]
#[case(json!({"maxUnavailable": 2}), "ho", &[1])]
// An upgraded pod that is ready for a short time only may still fail.
#[case(json!({"maxUnavailable": 1}), "no", &[])]
#[case(json!({"maxUnavailable": 1}), "uo", &[1])]
#[case(json!({"maxUnavailable": 1}), "nO", &[])]
#[case(json!({"maxUnavailable": 1}), "NO", &[])]
// A pod that is not ready for a moment does not get an image that may have broken another.
#[case(json!({"maxUnavailable": 1}), "dO", &[])]
#[case(json!({"maxUnavailable": 2}), "dOO", &[1])]
#[case(json!({"maxUnavailable": 1}), "eo", &[0])]
#[case(json!({"maxUnavailable": 2}), "no", &[1])]
// An application that was broken before, or in a pod that is new, holds up nobody.
#[case(json!({"maxUnavailable": 1}), "ao", &[1])]
#[case(json!({"maxUnavailable": 1}), "aO", &[1])]
#[case(json!({"maxUnavailable": 1}), "co", &[1])]
#[case(json!({"maxUnavailable": 1}), "cO", &[1])]
// Nor does a pod that is being created with another image, unless an upgrade that nobody can read about took it down.
#[case(json!({"maxUnavailable": 1}), "io", &[0, 1])]
#[case(json!({"maxUnavailable": 1}), "mo", &[0])]
// One that an upgrade may have broken, or whose sidecars do not run, does.
#[case(json!({"maxUnavailable": 1}), "do", &[])]
#[case(json!({"maxUnavailable": 1}), "Ao", &[])]
#[case(json!({"maxUnavailable": 1}), "AO", &[])]
#[case(json!({"maxUnavailable": 1}), "Po", &[])]
// Where nobody has tried the sidecars, for want of a node or of a volume, nothing says that they are bad.
#[case(json!({"maxUnavailable": 1}), "wo", &[1])]
#[case(json!({"maxUnavailable": 1}), "wO", &[])]
#[case(json!({"maxUnavailable": 1}), "vo", &[1])]
#[case(json!({"maxUnavailable": 1}), "vO", &[])]
#[case(json!({"maxUnavailable": 1}), "Co", &[])]
#[case(json!({"maxUnavailable": 1}), "CO", &[])]
#[case(json!({"paused": true}), "oo", &[])]
#[case(json!({"type": "NotUpdate"}), "oo", &[])]
fn the_next_pods(#[case] strategy: Value, #[case] letters: &str, #[case] next: &[usize]) {
    assert_eq!(
        plan_of(&strategy, letters).next,
        next,
        "{strategy} {letters}"
    );
}

// SCS-46, SCS-52
#[test]
fn only_selected_pods_are_upgraded() {
    let pods = pods(2);
    let mut members: Vec<_> = pods.iter().map(|pod| member(pod, state('o'))).collect();
    members[0].state.is_selected = false;
    let set = set(&json!({"maxUnavailable": 9}));
    assert_eq!(plan(&set, &members).next, [1]);
}

// SDF-35
#[test]
fn a_pod_whose_write_was_refused_holds_up_nobody() {
    let pods = pods(2);
    let mut members: Vec<_> = pods.iter().map(|pod| member(pod, state('o'))).collect();
    members[0].is_refused = true;
    assert_eq!(plan(&set(&json!({})), &members).next, [1]);
}

// SCS-48
#[test]
fn pods_are_taken_by_priority_and_then_spread() {
    let by_zone = json!({"maxUnavailable": 9, "priorityStrategy": {"weightPriority": [{"weight": 1, "matchSelector": {"matchLabels": {"zone": "b"}}}]}});
    assert_eq!(plan_of(&by_zone, "oooo").next, [1, 3, 0, 2]);
    let mut spread = by_zone;
    spread["scatterStrategy"] = json!([{"key": "zone", "value": "*"}]);
    assert_eq!(plan_of(&spread, "oooooo").next.len(), 6);
    assert_ne!(plan_of(&spread, "oooooo").next, [1, 3, 5, 0, 2, 4]);
}

#[test]
fn what_waits_and_what_is_kept_is_counted() {
    let rollout = plan_of(&json!({"partition": 2, "maxUnavailable": 1}), "xooooo");
    assert_eq!(
        rollout,
        Rollout {
            next: vec![1],
            waiting: 3,
            kept: 1,
            not_upgradable: 1
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-50
    #[test]
    fn no_image_that_follows_gives_back_the_place_that_an_upgrade_has_taken(
        letter in proptest::sample::select("oOxuUdDpbsfhnNeaAPcCimwv".chars().collect::<Vec<_>>()),
    ) {
        let before = state(letter);
        let recorded = recorded_by_upgrade(before);
        let was_lost = is_down(before) && !before.is_ready() && before.last_upgrade == LastUpgrade::OfReady;
        prop_assert!(!(was_lost || before.is_ready()) || recorded == LastUpgrade::OfReady);
        // Nor does an image take a place for good that the one before had not.
        prop_assert!(is_down(before) || before.is_ready() || recorded == LastUpgrade::OfUnready);
    }

    // SCS-49, SCS-50
    #[test]
    fn no_more_ready_pods_are_down_than_may_be_and_enough_stay_old(
        letters in "[oOxuUdDpbsfhnNeaAPcCimwv]{0,16}",
        max_unavailable in 1_u32..5,
        partition in 0_u32..8,
    ) {
        let strategy = json!({"maxUnavailable": max_unavailable, "partition": partition});
        let rollout = plan_of(&strategy, &letters);
        let states: Vec<_> = letters.chars().map(state).collect();
        let count = |is: &dyn Fn(&PodState) -> bool| states.iter().filter(|state| is(state)).count();
        // What an upgrade has taken down, and what shows that the image is bad.
        let taken_down = |state: &PodState| match state.last_upgrade {
            LastUpgrade::OfReady => true,
            LastUpgrade::Unreadable => state.progress != Progress::Consistent,
            // It has lost nothing: it counts where its sidecars were tried and do not run or are not ready, and where it is
            // ready and they are about to be stopped.
            LastUpgrade::OfUnready | LastUpgrade::OfFormerSet | LastUpgrade::None => {
                match state.progress {
                    Progress::BeforeRestart => state.is_ready(),
                    Progress::Starting | Progress::Unready => state.is_updated() && !state.is_untried,
                    Progress::Consistent => false,
                }
            }
        };
        let down = count(&|state| (!state.is_serving() || state.is_fresh) && taken_down(state));
        // One that became ready just now counts as down already.
        let ready = rollout.next.iter().filter(|place| states[**place].would_go_down()).count();
        prop_assert!(ready == 0 || down + ready <= max_unavailable as usize);
        let old = count(&|state| !state.is_updated()) - rollout.next.len();
        prop_assert!(rollout.next.is_empty() || old >= partition as usize);
        for place in &rollout.next {
            prop_assert!(states[*place].is_candidate());
        }
        // Nothing is left undone without a reason.
        let candidates = count(&|state| state.is_candidate());
        prop_assert_eq!(rollout.next.len() + rollout.waiting + rollout.kept, candidates);
    }
}

fn any_terms() -> impl Strategy<Value = Vec<ScatterLabel>> {
    let key = || proptest::sample::select(vec!["zone", "app"]);
    let value = proptest::option::weighted(0.6, proptest::sample::select(vec!["a", "b", "c"]));
    let term = (key(), value).prop_map(|(key, value)| ScatterLabel {
        key: key.into(),
        value: value.map(Into::into),
    });
    proptest::collection::vec(term, 0..4)
}

fn labelled_pod(number: usize, zone: &str, app: &str) -> ObservedPod {
    let mut labels = json!({"rank": format!("r-{}", number % 3)});
    for (key, value) in [("zone", zone), ("app", app)] {
        if value != "-" {
            labels[key] = json!(value);
        }
    }
    let pod = json!({"metadata": {"name": format!("p{number:02}"), "labels": labels}});
    ObservedPod::new(&serde_json::from_value(pod).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-48, SCS-49, SCS-50, SCS-51
    #[test]
    fn pods_are_upgraded_in_the_order_and_within_the_limits_of_the_model(
        terms in any_terms(),
        labels in proptest::collection::vec(("[oOxuUdDpbsfhnNeaAPcCimwv]", "[abc-]", "[ab-]", any::<bool>()), 0..60),
        (partition, most, is_paused) in (0..6_u32, 1..6_u32, proptest::bool::weighted(0.1)),
    ) {
        let mut set = set(&json!({
            "partition": partition, "maxUnavailable": most, "paused": is_paused,
            "priorityStrategy": {"orderPriority": [{"orderedKey": "rank"}]},
        }));
        set.update.scatter = terms;
        let pods = labels.iter().enumerate();
        let pods: Vec<_> = pods.map(|(number, (_, zone, app, _))| labelled_pod(number, zone, app)).collect();
        let members: Vec<_> = pods.iter().zip(&labels).map(|(pod, (letter, _, _, is_refused))| Member {
            is_refused: *is_refused,
            ..member(pod, state(letter.chars().next().unwrap()))
        }).collect();
        let owned: Vec<_> = members.iter().map(|Member { pod, state, is_refused }| {
            let may_be = state.is_candidate() && !is_refused;
            (may_be.then(|| UpgradePlace::new(&set, pod)), set.update.scattered_labels(pod))
        }).collect();
        let rolling: Vec<_> = members.iter().zip(&owned).map(|(member, (place, labels))| RollingPod {
            state: member.state,
            place: place.as_ref(),
            labels,
            is_sent: false,
        }).collect();
        let found = super::Rollout::plan(&set, &rolling);
        let planned = plan(&set, &members);
        prop_assert_eq!(&found.next, &planned.next);
        prop_assert!(found.again.is_empty());
        if !is_paused {
            prop_assert_eq!((found.waiting.len(), found.kept.len()), (planned.waiting, planned.kept));
        }
    }

    /// What was sent holds its place and is sent again, whatever comes before it, as long as the partition lets it.
    // SCS-49, SCS-50, SDF-34
    #[test]
    fn an_upgrade_that_was_sent_goes_before_all_others(
        letters in "[oOu]{1,8}",
        sent in proptest::collection::vec(any::<bool>(), 8),
        (partition, most) in (0..6_usize, 1..6_usize),
    ) {
        let set = set(&json!({"partition": partition, "maxUnavailable": most}));
        let pods = pods(letters.len());
        let states: Vec<_> = letters.chars().map(state).collect();
        let places: Vec<_> = pods.iter().zip(&states).map(|(pod, state)| {
            state.is_candidate().then(|| UpgradePlace::new(&set, pod))
        }).collect();
        let rolling: Vec<_> = places.iter().enumerate().map(|(number, place)| {
            let is_sent = sent[number] && place.is_some();
            // Once it is carried out, a pod that was ready is down.
            let state = if is_sent { state('U') } else { states[number] };
            RollingPod { state, place: place.as_ref(), labels: &[], is_sent }
        }).collect();
        let found = super::Rollout::plan(&set, &rolling);
        let are_sent = rolling.iter().filter(|pod| pod.is_sent).count();
        let old = states.iter().filter(|state| !state.is_updated()).count();
        prop_assert_eq!(found.again.len(), are_sent.min(old.saturating_sub(partition)));
        prop_assert!(found.again.iter().all(|place| rolling[*place].is_sent));
        prop_assert!(found.next.iter().all(|place| !rolling[*place].is_sent));
        prop_assert!(found.next.is_empty() || are_sent + found.next.len() <= old.saturating_sub(partition));
    }
}
