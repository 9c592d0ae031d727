//! `bench cold-start`: a manager starts beside a whole world, and plans all of it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use serde_json::{Value, json};

use super::bytes::Door;
use super::exchange::{Exchange, make_all};
use super::expected::{Planned, Plans};
use super::objects::{self, APPS};
use super::stage::{Stage, play};
use super::world::{NODE_POD_PROBES, World, marker_path};
use super::{QUIET, add_requests, floor, middle};
use crate::clock;
use crate::meter::Held;
use crate::progress::wait;
use crate::report::{Amount as _, Report, Target, mebibytes};
use crate::requests::Requests;

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// How long an idle manager is left alone before it is looked at.
const IDLE: Duration = Duration::from_secs(5);

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
    Nothing,
    /// What a manager of ours left.
    Right,
    /// What OpenKruise's manager leaves: the entries, without our optional fields.
    OpenKruises,
}

/// What a run came to.
struct Run {
    planned: Planned,
    cpu: Duration,
    held: Held,
    requests: Requests,
}

/// What a manager makes, as it made it: what floors then send.
#[derive(Default)]
struct Made {
    specs: Vec<Value>,
    statuses: Vec<Exchange>,
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    play(async |stage| {
        let idle = idle(stage).await?;
        let world = World::make(&stage.client, scale).await?;
        let how = HOW.replace("{world}", &world.described());
        let mut report = Report::new("cold-start", scale, how);
        let mut made = Made::default();
        for before in [Before::Nothing, Before::Right, Before::OpenKruises] {
            case(stage, &world, before, &mut made, &mut report).await?;
        }
        report
            .add(
                "manager RSS, idle on an empty cluster",
                mebibytes(idle.rss),
                "MiB",
            )
            .reach(Target::AtMost(15.0));
        Ok(report)
    })
}

async fn idle(stage: &Stage) -> Result<Held> {
    let manager = stage.start_manager(&stage.kubeconfig)?;
    manager.ready().await?;
    wait("a manager on an empty cluster", IDLE).await;
    let held = manager.meter.held()?;
    manager.end().await?;
    Ok(held)
}

async fn case(
    stage: &Stage,
    world: &World,
    before: Before,
    made: &mut Made,
    report: &mut Report,
) -> Result<()> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    let name = before.name();
    for round in 1..=ROUNDS {
        let name = format!("{name}, run {round} of {ROUNDS}");
        prepare(stage, world, before, made).await?;
        ours.push(by_manager(stage, world, &name, None).await?);
        if made.specs.is_empty() {
            *made = Made::read(&stage.client).await?;
        }
        let bare = prepare(stage, world, before, made).await?;
        floors.push(by_floor(stage, world, &name, &bare, None).await?);
    }
    let door = Door::open(stage.plane.server()).await?;
    prepare(stage, world, before, made).await?;
    by_manager(stage, world, &format!("{name}, bytes"), Some(&door)).await?;
    let floor_door = Door::open(stage.plane.server()).await?;
    let bare = prepare(stage, world, before, made).await?;
    by_floor(
        stage,
        world,
        &format!("{name}, bytes"),
        &bare,
        Some(&floor_door),
    )
    .await?;

    let [(sent, received), floor_bytes] = [door.passed(), floor_door.passed()];
    let note = format!(
        "{:.1} MiB sent, {:.1} MiB received",
        mebibytes(sent),
        mebibytes(received)
    );
    tell(report, world, before, ours, floors);
    report
        .add(format!("{name}: bytes"), mebibytes(sent + received), "MiB")
        .floor(mebibytes(floor_bytes.0 + floor_bytes.1))
        .note(note);
    Ok(())
}

/// Brings the cluster to where a run begins. Returns what a floor has to do in that run.
async fn prepare(
    stage: &Stage,
    world: &World,
    before: Before,
    made: &Made,
) -> Result<Vec<Exchange>> {
    let client = &stage.client;
    world.clear_statuses(client).await?;
    let mut exchanges = match before {
        Before::Nothing => {
            world.clear_probes(client).await?;
            let create = |spec| Exchange::create(NODE_POD_PROBES, FIELD_MANAGER, spec);
            made.specs.iter().map(create).collect()
        }
        Before::Right => Vec::new(),
        Before::OpenKruises => made.strip(client).await?,
    };
    exchanges.extend(made.statuses.clone());
    Ok(exchanges)
}

