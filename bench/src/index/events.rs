//! The events that are timed, each with the writes that are due after it.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use leadsman_process::clock;

use super::objects::{COMMAND, Event, FilledIndex, NODE, WORKLOAD};
use crate::at_share;

/// The events, in the order of [`Times`].
pub(super) const EVENTS: [&str; 5] = [
    "a verdict of one of a node's 50",
    "a pod leaves its marker or comes back",
    "a pod's status changes, nothing follows",
    "a node's status changes",
    "a marker of 250 pods is edited",
];

/// How long each of [`EVENTS`] takes.
pub(super) type Times = [Duration; EVENTS.len()];

/// The event of this turn; odd turns take back what the turn before them did.
fn event(kind: usize, index: &mut FilledIndex, turn: usize) -> Event {
    let back = turn % 2 == 1;
    let objects = &mut index.objects;
    // A stride that shares no factor with any count of pods, so that pods come in no order.
    let pick = |of: usize| turn / 2 * 7_919 % of.max(1);
    let number = pick(objects.matched());
    match kind {
        0 => objects.node_pod_probe(number / NODE, (!back).then_some(number)),
        1 => objects.pod(number, back),
        2 => objects.pod(number, true),
        3 => objects.node(pick(objects.nodes())),
        _ => {
            let command = if back { COMMAND } else { "/home/game/lazy.sh" };
            let marker = objects.marker(pick(objects.matched() / WORKLOAD), command);
            objects.shown(marker)
        }
    }
}

/// Memory of another use, larger than the last of the processor's caches.
const OTHER: usize = 48 << 20;

/// Takes the processor's caches for this.
fn fill_caches(other: &mut [u8]) {
    for byte in other.iter_mut().step_by(64) {
        *byte = byte.wrapping_add(1);
    }
    black_box(other);
}

/// The median of many short samples, which takes no note of those that another process fell into.
fn median(scale: f64, mut sample: impl FnMut() -> Duration) -> Duration {
    let seconds = |seconds: f64| Duration::from_secs_f64(seconds * scale.max(0.1));
    let begun = clock::monotonic();
    while begun.elapsed() < seconds(0.3) {
        sample();
    }
    let (begun, mut samples) = (clock::monotonic(), Vec::new());
    while begun.elapsed() < seconds(1.2) || samples.len() < 11 {
        samples.push(sample());
    }
    samples.sort();
    at_share(&samples, 0.5)
}

/// Times all events: with caches that are full of something else, as in a manager that has other things to do between two
/// events, and with caches that hold as much of the index as they can.
pub(super) fn measure(index: &mut FilledIndex, scale: f64) -> [Times; 2] {
    let mut other = vec![0; OTHER];
    let [mut cold, mut warm] = [Times::default(); 2];
    for kind in 0..EVENTS.len() {
        cold[kind] = time(kind, index, scale, 1, || fill_caches(&mut other));
        warm[kind] = time(kind, index, scale, 8, || ());
    }
    [cold, warm]
}

/// Times so many events after each other, for making an event up takes longer than to take it in.
fn time(
    kind: usize,
    index: &mut FilledIndex,
    scale: f64,
    together: u32,
    mut before: impl FnMut(),
) -> Duration {
    let mut turn = 0;
    let median = median(scale, || {
        let made = (0..together).map(|_| {
            turn += 1;
            event(kind, index, turn - 1)
        });
        let events: Vec<_> = made.collect();
        before();
        let begun = clock::monotonic();
        let taken_in = events.into_iter().map(|event| index.take_in(event));
        let writes: Vec<_> = taken_in.collect();
        let took = begun.elapsed();
        drop(writes);
        took / together
    });
    if turn % 2 == 1 {
        // Nothing is left for the events that are timed next.
        let back = event(kind, index, turn);
        index.take_in(back);
    }
    median
}

/// What the index keeps of a pod that a marker matches, in bytes.
const VALUE: usize = 2_000;

/// What the growth of the memory alone comes to: a value of a bare map is looked up, read and written.
pub(super) fn bare(pods: usize, scale: f64) -> Duration {
    let values = (0..pods).map(|key| (key, vec![0; VALUE].into()));
    let mut values: HashMap<usize, Box<[u8]>> = values.collect();
    let mut other = vec![0; OTHER];
    let mut turn = 0;
    median(scale, || {
        turn += 1;
        fill_caches(&mut other);
        let begun = clock::monotonic();
        for byte in values.get_mut(&(turn * 7_919 % pods)).into_iter().flatten() {
            *byte = byte.wrapping_add(1);
        }
        begun.elapsed()
    })
}
