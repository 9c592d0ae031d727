//! The rules alone: what one event costs among few and among many pods and markers, and what a pod takes.
//!
//! Each shape is measured by a process of its own; its memory is what the system gave it.
//!
//! | module | what lives there |
//! |---|---|
//! | `cluster` | objects of a cluster of any size, and an index that has seen them all |
//! | `events` | the events that are timed |

mod cluster;
mod events;

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use self::events::{EVENTS, Times};
use crate::meter::Meter;
use crate::part::Part;
use crate::progress::Step;
use crate::report::{Amount as _, Plot, Report, Target};

const PODS: [u64; 3] = [1_000, 10_000, 100_000];
const MARKERS: [u64; 3] = [10, 100, 1_000];
/// Growth of an event's cost from the fewest pods to the most.
const GROWTH: f64 = 1.5;

const HOW: &str = "The index as it is in the manager, without a client: it takes in all objects, its writes are answered, \
and then one event at a time, about pods in no order, with the writes that are due after it. 25 pods a node, 250 a marker \
of two probes, 1,000 a namespace; all markers of a namespace share one label pair and differ in another. Pods beyond those \
of the markers match nothing, markers beyond the pods select nothing. Once one event after the other; and once with the \
processor's caches full of something else before each, where the floor is what memory alone comes to: a bare map of as \
many values of 2,000 bytes, one looked up, read and written. Medians of many short samples, a process for each shape.";

/// What a process of ours measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pods: u64,
    markers: u64,
    /// Of the full length.
    scale: f64,
}

/// What it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    pods: u64,
    markers: u64,
    /// Pods that a marker matches.
    matched: u64,
    /// Bytes that the index took of the system, for each pod.
    bytes_a_pod: f64,
    /// Bytes of the strings that no other pod has, for each pod.
    strings_a_pod: f64,
    /// With caches that are full of something else.
    cold: Times,
    /// With caches that hold as much of the index as they can.
    warm: Times,
    /// One value of a bare map of as many, with cold caches; nanoseconds.
    bare: f64,
}

/// Measures all shapes.
pub(crate) fn measure(scale: f64) -> Result<Report> {
    let mut all = Vec::new();
    let step = Step::begin("the index, by pods and markers", PODS.len() * MARKERS.len());
    for markers in MARKERS {
        for pods in PODS {
            step.at(all.len());
            all.push(one(pods, markers, scale)?);
        }
    }
    drop(step);
    let mut report = Report::new("index", scale, HOW);
    for (kind, name) in EVENTS.iter().enumerate() {
        add_event(&mut report, name, &all, |times| times[kind]);
    }
    add_bytes(&mut report, &all);
    report.plots = MARKERS.map(|markers| plot(markers, &all)).into();
    Ok(report)
}

/// One shape, in a process of its own.
fn one(pods: u64, markers: u64, scale: f64) -> Result<Found> {
    let order = Order {
        pods: scaled(pods, scale),
        markers,
        scale,
    };
    let ended = Command::new(std::env::current_exe()?)
        .args(Part::Index(order).arguments()?)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        ended.status.success(),
        "measuring {pods} pods: {}",
        ended.status
    );
    Ok(Found {
        pods,
        ..serde_json::from_slice(&ended.stdout)?
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a count"
)]
fn scaled(pods: u64, scale: f64) -> u64 {
    ((pods.amount() * scale) as u64).max(250)
}

/// Does what [`one`] asks for.
pub(crate) fn run(order: &Order) -> Result<()> {
    let meter = Meter(std::process::id());
    let cluster = cluster::Cluster::new(order.pods, order.markers);
    let before = meter.held()?.rss;
    let mut world = cluster::World::new(cluster)?;
    let taken = meter.held()?.rss.saturating_sub(before);
    let [cold, warm] = events::measure(&mut world, order.scale);
    let (matched, unique) = (world.cluster.matched(), world.cluster.unique_bytes());
    drop(world);
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
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

fn find(all: &[Found], pods: u64, markers: u64) -> Option<&Found> {
    all.iter()
        .find(|found| found.pods == pods && found.markers == markers)
}

/// How many times as long an event takes among the most pods as among the fewest, for the worst number of markers.
fn growth(all: &[Found], time: impl Fn(&Found) -> f64) -> Option<(f64, u64)> {
    let ratios = MARKERS.iter().filter_map(|markers| {
        let time = |pods| find(all, pods, *markers).map(&time);
        Some((time(PODS[2])? / time(PODS[0])?, *markers))
    });
    ratios.max_by(|a, b| a.0.total_cmp(&b.0))
}

fn add_event(report: &mut Report, name: &str, all: &[Found], of: impl Fn(&Times) -> f64) {
    if let Some((ratio, markers)) = growth(all, |found| of(&found.warm)) {
        let figure = report.add(format!("{name}: 100,000 pods against 1,000"), ratio, "×");
        let note = format!("the worst of 10, 100 and 1,000 markers: {markers}");
        figure.reach(Target::AtMost(GROWTH)).note(note);
    }
    if let Some((ratio, _)) = growth(all, |found| of(&found.cold)) {
        let figure = report.add(format!("{name}: the same with cold caches"), ratio, "×");
        figure.floor = growth(all, |found| found.bare).map(|(bare, _)| bare);
        figure.note("floor: one value of a bare map of as many");
    }
    if let Some(found) = find(all, PODS[2], MARKERS[1]) {
        let (warm, cold) = (of(&found.warm) / 1e3, of(&found.cold) / 1e3);
        report.add(format!("{name} at 100,000 pods, 100 markers"), warm, "µs");
        report.add(format!("{name} there, with cold caches"), cold, "µs");
    }
}

fn add_bytes(report: &mut Report, all: &[Found]) {
    let shapes = [
        (MARKERS[2], "of which every one matches"),
        (MARKERS[0], "of which few match"),
    ];
    for (markers, what) in shapes {
        if let Some(found) = find(all, PODS[2], markers) {
            let note = "match; floor: its name, uid, address, container id and messages alone";
            report
                .add(
                    format!("bytes a pod of 100,000, {what}"),
                    found.bytes_a_pod,
                    "B",
                )
                .floor(found.strings_a_pod)
                .note(format!("{} {note}", found.matched));
        }
    }
}

fn plot(markers: u64, all: &[Found]) -> Plot {
    let of_kind = |(kind, name): (usize, &&str)| {
        let points = PODS.iter().filter_map(|pods| {
            let found = find(all, *pods, markers)?;
            Some((pods.amount(), found.warm[kind] / 1e3))
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
