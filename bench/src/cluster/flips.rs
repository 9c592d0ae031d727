//! `bench flips`: verdicts turn round, a thousand at once and then all, and every pod is to have the new marks.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::agents::Agents;
use super::exchange::send_at_once;
use super::expected::{self, check_all, until_counted, until_marked, watch_pods, watch_statuses};
use super::objects::{APPS, PROBES};
use super::stage::{Manager, Stage, play};
use super::world::{Pod, World};
use super::{add_requests, floor, middle};
use crate::clock;
use crate::report::{Amount as _, Plot, Report, Target};
use crate::requests::Requests;

/// Of each node, so many pods are among the first thousand.
const PODS_A_NODE: usize = 4;
/// Each size is measured so often with the manager and with the floor; even, so that all ends as it began.
const ROUNDS: usize = 2;
/// Points of a curve.
const POINTS: usize = 200;

const HOW: &str = "etcd and kube-apiserver (default flags) alone; {world}. \
A manager has planned all of it, every probe has succeeded and every pod has its marks. Then verdicts turn round: the \
bench, as the nodes' agents, patches the status of every NodePodProbe, 32 at once; time zero is when the first patch is \
sent. First one verdict on each of {few} pods, four on each node; then all verdicts. A watch of the bench on all pods \
tells when each has its labels; afterwards a list is compared, labels, annotations and conditions. Requests are those of \
the manager's account in the audit log from time zero until three seconds after the last mark and the last marker's \
status; CPU (schedstat) over the same time, with all that is in it, divided by the pods. The floor is a process with the \
same client that watches nothing and sends the same server-side applies, prepared beforehand, 32 at once, from time zero \
on, while the same status patches run. That it left every pod as the manager would have is seen when a manager starts \
again and writes nothing. Two runs of each, there and back; the one with the later last mark is told, counts are the \
largest.";

/// Verdicts that turn round together.
struct Flips {
    /// The name of its plot.
    plot: &'static str,
    /// Each named by the place of its pod and its own.
    verdicts: Vec<(usize, usize)>,
    pods: Vec<usize>,
}

/// What a run came to.
struct Run {
    /// When each pod had its marks, in order.
    times: Vec<Duration>,
    cpu: Duration,
    requests: Requests,
}

