//! The manager's half of `bench restart`: it starts beside a world that is as it should be, and beside one where a
//! single pod is not.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::watcher::Config;
use leadsman_process::clock;
use serde_json::json;
use tokio::time::Instant;

use super::agents::Agents;
use super::api::{ApiRequest, MERGE, Watched};
use super::expected::{self, until_marked, watch_pods};
use super::stage::{Run, Stage, Who, play};
use super::world::{PROBES, World, mark};
use super::{QUIET, middle, most_requests};
use crate::figures;
use crate::progress::wait;
use crate::report::Report;

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// A manager with nothing to do is watched for so long after it is ready.
const WATCHED: Duration = Duration::from_secs(10);

/// How long after a start with one stale pod; a floor leads at once.
struct Repair {
    ready: Duration,
    leads: Duration,
    repaired: Duration,
}

impl Repair {
    fn after_leading(&self) -> Duration {
        self.repaired.saturating_sub(self.ready.max(self.leads))
    }
}

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
        ours.push(start(stage, &name, Who::Manager, WATCHED).await?);
        let floor = Who::Floor(Vec::new());
        let name = format!("{name}, floor");
        floors.push(start(stage, &name, floor, Duration::ZERO).await?);
    }
    let requests = most_requests(&ours);
    let [run, floor] = [ours, floors].map(|runs| middle(runs, |run| run.took));
    let mut add = report.section("manager, nothing to do");
    add.add(&figures::NO_WRITES, requests.writes())
        .note(requests.listed());
    add.add(&figures::LISTS_OF_PODS, requests.count("list pods"));
    add.add(&figures::LEASE_REQUESTS, requests.lease());
    add.compare(&figures::READY, run.took, floor.took);
    add.compare(&figures::CPU_UNTIL_READY, run.cpu, floor.cpu);
    add.add(&figures::RSS, run.held.rss);
    add.add(&figures::RSS_PEAK, run.held.peak);
    Ok(())
}

/// A start with nothing to do: how long until it is ready.
async fn start(stage: &Stage, name: &str, who: Who, watched: Duration) -> Result<Run<Duration>> {
    let mark = stage.plane.audit_mark()?;
    let contender = stage.start(who, None).await?;
    let ready = contender.ready().await?;
    let cpu = contender.meter.cpu()?;
    wait(name, watched).await;
    stage.finish(contender, (ready, cpu), mark).await
}

async fn stale_pod(stage: &Stage, agents: &Agents<'_>, report: &mut Report) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    let place = stale_place(agents);
    for _ in 0..ROUNDS {
        ours.push(repair(stage, agents, Who::Manager).await?);
        let floor = Who::Floor(vec![agents.marks(place)]);
        floors.push(repair(stage, agents, floor).await?);
    }
    let requests = most_requests(&ours);
    let [run, floor] = [ours, floors].map(|runs| middle(runs, |run| run.took.repaired));
    let (repair, floor) = (run.took, floor.took.repaired);
    let mut add = report.section("one stale pod");
    add.add(&figures::ONE_WRITE, requests.writes())
        .note(requests.listed());
    add.add(&figures::REPAIRED_ONCE_LEADING, repair.after_leading());
    add.compare(&figures::REPAIRED_AFTER_START, repair.repaired, floor);
    add.add(&figures::LEADS, repair.leads);
    Ok(())
}

/// The place of the pod that is made stale.
fn stale_place(agents: &Agents<'_>) -> usize {
    agents.world.pods.len() / 2
}

/// Starts with one pod that lost a label by hand, as nobody looked.
async fn repair(stage: &Stage, agents: &Agents<'_>, who: Who) -> Result<Run<Repair>> {
    let (client, place) = (&stage.client, stale_place(agents));
    let (path, body) = (
        agents.world.pods[place].path(),
        json!({"metadata": {"labels": {mark(PROBES[0]): null}}}),
    );
    let edit = ApiRequest::new(MERGE, &path, "kubectl-label", &body);
    edit.send(client).await?;
    let mut pods = watch_pods(client).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let ours = Config::default().fields("metadata.name=leadsman-manager");
    let mut leases = Watched::begin(leases, ours).await?;
    let since_start = stage.plane.audit_mark()?;
    let contender = stage.start(who, None).await?;
    let since = contender.started;
    let leads = async {
        if contender.is_manager() {
            until_taken(&mut leases, since).await
        } else {
            Ok(Duration::ZERO)
        }
    };
    let places = [place];
    let marked = until_marked(&mut pods, "one stale pod", agents, &places, since);
    let seen = tokio::try_join!(contender.ready(), leads, marked);
    let (ready, leads, repaired) = seen.with_context(|| contender.last_lines())?;
    let cpu = contender.meter.cpu()?;
    tokio::time::sleep(QUIET).await;
    let took = Repair {
        ready,
        leads,
        repaired: repaired[0],
    };
    stage.finish(contender, (took, cpu), since_start).await
}

async fn stale_pod_after_kill(
    stage: &Stage,
    agents: &Agents<'_>,
    report: &mut Report,
) -> Result<()> {
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    wait("a manager that is about to be killed", QUIET).await;
    // SIGKILL.
    drop(manager);
    let killed = clock::monotonic();
    let repair = repair(stage, agents, Who::Manager).await?.took;
    let all = killed.elapsed().saturating_sub(QUIET);
    let mut add = report.section("one stale pod after SIGKILL");
    add.add(&figures::LEADS_AFTER_KILL, repair.leads);
    add.add(&figures::REPAIRED_ONCE_LEADING, repair.after_leading());
    add.add(&figures::REPAIRED_AFTER_KILL, all);
    Ok(())
}

/// Waits until somebody else holds the Lease than at the beginning; when that was.
async fn until_taken(leases: &mut Watched<Lease>, since: Instant) -> Result<Duration> {
    let holder = |lease: &Lease| {
        let holder = lease.spec.as_ref()?.holder_identity.clone()?;
        (!holder.is_empty()).then_some(holder)
    };
    let before = leases.listed.first().and_then(holder);
    let is_taken = |lease: &Lease| Some(holder(lease).is_some() && holder(lease) != before);
    let taken = leases.until_right("the Lease", 1, since, is_taken).await?;
    Ok(taken[0])
}
