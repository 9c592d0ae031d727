//! A control plane and a manager of a case's own, with a crowd of pods, for counting requests.
//!
//! A case goes through steps. A step is over when the manager has seen all that happened in it and has nothing left to
//! do; then all that it asked of the API server is held to the step's budget. No pause decides when that is.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use leadsman_tests::budget::{self, Row};
use leadsman_tests::metrics::is_at_rest;
use leadsman_tests::{Crowd, Scene, wait_for_answer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::Installation;
use crate::marks::{idle, marked};

pub(crate) const NODES: usize = 25;
pub(crate) const PODS: usize = 250;
/// What the names of a fence's objects begin with, which are not counted.
const FENCE: &str = "fence-";
/// How many cases have a control plane at once; each takes half a gigabyte.
pub(crate) static PLACES: Semaphore = Semaphore::const_new(2);

/// A control plane with a crowd of pods, and its manager.
pub(crate) struct Stage {
    pub(crate) installation: Installation,
    pub(crate) crowd: Crowd,
    fences: AtomicUsize,
    _place: SemaphorePermit<'static>,
}

impl Stage {
    /// With all pods, and no manager yet.
    pub(crate) async fn raise() -> Result<Self> {
        Self::raise_with(NODES, PODS).await
    }

    /// The same with so many nodes and pods.
    pub(crate) async fn raise_with(nodes: usize, pods: usize) -> Result<Self> {
        let place = PLACES.acquire().await?;
        let installation = Installation::raise_idle().await?;
        let crowd = Crowd::new(&installation.client, "crowd", nodes, pods).await?;
        Ok(Self {
            installation,
            crowd,
            fences: AtomicUsize::new(0),
            _place: place,
        })
    }

    /// What a start of the manager reads now.
    pub(crate) fn start_rows(&self) -> Vec<Row> {
        // Each fence left a pod and a node.
        let fences = self.fences.load(Ordering::Relaxed);
        budget::manager_starts(PODS + fences, NODES + fences)
    }

    /// What a start of a manager that serves webhooks reads now, but for these.
    pub(crate) fn read_rows(&self) -> Vec<Row> {
        let fences = self.fences.load(Ordering::Relaxed);
        budget::manager_reads(PODS + fences, NODES + fences)
    }

    /// Does a step, and holds what the manager asks in it to `rows` and its Lease.
    pub(crate) async fn step(
        &self,
        what: &str,
        act: impl Future<Output = Result<()>>,
        rows: Vec<Row>,
    ) -> Result<()> {
        let (mark, begun) = (self.installation.plane.audit_mark()?, Instant::now());
        act.await.context(what.to_owned())?;
        self.wait_until_idle().await.context(what.to_owned())?;
        let mut requests = self.installation.plane.audit(mark)?;
        let of_fence = |name: &str| name.starts_with(FENCE);
        requests.retain(|request| !of_fence(&request.name) && !of_fence(&request.namespace));
        let rows = [rows, vec![budget::lease()]].concat();
        budget::keep(&requests, begun.elapsed(), &rows).context(what.to_owned())
    }

    /// Waits until the manager has seen all that happened until now, and has nothing to write, now or later.
    pub(crate) async fn wait_until_idle(&self) -> Result<()> {
        // A new node, pod, marker and verdict, in the end marked: whatever came before on each watch was seen before.
        let number = self.fences.fetch_add(1, Ordering::Relaxed);
        let scene = Scene::new(&self.installation.client, &format!("{FENCE}{number}")).await?;
        scene.pod("one").await?;
        scene.marker("m", idle()).await?;
        scene.report_verdict("one", "m#Idle", "Succeeded").await?;
        scene.wait_for_marks("one", marked("Succeeded")).await?;
        // Its next status would take two seconds more to come to rest.
        scene.delete_marker("m").await?;
        wait_for_answer("a manager at rest", || async {
            let Ok(metrics) = self.metrics().await else {
                return Ok(None);
            };
            Ok(is_at_rest(&metrics).then_some(()))
        })
        .await
    }

    /// What the manager that was started last says of itself.
    async fn metrics(&self) -> Result<String> {
        self.installation.get("/metrics").await
    }

    /// Whether that manager says that it is ready.
    pub(crate) async fn is_ready(&self) -> Result<bool> {
        Ok(self
            .installation
            .get("/readyz")
            .await?
            .starts_with("HTTP/1.0 200"))
    }

    /// Waits until a marker's status says that all pods are probed.
    pub(crate) async fn wait_until_probing(&self, marker: &str) -> Result<()> {
        let marker = self.scene().wait_for_reason(marker, "Probing").await?;
        let matched = marker.status.unwrap_or_default().matched_pods;
        let pods = self.crowd.pods.len();
        ensure!(matched == Some(pods.try_into()?), "{matched:?} pods match");
        Ok(())
    }

    pub(crate) fn scene(&self) -> Scene {
        self.crowd.scene(0)
    }
}
