use std::fmt;

use super::*;

/// A target of one of three classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lamp {
    class: usize,
    name: String,
}

impl Lamp {
    /// What stands before the slash, if there is one.
    fn namespace(&self) -> Option<&str> {
        self.name.split_once('/').map(|(namespace, _)| namespace)
    }
}

impl fmt::Display for Lamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The classes of markers: the statuses wait for the specs, and are spaced.
const CLASSES: [Class; 3] = [
    Class::new("marks").paced_by_size(),
    Class::new("specs"),
    Class::new("statuses")
        .spacing(Duration::from_secs(2))
        .after(After {
            class: 1,
            at_most: HELD,
        }),
];
const WRITTEN: WriteResult = WriteResult::Written { bytes: 10_000 };
const HELD: Duration = Duration::from_secs(10);

/// A queue with its places.
struct Queue {
    queue: WriteQueue<Lamp>,
    places: Places,
}

impl Queue {
    fn mark_dirty(&mut self, target: Lamp) {
        self.queue.mark_dirty(target);
    }

    fn take(&mut self, now: Instant) -> Option<Lamp> {
        self.queue.take_next(now, &mut self.places)
    }

    fn end(&mut self, target: Lamp, result: WriteResult, now: Instant) -> Retried {
        self.queue.end_write(target, result, now, &mut self.places)
    }

    fn next_wake(&self, now: Instant) -> Option<Instant> {
        self.queue.next_wake(now)
    }

    fn counts(&self) -> (usize, usize) {
        (
            self.queue.class_depths().sum(),
            self.queue.in_flight_count(),
        )
    }
}

fn queue(limit: usize) -> Queue {
    let mut places = Places::new(limit);
    let random = fastrand::Rng::with_seed(7);
    let class = |lamp: &Lamp| lamp.class;
    let queue = WriteQueue::new(&CLASSES, class, Lamp::namespace, &mut places, random);
    Queue { queue, places }
}

fn lamp(class: usize, name: &str) -> Lamp {
    let name = name.to_owned();
    Lamp { class, name }
}

fn mark(name: &str) -> Lamp {
    lamp(0, name)
}

fn spec(name: &str) -> Lamp {
    lamp(1, name)
}

fn status(name: &str) -> Lamp {
    lamp(2, name)
}

fn start() -> Instant {
    leadsman_process::clock::monotonic()
}

