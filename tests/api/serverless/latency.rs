//! What the webhook adds to a pod's creation, beside a webhook that answers at once and says nothing: the floor of what
//! the API server's call costs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::PostParams;
use leadsman_tests::{Echo, Scene, wait_for_answer};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{MARKERS, Serverless, annotation, create, wait_for_injection};
use crate::Installation;
use crate::marks::idle;

/// Creations a second, for a second at a time.
const RATE: u32 = 100;
/// Blocks of each kind, by turns, so that what else the machine does meets all kinds alike.
const BLOCKS: usize = 10;
/// More than a manager adds by far, and less than what makes all pods wait: a timer, a delayed acknowledgement, a lock. Where a
/// creation with the echo takes longer than that, as beside other suites, as much as this.
const ADDED_WITHIN: Duration = Duration::from_millis(5);
/// The floor's configuration.
const ECHO: &str = "echo";

pub(crate) async fn a_creation_waits_little_for_the_webhook(_: Arc<Installation>) -> Result<()> {
    let bed = Serverless::raise().await?;
    let ours = bed.scene("ours").await?;
    let floor = bed.scene("floor").await?;
    let without = bed.scene("without").await?;
    ours.marker("idle", idle()).await?;
    wait_for_injection(&ours, &json!({}), "idle").await?;
    let echo = Echo::start()?;
    put_beside(&bed, &echo, &floor).await?;

    let scenes = [("no webhook", without), ("echo", floor), ("leadsman", ours)];
    // Connections and caches.
    for (_, scene) in &scenes {
        block(scene).await?;
    }
    let mut blocks = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..BLOCKS {
        for ((_, scene), blocks) in scenes.iter().zip(&mut blocks) {
            blocks.extend(block(scene).await?);
        }
    }
    let quantiles = blocks.map(Quantiles::of);
    for ((name, _), quantiles) in scenes.iter().zip(&quantiles) {
        eprintln!("a pod's creation, {RATE} a second, {name}: {quantiles}");
    }
    // Of a loaded machine most creations wait for the processor, and the median says how loaded it is; `cargo xtask bench
    // injection` has the medians of an idle one. What leadsman makes pods wait for, the quickest few wait for too.
    let [_, echo, ours] = quantiles;
    let added = ours.quick.saturating_sub(echo.quick);
    ensure!(
        added <= ADDED_WITHIN.max(echo.quick),
        "of the pods the quickest hundredth waits {added:?} longer than for an echo ({:?})",
        echo.quick
    );
    bed.installation.end().await;
    Ok(())
}

struct Quantiles {
    count: usize,
    /// A hundredth takes no longer.
    quick: Duration,
    median: Duration,
    tail: Duration,
}

impl Quantiles {
    fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let count = latencies.len();
        Self {
            count,
            quick: latencies[count / 100],
            median: latencies[count / 2],
            tail: latencies[count * 99 / 100],
        }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            quick,
            median,
            tail,
        } = self;
        write!(
            f,
            "p1 {quick:.2?}, p50 {median:.2?}, p99 {tail:.2?} of {count}"
        )
    }
}

/// How long each of a second's creations took. The API server only tries them: what etcd takes for a write is not of
/// interest, and webhooks without side effects are called all the same (KEP-576).
async fn block(scene: &Scene) -> Result<Vec<Duration>> {
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut creations = JoinSet::new();
    for _ in 0..RATE {
        ticks.tick().await;
        let (client, ns, node) = (scene.client.clone(), scene.ns.clone(), scene.node.clone());
        let scene = Scene { client, ns, node };
        creations.spawn(async move {
            let began = Instant::now();
            let pod = create(&scene, "trial", json!({}), true).await?;
            let took = began.elapsed();
            anyhow::Ok((took, annotation(&pod, MARKERS).is_some()))
        });
    }
    let (mut latencies, mut injected) = (Vec::new(), 0);
    while let Some(creation) = creations.join_next().await {
        let (took, is_injected) = creation??;
        latencies.push(took);
        injected += u32::from(is_injected);
    }
    // On a busy machine the API server may give up waiting for some.
    let is_asked = injected > RATE / 2;
    ensure!(
        is_asked == (scene.ns == "ours") && (is_asked || injected == 0),
        "{injected} of {RATE} pods have probes in {}",
        scene.ns
    );
    Ok(latencies)
}

/// Has the API server call the echo for a namespace as it calls ours for another one, with the same conditions.
async fn put_beside(bed: &Serverless, echo: &Echo, scene: &Scene) -> Result<()> {
    let configurations = bed.configurations();
    let ours = configurations.get("leadsman").await?;
    let webhook = ours
        .webhooks
        .and_then(|webhooks| webhooks.into_iter().next());
    let webhook = serde_json::to_value(webhook.context("no webhook of ours")?)?;
    let webhook = echo.webhook_like(webhook, ["ours", &scene.ns]);
    let configuration = json!({"metadata": {"name": ECHO}, "webhooks": [webhook]});
    let configuration: MutatingWebhookConfiguration = serde_json::from_value(configuration)?;
    configurations
        .create(&PostParams::default(), &configuration)
        .await?;
    wait_for_answer("a call of the echo", || async {
        create(scene, "trial", json!({}), true).await?;
        Ok((echo.calls() > 0).then_some(()))
    })
    .await
}
