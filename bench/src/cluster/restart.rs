//! The manager's half of `bench restart`: it starts beside a world that is as it should be, and beside one where a
//! single pod is not.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::QUIET;
use super::agents::Agents;
use super::api::{ApiRequest, MERGE};
use super::expected::{self, Watches};
use super::stage::{Contender, Run, Stage, Who, play};
use super::world::{PROBES, World, mark};
use crate::figures;
use crate::progress::wait;
use crate::report::Report;
use crate::requests::Since;

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// A manager with nothing to do is watched for so long after it is ready.
const WATCHED: Duration = Duration::from_secs(10);

/// Measures it, into `report`.
pub(crate) fn measure(scale: f64, report: &mut Report) -> Result<()> {
    play(async |stage| {
        let world = World::make(&stage.client, scale).await?;
        report.how = report.how.replace("{world}", &world.described());
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
        let name = format!("nothing to do, run {round} of {ROUNDS}");
        let run = stage.run(&name, (Who::Manager, None), Contender::ready, WATCHED);
        ours.push(run.await?);
        let floor = (Who::Floor(Vec::new()), None);
        let name = format!("{name}, floor");
        let floor = stage.run(&name, floor, Contender::ready, Duration::ZERO);
        floors.push(floor.await?);
    }
    let [(run, requests), (floor, _)] =
        [ours, floors].map(|runs| Run::middle(runs, |run| run.ready));
    let add = report.section("manager, nothing to do");
    add.add(&figures::NO_WRITES, requests.writes())
        .note(requests.listed());
    add.add(&figures::LISTS_OF_PODS, requests.count("list pods"));
    add.add(&figures::LEASE_REQUESTS, requests.lease());
    add.compare(&figures::READY, run.ready, floor.ready);
    add.compare(&figures::CPU_UNTIL_READY, run.cpu, floor.cpu);
    add.add(&figures::RSS, run.held.rss);
    add.add(&figures::RSS_PEAK, run.held.peak);
    Ok(())
}

async fn stale_pod(stage: &Stage, agents: &Agents<'_>, report: &mut Report) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(repair(stage, agents, Who::Manager).await?);
        let floor = Who::Floor(vec![agents.marks(stale_place(agents))]);
        floors.push(repair(stage, agents, floor).await?);
    }
    let [(run, requests), (floor, _)] = [ours, floors].map(|runs| Run::middle(runs, repaired));
    let add = report.section("one stale pod");
    add.add(&figures::ONE_WRITE, requests.writes())
        .note(requests.listed());
    add.add(&figures::LEADS, leads(&run));
    add.add(&figures::REPAIRED_ONCE_LEADING, repaired_once_leading(&run));
    let [after_start, floor] = [run, floor].map(|run| repaired(&run));
    add.compare(&figures::REPAIRED_AFTER_START, after_start, floor);
    Ok(())
}

async fn stale_pod_after_kill(
    stage: &Stage,
    agents: &Agents<'_>,
    report: &mut Report,
) -> Result<()> {
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    wait("a manager that is about to be killed", QUIET).await;
    let killed = Since::now(&stage.plane)?;
    // SIGKILL.
    drop(manager);
    let run = repair(stage, agents, Who::Manager).await?;
    let add = report.section("one stale pod after SIGKILL");
    add.add(&figures::LEADS_AFTER_KILL, leads(&run));
    add.add(&figures::REPAIRED_ONCE_LEADING, repaired_once_leading(&run));
    let since_kill = stage.requests(killed)?;
    add.add(&figures::REPAIRED_AFTER_KILL, since_kill.last_write("pods"));
    Ok(())
}

/// Starts with one pod that lost a label by hand, as nobody looked.
async fn repair(stage: &Stage, agents: &Agents<'_>, who: Who) -> Result<Run> {
    let place = stale_place(agents);
    let path = agents.world.pods[place].path();
    let body = json!({"metadata": {"labels": {mark(PROBES[0]): null}}});
    let edit = ApiRequest::new(MERGE, &path, "kubectl-label", &body);
    edit.send(&stage.client).await?;
    let mut watches = Watches::begin(&stage.client).await?;
    let name = "one stale pod";
    let repaired = async |contender: &Contender| {
        let marked = watches.marked(name, agents);
        let (ready, ()) = tokio::try_join!(contender.ready(), marked)?;
        Ok(ready)
    };
    stage.run(name, (who, None), repaired, QUIET).await
}

/// The place of the pod that is made stale.
fn stale_place(agents: &Agents<'_>) -> usize {
    agents.world.pods.len() / 2
}

/// When the pod was written.
fn repaired(run: &Run) -> Duration {
    run.requests.last_write("pods")
}

/// When the Lease was taken; a floor leads at once.
pub(super) fn leads(run: &Run) -> Duration {
    let leases = run.requests.write_times("leases");
    leases.first().copied().unwrap_or_default()
}

pub(super) fn repaired_once_leading(run: &Run) -> Duration {
    repaired(run).saturating_sub(run.ready.max(leads(run)))
}
