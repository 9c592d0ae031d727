//! `bench cold-start`: a manager starts beside a whole world, and plans all of it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use serde_json::json;

use super::api::{ApiRequest, CREATE, MERGE, REPLACE, make_all};
use super::expected::{Planned, Plans};
use super::stage::{Run, Stage, Who, play};
use super::world::{APPS, NODE_POD_PROBES, World, app, marker_status_path};
use super::{QUIET, add_requests, middle, most_requests};
use crate::figures;
use crate::meter::Held;
use crate::progress::wait;
use crate::proxies::ByteCounter;
use crate::report::{Report, Section};

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// How long an idle manager is left alone before it is looked at.
const IDLE: Duration = Duration::from_secs(5);

/// What is there of `NodePodProbes` when the manager starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// What a manager of ours left.
    Right,
    /// What OpenKruise's manager leaves: the entries, without our optional fields.
    OpenKruises,
}

/// What a manager makes, as it made it: what floors then send.
#[derive(Default)]
struct Made {
    objects: Vec<NodePodProbe>,
    statuses: Vec<ApiRequest>,
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    play(async |stage| {
        let idle = idle(stage).await?;
        let world = World::make(&stage.client, scale).await?;
        let page = include_str!("../../pages/cold-start.md");
        let how = page.replace("{world}", &world.described());
        let mut report = Report::new("cold-start", scale, &how);
        let mut made = Made::default();
        for before in [Before::Nothing, Before::Right, Before::OpenKruises] {
            let world = &world;
            let case = Case {
                stage,
                world,
                before,
            };
            case.measure(&mut made, &mut report).await?;
        }
        report.named("").add(&figures::IDLE_MANAGER_RSS, idle.rss);
        Ok(report)
    })
}

async fn idle(stage: &Stage) -> Result<Held> {
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    wait("a manager on an empty cluster", IDLE).await;
    let held = manager.meter.held()?;
    manager.end().await?;
    Ok(held)
}

/// Starts with this there before.
struct Case<'a> {
    stage: &'a Stage,
    world: &'a World,
    before: Before,
}

impl Case<'_> {
    async fn measure(&self, made: &mut Made, report: &mut Report) -> Result<()> {
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            let name = format!("{}, run {round} of {ROUNDS}", self.before.name());
            self.prepare(made).await?;
            ours.push(self.run(&name, Who::Manager, None).await?);
            if made.objects.is_empty() {
                *made = Made::read(&self.stage.client).await?;
            }
            let floor = Who::Floor(self.prepare(made).await?);
            floors.push(self.run(&name, floor, None).await?);
        }
        let mut add = report.section(self.before.name());
        self.add_figures(&mut add, ours, floors);
        self.prepare(made).await?;
        let [sent, received] = self.bytes(Who::Manager).await?;
        let floor = Who::Floor(self.prepare(made).await?);
        let floor = self.bytes(floor).await?.iter().sum();
        let note = [sent, received].map(|bytes| format!("{:.1} MiB", figures::MIB.of(bytes)));
        add.compare(&figures::BYTES, sent + received, floor)
            .note(format!("{} sent, {} received", note[0], note[1]));
        Ok(())
    }

    /// Bytes sent and received in a run.
    async fn bytes(&self, who: Who) -> Result<[u64; 2]> {
        let proxy = ByteCounter::start(self.stage.plane.server()).await?;
        let name = format!("{}, bytes", self.before.name());
        self.run(&name, who, Some(&proxy)).await?;
        Ok(proxy.passed())
    }

    /// Brings the cluster to where a run begins. Returns what a floor has to do in that run.
    async fn prepare(&self, made: &Made) -> Result<Vec<ApiRequest>> {
        let client = &self.stage.client;
        self.world.clear_statuses(client).await?;
        let mut requests = match self.before {
            Before::Nothing => {
                self.world.clear_probes(client).await?;
                let objects = made.objects.iter().map(|object| json!(object));
                let create = |body| ApiRequest::new(CREATE, NODE_POD_PROBES, FIELD_MANAGER, &body);
                objects.map(create).collect()
            }
            Before::Right => Vec::new(),
            Before::OpenKruises => made.strip(client).await?,
        };
        requests.extend(made.statuses.clone());
        Ok(requests)
    }

    async fn run(&self, name: &str, who: Who, proxy: Option<&ByteCounter>) -> Result<Run<Planned>> {
        let mut plans = Plans::watch(&self.stage.client, self.world).await?;
        let mark = self.stage.plane.audit_mark()?;
        let contender = self.stage.start(who, proxy).await?;
        let planned = plans.complete(name, contender.started).await;
        let planned = planned.with_context(|| format!("{name}{}", contender.last_lines()))?;
        let cpu = contender.meter.cpu()?;
        tokio::time::sleep(QUIET).await;
        self.stage.finish(contender, (planned, cpu), mark).await
    }

    fn add_figures(
        &self,
        add: &mut Section<'_>,
        ours: Vec<Run<Planned>>,
        floors: Vec<Run<Planned>>,
    ) {
        let requests = most_requests(&ours);
        let specs = requests.count("create nodepodprobes") + requests.count("update nodepodprobes");
        let wanted = match self.before {
            Before::Right => 0,
            Before::Nothing | Before::OpenKruises => self.world.nodes.len(),
        };
        let statuses = requests.count("patch podprobemarkers/status");
        let kinds = [
            (&figures::SPEC_WRITES, specs, Some(wanted)),
            (&figures::MARKER_STATUS_WRITES, statuses, Some(APPS)),
        ];
        add_requests(add, &requests, &kinds);
        let peak = ours.iter().map(|run| run.held.peak).max();
        let [run, floor] = [ours, floors].map(|runs| middle(runs, |run| run.took.all));
        add.compare(&figures::WALL, run.took.all, floor.took.all);
        add.compare(&figures::LAST_SPEC, run.took.specs, floor.took.specs);
        add.compare(&figures::CPU, run.cpu, floor.cpu);
        add.compare(&figures::RSS_AFTER, run.held.rss, floor.held.rss);
        let peak = peak.unwrap_or_default();
        add.compare(&figures::RSS_PEAK, peak, floor.held.peak);
    }
}

