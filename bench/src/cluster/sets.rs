//! `bench sets`: a manager that starts beside many sets that select nothing.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadsman_api::SidecarSet;
use leadsman_process::clock;
use leadsman_tests::ObjectWatch;
use serde_json::json;

use super::QUIET;
use super::api::{ApiRequest, CREATE, PAGE, SIDECAR_SETS, make_all};
use super::stage::{Contender, Stage, Who, play_with};
use crate::figures;
use crate::progress::{Step, wait};
use crate::report::Report;
use crate::share_of;

const SETS: usize = 50_000;
/// How long the first statuses of all sets may take, of which each needs four writes.
const PATIENCE_WITH_STATUSES: Duration = Duration::from_mins(30);

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let mut report = Report::new("sets", scale, include_str!("../../pages/sets.md"));
    play_with("SidecarSetGate=true", async |stage| {
        start_beside(stage, scale, &mut report).await
    })?;
    Ok(report)
}

async fn start_beside(stage: &Stage, scale: f64, report: &mut Report) -> Result<()> {
    let count = share_of(SETS, scale).max(2);
    let create = (0..count).map(|number| {
        let name = format!("set-{number:05}");
        let body = json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "containers": [{"name": "log", "image": "registry.example.com/log:1.0.0"}],
            },
        });
        ApiRequest::new(CREATE, SIDECAR_SETS, "kubectl", &body)
    });
    make_all(&stage.client, "making sets", create.collect()).await?;
    let began = clock::monotonic();
    let manager = stage.start(Who::Manager, None).await?;
    let mut sets = ObjectWatch::<SidecarSet>::begin(&stage.client, SIDECAR_SETS, PAGE).await?;
    let has_status = |set: &SidecarSet| {
        let status = set.status.as_ref();
        let observed = status.map(|status| status.observed_generation);
        ensure!(observed == set.metadata.generation, "it has no status");
        Ok(())
    };
    let step = Step::begin("every set gets its status");
    let complete = sets
        .wait_until("statuses", count, PATIENCE_WITH_STATUSES, has_status)
        .await;
    complete.with_context(|| manager.last_lines())?;
    drop(step);
    let add = report.section(format!("{count} SidecarSets without statuses"));
    add.add(&figures::STATUSES_TOOK, began.elapsed());
    add.add(&figures::CPU_OF_STATUSES, manager.meter.cpu()?);
    add.add(&figures::RSS, manager.meter.held()?.rss);
    wait("what else is written", QUIET).await;
    manager.end().await?;
    let name = format!("a start beside {count} SidecarSets");
    let run = stage.run(&name, (Who::Manager, None), Contender::ready, 3 * QUIET);
    let run = run.await?;
    let add = report.section(name);
    add.add(&figures::NO_WRITES, run.requests.writes())
        .note(run.requests.listed());
    add.add(&figures::SETS_READY, run.ready);
    add.add(&figures::CPU_UNTIL_READY, run.cpu);
    add.add(&figures::RSS, run.held.rss);
    add.add(&figures::RSS_PEAK, run.held.peak);
    Ok(())
}
