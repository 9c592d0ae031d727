//! The rules alone: what one event costs among few and among many pods and markers, and what a pod takes.
//!
//! Each shape is measured by a process of its own; its memory is what the system gave it.

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

/// By the places of [`MARKERS`] and [`PODS`].
type All = [Vec<Found>];

/// Measures all shapes.
pub(crate) async fn measure(scale: f64) -> Result<Report> {
    let mut all = vec![Vec::new(); MARKERS.len()];
    for (markers, all) in MARKERS.into_iter().zip(&mut all) {
        for pods in PODS {
            let _step = Step::begin(format!("the index, {pods} pods, {markers} markers"));
            let order = Order {
                pods: share_of(pods, scale).max(250),
                markers,
                scale,
            };
            all.push(Talk::here(&Part::Index(order)).await?.ask().await?);
        }
    }
    let mut report = Report::new("index", scale, include_str!("../../pages/index.md"));
    for (kind, name) in EVENTS.iter().enumerate() {
        add_event(&mut report, name, &all, |times| times[kind]);
    }
    let add = report.named("");
    for (found, kind) in [
        (&all[2][2], &figures::BYTES_MATCHED),
        (&all[0][2], &figures::BYTES_UNMATCHED),
    ] {
        add.compare(kind, found.bytes_a_pod, found.strings_a_pod)
            .note(format!(
                "{} match; floor: its name, uid, address, container id and messages alone",
                found.matched
            ));
    }
    report.plots = MARKERS.iter().zip(&all).map(plot).collect();
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
        matched,
        bytes_a_pod: taken.amount() / order.pods.amount(),
        strings_a_pod: unique.amount() / order.pods.amount(),
        cold,
        warm,
        bare: events::bare(order.pods, order.scale),
    };
    questions.answer(async || Ok(&found)).await
}

/// How many times as long an event takes among the most pods as among the fewest, for the worst number of markers.
fn growth(all: &All, time: impl Fn(&Found) -> Duration) -> (f64, usize) {
    let ratio = |found: &Vec<Found>| time(&found[2]).div_duration_f64(time(&found[0]));
    let ratios = all.iter().map(ratio).zip(MARKERS);
    ratios
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap_or_default()
}

fn add_event(report: &mut Report, name: &str, all: &All, of: impl Fn(&Times) -> Duration) {
    let add = report.named(name);
    let (warm, markers) = growth(all, |found| of(&found.warm));
    add.add(&figures::GROWTH, warm)
        .note(format!("the worst of 10, 100 and 1,000 markers: {markers}"));
    let cold = growth(all, |found| of(&found.cold)).0;
    let bare = growth(all, |found| found.bare).0;
    add.compare(&figures::COLD_GROWTH, cold, bare);
    let found = &all[1][2];
    add.add(&figures::AMONG_ALL, of(&found.warm));
    add.add(&figures::COLD_AMONG_ALL, of(&found.cold));
}

fn plot((markers, found): (&usize, &Vec<Found>)) -> Plot {
    let curve = |(kind, name): (usize, &&str)| {
        let points = PODS.iter().zip(found);
        let points = points.map(|(pods, one)| (pods.amount(), one.warm[kind].as_secs_f64() * 1e6));
        ((*name).to_owned(), points.collect())
    };
    Plot {
        name: format!("markers-{markers}"),
        title: format!("One event, {markers} markers"),
        x: "pods".to_owned(),
        y: "µs".to_owned(),
        logarithmic: true,
        curves: EVENTS.iter().enumerate().map(curve).collect(),
    }
}