async fn by_manager(stage: &Stage, world: &World, name: &str, door: Option<&Door>) -> Result<Run> {
    let mut plans = Plans::watch(&stage.client, world).await?;
    let mark = stage.plane.audit_mark()?;
    let manager = stage.start_manager(&through(stage, door)?)?;
    let planned = plans.complete(name, manager.started).await;
    let planned = planned.with_context(|| format!("{name}{}", manager.last_lines()))?;
    let cpu = manager.meter.cpu()?;
    tokio::time::sleep(QUIET).await;
    let (held, requests) = (manager.meter.held()?, stage.requests(mark)?);
    manager.end().await?;
    Ok(Run {
        planned,
        cpu,
        held,
        requests,
    })
}

async fn by_floor(
    stage: &Stage,
    world: &World,
    name: &str,
    exchanges: &[Exchange],
    door: Option<&Door>,
) -> Result<Run> {
    let mut plans = Plans::watch(&stage.client, world).await?;
    let started = clock::now();
    let floor = floor::start(stage, &through(stage, door)?, exchanges, (true, false)).await?;
    let planned = plans.complete(&format!("{name}, floor"), started).await?;
    let (cpu, held) = (floor.meter.cpu()?, floor.meter.held()?);
    Ok(Run {
        planned,
        cpu,
        held,
        requests: Requests::default(),
    })
}

fn through(stage: &Stage, door: Option<&Door>) -> Result<std::path::PathBuf> {
    door.map_or_else(
        || Ok(stage.kubeconfig.clone()),
        |door| stage.kubeconfig_through(&door.server()),
    )
}

impl Made {
    async fn read(client: &Client) -> Result<Self> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let mut made = Self::default();
        for object in probes.list(&ListParams::default()).await? {
            let mut bare = NodePodProbe::new(&object.name_any(), object.spec);
            bare.metadata.labels = object.metadata.labels;
            bare.metadata.annotations = object.metadata.annotations;
            made.specs.push(serde_json::to_value(bare)?);
        }
        let markers: Api<PodProbeMarker> = Api::all(client.clone());
        for marker in markers.list(&ListParams::default()).await? {
            let app = (0..APPS).find(|app| objects::app(*app) == marker.name_any());
            let path = format!("{}/status", marker_path(app.context("a marker of ours")?));
            let body = json!({"metadata": {"uid": marker.metadata.uid}, "status": marker.status});
            made.statuses
                .push(Exchange::merge(&path, FIELD_MANAGER, &body));
        }
        Ok(made)
    }

    /// Takes our optional fields out of what is there; what puts them back.
    async fn strip(&self, client: &Client) -> Result<Vec<Exchange>> {
        let path = |spec: &Value| {
            let name = spec["metadata"]["name"].as_str().unwrap_or_default();
            format!("{NODE_POD_PROBES}/{name}")
        };
        let stripped = self.specs.iter().map(|spec| {
            let pods = without_revisions(&spec["spec"]["podProbes"]);
            Exchange::merge(
                &path(spec),
                "kruise-manager",
                &json!({"spec": {"podProbes": pods}}),
            )
        });
        let name = "writing NodePodProbes as OpenKruise has them";
        let stripped = make_all(client, name, stripped.collect()).await?;
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
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no NodePodProbes before",
            Self::Right => "all NodePodProbes right before",
            Self::OpenKruises => "NodePodProbes of OpenKruise before",
        }
    }
}

fn tell(report: &mut Report, world: &World, before: Before, ours: Vec<Run>, floors: Vec<Run>) {
    let mut add = report.section(before.name());
    let requests = Requests::largest(ours.iter().map(|run| &run.requests));
    let specs = requests.count("create nodepodprobes") + requests.count("update nodepodprobes");
    let wanted = if before == Before::Right {
        0
    } else {
        world.nodes.len()
    };
    let statuses = requests.count("patch podprobemarkers/status");
    let kinds = [
        ("spec writes", specs, Some(wanted.amount())),
        ("marker status writes", statuses, Some(APPS.amount())),
    ];
    add_requests(&mut add, &requests, &kinds);
    let peak = ours
        .iter()
        .map(|run| run.held.peak)
        .max()
        .unwrap_or_default();
    let [run, floor] = [ours, floors].map(|runs| middle(runs, |run| run.planned.all));
    let wall = add
        .add("wall", run.planned.all, "s")
        .floor(floor.planned.all);
    wall.reach(Target::TimesFloor(1.5));
    add.add("last spec", run.planned.specs, "s")
        .floor(floor.planned.specs);
    add.add("CPU", run.cpu, "s")
        .floor(floor.cpu)
        .reach(Target::AtMost(1.5));
    let rss = add.add("RSS after it", mebibytes(run.held.rss), "MiB");
    rss.floor(mebibytes(floor.held.rss))
        .reach(Target::AtMost(35.0));
    add.add("RSS at its peak", mebibytes(peak), "MiB")
        .floor(mebibytes(floor.held.peak));
}
