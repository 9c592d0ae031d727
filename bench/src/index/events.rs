//! The events that are timed, each with the writes that are due after it.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use leadsman_core::cluster::Source;
use leadsman_core::podprobe::event::Event;

use super::cluster::{NODE, WORKLOAD, World};
use crate::clock;

/// The events, in the order of [`Times`].
pub(super) const EVENTS: [&str; 5] = [
    "a verdict of one of a node's 50",
    "a pod leaves its marker or comes back",
    "a pod's status changes, nothing follows",
    "a node's status changes",
    "a marker of 250 pods is edited",
];

/// Nanoseconds that each of [`EVENTS`] takes.
pub(super) type Times = [f64; EVENTS.len()];

/// The event of this turn; odd turns take back what the turn before them did.
fn event(kind: usize, world: &mut World, turn: u64) -> Event {
    let back = turn % 2 == 1;
    let cluster = &mut world.cluster;
    // A stride that shares no factor with any count of pods, so that pods come in no order.
    let pick = |of: u64| turn / 2 * 7_919 % of.max(1);
    let number = pick(cluster.matched());
    match kind {
        0 => {
            let object = cluster.node_pod_probe(number / NODE, (!back).then_some(number));
            Event::NodePodProbe(Arc::new(object), Source::Watch)
        }
        1 => Event::Pod(Arc::new(cluster.pod(number, back)), Source::Watch),
        2 => Event::Pod(Arc::new(cluster.pod(number, true)), Source::Watch),
        3 => {
            let number = pick(cluster.nodes());
            Event::Node(Arc::new(cluster.node(number)), Source::Watch)
        }
        _ => {
            let command = if back {
                "/home/game/idle.sh"
            } else {
                "/home/game/lazy.sh"
            };
            let marker = cluster.marker(pick(cluster.matched() / WORKLOAD), command);
            Event::Marker(Arc::new(marker), Source::Watch)
        }
    }
}

/// Memory of another use, larger than the last of the processor's caches.
struct Other(Vec<u8>);

impl Other {
    fn new() -> Self {
        Self(vec![0; 48 << 20])
    }

    /// Takes the processor's caches.
    fn fill_caches(&mut self) {
        for byte in self.0.iter_mut().step_by(64) {
            *byte = byte.wrapping_add(1);
        }
        black_box(&mut self.0);
    }
}

/// The median of many short samples, which takes no note of those that another process fell into; in nanoseconds.
fn median(scale: f64, mut sample: impl FnMut() -> f64) -> f64 {
    let seconds = |seconds: f64| Duration::from_secs_f64(seconds * scale.max(0.1));
    let begun = clock::now();
    while begun.elapsed() < seconds(0.3) {
        sample();
    }
    let (begun, mut samples) = (clock::now(), Vec::new());
    while begun.elapsed() < seconds(1.2) || samples.len() < 11 {
        samples.push(sample());
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn nanoseconds(time: Duration, of: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(of)
}

/// Times all events in this world: with caches that are full of something else, as in a manager that has other things to
/// do between two events, and with caches that hold as much of the world as they can.
pub(super) fn measure(world: &mut World, scale: f64) -> [Times; 2] {
    let mut other = Other::new();
    let mut cold = Times::default();
    let mut warm = Times::default();
    for kind in 0..EVENTS.len() {
        cold[kind] = time(kind, world, scale, 1, || other.fill_caches());
        warm[kind] = time(kind, world, scale, 8, || ());
    }
    [cold, warm]
}

/// Times so many events after each other, for making an event up takes longer than to take it in.
fn time(
    kind: usize,
    world: &mut World,
    scale: f64,
    together: u32,
    mut before: impl FnMut(),
) -> f64 {
    let mut turn = 0;
    let median = median(scale, || {
        let events: Vec<_> = (0..together)
            .map(|_| {
                turn += 1;
                event(kind, world, turn - 1)
            })
            .collect();
        before();
        let begun = clock::now();
        let writes: Vec<_> = events
            .into_iter()
            .map(|event| world.take_in(event))
            .collect();
        let took = begun.elapsed();
        drop(writes);
        nanoseconds(took, together)
    });
    if turn % 2 == 1 {
        // Nothing is left for the events that are timed next.
        let back = event(kind, world, turn);
        world.take_in(back);
    }
    median
}

/// What the index keeps of a pod that a marker matches, in bytes.
const VALUE: usize = 2_000;

/// What the growth of the memory alone comes to: a value of a bare map is looked up, read and written.
pub(super) fn bare(pods: u64, scale: f64) -> f64 {
    let values = (0..pods).map(|key| (key, vec![0; VALUE].into()));
    let mut values: HashMap<u64, Box<[u8]>> = values.collect();
    let mut other = Other::new();
    let mut turn = 0;
    median(scale, || {
        turn += 1;
        other.fill_caches();
        let begun = clock::now();
        for byte in values.get_mut(&(turn * 7_919 % pods)).into_iter().flatten() {
            *byte = byte.wrapping_add(1);
        }
        nanoseconds(begun.elapsed(), 1)
    })
}
