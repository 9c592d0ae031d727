//! `bench cold-start`: a manager starts beside a whole world, and plans all of it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use serde_json::{Value, json};

use super::bytes::Door;
use super::exchange::{Exchange, send_all};
use super::objects::{self, APPS};
use super::requests::Requests;
use super::specs::{Complete, Plans};
use super::stage::{Stage, pass, play};
use super::subject::{Floor, Subject, free_address};
use super::world::{NODE_POD_PROBES, World, marker_path};
use super::{QUIET, middle};
use crate::meter::Held;
use crate::report::{Figure, Report, Target, count};

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// How long an idle manager is left alone before it is looked at.
const IDLE: Duration = Duration::from_secs(5);
const MIB: f64 = 1024.0 * 1024.0;

const HOW: &str = "etcd and kube-apiserver (default flags) alone; {world}. \
A manager is started as its own service account by certificate. Two watches of the bench tell when every NodePodProbe \
has exactly the entries that it should and every marker's status says so; wall is from the start of the process to \
that moment, CPU is what the process has used by then (schedstat), memory is VmRSS and VmHWM three seconds later (of a floor at once), \
requests are those of its account in the audit log from its start until then. Markers' statuses are cleared before each \
run. The floor is a process with the same client, on one thread too, that lists and watches the same four kinds in the \
same pages, parses names and labels only, and then sends the same bodies, prepared beforehand, 32 at once. \
Three runs each, in turn; of the times and CPU the middle one by wall is told, counts are the largest of all runs. \
Bytes are those of a fourth run through a counting TCP proxy, TLS included, in both directions.";

/// What is there of `NodePodProbes` when the manager starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// None.
    Nothing,
    /// What a manager of ours left.
    Right,
    /// What OpenKruise's manager leaves: the entries, without our optional fields.
    OpenKruises,
}

/// What a run came to.
struct Run {
    complete: Complete,
    cpu: Duration,
    held: Held,
    requests: Requests,
}

/// All runs of a case.
struct Runs {
    ours: Vec<Run>,
    floors: Vec<Run>,
    /// Sent and received.
    bytes: (u64, u64),
    floor_bytes: (u64, u64),
}

/// What a manager makes, as it made it: what floors then send.
struct Made {
    specs: Vec<Value>,
    statuses: Vec<Exchange>,
}

/// Measures it.
pub(crate) fn run(scale: f64) -> Result<Report> {
    play(async |stage| {
        let mut report = Report::new("cold-start", scale, HOW);
        let idle = idle(stage).await?;
        let world = World::make(&stage.client, scale).await?;
        report.how = HOW.replace("{world}", &world.words());
        let mut made = None;
        for before in [Before::Nothing, Before::Right, Before::OpenKruises] {
            let runs = measure(stage, &world, before, &mut made).await?;
            tell(&mut report, &world, before, runs)?;
        }
        report.add(
            memory("manager RSS, idle on an empty cluster", idle.rss).reach(Target::AtMost(15.0)),
        );
        Ok(report)
    })
}

async fn idle(stage: &Stage) -> Result<Held> {
    let address = free_address()?;
    let manager = Subject::manager(stage, &stage.kubeconfig, address)?;
    manager.ready(address).await?;
    pass("a manager on an empty cluster", IDLE).await;
    let held = manager.meter.held()?;
    manager.end().await?;
    Ok(held)
}

async fn measure(
    stage: &Stage,
    world: &World,
    before: Before,
    made: &mut Option<Made>,
) -> Result<Runs> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let name = format!("{}, run {round} of {ROUNDS}", before.words());
        prepare(stage, world, before, made.as_ref()).await?;
        ours.push(one(stage, world, &name, None, None).await?);
        if made.is_none() {
            *made = Some(Made::read(&stage.client).await?);
        }
        let bare = prepare(stage, world, before, made.as_ref()).await?;
        let name = format!("{name}, floor");
        floors.push(one(stage, world, &name, Some(&bare), None).await?);
    }
    let door = Door::open(stage.plane.server()).await?;
    let name = format!("{}, bytes", before.words());
    prepare(stage, world, before, made.as_ref()).await?;
    one(stage, world, &name, None, Some(&door)).await?;
    let bytes = door.passed();
    let door = Door::open(stage.plane.server()).await?;
    let bare = prepare(stage, world, before, made.as_ref()).await?;
    let name = format!("{name}, floor");
    one(stage, world, &name, Some(&bare), Some(&door)).await?;
    Ok(Runs {
        ours,
        floors,
        bytes,
        floor_bytes: door.passed(),
    })
}

