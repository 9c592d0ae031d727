//! `bench flips`: verdicts turn round, a thousand at once and then all, and every pod is to have the new marks.

use std::time::Duration;

use anyhow::{Context as _, Result};
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;

use super::agents::Agents;
use super::api::send_at_once;
use super::expected::{self, check_all, until_counted, until_marked, watch_markers, watch_pods};
use super::stage::{Contender, Run, Stage, Who, play};
use super::world::{AppPod, PROBES, World};
use super::{QUIET, add_requests, middle, most_requests};
use crate::figures;
use crate::progress::wait;
use crate::report::{Amount as _, Plot, Report};
use crate::requests::Requests;
use crate::share_of;

/// Each size is measured so often with the manager and with the floor; even, so that all ends as it began.
const ROUNDS: usize = 2;
/// Points of a curve.
const POINTS: usize = 200;

/// Verdicts that turn round together.
struct Flips {
    /// The name of its plot.
    plot: &'static str,
    /// Each named by the place of its pod and its own.
    verdicts: Vec<(usize, usize)>,
    pods: Vec<usize>,
}

/// When each pod had its marks, in order.
struct Marked(Vec<Duration>);

impl Flips {
    fn new(
        plot: &'static str,
        world: &World,
        is_among: fn(&AppPod) -> bool,
        probes: usize,
    ) -> Self {
        let pods = 0..world.pods.len();
        let pods: Vec<_> = pods.filter(|place| is_among(&world.pods[*place])).collect();
        let verdicts = pods
            .iter()
            .flat_map(|pod| (0..probes).map(move |probe| (*pod, probe)));
        Self {
            plot,
            verdicts: verdicts.collect(),
            pods,
        }
    }

    fn name(&self) -> String {
        format!("{} verdicts", self.verdicts.len())
    }
}

/// One in five of each node and of each application.
fn is_among_some(pod: &AppPod) -> bool {
    (pod.app + pod.node).is_multiple_of(5)
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    play(async |stage| {
        let world = World::make(&stage.client, scale).await?;
        let sizes = [
            Flips::new("some", &world, is_among_some, 1),
            Flips::new("all", &world, |_| true, PROBES.len()),
        ];
        let how = include_str!("../../pages/flips.md")
            .replace("{world}", &world.described())
            .replace("{few}", &sizes[0].pods.len().to_string());
        let mut report = Report::new("flips", scale, &how);
        let (mut agents, mut manager) = expected::settle(stage, &world).await?;
        let mut ours = Vec::new();
        for flips in &sizes {
            let mut runs = Vec::new();
            for round in 1..=ROUNDS {
                let name = format!("{} at once, run {round} of {ROUNDS}", flips.name());
                agents.turn(&flips.verdicts, whole_seconds(clock::now()));
                let run = run(stage, &agents, flips, &mut manager, &name).await;
                runs.push(run.context(name)?);
                check_all(&stage.client, &agents).await?;
            }
            ours.push(runs);
        }
        manager.end().await?;
        for (flips, ours) in sizes.iter().zip(ours) {
            let mut floors = Vec::new();
            for round in 1..=ROUNDS {
                let name = format!("{} at once, run {round} of {ROUNDS}, floor", flips.name());
                agents.turn(&flips.verdicts, whole_seconds(clock::now()));
                let marks = flips.pods.iter().map(|place| agents.marks(*place));
                let mut floor = stage.start(Who::Sender(marks.collect()), None).await?;
                let run = run(stage, &agents, flips, &mut floor, &name).await;
                floors.push(run.context(name)?);
            }
            add_figures(&mut report, flips, ours, floors);
        }
        let after = writes_of_another(stage).await?;
        let mut add = report.named("");
        add.add(&figures::WRITES_AFTER_FLOOR, after.writes())
            .note(after.listed());
        Ok(report)
    })
}

