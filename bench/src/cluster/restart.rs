//! The manager's half of `bench restart`: it starts beside a world that is as it should be, and beside one where a
//! single pod is not.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use serde_json::json;

use super::agents::Agents;
use super::exchange::Exchange;
use super::expected::{self, until_marked, watch_pods};
use super::objects::{self, PROBES};
use super::stage::{Stage, play};
use super::watched::Watched;
use super::world::World;
use super::{PATIENCE, QUIET, floor, middle};
use crate::clock;
use crate::meter::Held;
use crate::progress::wait;
use crate::report::{Report, Target, mebibytes};
use crate::requests::Requests;

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// A manager with nothing to do is watched for so long after it is ready.
const WATCHED: Duration = Duration::from_secs(10);

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
pub(crate) fn measure(scale: f64, report: &mut Report) -> Result<()> {
    play(async |stage| {
        let world = World::make(&stage.client, scale).await?;
        report
            .how
            .push_str(&HOW.replace("{world}", &world.described()));
        let (agents, manager) = expected::settle(stage, &world).await?;
        manager.end().await?;
        nothing_to_do(stage, report).await?;
        stale_pod(stage, &agents, report).await?;
        stale_pod_after_kill(stage, &agents, report).await
    })
}

async fn nothing_to_do(stage: &Stage, report: &mut Report) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        ours.push(start(stage, round).await?);
        floors.push(bare_start(stage).await?);
    }
    let requests = Requests::largest(ours.iter().map(|start| &start.requests));
    let run = middle(ours, |start| start.ready);
    let (floor, floor_cpu) = middle(floors, |(ready, _)| *ready);
    let mut add = report.section("manager, nothing to do");
    add.add("writes but the Lease's", requests.writes(), "requests")
        .reach(Target::Exactly(0.0))
        .note(requests.listed());
    add.add("lists of pods", requests.count("list pods"), "requests");
    add.add("Lease requests", requests.lease(), "requests");
    add.add("ready", run.ready, "s")
        .floor(floor)
        .reach(Target::AtMost(3.0));
    add.add("CPU until ready", run.cpu, "s").floor(floor_cpu);
    add.add("RSS", mebibytes(run.held.rss), "MiB");
    add.add("RSS at its peak", mebibytes(run.held.peak), "MiB");
    Ok(())
}

async fn start(stage: &Stage, round: usize) -> Result<Start> {
    let mark = stage.plane.audit_mark()?;
    let manager = stage.start_manager(&stage.kubeconfig)?;
    let ready = manager.ready().await?;
    let cpu = manager.meter.cpu()?;
    wait(format!("nothing to do, run {round} of {ROUNDS}"), WATCHED).await;
    let (held, requests) = (manager.meter.held()?, stage.requests(mark)?);
    manager.end().await?;
    Ok(Start {
        ready,
        cpu,
        held,
        requests,
    })
}

async fn bare_start(stage: &Stage) -> Result<(Duration, Duration)> {
    let started = clock::now();
    let floor = floor::start(stage, &stage.kubeconfig, &[], (true, true)).await?;
    Ok((started.elapsed(), floor.meter.cpu()?))
}

async fn stale_pod(stage: &Stage, agents: &Agents<'_>, report: &mut Report) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(repair(stage, agents).await?);
        floors.push(bare_repair(stage, agents).await?);
    }
    let requests = Requests::largest(ours.iter().map(|repair| &repair.requests));
    let run = middle(ours, |repair| repair.repaired);
    let mut add = report.section("one stale pod");
    add.add("writes but the Lease's", requests.writes(), "requests")
        .reach(Target::Exactly(1.0))
        .note(requests.listed());
    let after_leading = add.add(
        "repaired after it leads and is ready",
        run.after_leading,
        "s",
    );
    after_leading.reach(Target::AtMost(1.0));
    add.add("repaired after the start", run.repaired, "s")
        .floor(middle(floors, |floor| *floor));
    let note = "the Lease was given back by a clean end: it is taken at once";
    add.add("leads after the start", run.leads, "s").note(note);
    Ok(())
}

