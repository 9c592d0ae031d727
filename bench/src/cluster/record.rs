//! `bench record`: a manager beside the largest cluster that Kubernetes supports.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::ResourceExt as _;
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;
use leadsman_tests::ObjectWatch;
use procfs::process::all_processes;
use serde_json::json;

use super::agents::Agents;
use super::api::{ApiRequest, MERGE, NameAndLabels, PAGE, send_at_once};
use super::expected::MarkerWatch;
use super::restart::leads;
use super::roll_out::{Scene, start_kubelets};
use super::sidecars::Sidecars;
use super::stage::{Contender, Run, Stage, Who, play_with};
use super::world::{PROBES, World, mark};
use super::{PATIENCE, QUIET, add_requests};
use crate::figures;
use crate::meter::Meter;
use crate::progress::{Step, wait};
use crate::report::{Amount as _, Plot, Report};
use crate::requests::Since;
use crate::share_of;

const GATES: &str = "PodProbeMarkerGate=true,SidecarSetGate=true";
/// What these gates switch on.
const FEATURES: [&str; 2] = ["podprobe", "sidecarset"];
const NODES: usize = 5_000;
/// Between two looks at the manager's memory.
const LOOK: Duration = Duration::from_secs(1);
/// A floor sends the marks of one pod in so many.
const SHARE_OF_FLOOR: usize = 5;

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let mut report = Report::new("record", scale, include_str!("../../pages/record.md"));
    play_with(GATES, async |stage| pods(stage, scale, &mut report).await)?;
    Ok(report)
}

async fn pods(stage: &mut Stage, scale: f64, report: &mut Report) -> Result<()> {
    let sidecars = Sidecars::make(&stage.client).await?;
    let nodes = share_of(NODES, scale).max(2);
    let world = World::make_large(&stage.client, nodes, &sidecars).await?;
    report.how = report.how.replace("{world}", &world.described());
    let memory = Memory::default();
    let manager = first_start(stage, &world, &memory, report).await?;
    let agents = Agents::of(&stage.client, &world, whole_seconds(clock::now())).await?;
    first_verdicts(stage, (&manager, &agents), &memory, report).await?;
    fail_over(stage, manager, &agents, report).await?;
    start_with_all_in_place(stage, report).await?;
    roll_out(stage, &world, &sidecars, report).await?;
    bare_marks(stage, agents, report).await?;
    report.plots.push(memory.plot());
    Ok(())
}

/// The manager's memory over time.
#[derive(Default)]
struct Memory {
    began: RefCell<Option<tokio::time::Instant>>,
    looks: RefCell<Vec<(f64, f64)>>,
}

