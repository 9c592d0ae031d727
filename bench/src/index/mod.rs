//! The rules alone: what one event costs among few and among many pods and markers, and what a pod takes.
//!
//! Each shape is measured by a process of its own; its memory is what the system gave it.
//!
//! | module | what lives there |
//! |---|---|
//! | `objects` | objects of a cluster of any size, and an index that has seen them all |
//! | `events` | the events that are timed |

mod events;
mod objects;

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use self::events::{EVENTS, Times};
use crate::meter::Meter;
use crate::part::{Part, Questions, Talk};
use crate::progress::Step;
use crate::report::{Amount as _, Plot, Report};
use crate::{figures, share_of};

const PODS: [usize; 3] = [1_000, 10_000, 100_000];
const MARKERS: [usize; 3] = [10, 100, 1_000];

/// What a process of ours measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pods: usize,
    markers: usize,
    /// Of the full length.
    scale: f64,
}

/// What it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    pods: usize,
    markers: usize,
    /// Pods that a marker matches.
    matched: usize,
    /// Bytes that the index took of the system, for each pod.
    bytes_a_pod: f64,
    /// Bytes of the strings that no other pod has, for each pod.
    strings_a_pod: f64,
    /// With caches that are full of something else.
    cold: Times,
    /// With caches that hold as much of the index as they can.
    warm: Times,
    /// One value of a bare map of as many, with cold caches.
    bare: Duration,
}

/// Measures all shapes.
pub(crate) async fn measure(scale: f64) -> Result<Report> {
    let mut all = Vec::new();
    for markers in MARKERS {
        for pods in PODS {
            let _step = Step::begin(format!("the index, {pods} pods, {markers} markers"));
            let order = Order {
                pods: share_of(pods, scale).max(250),
                markers,
                scale,
            };
            let found: Found = Talk::here(&Part::Index(order)).await?.ask().await?;
            all.push(Found { pods, ..found });
        }
    }
    let mut report = Report::new("index", scale, include_str!("../../pages/index.md"));
    for (kind, name) in EVENTS.iter().enumerate() {
        add_event(&mut report, name, &all, |times| times[kind]);
    }
    add_bytes(&mut report, &all);
    report.plots = MARKERS.map(|markers| plot(markers, &all)).into();
    Ok(report)
}

/// Measures one shape, in a process of its own.
pub(crate) async fn run(order: &Order, questions: Questions) -> Result<()> {
    let meter = Meter(std::process::id());
    let objects = objects::Objects::new(order.pods, order.markers);
    let before = meter.held()?.rss;
    let mut index = objects::FilledIndex::new(objects)?;
    let taken = meter.held()?.rss.saturating_sub(before);
    let [cold, warm] = events::measure(&mut index, order.scale);
    let (matched, unique) = (index.objects.matched(), index.objects.unique_bytes());
    drop(index);
    let found = Found {
        pods: order.pods,
        markers: order.markers,
        matched,
        bytes_a_pod: taken.amount() / order.pods.amount(),
        strings_a_pod: unique.amount() / order.pods.amount(),
        cold,
        warm,
        bare: events::bare(order.pods, order.scale),
    };
    questions.answer(async || Ok(&found)).await
}

fn find(all: &[Found], pods: usize, markers: usize) -> Option<&Found> {
    all.iter()
        .find(|found| found.pods == pods && found.markers == markers)
}

/// How many times as long an event takes among the most pods as among the fewest, for the worst number of markers.
fn growth(all: &[Found], time: impl Fn(&Found) -> Duration) -> Option<(f64, usize)> {
    let ratios = MARKERS.iter().filter_map(|markers| {
        let time = |pods| find(all, pods, *markers).map(&time);
        Some((time(PODS[2])?.div_duration_f64(time(PODS[0])?), *markers))
    });
    ratios.max_by(|a, b| a.0.total_cmp(&b.0))
}

fn add_event(report: &mut Report, name: &str, all: &[Found], of: impl Fn(&Times) -> Duration) {
    let mut add = report.named(name);
    if let Some((ratio, markers)) = growth(all, |found| of(&found.warm)) {
        add.add(&figures::GROWTH, ratio)
            .note(format!("the worst of 10, 100 and 1,000 markers: {markers}"));
    }
    let cold = growth(all, |found| of(&found.cold));
    if let (Some((ratio, _)), Some((bare, _))) = (cold, growth(all, |found| found.bare)) {
        add.compare(&figures::COLD_GROWTH, ratio, bare);
    }
    if let Some(found) = find(all, PODS[2], MARKERS[1]) {
        add.add(&figures::AMONG_ALL, of(&found.warm));
        add.add(&figures::COLD_AMONG_ALL, of(&found.cold));
    }
}

fn add_bytes(report: &mut Report, all: &[Found]) {
    let mut add = report.named("");
    for (markers, kind) in [
        (MARKERS[2], &figures::BYTES_MATCHED),
        (MARKERS[0], &figures::BYTES_UNMATCHED),
    ] {
        if let Some(found) = find(all, PODS[2], markers) {
            let matched = found.matched;
            add.compare(kind, found.bytes_a_pod, found.strings_a_pod)
                .note(format!(
                    "{matched} match; floor: its name, uid, address, container id and messages alone"
                ));
        }
    }
}

fn plot(markers: usize, all: &[Found]) -> Plot {
    let of_kind = |(kind, name): (usize, &&str)| {
        let points = PODS.iter().filter_map(|pods| {
            let found = find(all, *pods, markers)?;
            Some((pods.amount(), found.warm[kind].as_secs_f64() * 1e6))
        });
        ((*name).to_owned(), points.collect())
    };
    Plot {
        name: format!("markers-{markers}"),
        title: format!("One event, {markers} markers"),
        x: "pods".to_owned(),
        y: "µs".to_owned(),
        logarithmic: true,
        curves: EVENTS.iter().enumerate().map(of_kind).collect(),
    }
}
