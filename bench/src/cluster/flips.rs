//! `bench flips`: verdicts turn round, a thousand at once and then all, and every pod is to bear the new marks.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;

use super::agents::Agents;
use super::exchange::Exchange;
use super::marks::{Marks, check_all};
use super::objects::{APPS, PROBES};
use super::requests::Requests;
use super::settled::{self, Settled, Statuses};
use super::stage::{Stage, play};
use super::subject::{Floor, Gate, Subject};
use super::world::{Pod, World};
use super::{QUIET, middle};
use crate::clock;
use crate::report::{Figure, Plot, Report, Target, count};

/// Of each node, so many pods are among the first thousand.
const PODS_A_NODE: usize = 4;
/// Status patches of agents on their way at once.
const AGENTS_AT_ONCE: usize = 32;
/// Each size is measured so often with the manager and with the floor; even, so that all ends as it began.
const ROUNDS: usize = 2;
/// Points of a curve.
const POINTS: usize = 200;

const HOW: &str = "etcd and kube-apiserver (default flags) alone; {world}. \
A manager has planned all of it, every probe has succeeded and every pod bears its marks. Then verdicts turn round: the \
bench, as the nodes' agents, patches the status of every NodePodProbe, 32 at once; time zero is when the first patch is \
sent. First one verdict on each of {few} pods, four on each node; then all verdicts. A watch of the bench on all pods \
tells when each bears its labels; afterwards a list is compared, labels, annotations and conditions. Requests are \
those of the manager's account in the audit log from time zero until three seconds after the last mark and the last \
marker's status; CPU (schedstat) over the same time, with all that is in it, divided by the pods. The floor is a process with the same client \
that watches nothing and sends the same server-side applies, prepared beforehand, 32 at once, from time zero on, while \
the same status patches run. That it left every pod as the manager would have is seen when a manager starts again \
and writes nothing. Two runs of each, there and back; the one with the later last mark is told, counts are the largest.";

/// How many verdicts turn round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// One on each of four pods of every node.
    Some,
    /// All.
    All,
}

/// What a run came to.
struct Run {
    /// When each pod bore its marks, in order.
    times: Vec<Duration>,
    cpu: Duration,
    requests: Requests,
}

/// Who is to write the marks.
enum Writer<'a> {
    Manager(&'a Subject),
    Floor,
}

impl Size {
    const BOTH: [Self; 2] = [Self::Some, Self::All];

    /// The verdicts, each named by the place of its pod and its own.
    fn verdicts(self, world: &World) -> Vec<(usize, usize)> {
        let pods = 0..world.pods.len();
        match self {
            Self::Some => pods
                .filter(|place| is_among_some(&world.pods[*place]))
                .map(|place| (place, 0))
                .collect(),
            Self::All => pods
                .flat_map(|place| (0..PROBES.len()).map(move |probe| (place, probe)))
                .collect(),
        }
    }

    fn pods(self, world: &World) -> Vec<usize> {
        let mut pods: Vec<_> = self
            .verdicts(world)
            .into_iter()
            .map(|(pod, _)| pod)
            .collect();
        pods.dedup();
        pods
    }

    fn words(self, world: &World) -> String {
        format!("{} verdicts", self.verdicts(world).len())
    }
}

/// Four neighbours on each node, others on the next one, so that every marker has its share.
fn is_among_some(pod: &Pod) -> bool {
    (pod.app + APPS - pod.node * PODS_A_NODE % APPS) % APPS < PODS_A_NODE
}