impl Made {
    async fn read(client: &Client) -> Result<Self> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let mut made = Self::default();
        for object in probes.list(&ListParams::default()).await? {
            let mut bare = NodePodProbe::new(&object.name_any(), object.spec);
            bare.metadata.labels = object.metadata.labels;
            bare.metadata.annotations = object.metadata.annotations;
            made.objects.push(bare);
        }
        let markers: Api<PodProbeMarker> = Api::all(client.clone());
        for marker in markers.list(&ListParams::default()).await? {
            let of = (0..APPS).find(|number| app(*number) == marker.name_any());
            let path = marker_status_path(of.context("a marker of ours")?);
            let body = json!({"metadata": {"uid": marker.metadata.uid}, "status": marker.status});
            let request = ApiRequest::new(MERGE, &path, FIELD_MANAGER, &body);
            made.statuses.push(request);
        }
        Ok(made)
    }

    /// Takes our optional fields out of what is there; what puts them back.
    async fn strip(&self, client: &Client) -> Result<Vec<ApiRequest>> {
        let path = |object: &NodePodProbe| format!("{NODE_POD_PROBES}/{}", object.name_any());
        let stripped = self.objects.iter().map(|object| {
            let mut pods = object.spec.pod_probes.clone();
            for probe in pods.iter_mut().flat_map(|pod| &mut pod.probes) {
                probe.revision = None;
                probe.started_container_id = None;
            }
            let body = json!({"spec": {"podProbes": pods}});
            ApiRequest::new(MERGE, &path(object), "kruise-manager", &body)
        });
        let name = "writing NodePodProbes as OpenKruise has them";
        let stripped = make_all(client, name, stripped.collect()).await?;
        let whole = self.objects.iter().zip(stripped).map(|(object, stripped)| {
            let mut whole = object.clone();
            whole.metadata.uid = stripped.metadata.uid;
            whole.metadata.resource_version = stripped.metadata.resource_version;
            ApiRequest::new(REPLACE, &path(object), FIELD_MANAGER, &json!(whole))
        });
        Ok(whole.collect())
    }
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