fn failed(cause: RetryCause) -> WriteResult {
    WriteResult::Failed { cause, after: None }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_target_is_in_the_queue_once_however_often_it_is_marked() {
    let (mut queue, now) = (queue(8), start());
    for _ in 0..3 {
        queue.mark_dirty(mark("a"));
    }
    assert_eq!(queue.take(now), Some(mark("a")));
    assert_eq!(queue.take(now), None);
    queue.mark_dirty(mark("a"));
    assert_eq!(queue.take(now), None, "its write has not ended");
    queue.end(mark("a"), WriteResult::NothingDue, now);
    assert_eq!(queue.take(now), Some(mark("a")), "it was marked meanwhile");
    queue.end(mark("a"), WriteResult::NothingDue, now);
    assert_eq!(queue.take(now), None);
    assert_eq!(queue.counts(), (0, 0), "it is at rest");
}

#[test]
fn a_class_is_served_in_order_and_below_the_limit() {
    let (mut queue, now) = (queue(2), start());
    for name in ["a", "b", "c"] {
        queue.mark_dirty(mark(name));
    }
    assert_eq!(queue.take(now), Some(mark("a")));
    assert_eq!(queue.take(now), Some(mark("b")));
    assert_eq!(queue.take(now), None);
    queue.end(mark("b"), WriteResult::Over, now);
    assert_eq!(queue.take(now), Some(mark("c")));
    assert_eq!(queue.take(now), None);
}

// PPM-20
#[test]
fn a_namespace_waits_for_one_write_of_each_other_one() {
    let (mut queue, now) = (queue(32), start());
    for pod in 0..5_000 {
        queue.mark_dirty(mark(&format!("flaps/{pod}")));
    }
    let begun: Vec<_> = std::iter::from_fn(|| queue.take(now)).collect();
    assert_eq!(begun.len(), 16, "half of all places are for others");
    // Even if no answer ever comes, others have places.
    queue.mark_dirty(mark("quiet/0"));
    queue.mark_dirty(mark("quiet/1"));
    assert_eq!(queue.take(now), Some(mark("quiet/0")));
    for target in begun {
        queue.end(target.clone(), WriteResult::Written { bytes: 0 }, now);
        queue.mark_dirty(target);
    }
    queue.mark_dirty(mark("calm/0"));
    let next = ["flaps/16", "quiet/1", "calm/0", "flaps/17", "flaps/18"].map(|name| {
        assert_eq!(queue.take(now), Some(mark(name)));
    });
    assert_eq!(next.len(), 5);
}

// PPM-20
#[test]
fn the_writes_of_a_namespace_in_all_classes_together_leave_half_of_the_places_to_others() {
    let (mut queue, now) = (queue(32), start());
    for pod in 0..100 {
        queue.mark_dirty(mark(&format!("flaps/{pod}")));
        queue.mark_dirty(spec(&format!("flaps/{pod}")));
    }
    let begun = std::iter::from_fn(|| queue.take(now)).count();
    assert_eq!(begun, 16);
    for pod in 0..100 {
        queue.mark_dirty(mark(&format!("quiet/{pod}")));
    }
    let begun = std::iter::from_fn(|| queue.take(now)).count();
    assert!(begun > 10, "{begun}");
}

// PPM-20
#[test]
fn a_namespace_may_begin_a_write_of_each_class_though_another_class_of_it_is_stuck() {
    let (mut queue, now) = (queue(32), start());
    for pod in 0..100 {
        queue.mark_dirty(mark(&format!("stuck/{pod}")));
    }
    let begun = std::iter::from_fn(|| queue.take(now)).count();
    assert_eq!(begun, 16);
    queue.mark_dirty(spec("stuck/0"));
    queue.mark_dirty(spec("stuck/1"));
    assert_eq!(queue.take(now), Some(spec("stuck/0")));
    assert_eq!(queue.take(now), None);
}

#[test]
fn each_result_leads_where_it_should() {
    // What was marked dirty, how its write ended, whether another one follows at once.
    let table = [
        (false, WriteResult::NothingDue, false),
        (true, WriteResult::NothingDue, true),
        (false, WriteResult::Over, false),
        (true, WriteResult::Over, true),
        (false, WRITTEN, true),
        (true, WRITTEN, true),
        (false, failed(RetryCause::Conflict), false),
        (true, failed(RetryCause::Conflict), false),
    ];
    for (dirty, result, follows) in table {
        let (mut queue, now) = (queue(8), start());
        queue.mark_dirty(mark("a"));
        queue.take(now);
        if dirty {
            queue.mark_dirty(mark("a"));
        }
        queue.end(mark("a"), result, now);
        assert_eq!(queue.take(now).is_some(), follows, "{result:?} {dirty}");
    }
}

#[test]
fn a_failure_waits_longer_each_time_and_success_forgets_it() {
    let (mut queue, mut now) = (queue(8), start());
    let mut waits = Vec::new();
    queue.mark_dirty(mark("a"));
    for _ in 0..9 {
        assert_eq!(queue.take(now), Some(mark("a")));
        queue.end(mark("a"), failed(RetryCause::Unavailable), now);
        queue.mark_dirty(mark("a"));
        assert_eq!(
            queue.take(now),
            None,
            "being marked does not shorten the wait"
        );
        let wake = queue.next_wake(now).unwrap();
        waits.push(wake - now);
        now = wake;
    }
    for (n, wait) in waits.iter().enumerate() {
        let longest =
            (Duration::from_millis(250) * 2_u32.pow(u32::try_from(n).unwrap())).min(5 * SECOND);
        assert!(*wait <= longest && *wait >= longest / 2, "{n}: {wait:?}");
    }
    queue.take(now);
    queue.end(mark("a"), WRITTEN, now);
    queue.take(now);
    queue.end(mark("a"), failed(RetryCause::Unavailable), now);
    assert!(queue.next_wake(now).unwrap() - now <= Duration::from_millis(250));
}

#[test]
fn retry_after_is_kept_to() {
    let (mut queue, now) = (queue(8), start());
    queue.mark_dirty(mark("a"));
    queue.take(now);
    let result = WriteResult::Failed {
        cause: RetryCause::Throttled,
        after: Some(7 * SECOND),
    };
    queue.end(mark("a"), result, now);
    assert_eq!(queue.take(now + 7 * SECOND), None);
    assert_eq!(queue.take(now + 8 * SECOND), Some(mark("a")));
}

fn slow_down(seconds: u64) -> WriteResult {
    WriteResult::Failed {
        cause: RetryCause::Throttled,
        after: Some(Duration::from_secs(seconds)),
    }
}

#[test]
fn one_that_is_asked_to_slow_down_slows_its_class_and_no_other() {
    let (mut queue, now) = (queue(8), start());
    for name in ["a", "b", "c", "d"] {
        queue.mark_dirty(mark(name));
    }
    assert_eq!(queue.take(now), Some(mark("a")));
    assert_eq!(queue.take(now), Some(mark("b")));
    queue.end(mark("a"), slow_down(7), now);
    // What was sent before is answered, which is no sign.
    queue.end(mark("b"), WriteResult::Over, now);
    queue.mark_dirty(spec("n"));
    assert_eq!(queue.take(now), Some(spec("n")), "the others go on");
    queue.end(spec("n"), WriteResult::Over, now);
    queue.mark_dirty(mark("e"));
    assert_eq!(queue.take(now + 6 * SECOND), None);
    assert_eq!(queue.next_wake(now), Some(now + 7 * SECOND));
    let later = now + 7 * SECOND;
    assert_eq!(queue.take(later), Some(mark("c")), "one tries");
    assert_eq!(queue.take(later), None);
    // Again, and longer than the API server asked.
    queue.end(mark("c"), slow_down(0), later);
    assert_eq!(queue.take(later), None);
    let last = later + SECOND;
    assert_eq!(queue.take(last), Some(mark("d")));
    queue.end(mark("d"), WriteResult::Over, last);
    let taken: Vec<_> = std::iter::from_fn(|| queue.take(last)).collect();
    assert_eq!(taken, ["e", "c", "a"].map(mark));
}

#[test]
fn internal_errors_of_a_minute_without_any_other_answer_are_an_answer() {
    use RetryCause::{InternalError, Unavailable};
    // Errors and the time from each to the next, in seconds.
    let table: [(&[RetryCause], u32, Retried); 5] = [
        (&[InternalError; 7], 10, Retried::GivenUp),
        // While the API server's store is away, all writes end like this.
        (&[InternalError; 6], 10, Retried::Yes),
        (&[InternalError; 12], 5, Retried::Yes),
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
            20,
            Retried::Yes,
        ),
        (&[Unavailable; 9], 10, Retried::Yes),
    ];
    for (causes, distance, last) in table {
        let (mut queue, mut now) = (queue(8), start());
        queue.mark_dirty(mark("a"));
        let mut next = Retried::Yes;
        for cause in causes {
            now = queue.next_wake(now).unwrap_or(now);
            queue.take(now);
            next = queue.end(mark("a"), failed(*cause), now);
            now += distance * SECOND;
        }
        assert_eq!(next, last, "{causes:?}");
    }
}