/// Measures it.
pub(crate) fn run(scale: f64) -> Result<Report> {
    play(async |stage| {
        let mut report = Report::new("flips", scale, HOW);
        let world = World::make(&stage.client, scale).await?;
        let few = Size::Some.pods(&world).len().to_string();
        report.how = HOW
            .replace("{world}", &world.words())
            .replace("{few}", &few);
        let Settled {
            mut agents,
            manager,
        } = settled::settle(stage, &world).await?;
        let mut ours = Vec::new();
        for size in Size::BOTH {
            ours.push(measure(stage, &world, &mut agents, size, &Writer::Manager(&manager)).await?);
        }
        manager.end().await?;
        let mut floors = Vec::new();
        for size in Size::BOTH {
            floors.push(measure(stage, &world, &mut agents, size, &Writer::Floor).await?);
        }
        for ((size, ours), floors) in Size::BOTH.into_iter().zip(ours).zip(floors) {
            tell(&mut report, &world, size, ours, floors)?;
        }
        let after = settled::restart(stage).await?;
        let figure = Figure::new(
            "writes of a manager started after the floor",
            count(after.writes()),
            "requests",
        );
        report.add(figure.reach(Target::Exactly(0.0)).note(after.words()));
        Ok(report)
    })
}

async fn measure(
    stage: &Stage,
    world: &World,
    agents: &mut Agents<'_>,
    size: Size,
    writer: &Writer<'_>,
) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for round in 1..=ROUNDS {
        let who = match writer {
            Writer::Manager(_) => "",
            Writer::Floor => ", floor",
        };
        let words = size.words(world);
        let name = format!("{words} at once, run {round} of {ROUNDS}{who}");
        agents.turn(&size.verdicts(world), settled::whole_seconds(clock::wall()));
        let run = match writer {
            Writer::Manager(manager) => {
                by_manager(stage, world, agents, size, manager, &name).await
            }
            Writer::Floor => by_floor(stage, world, agents, size, &name).await,
        };
        runs.push(run.with_context(|| name.clone())?);
        if matches!(writer, Writer::Manager(_)) {
            check_all(&stage.client, world, agents).await?;
        }
    }
    Ok(runs)
}

async fn by_manager(
    stage: &Stage,
    world: &World,
    agents: &Agents<'_>,
    size: Size,
    manager: &Subject,
    name: &str,
) -> Result<Run> {
    let mut marks = Marks::watch(&stage.client, world).await?;
    let mut statuses = Statuses::watch(&stage.client).await?;
    let mark = stage.plane.audit_mark()?;
    let before = manager.meter.cpu()?;
    let since = clock::now();
    let (times, ()) = tokio::try_join!(
        marks.seen(name, agents, size.pods(world), since),
        report(&stage.client, agents.reports()),
    )?;
    statuses.settle(agents).await?;
    tokio::time::sleep(QUIET).await;
    Ok(Run {
        times,
        cpu: manager.meter.cpu()?.saturating_sub(before),
        requests: stage.requests(mark)?,
    })
}

async fn by_floor(
    stage: &Stage,
    world: &World,
    agents: &Agents<'_>,
    size: Size,
    name: &str,
) -> Result<Run> {
    let exchanges = size.pods(world).into_iter();
    let floor = Floor {
        list: false,
        exchanges: exchanges.map(|place| agents.marks(place)).collect(),
    };
    let (subject, mut gate) = Subject::gated_floor(stage, &floor).await?;
    let mut marks = Marks::watch(&stage.client, world).await?;
    let mark = stage.plane.audit_mark()?;
    let before = subject.meter.cpu()?;
    let since = clock::now();
    let (times, (), ()) = tokio::try_join!(
        marks.seen(name, agents, size.pods(world), since),
        report(&stage.client, agents.reports()),
        Gate::open(&mut gate),
    )?;
    let run = Run {
        times,
        cpu: subject.meter.cpu()?.saturating_sub(before),
        requests: stage.requests(mark)?,
    };
    subject.end().await?;
    Ok(run)
}

/// Sends what the agents say.
pub(super) async fn report(client: &Client, reports: Vec<Exchange>) -> Result<()> {
    let sent = futures::stream::iter(reports).map(|exchange| async move {
        exchange.send(client).await?;
        Ok::<(), anyhow::Error>(())
    });
    sent.buffer_unordered(AGENTS_AT_ONCE).try_collect().await
}

