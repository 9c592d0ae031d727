//! `bench roll-out`: a `SidecarSet` gets another image, and every pod is to run it.

pub(crate) mod floor;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use leadsman_api::SidecarSet;
use leadsman_api::slim::Pod;
use leadsman_testkit::FakeKubelet;
use leadsman_tests::{Link, ObjectWatch};
use serde_json::Value;

use self::floor::{PodPatches, PodStep, PodSteps};
use super::api::{PAGE, PODS, SIDECAR_SETS};
use super::sidecars::{CONTAINER, Sidecars, image};
use super::stage::{Contender, Run, Stage, Who, play_with};
use super::world::World;
use super::{PATIENCE, QUIET, add_requests, expected, most_statuses};
use crate::figures;
use crate::meter::Held;
use crate::progress::{Step, wait};
use crate::report::{Amount as _, Report, Target};
use crate::requests::{Requests, Since};

/// Both features, so that what they cost together is what is measured.
pub(super) const GATES: &str = "SidecarSetGate=true";
/// Sizes, as shares of the world's full size of 5,000 pods; with the most that the manager may hold then, in MiB.
const SIZES: [(f64, Option<f64>); 2] = [(0.2, None), (1.0, Some(45.0))];
/// One more, in which nothing is rolled out: that would take half an hour.
const LARGEST: (f64, f64) = (4.0, 130.0);
/// Who the kubelets are to the API server.
pub(super) const KUBELETS: &str = "kubelets";
/// How long a kubelet takes to start a container again.
const RESTART: Duration = Duration::from_millis(50);
/// A manager with nothing to do is watched for so long after it is ready.
const WATCHED: Duration = Duration::from_secs(5);
/// Of 100 pods of the set so many may be down.
pub(super) const PERCENT_DOWN: usize = 10;
/// What a manager may send for a pod, in bytes.
const BYTES_A_POD: f64 = 1200.0;
/// By how much a pod's CPU may grow from the smallest size to the largest.
const FLAT: f64 = 1.5;

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let mut report = Report::new(
        "roll-out",
        scale,
        include_str!("../../../pages/roll-out.md"),
    );
    let mut cpus = Vec::new();
    for (size, most_rss) in SIZES {
        let found = play_with(GATES, async |stage| measure_size(stage, scale * size).await)?;
        cpus.push((found.pods, found.later.cpu_a_pod(found.pods)));
        found.add(&mut report, most_rss);
    }
    let (size, most_rss) = LARGEST;
    let at_rest = async |stage: &mut Stage| measure_memory(stage, scale * size).await;
    let (pods, held) = play_with(GATES, at_rest)?;
    let add = report.section(format!("{pods} pods, both features"));
    for (kind, held) in [&figures::RSS_AT_REST, &figures::RSS_AFTER_RESTART]
        .into_iter()
        .zip(held)
    {
        add.add(kind, held.rss).targets = vec![Target::AtMost(most_rss)];
    }
    if let [(fewest, small), .., (most, large)] = cpus.as_slice() {
        let add = report.named(format!("{most} pods against {fewest}: "));
        let growth = large.as_secs_f64() / small.as_secs_f64();
        add.add(&figures::UPGRADE_CPU_GROWTH, growth).targets = vec![Target::AtMost(FLAT)];
    }
    Ok(report)
}

/// What was found with one number of pods.
struct Found {
    pods: usize,
    /// Of the manager before the first roll-out.
    held: Held,
    first: RollOut,
    later: RollOut,
    /// Of a manager that started with nothing to do.
    restart: Run,
    bytes_sent: u64,
    floor: RollOut,
    /// Of a manager that started after the floor.
    after_floor: Requests,
}

/// One roll-out.
pub(super) struct RollOut {
    /// Until the last pod ran the new image.
    pub(super) wall: Duration,
    cpu: Duration,
    pub(super) held: Held,
    requests: Requests,
}

impl RollOut {
    pub(super) fn cpu_a_pod(&self, pods: usize) -> Duration {
        self.cpu.div_f64(pods.amount())
    }

    /// Adds what was written.
    pub(super) fn add_writes(&self, pods: usize, add: &mut Report) {
        let kinds = [
            (&figures::UPGRADE_WRITES, "pods", Some(pods)),
            (&figures::SET_WRITES, "sidecarsets", None),
            (&figures::REVISION_WRITES, "controllerrevisions", None),
            (
                &figures::CONFIGURATION_WRITES,
                "mutatingwebhookconfigurations",
                None,
            ),
        ];
        add_requests(add, &self.requests, &kinds);
        let statuses = self.requests.count("patch sidecarsets/status");
        let most = Target::AtMost(most_statuses(self.wall));
        add.add(&figures::SET_STATUS_WRITES, statuses).targets = vec![most];
    }
}

