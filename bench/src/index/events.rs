//! The events that are timed, each with the writes that are due after it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use criterion::{BatchSize, Criterion, SamplingMode};
use leadsman_core::cluster::Source;
use leadsman_core::podprobe::event::Event;
use serde::{Deserialize, Serialize};

use super::cluster::{NODE, WORKLOAD, World};
use super::estimates;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Verdict,
    Relabelled,
    Heartbeat,
    Node,
    Edit,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [
        Self::Verdict,
        Self::Relabelled,
        Self::Heartbeat,
        Self::Node,
        Self::Edit,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Verdict => "a verdict of one of a node's 50",
            Self::Relabelled => "a pod leaves its marker or comes back",
            Self::Heartbeat => "a pod's status changes, nothing follows",
            Self::Node => "a node's status changes",
            Self::Edit => "a marker of 250 pods is edited",
        }
    }

    fn id(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Relabelled => "relabelled",
            Self::Heartbeat => "heartbeat",
            Self::Node => "node",
            Self::Edit => "edit",
        }
    }

    /// The turn's event; odd turns take back what the turn before them did.
    fn event(self, world: &mut World, turn: u64) -> Event {
        let back = turn % 2 == 1;
        let cluster = &mut world.cluster;
        // A stride that shares no factor with any count of pods, so that pods come in no order.
        let pick = |of: u64| turn / 2 * 7_919 % of.max(1);
        match self {
            Self::Verdict => {
                let pod = pick(cluster.matched());
                let object = cluster.node_pod_probe(pod / NODE, (!back).then_some(pod));
                Event::NodePodProbe(Box::new(object), Source::Watch)
            }
            Self::Relabelled => {
                let pod = cluster.pod(pick(cluster.matched()), back);
                Event::Pod(Box::new(pod), Source::Watch)
            }
            Self::Heartbeat => {
                let pod = cluster.pod(pick(cluster.matched()), true);
                Event::Pod(Box::new(pod), Source::Watch)
            }
            Self::Node => {
                let node = cluster.node(pick(cluster.nodes()));
                Event::Node(Box::new(node), Source::Watch)
            }
            Self::Edit => {
                let number = pick(cluster.matched() / WORKLOAD);
                let command = if back {
                    "/home/game/idle.sh"
                } else {
                    "/home/game/lazy.sh"
                };
                let marker = cluster.marker(number, command);
                Event::Marker(Box::new(marker), Source::Watch)
            }
        }
    }
}

/// What is in the processor's caches when an event comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caches {
    /// Something else, as in a manager that has other things to do between two events.
    Cold,
    /// As much of the world as they hold.
    Warm,
}

/// Larger than the last of the caches.
const ELSE: usize = 48 << 20;

/// Nanoseconds an event.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    verdict: f64,
    relabelled: f64,
    heartbeat: f64,
    node: f64,
    edit: f64,
}

impl Times {
    pub(super) fn of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Verdict => self.verdict,
            Kind::Relabelled => self.relabelled,
            Kind::Heartbeat => self.heartbeat,
            Kind::Node => self.node,
            Kind::Edit => self.edit,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut f64 {
        match kind {
            Kind::Verdict => &mut self.verdict,
            Kind::Relabelled => &mut self.relabelled,
            Kind::Heartbeat => &mut self.heartbeat,
            Kind::Node => &mut self.node,
            Kind::Edit => &mut self.edit,
        }
    }
}

/// As many values as there are pods, each of the size of what the index keeps of one.
struct Bare {
    values: HashMap<u64, Box<[u8]>>,
    keys: u64,
}

/// What the index keeps of a pod that a marker matches.
const VALUE: usize = 2_000;

impl Bare {
    fn new(keys: u64) -> Self {
        let values = (0..keys).map(|key| (key, vec![0; VALUE].into()));
        Self {
            values: values.collect(),
            keys,
        }
    }

    /// Looks one up and reads and writes all of it.
    fn touch(&mut self, turn: u64) {
        let key = turn * 7_919 % self.keys;
        for byte in self.values.get_mut(&key).into_iter().flatten() {
            *byte = byte.wrapping_add(1);
        }
    }
}

/// What the growth of the memory alone comes to: a value of a bare map is looked up, read and written.
pub(super) fn bare(pods: u64, scale: f64, folder: &Path) -> Result<f64> {
    let mut bare = Bare::new(pods);
    let mut other = vec![0_u8; ELSE];
    let mut turn = 0;
    let mut criterion = criterion(scale, folder);
    let mut group = criterion.benchmark_group("Bare");
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function("touch", |bencher| {
        bencher.iter_batched(
            || {
                turn += 1;
                fill(&mut other);
                turn
            },
            |turn| bare.touch(turn),
            BatchSize::PerIteration,
        );
    });
    group.finish();
    median(&estimates(folder, "Bare", "touch"))
}

/// Takes the processor's caches.
fn fill(other: &mut [u8]) {
    for byte in other.iter_mut().step_by(64) {
        *byte = byte.wrapping_add(1);
    }
    black_box(other);
}

fn criterion(scale: f64, folder: &Path) -> Criterion {
    let seconds = |seconds: f64| Duration::from_secs_f64(seconds * scale.max(0.1));
    Criterion::default()
        .without_plots()
        .output_directory(folder)
        // Many short samples: of those that another process fell into, the median takes no note.
        .sample_size(100)
        .nresamples(1_000)
        .warm_up_time(seconds(0.3))
        .measurement_time(seconds(1.2))
}

/// Times all kinds in this world, with cold and with warm caches.
pub(super) fn measure(world: &mut World, scale: f64, folder: &Path) -> Result<[Times; 2]> {
    let mut criterion = criterion(scale, folder);
    let mut all = [Times::default(); 2];
    for (times, caches) in all.iter_mut().zip([Caches::Cold, Caches::Warm]) {
        let group = format!("{caches:?}");
        for kind in Kind::ALL {
            time(&mut criterion, &group, kind, world, caches);
            *times.of_mut(kind) = median(&estimates(folder, &group, kind.id()))?;
        }
    }
    Ok(all)
}

fn time(criterion: &mut Criterion, group: &str, kind: Kind, world: &mut World, caches: Caches) {
    let mut group = criterion.benchmark_group(group);
    group.sampling_mode(SamplingMode::Flat);
    let mut other = match caches {
        Caches::Cold => vec![0_u8; ELSE],
        Caches::Warm => Vec::new(),
    };
    let size = match caches {
        Caches::Cold => BatchSize::PerIteration,
        Caches::Warm => BatchSize::LargeInput,
    };
    let mut turn = 0;
    group.bench_function(kind.id(), |bencher| {
        // Making an event up takes longer than to take it in, and needs the same world.
        let world = RefCell::new(&mut *world);
        bencher.iter_batched(
            || {
                let event = kind.event(&mut world.borrow_mut(), turn);
                turn += 1;
                fill(&mut other);
                event
            },
            |event| {
                let mut world = world.borrow_mut();
                let due = world.tell(event);
                let now = world.now;
                let writes = due
                    .iter()
                    .filter_map(|object| world.index.write(object, now));
                writes.collect::<Vec<_>>()
            },
            size,
        );
    });
    group.finish();
    if turn % 2 == 1 {
        // Nothing is left for the events that are timed next.
        let back = kind.event(world, turn);
        world.tell(back);
    }
}

/// What criterion worked out, in nanoseconds.
fn median(file: &Path) -> Result<f64> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let estimates: serde_json::Value = serde_json::from_str(&text)?;
    let median = estimates["median"]["point_estimate"].as_f64();
    median.with_context(|| format!("no median in {}", file.display()))
}