/// A label taken off by hand, as nobody looks.
async fn make_stale(client: &Client, world: &World) -> Result<usize> {
    let place = world.pods.len() / 2;
    let body = json!({"metadata": {"labels": {objects::mark(PROBES[0]): null}}});
    let edit = Exchange::merge(&world.pods[place].path(), "kubectl-label", &body);
    edit.send(client).await?;
    Ok(place)
}

async fn repair(stage: &Stage, agents: &Agents<'_>) -> Result<Repair> {
    let place = make_stale(&stage.client, agents.world).await?;
    let mut pods = watch_pods(&stage.client).await?;
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "kube-system");
    let ours = Config::default().fields("metadata.name=leadsman-manager");
    let mut leases = Watched::begin(leases, ours).await?;
    let mark = stage.plane.audit_mark()?;
    let manager = stage.start_manager(&stage.kubeconfig)?;
    let since = manager.started;
    let places = [place];
    let seen = tokio::try_join!(
        manager.ready(),
        until_taken(&mut leases, since),
        until_marked(&mut pods, "one stale pod", agents, &places, since),
    );
    let (ready, leads, repaired) = seen.with_context(|| manager.last_lines())?;
    let repaired = repaired.first().copied().unwrap_or_default();
    tokio::time::sleep(QUIET).await;
    let requests = stage.requests(mark)?;
    manager.end().await?;
    let after_leading = repaired.saturating_sub(ready.max(leads));
    Ok(Repair {
        after_leading,
        leads,
        repaired,
        requests,
    })
}

async fn bare_repair(stage: &Stage, agents: &Agents<'_>) -> Result<Duration> {
    let place = make_stale(&stage.client, agents.world).await?;
    let mut pods = watch_pods(&stage.client).await?;
    let started = clock::now();
    let marks = [agents.marks(place)];
    let _floor = floor::start(stage, &stage.kubeconfig, &marks, (true, false)).await?;
    let name = "one stale pod, floor";
    let times = until_marked(&mut pods, name, agents, &[place], started).await?;
    Ok(times.first().copied().unwrap_or_default())
}

async fn stale_pod_after_kill(
    stage: &Stage,
    agents: &Agents<'_>,
    report: &mut Report,
) -> Result<()> {
    let manager = stage.start_manager(&stage.kubeconfig)?;
    manager.ready().await?;
    wait("a manager that is about to be killed", QUIET).await;
    manager.kill().await?;
    let since_kill = clock::now();
    let repair = repair(stage, agents).await?;
    let all = since_kill.elapsed().saturating_sub(QUIET);
    let mut add = report.section("one stale pod after SIGKILL");
    let note = "the Lease of the killed one has to run out first";
    add.add("leads after the start", repair.leads, "s")
        .note(note);
    add.add(
        "repaired after it leads and is ready",
        repair.after_leading,
        "s",
    )
    .reach(Target::AtMost(1.0));
    add.add("repaired after the kill", all, "s");
    Ok(())
}

/// Waits until somebody else holds the Lease than at the beginning; when that was.
async fn until_taken(leases: &mut Watched<Lease>, since: Instant) -> Result<Duration> {
    let holder = |lease: &Lease| {
        let holder = lease.spec.as_ref()?.holder_identity.clone()?;
        (!holder.is_empty()).then_some(holder)
    };
    let before = leases.listed.iter().find_map(holder);
    let watching = async {
        loop {
            if let Ok(lease) = leases.next().await?
                && let Some(now) = holder(&lease)
                && before.as_ref() != Some(&now)
            {
                return Ok(since.elapsed());
            }
        }
    };
    let taken = tokio::time::timeout(PATIENCE, watching).await;
    taken.with_context(|| format!("the Lease stays with {before:?}"))?
}
