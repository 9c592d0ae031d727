//! A sandbox of a serverless provider is paused by what it prints: the whole protocol, with a provider that plays its part.

use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::watch_object;
use leadsman_tests::{History, Scene, document};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Serverless, annotation, create, probes, wait_for_injection};
use crate::Installation;

const PAUSE: &str = "sandbox.example.com/pause";
const SANDBOX: &str = "sandbox";

/// What the probe of a sandbox prints; its command always succeeds.
type Printed = &'static str;

/// Reports of each probe what the sandbox prints.
async fn report(scene: &Scene, asked: &[Value], printed: Printed) -> Result<()> {
    let conditions = asked.iter().map(
        |probe| json!({"type": probe["podConditionType"], "status": "True", "message": printed}),
    );
    let conditions: Vec<_> = conditions.collect();
    let status = json!({"conditions": conditions});
    scene.report_pod_status(SANDBOX, status).await.map(drop)
}

/// Runs a sandbox until its pod says that it is to be paused, and returns what it printed last.
async fn run_until_paused(scene: &Scene, mut prints: watch::Receiver<Printed>) -> Result<Printed> {
    let mut pods = pin!(watch_object(scene.pods(), SANDBOX));
    let mut asked = Vec::new();
    loop {
        tokio::select! {
            pod = pods.next() => {
                let pod = pod.context("the watch has ended")??.context("no sandbox")?;
                if annotation(&pod, PAUSE) == Some("true") {
                    return Ok(*prints.borrow());
                }
                asked = probes(&pod)?;
            }
            changed = prints.changed() => changed?,
        }
        let printed = *prints.borrow_and_update();
        report(scene, &asked, printed).await?;
    }
}

/// What its probe printed last, as its provider has reported it.
fn printed(pod: &Pod) -> Option<&str> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let idle = conditions.find(|one| one.type_ == "sandbox.example.com/idle")?;
    idle.message.as_deref()
}

// PPM-16, PPM-21
pub(crate) async fn a_sandbox_is_paused_when_it_says_that_it_is_idle(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Serverless::raise().await?;
    let scene = bed.scene("sandboxes").await?;
    let manifest = document::root().join("examples/idle-sandbox.yaml");
    let marker: Value = serde_norway::from_str(&std::fs::read_to_string(manifest)?)?;
    let marker = scene.marker("idle", marker["spec"]["probes"].clone());
    marker.await?;
    wait_for_injection(&scene, &json!({}), "idle").await?;
    let history = History::of(&bed.installation.client, &scene.ns).await?;
    create(&scene, SANDBOX, json!({}), false).await?;
    scene.report_running(SANDBOX, "10.1.2.3").await?;

    let (prints, printing) = watch::channel("active");
    let sandbox = async { run_until_paused(&scene, printing).await };
    let user = async {
        let active = json!({"labels": {"sandbox": "active"}, "annotations": {PAUSE: null}});
        scene.wait_for_marks(SANDBOX, active).await?;
        prints.send("idle 299")?;
        let seen = |pod: &Pod| {
            ensure!(printed(pod) == Some("idle 299"), "{:?}", printed(pod));
            Ok(())
        };
        let pods = scene.pods();
        leadsman_tests::wait_for_object(&pods, SANDBOX, "the provider's report", seen).await?;
        prints.send("idle 300")?;
        let idle = json!({"labels": {"sandbox": "idle"}, "annotations": {PAUSE: "true"}});
        scene.wait_for_marks(SANDBOX, idle).await
    };
    let (last, paused) = tokio::try_join!(sandbox, user)?;
    ensure!(last == "idle 300", "paused after {last:?}");
    history
        .never("a pause before its time", |pod| {
            annotation(pod, PAUSE).is_some() && printed(pod) != Some("idle 300")
        })
        .await?;

    // Somebody uses it again.
    report(&scene, &probes(&paused)?, "active").await?;
    let active = json!({"labels": {"sandbox": "active"}, "annotations": {PAUSE: null}});
    scene.wait_for_marks(SANDBOX, active).await?;
    bed.installation.end().await;
    Ok(())
}
