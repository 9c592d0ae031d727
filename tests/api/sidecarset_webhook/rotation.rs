//! The certificate of the webhook is replaced while pods are created.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kube::Client;
use kube::api::{Patch, PatchParams};
use leadsman_tests::wait_for_answer;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{FEW, Injecting, containers, create, make_namespace, names};
use crate::Installation;
use crate::webhook::rotate_certificate;

/// Those who create pods, each of them so often: about a hundred a second in all.
const CREATORS: usize = 4;
const EACH: Duration = Duration::from_millis(40);
/// Of so many pods one is created, and the others are only tried.
const TRIED: usize = 10;
/// The time that a call may take. A machine that stands still for so long may miss one; a certificate that the API server
/// does not trust is refused at once.
const CALL: Duration = Duration::from_secs(3);

/// What has been created so far.
#[derive(Default)]
struct Created {
    pods: AtomicUsize,
    /// Those that were not only tried.
    stored: AtomicUsize,
    /// Those that have the second image.
    second: AtomicUsize,
    /// Calls for which the machine stood still.
    stalled: AtomicUsize,
}

impl Created {
    /// Creates pods that the set of this name selects, until it is told to stop.
    async fn go_on(
        self: Arc<Self>,
        client: Client,
        (creator, set): (usize, &'static str),
        stop: CancellationToken,
    ) -> Result<()> {
        let mut ticks = interval(EACH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0.. {
            if stop.is_cancelled() {
                break;
            }
            ticks.tick().await;
            let name = format!("{set}-{creator}-{number}");
            let over = json!({"metadata": {"name": name, "labels": {"app": set}}});
            let (since, is_tried) = (Instant::now(), number % TRIED > 0);
            let found = create(&client, "shop", over, is_tried).await;
            let has_stalled = since.elapsed() >= CALL;
            match found {
                Ok(pod) if names(&pod) == [set, "main"] => {
                    self.pods.fetch_add(1, Ordering::Relaxed);
                    self.stored
                        .fetch_add(usize::from(!is_tried), Ordering::Relaxed);
                    let is_second = containers(&pod)[0].1 == "image:2";
                    self.second
                        .fetch_add(usize::from(is_second), Ordering::Relaxed);
                }
                _ if has_stalled => {
                    self.stalled.fetch_add(1, Ordering::Relaxed);
                }
                Ok(pod) => bail!("{name} was created with {:?}", names(&pod)),
                Err(error) => bail!("{name} was refused: {error:#}"),
            }
        }
        Ok(())
    }
}

// SCS-81, SDF-1, SDF-2, SDF-6
pub(crate) async fn certificates_rotate_while_pods_of_sets_are_created(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    let sets = ["strict", "lenient"];
    for (set, policy) in sets.into_iter().zip(["Fail", "Ignore"]) {
        let over = json!({
            "metadata": {"annotations": {"sidecarset.leadsman.io/failure-policy": policy}},
            "spec": {"selector": {"matchLabels": {"app": set}}},
        });
        bed.set(set, over).await?;
    }
    let (created, stop) = (Arc::new(Created::default()), CancellationToken::new());
    let mut creators = JoinSet::new();
    for creator in 0..CREATORS {
        let who = (creator, sets[creator % sets.len()]);
        creators.spawn(created.clone().go_on(client.clone(), who, stop.clone()));
    }
    rotate_certificate(&client).await?;
    let rotated = created.pods.load(Ordering::Relaxed);
    // Another generation is another path, for which the API server connects and shakes hands anew.
    for set in sets {
        let containers = json!([{"name": set, "image": "image:2"}]);
        let patch = Patch::Merge(json!({"spec": {"containers": containers}}));
        let params = PatchParams::default();
        bed.sets().patch(set, &params, &patch).await?;
        bed.is_in_force(set).await?;
    }
    wait_for_answer("pods by the new certificate", || async {
        let second = created.second.load(Ordering::Relaxed);
        Ok((second > 100).then_some(()))
    })
    .await?;
    stop.cancel();
    while let Some(creator) = creators.join_next().await {
        creator??;
    }
    ensure!(rotated > 100, "{rotated} pods are no load");
    let all = created.pods.load(Ordering::Relaxed);
    let stalled = created.stalled.load(Ordering::Relaxed);
    eprintln!(
        "{all} pods were created, {rotated} of them while the certificate was replaced; {stalled} calls took too long"
    );
    ensure!(stalled <= FEW, "{stalled} calls took too long");
    let stored = i64::try_from(created.stored.load(Ordering::Relaxed))?;
    wait_for_answer("all pods are counted", || async {
        let mut matched = 0;
        for set in sets {
            let status = bed.sets().get(set).await?.status.unwrap_or_default();
            let mut reasons = status.conditions.iter().map(|condition| &*condition.reason);
            if stalled == 0 && reasons.any(|reason| reason == "NotInjected") {
                bail!("{status:?}");
            }
            matched += status.matched_pods;
        }
        Ok((matched == stored).then_some(()))
    })
    .await?;
    bed.installation.end().await;
    Ok(())
}
