//! `bench cold-start`: a manager starts beside a whole world, and plans all of it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::podprobe::pod::FIELD_MANAGER;
use leadsman_tests::Link;
use serde_json::json;

use super::api::{ApiRequest, CREATE, MERGE, NODE_POD_PROBES, REPLACE, make_all};
use super::expected::Watches;
use super::stage::{Contender, Run, Stage, Who, play};
use super::world::{World, app, marker_status_path};
use super::{QUIET, add_requests};
use crate::figures;
use crate::report::{Report, scaled};

/// Each case is measured so often, manager and floor in turn.
const ROUNDS: usize = 3;
/// What a manager writes here, by the names of the resources.
const SPECS: &str = "nodepodprobes";
const STATUSES: &str = "podprobemarkers";
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

/// Starts beside a world, and what a manager made of it: what floors then send.
struct Starts<'a> {
    stage: &'a Stage,
    world: &'a World,
    objects: Vec<NodePodProbe>,
    statuses: Vec<ApiRequest>,
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    play(async |stage| {
        let name = "a manager on an empty cluster";
        let idle = stage.run(name, (Who::Manager, None), Contender::ready, IDLE);
        let idle = idle.await?.held.rss;
        let world = World::make(&stage.client, scale).await?;
        let page = include_str!("../../pages/cold-start.md");
        let how = page.replace("{world}", &world.described());
        let mut report = Report::new("cold-start", scale, &how);
        let mut starts = Starts {
            stage,
            world: &world,
            objects: Vec::new(),
            statuses: Vec::new(),
        };
        for before in [Before::Nothing, Before::Right, Before::OpenKruises] {
            let add = report.section(before.name());
            starts.measure(before, add).await?;
        }
        report.named("").add(&figures::IDLE_MANAGER_RSS, idle);
        Ok(report)
    })
}

impl Starts<'_> {
    async fn measure(&mut self, before: Before, add: &mut Report) -> Result<()> {
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            let name = format!("{}, run {round} of {ROUNDS}", before.name());
            self.prepare(before).await?;
            ours.push(self.run(&name, Who::Manager, None).await?);
            if self.objects.is_empty() {
                self.read_plans().await?;
            }
            let floor = Who::Floor(self.prepare(before).await?);
            floors.push(self.run(&name, floor, None).await?);
        }
        self.add_figures(before, ours, floors, add);
        self.prepare(before).await?;
        let [sent, received] = self.bytes(before, Who::Manager).await?;
        let floor = Who::Floor(self.prepare(before).await?);
        let floor = self.bytes(before, floor).await?.iter().sum();
        let note = [sent, received].map(|bytes| format!("{:.1} MiB", scaled(bytes, "MiB")));
        add.compare(&figures::BYTES, sent + received, floor)
            .note(format!("{} sent, {} received", note[0], note[1]));
        Ok(())
    }

    /// Bytes sent and received in a run.
    async fn bytes(&self, before: Before, who: Who) -> Result<[u64; 2]> {
        let proxy = Link::to(self.stage.plane.server()).await?;
        let name = format!("{}, bytes", before.name());
        self.run(&name, who, Some(&proxy)).await?;
        Ok(proxy.passed())
    }

    async fn run(&self, name: &str, who: Who, proxy: Option<&Link>) -> Result<Run> {
        let mut watches = Watches::begin(&self.stage.client).await?;
        let planned = async |_: &Contender| {
            watches.planned(name, self.world).await?;
            Ok(Duration::ZERO)
        };
        self.stage.run(name, (who, proxy), planned, QUIET).await
    }

    /// Brings the cluster to where a run begins. Returns what a floor has to do in that run.
    async fn prepare(&self, before: Before) -> Result<Vec<ApiRequest>> {
        self.world.clear_statuses(&self.stage.client).await?;
        let mut requests = match before {
            Before::Nothing => {
                self.world.clear_probes(&self.stage.client).await?;
                let objects = self.objects.iter().map(|object| json!(object));
                let create = |body| ApiRequest::new(CREATE, NODE_POD_PROBES, FIELD_MANAGER, &body);
                objects.map(create).collect()
            }
            Before::Right => Vec::new(),
            Before::OpenKruises => self.strip().await?,
        };
        requests.extend(self.statuses.clone());
        Ok(requests)
    }

    /// Reads what a manager has made.
    async fn read_plans(&mut self) -> Result<()> {
        let probes: Api<NodePodProbe> = Api::all(self.stage.client.clone());
        for object in probes.list(&ListParams::default()).await? {
            let mut bare = NodePodProbe::new(&object.name_any(), object.spec);
            bare.metadata.labels = object.metadata.labels;
            bare.metadata.annotations = object.metadata.annotations;
            self.objects.push(bare);
        }
        let markers: Api<PodProbeMarker> = Api::all(self.stage.client.clone());
        for marker in markers.list(&ListParams::default()).await? {
            let of = (0..self.world.apps).find(|number| app(*number) == marker.name_any());
            let path = marker_status_path(of.context("a marker of ours")?);
            let body = json!({"metadata": {"uid": marker.metadata.uid}, "status": marker.status});
            let request = ApiRequest::new(MERGE, &path, FIELD_MANAGER, &body);
            self.statuses.push(request);
        }
        Ok(())
    }

    /// Takes our optional fields out of what is there; what puts them back.
    async fn strip(&self) -> Result<Vec<ApiRequest>> {
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
        let stripped = make_all(&self.stage.client, name, stripped.collect()).await?;
        let whole = self.objects.iter().zip(stripped).map(|(object, stripped)| {
            let mut whole = object.clone();
            whole.metadata.uid = stripped.identity.uid;
            whole.metadata.resource_version = stripped.identity.resource_version;
            ApiRequest::new(REPLACE, &path(object), FIELD_MANAGER, &json!(whole))
        });
        Ok(whole.collect())
    }

    fn add_figures(&self, before: Before, ours: Vec<Run>, floors: Vec<Run>, add: &mut Report) {
        let [(run, requests), (floor, _)] = [ours, floors].map(|runs| Run::middle(runs, wall));
        let specs = match before {
            Before::Right => 0,
            Before::Nothing | Before::OpenKruises => self.world.nodes,
        };
        let kinds = [
            (&figures::SPEC_WRITES, SPECS, Some(specs)),
            (
                &figures::MARKER_STATUS_WRITES,
                STATUSES,
                Some(self.world.apps),
            ),
        ];
        add_requests(add, &requests, &kinds);
        let last_spec = [&run, &floor].map(|run| run.requests.last_write(SPECS));
        add.compare(&figures::WALL, wall(&run), wall(&floor));
        add.compare(&figures::LAST_SPEC, last_spec[0], last_spec[1]);
        add.compare(&figures::CPU, run.cpu, floor.cpu);
        add.compare(&figures::RSS_AFTER, run.held.rss, floor.held.rss);
        add.compare(&figures::RSS_PEAK, run.held.peak, floor.held.peak);
    }
}

/// When the last of specs and markers' statuses was written.
fn wall(run: &Run) -> Duration {
    let last = [SPECS, STATUSES].map(|resource| run.requests.last_write(resource));
    last[0].max(last[1])
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
