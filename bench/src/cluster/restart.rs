//! The manager's half of `bench restart`: it starts beside a world that is as it should be, and beside one where a
//! single pod is not.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use serde_json::json;

use super::agents::Agents;
use super::exchange::Exchange;
use super::marks::Marks;
use super::objects::{self, PROBES};
use super::requests::Requests;
use super::settled::{self, Settled};
use super::sight::{Change, Sight};
use super::stage::{Stage, pass, play};
use super::subject::{Floor, Subject, free_address};
use super::world::World;
use super::{PATIENCE, QUIET, middle};
use crate::clock;
use crate::meter::Held;
use crate::report::{Figure, Report, Target, count};

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// A manager with nothing to do is watched for so long after it is ready.
const WATCHED: Duration = Duration::from_secs(10);
const MIB: f64 = 1024.0 * 1024.0;
/// Where the manager's Lease is.
const NAMESPACE: &str = "leadsman-system";

const HOW: &str = "The manager's half: etcd and kube-apiserver (default flags) alone; {world}, all planned, every probe \
succeeded, every pod marked. The manager is ended with SIGTERM, by which it gives its Lease back, and started again; \
/readyz is asked every 10 ms, the Lease is watched; requests are those of its account in the audit log from its start \
until ten seconds after it was ready, CPU is what it had used when it was ready. The floor is a process with the same \
client that lists and watches the same four kinds in the same pages, parses names and labels only and then says so. \
With one stale pod: while no manager runs, a label is taken off a pod by hand; the time until a watch on all pods shows \
it again, requests until three seconds later; the floor lists and then sends that one apply. After SIGKILL the Lease is \
not given back and must run out first. Three runs each, manager and floor in turn, one with SIGKILL; of the times the \
middle one is told, counts are the largest.";

/// A start with nothing to do.
struct Start {
    ready: Duration,
    cpu: Duration,
    held: Held,
    requests: Requests,
}

/// A start with one stale pod.
struct Repair {
    /// Since it is both leader and ready.
    after_leading: Duration,
    leads: Duration,
    repaired: Duration,
    requests: Requests,
}

/// Measures it, into `report`.
pub(crate) fn manager(scale: f64, report: &mut Report) -> Result<()> {
    play(async |stage| {
        let world = World::make(&stage.client, scale).await?;
        report.how.push_str(&HOW.replace("{world}", &world.words()));
        let Settled { agents, manager } = settled::settle(stage, &world).await?;
        manager.end().await?;
        nothing_to_do(stage, report).await?;
        stale(stage, &world, &agents, report).await?;
        killed(stage, &world, &agents, report).await
    })
}

async fn nothing_to_do(stage: &Stage, report: &mut Report) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        ours.push(start(stage, round).await?);
        floors.push(bare_start(stage).await?);
    }
    let most = |of: &dyn Fn(&Requests) -> u64| {
        let counts = ours.iter().map(|start| of(&start.requests));
        count(counts.max().unwrap_or_default())
    };
    let requests = |of: &str, value: f64| Figure::new(name(of), value, "requests");
    let words = ours.last().map(|start| start.requests.words());
    let writes = requests("writes but the Lease's", most(&Requests::writes));
    report.add(
        writes
            .reach(Target::Exactly(0.0))
            .note(words.unwrap_or_default()),
    );
    report.add(requests("lists of pods", most(&|it| it.count("list pods"))));
    report.add(requests("Lease requests", most(&Requests::lease)));
    let run = middle(ours, |start| start.ready).context("there were runs")?;
    let (floor, floor_cpu) = middle(floors, |(ready, _)| *ready).context("there were floors")?;
    let ready = Figure::new(name("ready"), run.ready.as_secs_f64(), "s");
    report.add(ready.floor(floor.as_secs_f64()).reach(Target::AtMost(3.0)));
    let cpu = Figure::new(name("CPU until ready"), run.cpu.as_secs_f64(), "s");
    report.add(cpu.floor(floor_cpu.as_secs_f64()));
    report.add(Figure::new(name("RSS"), count(run.held.rss) / MIB, "MiB"));
    report.add(Figure::new(
        name("RSS at its peak"),
        count(run.held.peak) / MIB,
        "MiB",
    ));
    Ok(())
}

async fn start(stage: &Stage, round: usize) -> Result<Start> {
    let address = free_address()?;
    let mark = stage.plane.audit_mark()?;
    let manager = Subject::manager(stage, &stage.kubeconfig, address)?;
    let ready = manager.ready(address).await?;
    let cpu = manager.meter.cpu()?;
    pass(&format!("nothing to do, run {round} of {ROUNDS}"), WATCHED).await;
    let start = Start {
        ready,
        cpu,
        held: manager.meter.held()?,
        requests: stage.requests(mark)?,
    };
    manager.end().await?;
    Ok(start)
}

async fn bare_start(stage: &Stage) -> Result<(Duration, Duration)> {
    let floor = Floor {
        list: true,
        exchanges: Vec::new(),
    };
    let (subject, _gate) = Subject::gated_floor(stage, &floor).await?;
    let listed = (subject.started.elapsed(), subject.meter.cpu()?);
    subject.end().await?;
    Ok(listed)
}