/// Brings the cluster to where a run begins; and what a floor has to do in that run.
async fn prepare(
    stage: &Stage,
    world: &World,
    before: Before,
    made: Option<&Made>,
) -> Result<Floor> {
    let client = &stage.client;
    world.clear_statuses(client).await?;
    let mut exchanges = match (before, made) {
        (Before::Nothing, made) => {
            world.clear_probes(client).await?;
            made.map_or_else(Vec::new, Made::creations)
        }
        (Before::Right, _) => Vec::new(),
        (Before::OpenKruises, made) => {
            let made = made.context("the case without any goes first")?;
            made.strip(client).await?
        }
    };
    exchanges.extend(made.iter().flat_map(|made| made.statuses.clone()));
    Ok(Floor {
        list: true,
        exchanges,
    })
}

async fn one(
    stage: &Stage,
    world: &World,
    name: &str,
    floor: Option<&Floor>,
    door: Option<&Door>,
) -> Result<Run> {
    let kubeconfig = match door {
        Some(door) => stage.kubeconfig_through(&door.server())?,
        None => stage.kubeconfig.clone(),
    };
    let mut plans = Plans::watch(&stage.client, world).await?;
    let mark = stage.plane.audit_mark()?;
    let subject = match floor {
        Some(floor) => Subject::floor(stage, &kubeconfig, floor)?,
        None => Subject::manager(stage, &kubeconfig, free_address()?)?,
    };
    let complete = plans.complete(name, subject.started).await;
    let complete = complete.with_context(|| format!("{name}{}", subject.last_words()))?;
    let cpu = subject.meter.cpu()?;
    if floor.is_none() {
        tokio::time::sleep(QUIET).await;
    }
    let run = Run {
        complete,
        cpu,
        held: subject.meter.held()?,
        requests: stage.requests(mark)?,
    };
    subject.end().await?;
    Ok(run)
}

impl Made {
    async fn read(client: &Client) -> Result<Self> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let mut specs = Vec::new();
        for mut object in probes.list(&ListParams::default()).await? {
            object.metadata.managed_fields = None;
            object.metadata.creation_timestamp = None;
            object.metadata.generation = None;
            object.metadata.resource_version = None;
            object.metadata.uid = None;
            object.status = None;
            specs.push(serde_json::to_value(object)?);
        }
        let mut statuses = Vec::new();
        let markers: Api<PodProbeMarker> = Api::all(client.clone());
        for marker in markers.list(&ListParams::default()).await? {
            let app = (0..APPS).find(|app| objects::app(*app) == marker.name_any());
            let path = format!("{}/status", marker_path(app.context("a marker of ours")?));
            let body = json!({"metadata": {"uid": marker.metadata.uid}, "status": marker.status});
            statuses.push(Exchange::merge(&path, FIELD_MANAGER, &body));
        }
        Ok(Self { specs, statuses })
    }

    fn creations(&self) -> Vec<Exchange> {
        let create = |spec| Exchange::create(NODE_POD_PROBES, FIELD_MANAGER, spec);
        self.specs.iter().map(create).collect()
    }

    /// Takes our optional fields out of what is there; what puts them back.
    async fn strip(&self, client: &Client) -> Result<Vec<Exchange>> {
        let path = |spec: &Value| {
            let name = spec["metadata"]["name"].as_str().unwrap_or_default();
            format!("{NODE_POD_PROBES}/{name}")
        };
        let stripped = self.specs.iter().map(|spec| {
            let pods =
                json!({"spec": {"podProbes": without_revisions(&spec["spec"]["podProbes"])}});
            Exchange::merge(&path(spec), "kruise-manager", &pods)
        });
        let name = "writing NodePodProbes as OpenKruise has them";
        let stripped = send_all(client, name, stripped.collect()).await?;
        let whole = self.specs.iter().zip(stripped).map(|(spec, stripped)| {
            let mut whole = spec.clone();
            whole["metadata"]["uid"] = json!(stripped.metadata.uid);
            whole["metadata"]["resourceVersion"] = json!(stripped.metadata.resource_version);
            Exchange::replace(&path(spec), FIELD_MANAGER, &whole)
        });
        Ok(whole.collect())
    }
}

