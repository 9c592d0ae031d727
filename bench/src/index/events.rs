//! The events that are timed, each with the writes that are due after it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use criterion::{BatchSize, Criterion};
use leadsman_core::podprobe::event::{Event, Source};
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
                Event::NodePodProbe(Box::new(object), Source::Live)
            }
            Self::Relabelled => {
                let pod = cluster.pod(pick(cluster.matched()), back);
                Event::Pod(Box::new(pod), Source::Live)
            }
            Self::Heartbeat => {
                let pod = cluster.pod(pick(cluster.matched()), true);
                Event::Pod(Box::new(pod), Source::Live)
            }
            Self::Node => {
                let node = cluster.node(pick(cluster.nodes()));
                Event::Node(Box::new(node), Source::Live)
            }
            Self::Edit => {
                let number = pick(cluster.matched() / WORKLOAD);
                let command = if back {
                    "/home/game/idle.sh"
                } else {
                    "/home/game/lazy.sh"
                };
                let marker = cluster.marker(number, command);
                Event::Marker(Box::new(marker), Source::Live)
            }
        }
    }
}

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

/// Times all kinds in this world.
pub(super) fn measure(world: &mut World, scale: f64, folder: &Path) -> Result<Times> {
    let mut criterion = Criterion::default()
        .without_plots()
        .output_directory(folder)
        .sample_size(20)
        .warm_up_time(Duration::from_secs_f64(scale.max(0.1)))
        .measurement_time(Duration::from_secs_f64(3.0 * scale.max(0.1)));
    let mut times = Times::default();
    for kind in Kind::ALL {
        time(&mut criterion, kind, world);
        *times.of_mut(kind) = mean(&estimates(folder, GROUP, kind.id()))?;
    }
    Ok(times)
}

const GROUP: &str = "event";

fn time(criterion: &mut Criterion, kind: Kind, world: &mut World) {
    let mut group = criterion.benchmark_group(GROUP);
    let mut turn = 0;
    group.bench_function(kind.id(), |bencher| {
        // Making an event up takes longer than to take it in, and needs the same world.
        let world = std::cell::RefCell::new(&mut *world);
        let turn = std::cell::RefCell::new(&mut turn);
        bencher.iter_batched(
            || {
                let mut turn = turn.borrow_mut();
                let event = kind.event(&mut world.borrow_mut(), **turn);
                **turn += 1;
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
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// What criterion worked out, in nanoseconds.
fn mean(file: &Path) -> Result<f64> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let estimates: serde_json::Value = serde_json::from_str(&text)?;
    let mean = estimates["mean"]["point_estimate"].as_f64();
    mean.with_context(|| format!("no mean in {}", file.display()))
}