async fn stale(
    stage: &Stage,
    world: &World,
    agents: &Agents<'_>,
    report: &mut Report,
) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(repair(stage, world, agents).await?);
        floors.push(bare_repair(stage, world, agents).await?);
    }
    let writes = |repair: &Repair| repair.requests.writes();
    let writes = count(ours.iter().map(writes).max().unwrap_or_default());
    let words = ours.last().map(|repair| repair.requests.words());
    let run = middle(ours, |repair| repair.repaired).context("there were runs")?;
    let floor = middle(floors, |floor| *floor).context("there were floors")?;
    let writes = Figure::new("one stale pod: writes but the Lease's", writes, "requests");
    report.add(
        writes
            .reach(Target::Exactly(1.0))
            .note(words.unwrap_or_default()),
    );
    let seconds = |of: &str, time: Duration| {
        Figure::new(format!("one stale pod: {of}"), time.as_secs_f64(), "s")
    };
    report.add(
        seconds("repaired after it leads and is ready", run.after_leading)
            .reach(Target::AtMost(1.0)),
    );
    let since_start = seconds("repaired after the start", run.repaired);
    report.add(since_start.floor(floor.as_secs_f64()));
    let note = "the Lease was given back by a clean end: it is taken at once";
    report.add(seconds("leads after the start", run.leads).note(note));
    Ok(())
}

/// A label taken off by hand, as nobody looks.
async fn make_stale(client: &Client, world: &World) -> Result<usize> {
    let place = world.pods.len() / 2;
    let body = json!({"metadata": {"labels": {objects::label(PROBES[0]): null}}});
    let edit = Exchange::merge(&world.pods[place].path(), "kubectl-label", &body);
    edit.send(client).await?;
    Ok(place)
}

async fn repair(stage: &Stage, world: &World, agents: &Agents<'_>) -> Result<Repair> {
    let place = make_stale(&stage.client, world).await?;
    let mut marks = Marks::watch(&stage.client, world).await?;
    let mut lease = Leadership::watch(&stage.client).await?;
    let address = free_address()?;
    let mark = stage.plane.audit_mark()?;
    let manager = Subject::manager(stage, &stage.kubeconfig, address)?;
    let since = manager.started;
    let seen = tokio::try_join!(
        manager.ready(address),
        lease.taken(since),
        marks.seen("one stale pod", agents, [place], since),
    );
    let (ready, leads, repaired) =
        seen.with_context(|| format!("repair{}", manager.last_words()))?;
    let repaired = repaired.first().copied().unwrap_or_default();
    tokio::time::sleep(QUIET).await;
    let requests = stage.requests(mark)?;
    manager.end().await?;
    Ok(Repair {
        after_leading: repaired.saturating_sub(ready.max(leads)),
        leads,
        repaired,
        requests,
    })
}

async fn bare_repair(stage: &Stage, world: &World, agents: &Agents<'_>) -> Result<Duration> {
    let place = make_stale(&stage.client, world).await?;
    let mut marks = Marks::watch(&stage.client, world).await?;
    let floor = Floor {
        list: true,
        exchanges: vec![agents.marks(place)],
    };
    let subject = Subject::floor(stage, &stage.kubeconfig, &floor)?;
    let name = "one stale pod, floor";
    let seen = marks.seen(name, agents, [place], subject.started).await;
    let seen = seen.with_context(|| format!("{name}{}", subject.last_words()))?;
    subject.end().await?;
    Ok(seen.first().copied().unwrap_or_default())
}

async fn killed(
    stage: &Stage,
    world: &World,
    agents: &Agents<'_>,
    report: &mut Report,
) -> Result<()> {
    let address = free_address()?;
    let manager = Subject::manager(stage, &stage.kubeconfig, address)?;
    manager.ready(address).await?;
    pass("a manager that is about to be killed", QUIET).await;
    manager.kill().await?;
    let since_kill = clock::now();
    let repair = repair(stage, world, agents).await?;
    let all = since_kill.elapsed().saturating_sub(QUIET);
    let seconds = |of: &str, time: Duration| {
        Figure::new(
            format!("one stale pod after SIGKILL: {of}"),
            time.as_secs_f64(),
            "s",
        )
    };
    let note = "the Lease of the killed one has to run out first";
    report.add(seconds("leads after the start", repair.leads).note(note));
    report.add(
        seconds("repaired after it leads and is ready", repair.after_leading)
            .reach(Target::AtMost(1.0)),
    );
    report.add(seconds("repaired after the kill", all));
    Ok(())
}

/// Who leads, as the Lease says.
struct Leadership {
    sight: Sight<Lease>,
    holder: Option<String>,
}

impl Leadership {
    async fn watch(client: &Client) -> Result<Self> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
        let (sight, leases) = Sight::begin(leases, Config::default()).await?;
        let holder = leases.iter().find_map(holder);
        Ok(Self { sight, holder })
    }

    /// Waits until somebody else holds it than at the beginning; when that was.
    async fn taken(&mut self, since: Instant) -> Result<Duration> {
        let watching = async {
            loop {
                let Change::Is(lease) = self.sight.next().await? else {
                    continue;
                };
                let holder = holder(&lease);
                if holder.is_some() && holder != self.holder {
                    return Ok(since.elapsed());
                }
            }
        };
        match tokio::time::timeout(PATIENCE, watching).await {
            Ok(taken) => taken,
            Err(_) => bail!("the Lease stays with {:?}", self.holder),
        }
    }
}

fn holder(lease: &Lease) -> Option<String> {
    let holder = lease.spec.as_ref()?.holder_identity.clone()?;
    (!holder.is_empty()).then_some(holder)
}

fn name(of: &str) -> String {
    format!("manager, nothing to do: {of}")
}