fn without_revisions(pods: &Value) -> Value {
    let mut pods = pods.clone();
    for pod in pods.as_array_mut().into_iter().flatten() {
        for probe in pod["probes"].as_array_mut().into_iter().flatten() {
            if let Some(probe) = probe.as_object_mut() {
                probe.remove("revision");
                probe.remove("startedContainerID");
            }
        }
    }
    pods
}

impl Before {
    fn words(self) -> &'static str {
        match self {
            Self::Nothing => "no NodePodProbes before",
            Self::Right => "all NodePodProbes right before",
            Self::OpenKruises => "NodePodProbes of OpenKruise before",
        }
    }

    fn spec_writes(self, world: &World) -> u64 {
        match self {
            Self::Nothing | Self::OpenKruises => world.nodes.len() as u64,
            Self::Right => 0,
        }
    }
}

fn tell(report: &mut Report, world: &World, before: Before, runs: Runs) -> Result<()> {
    tell_requests(report, world, before, &runs.ours);
    let bytes = |(sent, received): (u64, u64)| count(sent + received) / MIB;
    let figure = Figure::new(name(before, "bytes"), bytes(runs.bytes), "MiB");
    let (sent, received) = runs.bytes;
    let note = format!(
        "{:.1} MiB sent, {:.1} MiB received",
        count(sent) / MIB,
        count(received) / MIB
    );
    report.add(figure.floor(bytes(runs.floor_bytes)).note(note));
    let peak = runs.ours.iter().map(|run| run.held.peak).max();
    let by_wall = |run: &Run| run.complete.all();
    let run = middle(runs.ours, by_wall).context("there were runs")?;
    let floor = middle(runs.floors, by_wall).context("there were floors")?;
    let seconds = |of: &str, run: Duration, floor: Duration| {
        Figure::new(name(before, of), run.as_secs_f64(), "s").floor(floor.as_secs_f64())
    };
    let wall = seconds("wall", run.complete.all(), floor.complete.all());
    report.add(wall.reach(Target::TimesFloor(1.5)));
    let specs = (run.complete.specs, floor.complete.specs);
    report.add(seconds("last spec", specs.0, specs.1));
    report.add(seconds("CPU", run.cpu, floor.cpu).reach(Target::AtMost(1.5)));
    let rss = memory(name(before, "RSS after it"), run.held.rss);
    report.add(rss.reach(Target::AtMost(35.0)).floor(mib(floor.held.rss)));
    let peak = memory(name(before, "RSS at its peak"), peak.unwrap_or_default());
    report.add(peak.floor(mib(floor.held.peak)));
    Ok(())
}

fn tell_requests(report: &mut Report, world: &World, before: Before, runs: &[Run]) {
    let most = |of: &dyn Fn(&Requests) -> u64| {
        let counts = runs.iter().map(|run| of(&run.requests));
        count(counts.max().unwrap_or_default())
    };
    let specs = |requests: &Requests| {
        requests.count("create nodepodprobes") + requests.count("update nodepodprobes")
    };
    let statuses = |requests: &Requests| requests.count("patch podprobemarkers/status");
    let other = |requests: &Requests| requests.writes() - specs(requests) - statuses(requests);
    let figure = |of: &str, value: f64| Figure::new(name(before, of), value, "requests");
    let words = runs.last().map(|run| run.requests.words());
    report.add(
        figure("spec writes", most(&specs))
            .reach(Target::Exactly(count(before.spec_writes(world))))
            .note(words.unwrap_or_default()),
    );
    let expected = Target::Exactly(count(APPS as u64));
    report.add(figure("marker status writes", most(&statuses)).reach(expected));
    report.add(figure("other writes", most(&other)).reach(Target::Exactly(0.0)));
    report.add(figure("failed", most(&Requests::failed)).reach(Target::Exactly(0.0)));
    report.add(figure("Lease requests", most(&Requests::lease)));
}

fn name(before: Before, of: &str) -> String {
    format!("{}: {of}", before.words())
}

fn memory(name: impl Into<String>, bytes: u64) -> Figure {
    Figure::new(name, mib(bytes), "MiB")
}

fn mib(bytes: u64) -> f64 {
    count(bytes) / MIB
}