/// Starts kubelets for all pods that are bound.
pub(super) async fn start_kubelets(stage: &Stage) -> Result<FakeKubelet> {
    let kubelets = stage.plane.client_for(KUBELETS, &["system:masters"]);
    Ok(FakeKubelet::start(&kubelets.await?, None, RESTART))
}

async fn measure_size(stage: &mut Stage, scale: f64) -> Result<Found> {
    let sidecars = Sidecars::make(&stage.client).await?;
    let world = World::make_with(&stage.client, scale, Some(&sidecars)).await?;
    let _kubelets = start_kubelets(stage).await?;
    let pods = world.pods.len();
    let scene = Scene {
        stage,
        sidecars: &sidecars,
        pods,
    };

    let (_, mut manager) = expected::settle(stage, &world).await?;
    scene.wait_for_status(Sidecars::FIRST, &manager).await?;
    wait(format!("{pods} pods: at rest"), QUIET).await;
    let held = manager.meter.held()?;
    let first = scene.roll_out("first", &mut manager, 1).await?;
    let later = scene.roll_out("later", &mut manager, 0).await?;
    manager.end().await?;

    let proxy = Link::to(stage.plane.server()).await?;
    let (restart, mut manager) = scene.restart(Some(&proxy)).await?;
    let before = proxy.passed();
    scene.roll_out("bytes", &mut manager, 1).await?;
    let bytes_sent = proxy.passed()[0] - before[0];
    manager.end().await?;

    let mut floors = Vec::new();
    for version in [0, 1] {
        let patches = scene.patches(version).await?;
        let mut floor = stage.start(Who::RollOut(patches), None).await?;
        floors.push(scene.roll_out("floor", &mut floor, version).await?);
    }
    floors.sort_by_key(|floor| floor.wall);
    let (after_floor, manager) = scene.restart(None).await?;
    manager.end().await?;
    Ok(Found {
        pods,
        held,
        first,
        later,
        restart,
        bytes_sent,
        floor: floors.pop().context("there was a floor")?,
        after_floor: after_floor.requests,
    })
}

/// What managers hold that have nothing to roll out: one that has made all marks, and one that starts after it.
async fn measure_memory(stage: &mut Stage, scale: f64) -> Result<(usize, [Held; 2])> {
    let sidecars = Sidecars::make(&stage.client).await?;
    let world = World::make_with(&stage.client, scale, Some(&sidecars)).await?;
    let pods = world.pods.len();
    let scene = Scene {
        stage,
        sidecars: &sidecars,
        pods,
    };
    let (_, manager) = expected::settle(stage, &world).await?;
    scene.wait_for_status(Sidecars::FIRST, &manager).await?;
    wait(format!("{pods} pods: at rest"), QUIET).await;
    let held = manager.meter.held()?;
    manager.end().await?;
    let (restart, manager) = scene.restart(None).await?;
    manager.end().await?;
    Ok((pods, [held, restart.held]))
}

/// Pods with sidecars, and kubelets that run them.
pub(super) struct Scene<'a> {
    pub(super) stage: &'a Stage,
    pub(super) sidecars: &'a Sidecars,
    /// Those with sidecars.
    pub(super) pods: usize,
}