impl Memory {
    /// Looks at a process while something is done.
    async fn during<T>(&self, meter: Meter, act: impl Future<Output = Result<T>>) -> Result<T> {
        let began = *self.began.borrow_mut().get_or_insert_with(clock::monotonic);
        let look = async {
            loop {
                let at = began.elapsed().as_secs_f64();
                let rss = meter.held()?.rss.amount() / 1_048_576.0;
                self.looks.borrow_mut().push((at, rss));
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            done = act => done,
            broken = look => broken,
        }
    }

    fn plot(self) -> Plot {
        Plot {
            name: "memory".to_owned(),
            title: "Resident memory of the manager: a first start, then the first verdicts of half of all pods".to_owned(),
            x: "seconds".to_owned(),
            y: "MiB".to_owned(),
            curves: vec![("leadsman".to_owned(), self.looks.into_inner())],
            ..Plot::default()
        }
    }
}

async fn first_start(
    stage: &Stage,
    world: &World,
    memory: &Memory,
    report: &mut Report,
) -> Result<Contender> {
    let mut markers = MarkerWatch::begin(&stage.client).await?;
    let since = Since::now(&stage.plane)?;
    let manager = stage.start(Who::Manager, None).await?;
    let step = Step::begin("a first start");
    let planned = async {
        let ready = manager.ready().await?;
        markers.planned(world).await?;
        manager.begins_writes(&FEATURES).await?;
        wait("the last entries", QUIET).await;
        Ok(ready)
    };
    let ready = memory.during(manager.meter, planned).await;
    let ready = ready.with_context(|| manager.last_lines())?;
    drop(step);
    let requests = stage.requests(since)?;
    let held = manager.meter.held()?;
    let add = report.section("a first start: nothing is planned");
    let kinds = [
        (&figures::RECORD_SPECS, "nodepodprobes", Some(world.nodes)),
        (&figures::MARKER_STATUS_WRITES, "podprobemarkers", None),
        (&figures::SET_WRITES, "sidecarsets", None),
        (&figures::REVISION_WRITES, "controllerrevisions", None),
        (&figures::CERTIFICATE_WRITES, "secrets", None),
        (
            &figures::CONFIGURATION_WRITES,
            "mutatingwebhookconfigurations",
            None,
        ),
        (
            &figures::VALIDATION_WRITES,
            "validatingwebhookconfigurations",
            None,
        ),
    ];
    add_requests(add, &requests, &kinds);
    add.add(&figures::RECORD_READY, ready);
    let last = requests.last_write("nodepodprobes");
    add.add(
        &figures::PLANNED,
        last.max(requests.last_write("podprobemarkers")),
    );
    add.add(&figures::CPU_OF_START, manager.meter.cpu()?);
    add.add(&figures::RECORD_RSS, held.rss);
    add.add(&figures::RSS_PEAK, held.peak);
    Ok(manager)
}

async fn first_verdicts(
    stage: &Stage,
    (manager, agents): (&Contender, &Agents<'_>),
    memory: &Memory,
    report: &mut Report,
) -> Result<()> {
    let mut markers = MarkerWatch::begin(&stage.client).await?;
    let reports = agents.reports();
    let marked = async {
        tokio::try_join!(
            send_at_once(&stage.client, reports),
            markers.counted(agents),
            manager.written("pod_marks", agents.world.pods.len()),
        )?;
        Ok(())
    };
    let name = "the first verdicts of half of all pods";
    let marked = memory.during(manager.meter, marked);
    let run = stage.during(manager, name, marked).await?;
    let writes = run.requests.writes_of("pods");
    let add = report.section(name);
    let pods = Some(agents.world.pods.len());
    let kinds = [
        (&figures::MARKED_PODS, "pods", pods),
        (&figures::MARKER_STATUS_WRITES, "podprobemarkers", None),
    ];
    add_requests(add, &run.requests, &kinds);
    let times = run.requests.write_times("pods");
    let first = times.first().copied().unwrap_or_default();
    let last = times.last().copied().unwrap_or_default();
    add.add(&figures::ALL_MARKED, last);
    let took = last.saturating_sub(first).as_secs_f64();
    add.add(&figures::MARKS, writes.amount() / took)
        .note(format!("over {took:.0} s"));
    add.add(&figures::CPU_A_MARK, run.cpu.div_f64(writes.amount()));
    add.add(&figures::RECORD_RSS, run.held.rss);
    add.add(&figures::RSS_PEAK, run.held.peak);
    add.add(&figures::API_SERVER_RSS, api_server_rss()?);
    Ok(())
}

/// Kills the leader beside a standby, and takes a label off a pod at the same time.
async fn fail_over(
    stage: &mut Stage,
    leader: Contender,
    agents: &Agents<'_>,
    report: &mut Report,
) -> Result<()> {
    stage.take_another_port()?;
    let standby = stage.start(Who::Manager, None).await?;
    let step = Step::begin("a standby starts");
    let ready = standby.ready().await?;
    drop(step);
    wait("a leader that is about to be killed", QUIET).await;
    let standby_held = standby.meter.held()?;
    let pod = &agents.world.pods[agents.world.pods.len() / 2];
    let collection = pod.path().replace(&format!("/{}", pod.name), "");
    let mut pods: ObjectWatch<NameAndLabels> =
        ObjectWatch::begin(&stage.client, &collection, PAGE).await?;
    pods.take_listed();
    let label = mark(PROBES[0]);
    let since = Since::now(&stage.plane)?;
    // SIGKILL.
    drop(leader);
    let body = json!({"metadata": {"labels": {&label: null}}});
    let edit = ApiRequest::new(MERGE, &pod.path(), "kubectl-label", &body);
    edit.send(&stage.client).await?;
    let step = Step::begin("a fail-over");
    let is_back = async {
        loop {
            let seen = pods.next().await;
            let mut keys = seen.labels.iter().map(|(key, _)| key);
            if seen.name_any() == pod.name && keys.any(|key| *key == label) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, is_back)
        .await
        .with_context(|| standby.last_lines())?;
    drop(step);
    wait("what else is written", QUIET).await;
    let run = Run {
        requests: stage.requests(since)?,
        ..Run::default()
    };
    standby.end().await?;
    let add = report.section("a fail-over to a standby");
    let kinds = [
        (&figures::POD_WRITES, "pods", None),
        (
            &figures::CONFIGURATION_WRITES,
            "mutatingwebhookconfigurations",
            None,
        ),
        (
            &figures::VALIDATION_WRITES,
            "validatingwebhookconfigurations",
            None,
        ),
    ];
    add_requests(add, &run.requests, &kinds);
    add.add(&figures::RECORD_READY, ready);
    add.add(&figures::TAKEN_OVER, leads(&run));
    add.add(&figures::MENDED, run.requests.last_write("pods"));
    add.add(&figures::RECORD_RSS, standby_held.rss);
    Ok(())
}

async fn start_with_all_in_place(stage: &Stage, report: &mut Report) -> Result<()> {
    let name = "a start with all in place";
    let run = stage.run(name, (Who::Manager, None), Contender::ready, 3 * QUIET);
    let run = run.await?;
    let add = report.section(name);
    add.add(&figures::NO_WRITES, run.requests.writes())
        .note(run.requests.listed());
    add.add(&figures::LISTS_OF_PODS, run.requests.count("list pods"));
    add.add(&figures::RECORD_READY, run.ready);
    add.add(&figures::CPU_UNTIL_READY, run.cpu);
    add.add(&figures::RECORD_RSS, run.held.rss);
    add.add(&figures::RSS_PEAK, run.held.peak);
    Ok(())
}

/// The sidecars of all pods that have one get another image.
async fn roll_out(
    stage: &Stage,
    world: &World,
    sidecars: &Sidecars,
    report: &mut Report,
) -> Result<()> {
    let pods = world.injected();
    let scene = Scene {
        stage,
        sidecars,
        pods,
    };
    let _kubelets = start_kubelets(stage).await?;
    let mut manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    manager.begins_writes(&FEATURES).await?;
    scene.wait_for_status(Sidecars::FIRST, &manager).await?;
    wait("pods with sidecars: at rest", QUIET).await;
    let done = scene.roll_out("first", &mut manager, 1).await?;
    manager.end().await?;
    let add = report.section(format!("a roll-out over {pods} of these pods"));
    done.add_writes(pods, add);
    add.add(&figures::RECORD_ROLLED_OUT, done.wall);
    add.add(&figures::CPU_AN_UPGRADED_POD, done.cpu_a_pod(pods));
    add.add(&figures::RECORD_RSS, done.held.rss);
    add.add(&figures::RSS_PEAK, done.held.peak);
    Ok(())
}

/// The marks of some pods by a process that decides nothing.
async fn bare_marks(stage: &Stage, mut agents: Agents<'_>, report: &mut Report) -> Result<()> {
    let places = (0..agents.world.pods.len()).step_by(SHARE_OF_FLOOR);
    let places: Vec<_> = places.collect();
    agents.turn(&places, PROBES.len(), whole_seconds(clock::now()));
    let marks = places.iter().map(|place| agents.marks(*place));
    let times = stage.send_bare(marks.collect()).await?.write_times("pods");
    let first = times.first().copied().unwrap_or_default();
    let last = times.last().copied().unwrap_or_default();
    let took = last.saturating_sub(first).as_secs_f64();
    report
        .section("the first verdicts of half of all pods")
        .add(&figures::BARE_MARKS, times.len().amount() / took)
        .note(format!("{} pods, no manager", times.len()));
    Ok(())
}

/// The resident memory of the API server, in bytes.
fn api_server_rss() -> Result<u64> {
    let mut processes = all_processes()?.filter_map(Result::ok);
    let server = processes.find(|process| {
        let status = process.status();
        status.is_ok_and(|status| status.name == "kube-apiserver")
    });
    let server = server.context("there is no API server")?;
    Ok(Meter(server.pid.try_into()?).held()?.rss)
}