impl Flips {
    fn new(plot: &'static str, world: &World, is_among: fn(&Pod) -> bool, probes: usize) -> Self {
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

/// Four neighbours on each node, others on the next one, so that every marker has its share.
fn is_among_some(pod: &Pod) -> bool {
    (pod.app + APPS - pod.node * PODS_A_NODE % APPS) % APPS < PODS_A_NODE
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    play(async |stage| {
        let world = World::make(&stage.client, scale).await?;
        let sizes = [
            Flips::new("some", &world, is_among_some, 1),
            Flips::new("all", &world, |_| true, PROBES.len()),
        ];
        let few = sizes[0].pods.len().to_string();
        let how = HOW
            .replace("{world}", &world.described())
            .replace("{few}", &few);
        let mut report = Report::new("flips", scale, how);
        let (mut agents, manager) = expected::settle(stage, &world).await?;
        let mut ours = Vec::new();
        for flips in &sizes {
            ours.push(runs(stage, &mut agents, flips, Some(&manager)).await?);
        }
        manager.end().await?;
        let mut floors = Vec::new();
        for flips in &sizes {
            floors.push(runs(stage, &mut agents, flips, None).await?);
        }
        for ((flips, ours), floors) in sizes.iter().zip(ours).zip(floors) {
            tell(&mut report, flips, ours, floors);
        }
        let after = expected::restart(stage).await?;
        report
            .add(
                "writes of a manager started after the floor",
                after.writes(),
                "requests",
            )
            .reach(Target::Exactly(0.0))
            .note(after.listed());
        Ok(report)
    })
}

/// All runs of a size by the manager, or by the floor.
async fn runs(
    stage: &Stage,
    agents: &mut Agents<'_>,
    flips: &Flips,
    manager: Option<&Manager>,
) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for round in 1..=ROUNDS {
        let who = if manager.is_some() { "" } else { ", floor" };
        let name = format!("{} at once, run {round} of {ROUNDS}{who}", flips.name());
        agents.turn(&flips.verdicts, expected::whole_seconds(clock::wall()));
        let run = match manager {
            Some(manager) => by_manager(stage, agents, flips, manager, &name).await,
            None => by_floor(stage, agents, flips, &name).await,
        };
        runs.push(run.with_context(|| name.clone())?);
        if manager.is_some() {
            check_all(&stage.client, agents).await?;
        }
    }
    Ok(runs)
}

async fn by_manager(
    stage: &Stage,
    agents: &Agents<'_>,
    flips: &Flips,
    manager: &Manager,
    name: &str,
) -> Result<Run> {
    let mut pods = watch_pods(&stage.client).await?;
    let mut statuses = watch_statuses(&stage.client).await?;
    let mark = stage.plane.audit_mark()?;
    let before = manager.meter.cpu()?;
    let (times, ()) = tokio::try_join!(
        until_marked(&mut pods, name, agents, &flips.pods, clock::now()),
        send_at_once(&stage.client, agents.reports()),
    )?;
    until_counted(&mut statuses, agents).await?;
    let cpu = manager.meter.cpu()?.saturating_sub(before);
    Ok(Run {
        times,
        cpu,
        requests: stage.requests(mark)?,
    })
}

async fn by_floor(stage: &Stage, agents: &Agents<'_>, flips: &Flips, name: &str) -> Result<Run> {
    let marks: Vec<_> = flips
        .pods
        .iter()
        .map(|place| agents.marks(*place))
        .collect();
    let mut floor = floor::start(stage, &stage.kubeconfig, &marks, (false, true)).await?;
    let meter = floor.meter;
    let mut pods = watch_pods(&stage.client).await?;
    let mark = stage.plane.audit_mark()?;
    let before = meter.cpu()?;
    let (times, (), ()) = tokio::try_join!(
        until_marked(&mut pods, name, agents, &flips.pods, clock::now()),
        send_at_once(&stage.client, agents.reports()),
        floor.ask(),
    )?;
    let cpu = meter.cpu()?.saturating_sub(before);
    Ok(Run {
        times,
        cpu,
        requests: stage.requests(mark)?,
    })
}

fn tell(report: &mut Report, flips: &Flips, ours: Vec<Run>, floors: Vec<Run>) {
    let pods = flips.pods.len().amount();
    let name = flips.name();
    let requests = Requests::largest(ours.iter().map(|run| &run.requests));
    let [run, floor] = [ours, floors].map(|runs| middle(runs, Run::last));
    let mut add = report.section(&name);
    let marks = requests.count("patch pods/status");
    let statuses = requests.count("patch podprobemarkers/status");
    let kinds = [
        ("pod writes", marks, Some(pods)),
        ("marker status writes", statuses, None),
    ];
    add_requests(&mut add, &requests, &kinds);
    for (of, share) in [("half of the pods", 0.5), ("99 % of the pods", 0.99)] {
        add.add(of, run.share(share), "s").floor(floor.share(share));
    }
    add.add("last pod", run.last(), "s")
        .floor(floor.last())
        .reach(Target::TimesFloor(1.5));
    let [cpu, floor_cpu] = [&run, &floor].map(|run| run.cpu.as_secs_f64() * 1000.0 / pods);
    add.add("manager CPU a pod", cpu, "ms")
        .floor(floor_cpu)
        .reach(Target::AtMost(0.4));
    report.plots.push(Plot {
        name: flips.plot.to_owned(),
        title: format!("Pods that have their marks after {name} at once"),
        x: "seconds".to_owned(),
        y: "percent of the pods".to_owned(),
        logarithmic: false,
        curves: vec![
            ("leadsman".to_owned(), run.curve()),
            ("floor".to_owned(), floor.curve()),
        ],
    });
}

impl Run {
    /// When the last pod had its marks.
    fn last(&self) -> Duration {
        self.share(1.0)
    }

    /// When this share of the pods did.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    fn share(&self, share: f64) -> Duration {
        let place = (self.times.len().amount() * share).ceil() as usize;
        self.times
            .get(place.saturating_sub(1))
            .copied()
            .unwrap_or_default()
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
        let times = (1..=400).map(Duration::from_millis).collect();
        let run = Run {
            times,
            cpu: Duration::ZERO,
            requests: Requests::default(),
        };
        assert_eq!(run.share(0.5), Duration::from_millis(200));
        assert_eq!(run.last(), Duration::from_millis(400));
        let curve = run.curve();
        assert_eq!((curve[0], curve[POINTS]), ((0.0, 0.0), (0.4, 100.0)));
    }

    #[test]
    fn some_are_four_pods_of_each_node_and_one_in_five_of_each_application() {
        let is_among = |node, app| {
            is_among_some(&Pod {
                name: String::new(),
                uid: String::new(),
                app,
                node,
            })
        };
        for node in 0..250 {
            let some = (0..APPS).filter(|app| is_among(node, *app));
            assert_eq!(some.count(), PODS_A_NODE, "node {node}");
        }
        for app in 0..APPS {
            let some = (0..250).filter(|node| is_among(*node, app));
            assert_eq!(some.count(), 50, "application {app}");
        }
    }
}