impl Scene<'_> {
    /// Another image for the sidecar of every pod, by the manager or by a floor.
    pub(super) async fn roll_out(
        &self,
        name: &str,
        contender: &mut Contender,
        version: u32,
    ) -> Result<RollOut> {
        let (stage, image) = (self.stage, image(version));
        let name = format!("{} pods: {name} roll-out", self.pods);
        let mut pods = ObjectWatch::<Pod>::begin(&stage.client, PODS, PAGE).await?;
        let (meter, before) = (contender.meter, contender.meter.cpu()?);
        let since = Since::now(&stage.plane)?;
        let step = Step::begin(name.clone());
        Sidecars::edit(version).send(&stage.client).await?;
        let all_run = pods.wait_until(&name, self.pods, PATIENCE, |pod| runs(pod, &image));
        let done = async { tokio::try_join!(all_run, contender.send()) };
        done.await.with_context(|| contender.last_lines())?;
        drop(step);
        if contender.is_manager() {
            self.wait_for_status(version, contender).await?;
        }
        wait(format!("{name}: what else is written"), QUIET).await;
        let kubelets = since.requests(&stage.plane, KUBELETS)?;
        Ok(RollOut {
            wall: kubelets.last_write("pods"),
            cpu: meter.cpu()?.saturating_sub(before),
            held: meter.held()?,
            requests: stage.requests(since)?,
        })
    }

    /// Waits until the set's status says that all pods have this version and are ready.
    pub(super) async fn wait_for_status(&self, version: u32, manager: &Contender) -> Result<()> {
        let mut sets =
            ObjectWatch::<SidecarSet>::begin(&self.stage.client, SIDECAR_SETS, PAGE).await?;
        let all = i64::try_from(self.pods)?;
        let counts_all = |set: &SidecarSet| {
            let status = set.status.clone().unwrap_or_default();
            let is_current = Some(status.observed_generation) == set.metadata.generation;
            let counts = [status.matched_pods, status.updated_ready_pods];
            ensure!(is_current && counts == [all; 2], "its status is {status:?}");
            Ok(())
        };
        let name = format!("the status of version {version}");
        let counted = sets.wait_until(&name, 1, PATIENCE, counts_all).await;
        counted.with_context(|| manager.last_lines())
    }

    /// Starts a manager that has nothing to do.
    async fn restart(&self, proxy: Option<&Link>) -> Result<(Run, Contender)> {
        let stage = self.stage;
        let since = Since::now(&stage.plane)?;
        let manager = stage.start(Who::Manager, proxy).await?;
        let ready = manager.ready().await;
        let ready = ready.with_context(|| manager.last_lines())?;
        let cpu = manager.meter.cpu()?;
        wait(format!("{} pods: nothing to do", self.pods), WATCHED).await;
        let run = Run {
            ready,
            cpu,
            held: manager.meter.held()?,
            requests: stage.requests(since)?,
        };
        Ok((run, manager))
    }

    /// What a floor has to send so that every pod runs this version: the patches that the manager would send.
    async fn patches(&self, version: u32) -> Result<PodPatches> {
        let upgrade = self.sidecars.version(version)?;
        let mut pods = ObjectWatch::<Pod>::begin(&self.stage.client, PODS, PAGE).await?;
        let mut pods_steps = Vec::with_capacity(self.pods);
        for pod in pods.take_listed() {
            let namespace = pod.namespace().unwrap_or_default();
            let mut patch = upgrade.patch(&pod);
            patch["metadata"]["resourceVersion"] = Value::Null;
            let step = PodStep {
                path: format!("/api/v1/namespaces/{namespace}/pods/{}", pod.name_any()),
                patch,
                image: Some(image(version)),
                is_ready: true,
            };
            pods_steps.push(PodSteps {
                pod: pod.name_any(),
                steps: [step].into(),
            });
        }
        Ok(PodPatches {
            manager: "leadsman-sidecarset".to_owned(),
            container: CONTAINER.to_owned(),
            most_down: (self.pods * PERCENT_DOWN).div_ceil(100),
            pods: pods_steps,
        })
    }
}

/// Whether the set's container of a pod runs this image, and the pod is ready.
fn runs(pod: &Pod, image: &str) -> Result<()> {
    let mut statuses = pod.status.container_statuses.iter();
    let status = statuses.find(|status| status.name == CONTAINER);
    let status = status.context("the set's container has no status")?;
    ensure!(status.image == image, "it runs {}", status.image);
    ensure!(is_ready(pod) && status.ready, "it is not ready");
    Ok(())
}

/// Whether its kubelet says that a pod is ready.
fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.conditions.iter();
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

impl Found {
    fn add(&self, report: &mut Report, most_rss: Option<f64>) {
        let pods = self.pods;
        for (name, run) in [("first", &self.first), ("later", &self.later)] {
            let add = report.section(format!("{pods} pods, {name} roll-out"));
            self.add_roll_out(run, add);
        }
        let sent = self.bytes_sent.amount();
        let figure = report.add(&figures::BYTES_SENT_A_POD, sent / pods.amount());
        figure.targets = vec![Target::AtMost(BYTES_A_POD)];
        figure.note(format!("{:.2} MB in all, TLS included", sent / 1e6));
        let add = report.section(format!("{pods} pods, both features"));
        for (kind, held) in [
            (&figures::RSS_AT_REST, self.held.rss),
            (&figures::RSS_AFTER_ROLL_OUTS, self.later.held.rss),
            (&figures::RSS_AFTER_RESTART, self.restart.held.rss),
        ] {
            let figure = add.add(kind, held);
            figure.targets.extend(most_rss.map(Target::AtMost));
        }
        add.add(&figures::RSS_PEAK, self.later.held.peak);
        let add = report.section(format!("{pods} pods, restart with nothing to do"));
        let requests = &self.restart.requests;
        add.add(&figures::NO_WRITES, requests.writes())
            .note(requests.listed());
        add.add(&figures::READY, self.restart.ready);
        add.add(&figures::CPU_UNTIL_READY, self.restart.cpu);
        let add = report.section(format!("{pods} pods"));
        let after_floor = self.after_floor.writes_of("pods");
        add.add(&figures::POD_WRITES_AFTER_FLOOR, after_floor)
            .note(self.after_floor.listed());
    }

    fn add_roll_out(&self, run: &RollOut, add: &mut Report) {
        run.add_writes(self.pods, add);
        add.compare(&figures::ROLLED_OUT, run.wall, self.floor.wall);
        let [cpu, floor] = [run, &self.floor].map(|run| run.cpu_a_pod(self.pods));
        add.compare(&figures::CPU_AN_UPGRADED_POD, cpu, floor);
    }
}