#[test]
fn a_given_up_target_that_was_marked_meanwhile_is_tried_again() {
    let (mut queue, mut now) = (queue(8), start());
    queue.mark_dirty(mark("a"));
    let mut next = Retried::Yes;
    while next == Retried::Yes {
        now = queue.next_wake(now).unwrap_or(now);
        queue.take(now);
        queue.mark_dirty(mark("a"));
        next = queue.end(mark("a"), failed(RetryCause::InternalError), now);
    }
    assert_eq!(queue.take(now), Some(mark("a")));
}

/// A pod of 8 MB that flaps each second would keep the thread that all share busy with its replies.
// PPM-11
#[test]
fn a_large_object_is_written_less_often_and_a_usual_one_is_not_held_up() {
    for (bytes, seconds) in [(200 << 10, 0), (256 << 10, 1), (8 << 20, 32)] {
        let (mut queue, began) = (queue(8), start());
        queue.mark_dirty(mark("large"));
        assert_eq!(queue.take(began), Some(mark("large")));
        queue.end(mark("large"), WriteResult::Written { bytes }, began);
        queue.mark_dirty(mark("usual"));
        let others = if seconds == 0 { 2 } else { 1 };
        let at_once: Vec<_> = std::iter::from_fn(|| queue.take(began)).collect();
        assert_eq!(at_once.len(), others, "{bytes}");
        let rest = (seconds > 0).then(|| began + seconds * SECOND);
        assert_eq!(queue.next_wake(began), rest, "{bytes}");
    }
    // Specs have the entries of all namespaces.
    let (mut queue, began) = (queue(8), start());
    let spec = Lamp {
        class: 1,
        name: "node".to_owned(),
    };
    queue.mark_dirty(spec.clone());
    queue.take(began);
    queue.end(spec.clone(), WriteResult::Written { bytes: 1 << 20 }, began);
    assert_eq!(queue.take(began), Some(spec));
}

