//! The rules alone: what one event costs among few and among many pods and markers, and what a pod takes.
//!
//! Each shape is measured by a process of its own, with criterion; its memory is what the system gave it.
//!
//! | room | what lives there |
//! |---|---|
//! | `cluster` | objects of a cluster of any size, and an index that has seen them all |
//! | `events` | the events that are timed |

mod cluster;
mod events;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use self::events::{Kind, Times};
use crate::meter::Meter;
use crate::part::Part;
use crate::progress::Step;
use crate::report::{Figure, Plot, Report, Target, count};

const PODS: [u64; 3] = [1_000, 10_000, 100_000];
const MARKERS: [u64; 3] = [10, 100, 1_000];
/// Growth of an event's cost from the fewest pods to the most.
const GROWTH: f64 = 1.5;

const HOW: &str = "The index as it is in the manager, without a client: all objects are told to it, its writes are answered, \
and then one event at a time, about pods in no order, with the writes that are due after it. 25 pods a node, 250 a marker \
of two probes, 1,000 a namespace; all markers of a namespace share one label pair and differ in another. Pods beyond those \
of the markers match nothing, markers beyond the pods select nothing. Once one event after the other; and once with the \
processor's caches full of something else before each, where the floor is what memory alone comes to: a bare map of as \
many values of 2,000 bytes, one looked up, read and written. Medians of criterion, a process for each shape.";

/// What a process of ours measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pods: u64,
    markers: u64,
    /// Of the full length.
    scale: f64,
    /// Where its results go.
    folder: PathBuf,
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

const FOUND: &str = "found.json";

/// Measures all shapes.
pub(crate) fn measure(scale: f64) -> Result<Report> {
    let mut all = Vec::new();
    let shapes = (PODS.len() * MARKERS.len()) as u64;
    let mut step = Step::begin("the index, by pods and markers", shapes);
    for markers in MARKERS {
        for pods in PODS {
            all.push(one(pods, markers, scale)?);
            step.at(all.len() as u64);
        }
    }
    step.end();
    let mut report = Report::new("index", scale, HOW);
    for kind in Kind::ALL {
        add_event(&mut report, kind, &all);
    }
    add_bytes(&mut report, &all);
    report.plots = MARKERS.map(|markers| plot(markers, &all)).into();
    Ok(report)
}

/// One shape, in a process of its own.
fn one(pods: u64, markers: u64, scale: f64) -> Result<Found> {
    let folder = folder()?.join(format!("{pods}-{markers}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let order = Order {
        pods: scaled(pods, scale),
        markers,
        scale,
        folder: folder.clone(),
    };
    // What criterion tells people is of use where it fails alone.
    let ended = Command::new(std::env::current_exe()?)
        .args(Part::Index(order).arguments()?)
        .stdin(Stdio::null())
        .output()?;
    let told = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.success(),
        "measuring {pods} pods: {}\n{told}",
        ended.status
    );
    let file = folder.join(FOUND);
    let found = std::fs::read_to_string(&file);
    let found = found.with_context(|| format!("reading {}", file.display()))?;
    Ok(Found {
        pods,
        ..serde_json::from_str(&found)?
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a count of pods"
)]
fn scaled(pods: u64, scale: f64) -> u64 {
    ((count(pods) * scale) as u64).max(250)
}

/// Below the build's own folder, where nobody minds criterion's files.
fn folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("a program in no folder")?;
    Ok(folder.join("index"))
}

/// Does what [`one`] asks for.
pub(crate) fn run(order: &Order) -> Result<()> {
    let meter = Meter::new(std::process::id());
    let cluster = cluster::Cluster::new(order.pods, order.markers);
    let before = meter.held()?.rss;
    let mut world = cluster::World::new(cluster)?;
    let taken = meter.held()?.rss.saturating_sub(before);
    let [cold, warm] = events::measure(&mut world, order.scale, &order.folder)?;
    let (matched, unique) = (world.cluster.matched(), world.cluster.unique_bytes());
    drop(world);
    let bare = events::bare(order.pods, order.scale, &order.folder)?;
    let found = Found {
        pods: order.pods,
        markers: order.markers,
        matched,
        bytes_a_pod: count(taken) / count(order.pods),
        strings_a_pod: count(unique) / count(order.pods),
        cold,
        warm,
        bare,
    };
    let file = order.folder.join(FOUND);
    std::fs::write(&file, serde_json::to_string(&found)?)
        .with_context(|| format!("writing {}", file.display()))
}

fn find(all: &[Found], pods: u64, markers: u64) -> Option<&Found> {
    let mut all = all.iter();
    all.find(|found| found.pods == pods && found.markers == markers)
}

/// How many times as long an event takes among the most pods as among the fewest, for the worst number of markers.
fn growth(all: &[Found], time: impl Fn(&Found) -> f64) -> Option<(f64, u64)> {
    let ratios = MARKERS.iter().filter_map(|markers| {
        let time = |pods| find(all, pods, *markers).map(&time);
        Some((time(PODS[2])? / time(PODS[0])?, *markers))
    });
    ratios.max_by(|a, b| a.0.total_cmp(&b.0))
}

fn add_event(report: &mut Report, kind: Kind, all: &[Found]) {
    if let Some((ratio, markers)) = growth(all, |found| found.warm.of(kind)) {
        let name = format!("{}: 100,000 pods against 1,000", kind.name());
        let note = format!("the worst of 10, 100 and 1,000 markers: {markers}");
        let figure = Figure::new(name, ratio, "×").reach(Target::AtMost(GROWTH));
        report.add(figure.note(note));
    }
    if let Some((ratio, _)) = growth(all, |found| found.cold.of(kind)) {
        let name = format!("{}: the same with cold caches", kind.name());
        let mut figure = Figure::new(name, ratio, "×");
        figure.floor = growth(all, |found| found.bare).map(|(bare, _)| bare);
        report.add(figure.note("floor: one value of a bare map of as many"));
    }
    if let Some(found) = find(all, PODS[2], MARKERS[1]) {
        let name = format!("{} at 100,000 pods, 100 markers", kind.name());
        report.add(Figure::new(name, found.warm.of(kind) / 1e3, "µs"));
        let name = format!("{} there, with cold caches", kind.name());
        report.add(Figure::new(name, found.cold.of(kind) / 1e3, "µs"));
    }
}

fn add_bytes(report: &mut Report, all: &[Found]) {
    for (markers, what) in [
        (MARKERS[2], "of which every one matches"),
        (MARKERS[0], "of which few match"),
    ] {
        if let Some(found) = find(all, PODS[2], markers) {
            let name = format!("bytes a pod of 100,000, {what}");
            let figure = Figure::new(name, found.bytes_a_pod, "B").floor(found.strings_a_pod);
            let note = format!(
                "{} match; floor: its name, uid, address, container id and messages alone",
                found.matched
            );
            report.add(figure.note(note));
        }
    }
}

fn plot(markers: u64, all: &[Found]) -> Plot {
    let curves = Kind::ALL.map(|kind| {
        let points = PODS.iter().filter_map(|pods| {
            let found = find(all, *pods, markers)?;
            Some((count(*pods), found.warm.of(kind) / 1e3))
        });
        (kind.name().to_owned(), points.collect())
    });
    Plot {
        name: format!("markers-{markers}"),
        title: format!("One event, {markers} markers"),
        x: "pods".to_owned(),
        y: "µs".to_owned(),
        logarithmic: true,
        curves: curves.into(),
    }
}

/// Where criterion leaves what it worked out.
fn estimates(folder: &Path, group: &str, id: &str) -> PathBuf {
    folder.join(group).join(id).join("new/estimates.json")
}
