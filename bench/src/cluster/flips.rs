//! `bench flips`: verdicts turn round, a thousand at once and then all, and every pod is to have the new marks.

use std::time::Duration;

use anyhow::{Context as _, Result};
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;

use super::agents::Agents;
use super::api::send_at_once;
use super::expected::{self, Watches};
use super::stage::{Contender, Run, Stage, Who, play};
use super::world::{PROBES, World};
use super::{QUIET, add_requests};
use crate::at_share;
use crate::figures;
use crate::progress::wait;
use crate::report::{Amount as _, Plot, Report};
use crate::requests::Since;

/// Each size is measured so often with the manager and with the floor; even, so that all ends as it began.
const ROUNDS: usize = 2;
/// Points of a curve.
const POINTS: usize = 200;

/// Verdicts that turn round together: those of the first probes of some pods.
struct Flips {
    /// The name of its plot.
    plot: &'static str,
    /// By their places.
    pods: Vec<usize>,
    probes: usize,
}

impl Flips {
    fn name(&self) -> String {
        format!("{} verdicts", self.pods.len() * self.probes)
    }
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    play(async |stage| {
        let world = World::make(&stage.client, scale).await?;
        let all: Vec<_> = (0..world.pods.len()).collect();
        let (mut some, pods) = (all.clone(), &world.pods);
        // One in five of each node and of each application.
        some.retain(|place| (pods[*place].app + pods[*place].node).is_multiple_of(5));
        let sizes = [("some", some, 1), ("all", all, PROBES.len())];
        let sizes = sizes.map(|(plot, pods, probes)| Flips { plot, pods, probes });
        let how = include_str!("../../pages/flips.md")
            .replace("{world}", &world.described())
            .replace("{few}", &sizes[0].pods.len().to_string());
        let mut report = Report::new("flips", scale, &how);
        let (mut agents, mut manager) = expected::settle(stage, &world).await?;
        let mut ours = Vec::new();
        for flips in &sizes {
            ours.push(runs(stage, &mut agents, flips, Some(&mut manager)).await?);
        }
        manager.end().await?;
        for (flips, ours) in sizes.iter().zip(ours) {
            let floors = runs(stage, &mut agents, flips, None).await?;
            add_figures(&mut report, flips, ours, floors);
        }
        let another = "a manager with nothing to do";
        let another = stage.run(another, (Who::Manager, None), Contender::ready, QUIET);
        let another = another.await?.requests;
        let add = report.named("");
        add.add(&figures::WRITES_AFTER_FLOOR, another.writes())
            .note(another.listed());
        Ok(report)
    })
}

/// All runs of a size, by the manager or by floors.
async fn runs(
    stage: &Stage,
    agents: &mut Agents<'_>,
    flips: &Flips,
    mut manager: Option<&mut Contender>,
) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for round in 1..=ROUNDS {
        let who = if manager.is_some() { "" } else { ", floor" };
        let name = format!("{} at once, run {round} of {ROUNDS}{who}", flips.name());
        agents.turn(&flips.pods, flips.probes, whole_seconds(clock::now()));
        let mut floor;
        let contender = if let Some(manager) = manager.as_deref_mut() {
            manager
        } else {
            let marks = flips.pods.iter().map(|place| agents.marks(*place));
            floor = stage.start(Who::Sender(marks.collect()), None).await?;
            &mut floor
        };
        let run = run(stage, agents, contender, &name).await;
        runs.push(run.context(name)?);
    }
    Ok(runs)
}

/// One run, by the manager or by a floor.
async fn run(
    stage: &Stage,
    agents: &Agents<'_>,
    contender: &mut Contender,
    name: &str,
) -> Result<Run> {
    let mut watches = Watches::begin(&stage.client).await?;
    let since = Since::now(&stage.plane)?;
    let (meter, before) = (contender.meter, contender.meter.cpu()?);
    tokio::try_join!(
        watches.marked(name, agents),
        send_at_once(&stage.client, agents.reports()),
        contender.send(),
    )?;
    if contender.is_manager() {
        let counted = watches.markers.counted(agents).await;
        counted.with_context(|| contender.last_lines())?;
    }
    wait(format!("{name}: what else is written"), QUIET).await;
    Ok(Run {
        cpu: meter.cpu()?.saturating_sub(before),
        held: meter.held()?,
        requests: stage.requests(since)?,
        ..Run::default()
    })
}

fn add_figures(report: &mut Report, flips: &Flips, ours: Vec<Run>, floors: Vec<Run>) {
    let (pods, name) = (flips.pods.len(), flips.name());
    let by_last = |run: &Run| run.requests.last_write("pods");
    let [(run, requests), (floor, _)] = [ours, floors].map(|runs| Run::middle(runs, by_last));
    let [times, floor_times] = [&run, &floor].map(|run| run.requests.write_times("pods"));
    let add = report.section(&name);
    let kinds = [
        (&figures::FLIPPED_POD_WRITES, "pods", Some(pods)),
        (&figures::MARKER_STATUS_WRITES, "podprobemarkers", None),
    ];
    add_requests(add, &requests, &kinds);
    for (kind, share) in [
        (&figures::HALF_OF_PODS, 0.5),
        (&figures::MOST_PODS, 0.99),
        (&figures::LAST_POD, 1.0),
    ] {
        add.compare(kind, at_share(&times, share), at_share(&floor_times, share));
    }
    let [cpu, floor_cpu] = [&run, &floor].map(|run| run.cpu.div_f64(pods.amount()));
    add.compare(&figures::CPU_A_POD, cpu, floor_cpu);
    report.plots.push(Plot {
        name: flips.plot.to_owned(),
        title: format!("Pods that have their marks after {name} at once"),
        x: "seconds".to_owned(),
        y: "percent of the pods".to_owned(),
        curves: vec![
            ("leadsman".to_owned(), curve(&times)),
            ("floor".to_owned(), curve(&floor_times)),
        ],
        ..Plot::default()
    });
}

/// Percent of the pods over seconds.
fn curve(times: &[Duration]) -> Vec<(f64, f64)> {
    let shares = (0..=POINTS).map(|point| point.amount() / POINTS.amount());
    let points = shares.map(|share| (at_share(times, share).as_secs_f64(), 100.0 * share));
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_curves_end_with_the_last_pod() {
        let times: Vec<_> = (1..=400).map(Duration::from_millis).collect();
        assert_eq!(at_share(&times, 0.5), Duration::from_millis(200));
        assert_eq!(at_share(&times, 1.0), Duration::from_millis(400));
        let curve = curve(&times);
        assert_eq!((curve[0], curve[POINTS]), ((0.001, 0.0), (0.4, 100.0)));
    }
}
