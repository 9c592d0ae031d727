use super::*;
use leadsman_core::cluster::ObjectName;

fn slots(limit: usize) -> Slots {
    Slots::new(limit, fastrand::Rng::with_seed(7))
}

fn start() -> Instant {
    leadsman_process::clock::monotonic()
}

fn pod(name: &str) -> WriteTarget {
    WriteTarget::PodMarks(ObjectName {
        namespace: "shop".into(),
        name: name.into(),
    })
}

fn marker(name: &str) -> WriteTarget {
    WriteTarget::MarkerStatus(ObjectName {
        namespace: "shop".into(),
        name: name.into(),
    })
}

fn spec(name: &str) -> WriteTarget {
    WriteTarget::NodePodProbe(name.into())
}

fn failed(cause: Cause) -> Turn {
    Turn::Failed { cause, after: None }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_object_has_one_turn_however_often_it_is_marked() {
    let (mut slots, now) = (slots(8), start());
    for _ in 0..3 {
        slots.mark_dirty(pod("a"));
    }
    assert_eq!(slots.take(now), Some(pod("a")));
    assert_eq!(slots.take(now), None);
    slots.mark_dirty(pod("a"));
    assert_eq!(slots.take(now), None, "its turn is not over");
    slots.end(pod("a"), Turn::NothingDue, now);
    assert_eq!(slots.take(now), Some(pod("a")), "it was marked meanwhile");
    slots.end(pod("a"), Turn::NothingDue, now);
    assert_eq!(slots.take(now), None);
    assert_eq!(
        (slots.pending(), slots.in_flight()),
        (0, 0),
        "it is at rest"
    );
}

#[test]
fn all_together_stay_below_the_limit_first_come_first_served() {
    let (mut slots, now) = (slots(2), start());
    for name in ["a", "b", "c"] {
        slots.mark_dirty(pod(name));
    }
    assert_eq!(slots.take(now), Some(pod("a")));
    assert_eq!(slots.take(now), Some(pod("b")));
    assert_eq!(slots.take(now), None);
    slots.end(pod("b"), Turn::Over, now);
    assert_eq!(slots.take(now), Some(pod("c")));
    assert_eq!(slots.take(now), None);
}

#[test]
fn each_ending_leads_where_it_should() {
    // What was marked dirty, how the turn ended, whether another turn follows at once.
    let table = [
        (false, Turn::NothingDue, false),
        (true, Turn::NothingDue, true),
        (false, Turn::Over, false),
        (true, Turn::Over, true),
        (false, Turn::Written, true),
        (true, Turn::Written, true),
        (false, failed(Cause::Conflict), false),
        (true, failed(Cause::Conflict), false),
    ];
    for (dirty, turn, follows) in table {
        let (mut slots, now) = (slots(8), start());
        slots.mark_dirty(pod("a"));
        slots.take(now);
        if dirty {
            slots.mark_dirty(pod("a"));
        }
        slots.end(pod("a"), turn, now);
        assert_eq!(slots.take(now).is_some(), follows, "{turn:?} {dirty}");
    }
}

#[test]
fn a_failure_waits_longer_each_time_and_success_forgets_it() {
    let (mut slots, mut now) = (slots(8), start());
    let mut waits = Vec::new();
    slots.mark_dirty(pod("a"));
    for _ in 0..9 {
        assert_eq!(slots.take(now), Some(pod("a")));
        slots.end(pod("a"), failed(Cause::Unavailable), now);
        slots.mark_dirty(pod("a"));
        assert_eq!(
            slots.take(now),
            None,
            "being marked does not shorten the wait"
        );
        let wake = slots.next_wake().unwrap();
        waits.push(wake - now);
        now = wake;
    }
    for (n, wait) in waits.iter().enumerate() {
        let longest =
            (Duration::from_millis(250) * 2_u32.pow(u32::try_from(n).unwrap())).min(5 * SECOND);
        assert!(*wait <= longest && *wait >= longest / 2, "{n}: {wait:?}");
    }
    slots.take(now);
    slots.end(pod("a"), Turn::Written, now);
    slots.take(now);
    slots.end(pod("a"), failed(Cause::Unavailable), now);
    assert!(slots.next_wake().unwrap() - now <= Duration::from_millis(250));
}

#[test]
fn retry_after_is_kept_to() {
    let (mut slots, now) = (slots(8), start());
    slots.mark_dirty(pod("a"));
    slots.take(now);
    let turn = Turn::Failed {
        cause: Cause::Throttled,
        after: Some(7 * SECOND),
    };
    slots.end(pod("a"), turn, now);
    assert_eq!(slots.take(now + 7 * SECOND), None);
    assert_eq!(slots.take(now + 8 * SECOND), Some(pod("a")));
}

fn slow_down(seconds: u64) -> Turn {
    Turn::Failed {
        cause: Cause::Throttled,
        after: Some(Duration::from_secs(seconds)),
    }
}

#[test]
fn one_that_is_asked_to_slow_down_slows_its_class_and_no_other() {
    let (mut slots, now) = (slots(8), start());
    for name in ["a", "b", "c", "d"] {
        slots.mark_dirty(pod(name));
    }
    assert_eq!(slots.take(now), Some(pod("a")));
    assert_eq!(slots.take(now), Some(pod("b")));
    slots.end(pod("a"), slow_down(7), now);
    // What was sent before is answered, which is no sign.
    slots.end(pod("b"), Turn::Over, now);
    slots.mark_dirty(spec("n"));
    assert_eq!(slots.take(now), Some(spec("n")), "the others go on");
    slots.end(spec("n"), Turn::Over, now);
    slots.mark_dirty(pod("e"));
    assert_eq!(slots.take(now + 6 * SECOND), None);
    assert_eq!(slots.next_wake(), Some(now + 7 * SECOND));
    let later = now + 7 * SECOND;
    assert_eq!(slots.take(later), Some(pod("c")), "one tries");
    assert_eq!(slots.take(later), None);
    // Again, and longer than the API server asked.
    slots.end(pod("c"), slow_down(0), later);
    assert_eq!(slots.take(later), None);
    let last = later + SECOND;
    assert_eq!(slots.take(last), Some(pod("d")));
    slots.end(pod("d"), Turn::Over, last);
    let taken: Vec<_> = std::iter::from_fn(|| slots.take(last)).collect();
    assert_eq!(taken, ["e", "c", "a"].map(pod));
}

#[test]
fn the_sixth_internal_error_in_a_row_is_an_answer() {
    use Cause::{InternalError, Unavailable};
    let table: [(&[Cause], Next); 4] = [
        (&[InternalError; 5], Next::Goes),
        (&[InternalError; 6], Next::GivenUp),
        (
            &[
                InternalError,
                InternalError,
                InternalError,
                Unavailable,
                InternalError,
                InternalError,
                InternalError,
            ],
            Next::Goes,
        ),
        (&[Unavailable; 9], Next::Goes),
    ];
    for (causes, last) in table {
        let (mut slots, mut now) = (slots(8), start());
        slots.mark_dirty(pod("a"));
        let mut next = Next::Goes;
        for cause in causes {
            now = slots.next_wake().unwrap_or(now);
            slots.take(now);
            next = slots.end(pod("a"), failed(*cause), now);
        }
        assert_eq!(next, last, "{causes:?}");
        assert_eq!(
            slots.next_wake().is_some(),
            last == Next::Goes,
            "{causes:?}"
        );
    }
}

#[test]
fn a_given_up_object_that_was_marked_meanwhile_gets_another_turn() {
    let (mut slots, mut now) = (slots(8), start());
    slots.mark_dirty(pod("a"));
    for _ in 0..6 {
        now = slots.next_wake().unwrap_or(now);
        slots.take(now);
        slots.mark_dirty(pod("a"));
        slots.end(pod("a"), failed(Cause::InternalError), now);
    }
    assert_eq!(slots.take(now), Some(pod("a")));
}

// PPM-11
#[test]
fn a_markers_status_is_written_at_once_and_then_every_two_seconds() {
    let (mut slots, began) = (slots(8), start());
    slots.mark_dirty(marker("m"));
    assert_eq!(slots.take(began), Some(marker("m")));
    slots.end(marker("m"), Turn::Written, began + SECOND / 2);
    slots.mark_dirty(marker("m"));
    assert_eq!(slots.take(began + SECOND), None);
    assert_eq!(slots.next_wake(), Some(began + 2 * SECOND));
    assert_eq!(slots.take(began + 2 * SECOND), Some(marker("m")));
    // Nothing due: the next change is free to be written at once.
    slots.end(marker("m"), Turn::NothingDue, began + 2 * SECOND);
    slots.mark_dirty(marker("m"));
    assert_eq!(slots.take(began + 2 * SECOND), Some(marker("m")));
}

#[test]
fn a_markers_status_waits_for_specs_but_not_without_end() {
    let (mut busy, began) = (slots(2), start());
    for object in [marker("m"), spec("n"), pod("a"), spec("o")] {
        busy.mark_dirty(object);
    }
    // Others pass it by; room alone is no reason to write it.
    assert_eq!(busy.take(began), Some(spec("n")));
    assert_eq!(busy.take(began), Some(pod("a")));
    assert_eq!(busy.next_wake(), None, "there is no room before an answer");
    busy.end(pod("a"), Turn::Over, began);
    assert_eq!(busy.take(began), Some(spec("o")));
    busy.end(spec("n"), Turn::Over, began);
    assert_eq!(busy.take(began), None);
    // A spec that rests after a failure is not waited for.
    busy.end(spec("o"), failed(Cause::NoRight), began);
    assert_eq!(busy.take(began), Some(marker("m")));
    busy.end(marker("m"), Turn::Over, began);

    let mut endless = slots(2);
    endless.mark_dirty(spec("n"));
    endless.mark_dirty(marker("m"));
    assert_eq!(endless.take(began), Some(spec("n")));
    assert_eq!(endless.take(began), None);
    let wake = endless.next_wake().unwrap();
    assert_eq!(wake, began + STATUS_HELD);
    assert_eq!(endless.take(wake), Some(marker("m")));
    assert_eq!(endless.next_wake(), None);
}

#[test]
fn whatever_happens_the_counts_hold_and_everything_comes_to_rest() {
    let mut random = fastrand::Rng::with_seed(11);
    let causes = [
        Cause::Conflict,
        Cause::Throttled,
        Cause::InternalError,
        Cause::NoRight,
    ];
    let (mut slots, mut now) = (slots(3), start());
    let mut flying: Vec<WriteTarget> = Vec::new();
    for step in 0..20_000 {
        let busy = step < 15_000;
        match random.u8(0..4) {
            0 if busy => slots.mark_dirty(pod(&random.u8(0..9).to_string())),
            1 if busy && random.bool() => slots.mark_dirty(spec(&random.u8(0..3).to_string())),
            1 if busy => slots.mark_dirty(marker(&random.u8(0..3).to_string())),
            2 if !flying.is_empty() => {
                let object = flying.swap_remove(random.usize(..flying.len()));
                let turn = match random.u8(0..4) {
                    0 if busy => failed(causes[random.usize(..causes.len())]),
                    1 if busy => Turn::Written,
                    2 => Turn::Over,
                    _ => Turn::NothingDue,
                };
                slots.end(object, turn, now);
            }
            _ => {
                if let Some(object) = slots.take(now) {
                    assert!(!flying.contains(&object), "two turns at once");
                    flying.push(object);
                }
            }
        }
        assert_eq!(slots.in_flight(), flying.len());
        assert!(flying.len() <= 3);
        now += Duration::from_millis(random.u64(0..500));
    }
    assert_eq!((slots.in_flight(), slots.pending()), (0, 0));
    assert!(slots.ready.is_empty() && slots.waiting.is_empty() && slots.held.is_empty());
    assert!(slots.paces.iter().all(|pace| pace.parked.is_empty()));
    assert!(slots.paces.iter().all(|pace| pace.in_flight == 0));
    assert_eq!(slots.specs, 0);
}