/// One run, by the manager or by a floor.
async fn run(
    stage: &Stage,
    agents: &Agents<'_>,
    flips: &Flips,
    contender: &mut Contender,
    name: &str,
) -> Result<Run<Marked>> {
    let mut pods = watch_pods(&stage.client).await?;
    let mut markers = watch_markers(&stage.client).await?;
    let mark = stage.plane.audit_mark()?;
    let (meter, before) = (contender.meter, contender.meter.cpu()?);
    let (times, (), ()) = tokio::try_join!(
        until_marked(&mut pods, name, agents, &flips.pods, clock::monotonic()),
        send_at_once(&stage.client, agents.reports()),
        contender.send(),
    )?;
    if contender.is_manager() {
        let counted = until_counted(&mut markers, agents).await;
        counted.with_context(|| contender.last_lines())?;
        wait(format!("{name}: what else is written"), QUIET).await;
    }
    Ok(Run {
        took: Marked(times),
        cpu: meter.cpu()?.saturating_sub(before),
        held: meter.held()?,
        requests: stage.requests(mark)?,
    })
}

/// Starts a manager, lets it find nothing to do, and ends it; what it sent.
async fn writes_of_another(stage: &Stage) -> Result<Requests> {
    let mark = stage.plane.audit_mark()?;
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    wait("a manager with nothing to do", QUIET).await;
    let requests = stage.requests(mark)?;
    manager.end().await?;
    Ok(requests)
}

fn add_figures(
    report: &mut Report,
    flips: &Flips,
    ours: Vec<Run<Marked>>,
    floors: Vec<Run<Marked>>,
) {
    let (pods, name) = (flips.pods.len(), flips.name());
    let requests = most_requests(&ours);
    let [run, floor] = [ours, floors].map(|runs| middle(runs, |run| run.took.last()));
    let mut add = report.section(&name);
    let marks = requests.count("patch pods/status");
    let statuses = requests.count("patch podprobemarkers/status");
    let kinds = [
        (&figures::FLIPPED_POD_WRITES, marks, Some(pods)),
        (&figures::MARKER_STATUS_WRITES, statuses, None),
    ];
    add_requests(&mut add, &requests, &kinds);
    for (kind, share) in [
        (&figures::HALF_OF_PODS, 0.5),
        (&figures::MOST_PODS, 0.99),
        (&figures::LAST_POD, 1.0),
    ] {
        add.compare(kind, run.took.share(share), floor.took.share(share));
    }
    let [cpu, floor_cpu] = [&run, &floor].map(|run| run.cpu.div_f64(pods.amount()));
    add.compare(&figures::CPU_A_POD, cpu, floor_cpu);
    report.plots.push(Plot {
        name: flips.plot.to_owned(),
        title: format!("Pods that have their marks after {name} at once"),
        x: "seconds".to_owned(),
        y: "percent of the pods".to_owned(),
        logarithmic: false,
        curves: vec![
            ("leadsman".to_owned(), run.took.curve()),
            ("floor".to_owned(), floor.took.curve()),
        ],
    });
}

impl Marked {
    /// When the last pod had its marks.
    fn last(&self) -> Duration {
        self.share(1.0)
    }

    /// When this share of the pods did.
    fn share(&self, share: f64) -> Duration {
        let place = share_of(self.0.len(), share).saturating_sub(1);
        self.0.get(place).copied().unwrap_or_default()
    }

    /// Percent of the pods over seconds.
    fn curve(&self) -> Vec<(f64, f64)> {
        let shares = (1..=POINTS).map(|point| point.amount() / POINTS.amount());
        let points = shares.map(|share| (self.share(share).as_secs_f64(), 100.0 * share));
        std::iter::once((0.0, 0.0)).chain(points).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_curves_end_with_the_last_pod() {
        let run = Marked((1..=400).map(Duration::from_millis).collect());
        assert_eq!(run.share(0.5), Duration::from_millis(200));
        assert_eq!(run.last(), Duration::from_millis(400));
        let curve = run.curve();
        assert_eq!((curve[0], curve[POINTS]), ((0.0, 0.0), (0.4, 100.0)));
    }
}