fn tell(
    report: &mut Report,
    world: &World,
    size: Size,
    ours: Vec<Run>,
    floors: Vec<Run>,
) -> Result<()> {
    let pods = count(size.pods(world).len() as u64);
    tell_requests(report, &size.words(world), pods, &ours);
    let run = middle(ours, Run::last).context("there were runs")?;
    let floor = middle(floors, Run::last).context("there were floors")?;
    let name = |of: &str| format!("{}: {of}", size.words(world));
    for (of, share) in [("half of the pods", 0.5), ("99 % of the pods", 0.99)] {
        let figure = Figure::new(name(of), run.share(share).as_secs_f64(), "s");
        report.add(figure.floor(floor.share(share).as_secs_f64()));
    }
    let last = Figure::new(name("last pod"), run.last().as_secs_f64(), "s");
    let last = last.floor(floor.last().as_secs_f64());
    report.add(last.reach(Target::TimesFloor(1.5)));
    let a_pod = |run: &Run| run.cpu.as_secs_f64() * 1000.0 / pods;
    let cpu = Figure::new(name("manager CPU a pod"), a_pod(&run), "ms");
    report.add(cpu.floor(a_pod(&floor)).reach(Target::AtMost(0.4)));
    report.plots.push(Plot {
        name: match size {
            Size::Some => "some",
            Size::All => "all",
        }
        .to_owned(),
        title: format!(
            "Pods that bear their marks after {} at once",
            size.words(world)
        ),
        x: "seconds".to_owned(),
        y: "percent of the pods".to_owned(),
        logarithmic: false,
        curves: vec![
            ("leadsman".to_owned(), run.curve()),
            ("floor".to_owned(), floor.curve()),
        ],
    });
    Ok(())
}

fn tell_requests(report: &mut Report, words: &str, pods: f64, runs: &[Run]) {
    let most = |of: &dyn Fn(&Requests) -> u64| {
        let counts = runs.iter().map(|run| of(&run.requests));
        count(counts.max().unwrap_or_default())
    };
    let marks = |requests: &Requests| requests.count("patch pods/status");
    let statuses = |requests: &Requests| requests.count("patch podprobemarkers/status");
    let other = |requests: &Requests| requests.writes() - marks(requests) - statuses(requests);
    let figure = |of: &str, value: f64| Figure::new(format!("{words}: {of}"), value, "requests");
    let all = runs.last().map(|run| run.requests.words());
    report.add(
        figure("pod writes", most(&marks))
            .reach(Target::Exactly(pods))
            .note(all.unwrap_or_default()),
    );
    report.add(figure("other writes", most(&other)).reach(Target::Exactly(0.0)));
    report.add(figure("failed", most(&Requests::failed)).reach(Target::Exactly(0.0)));
    report.add(figure("marker status writes", most(&statuses)));
    report.add(figure("Lease requests", most(&Requests::lease)));
}

impl Run {
    /// When the last pod bore its marks.
    fn last(&self) -> Duration {
        self.share(1.0)
    }

    /// When this share of the pods did.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is one"
    )]
    fn share(&self, share: f64) -> Duration {
        let place = (count(self.times.len() as u64) * share).ceil() as usize;
        let time = self.times.get(place.saturating_sub(1));
        time.copied().unwrap_or_default()
    }

    /// Percent of the pods over seconds.
    fn curve(&self) -> Vec<(f64, f64)> {
        let all = self.times.len();
        let place = |point: usize| all * point / POINTS;
        let mut curve = vec![(0.0, 0.0)];
        curve.extend((1..=POINTS).filter_map(|point| {
            let time = self.times.get(place(point).checked_sub(1)?)?;
            Some((
                time.as_secs_f64(),
                100.0 * count(point as u64) / count(POINTS as u64),
            ))
        }));
        curve
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_curves_end_with_the_last_pod() {
        let run = Run {
            times: (1..=400).map(Duration::from_millis).collect(),
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
        let pod = |node, app| Pod {
            name: String::new(),
            uid: String::new(),
            app,
            node,
        };
        for node in 0..250 {
            let some = (0..APPS).filter(|app| is_among_some(&pod(node, *app)));
            assert_eq!(some.count(), PODS_A_NODE, "node {node}");
        }
        for app in 0..APPS {
            let some = (0..250).filter(|node| is_among_some(&pod(*node, app)));
            assert_eq!(some.count(), 50, "application {app}");
        }
    }
}