// PPM-11
#[test]
fn a_markers_status_is_written_at_once_and_then_every_two_seconds() {
    let (mut queue, began) = (queue(8), start());
    queue.mark_dirty(status("m"));
    assert_eq!(queue.take(began), Some(status("m")));
    queue.end(status("m"), WRITTEN, began + SECOND / 2);
    queue.mark_dirty(status("m"));
    assert_eq!(queue.take(began + SECOND), None);
    assert_eq!(queue.next_wake(began), Some(began + 2 * SECOND));
    assert_eq!(queue.take(began + 2 * SECOND), Some(status("m")));
    // Nothing due: the next change is free to be written at once.
    queue.end(status("m"), WriteResult::NothingDue, began + 2 * SECOND);
    queue.mark_dirty(status("m"));
    assert_eq!(queue.take(began + 2 * SECOND), Some(status("m")));
}

#[test]
fn a_markers_status_waits_for_specs_but_not_without_end() {
    let (mut busy, began) = (queue(2), start());
    for target in [status("m"), spec("n"), mark("a"), spec("o")] {
        busy.mark_dirty(target);
    }
    // Others pass it by; room alone is no reason to write it.
    assert_eq!(busy.take(began), Some(mark("a")));
    assert_eq!(busy.take(began), Some(spec("n")));
    assert_eq!(busy.take(began), None, "there is no place before an answer");
    busy.end(mark("a"), WriteResult::Over, began);
    assert_eq!(busy.take(began), Some(spec("o")));
    busy.end(spec("n"), WriteResult::Over, began);
    assert_eq!(busy.take(began), None);
    // A spec that waits after a failure is not waited for.
    busy.end(spec("o"), failed(RetryCause::NoRight), began);
    assert_eq!(busy.take(began), Some(status("m")));
    busy.end(status("m"), WriteResult::Over, began);

    let mut endless = queue(2);
    endless.mark_dirty(spec("n"));
    endless.mark_dirty(status("m"));
    assert_eq!(endless.take(began), Some(spec("n")));
    assert_eq!(endless.take(began), None);
    let wake = endless.next_wake(began).unwrap();
    assert_eq!(wake, began + HELD);
    assert_eq!(endless.take(wake), Some(status("m")));
    assert_eq!(endless.next_wake(wake), None);
}

#[test]
fn whatever_happens_the_counts_hold_and_everything_comes_to_rest() {
    let mut random = fastrand::Rng::with_seed(11);
    let causes = [
        RetryCause::Conflict,
        RetryCause::Throttled,
        RetryCause::InternalError,
        RetryCause::NoRight,
    ];
    let (mut queue, mut now) = (queue(3), start());
    let mut flying: Vec<Lamp> = Vec::new();
    for step in 0..20_000 {
        let busy = step < 15_000;
        match random.u8(0..4) {
            0 if busy => queue.mark_dirty(mark(&random.u8(0..9).to_string())),
            1 if busy && random.bool() => queue.mark_dirty(spec(&random.u8(0..3).to_string())),
            1 if busy => queue.mark_dirty(status(&random.u8(0..3).to_string())),
            2 if !flying.is_empty() => {
                let object = flying.swap_remove(random.usize(..flying.len()));
                let result = match random.u8(0..4) {
                    0 if busy => failed(causes[random.usize(..causes.len())]),
                    1 if busy => WRITTEN,
                    2 => WriteResult::Over,
                    _ => WriteResult::NothingDue,
                };
                queue.end(object, result, now);
            }
            _ => {
                if let Some(object) = queue.take(now) {
                    assert!(!flying.contains(&object), "two writes at once");
                    flying.push(object);
                }
            }
        }
        assert_eq!(queue.queue.in_flight_count(), flying.len());
        assert!(flying.len() <= 3);
        now += Duration::from_millis(random.u64(0..500));
    }
    assert_eq!(queue.counts(), (0, 0));
    let WriteQueue {
        waiting, classes, ..
    } = queue.queue;
    assert!(waiting.is_empty());
    for class in classes {
        assert!(class.ready.is_empty() && class.pace.in_flight == 0);
    }
    assert_eq!(queue.places.taken_by_flow(), [0, 0, 0]);
}

#[test]
fn the_room_of_many_targets_is_given_up_when_they_are_at_rest() {
    let (mut queue, now) = (queue(1), start());
    for number in 0..10 * KEPT_ROOM {
        queue.mark_dirty(mark(&number.to_string()));
    }
    while let Some(target) = queue.take(now) {
        queue.end(target, WriteResult::Over, now);
    }
    let room = queue.queue.targets.capacity();
    // A hash map has a quarter more than is asked for, and a power of two.
    assert!(room <= 2 * KEPT_ROOM, "{room}");
}
