//! Generated flows of `SidecarSet`s: sets and pods come, change and go, several flows side by side, while watches are cut and
//! the manager is killed, which is also the webhook. Pods are created through that webhook, and a stand-in for kubelets
//! reports them. Each flow ends as a model says that knows nothing but the objects.
//!
//! `LEADSMAN_FLOWS` and `LEADSMAN_FLOW_SEED` say how many and which, as for markers (`flows`).

mod flow;
mod step;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use leadsman_testkit::FakeKubelet;
use leadsman_testkit::audit::Request;
use leadsman_testkit::leadsman::MANAGER;
use leadsman_testkit::ports::free_addresses;
use leadsman_tests::Link;
use tokio::sync::{SemaphorePermit, watch};

use self::flow::Flow;
use self::step::steps;
use crate::flows::seed::{chosen_flows, describe_flow};
use crate::stage::PLACES;
use crate::{Installation, SIDECAR_SET_GATE};

/// Flows of a run that is not told how many.
const FLOWS: usize = 20;
/// Flows side by side.
const AT_ONCE: usize = 10;
/// How long a container takes to start again.
const RESTART: Duration = Duration::from_millis(20);

/// A control plane with one manager, which goes through a link.
struct Stand {
    installation: Installation,
    flags: [String; 7],
    link: Link,
    _kubelet: FakeKubelet,
    _place: SemaphorePermit<'static>,
}

impl Stand {
    async fn raise() -> Result<Self> {
        let permit = PLACES.acquire().await?;
        let mut installation = Installation::raise_idle().await?;
        installation.grant_webhooks().await?;
        installation.allow_sidecar_sets().await?;
        let link = Link::to(installation.plane.server()).await?;
        let (plane, direct) = (&installation.plane, &installation.kubeconfig);
        installation.kubeconfig = plane.kubeconfig_through(direct, &link.url())?;
        let [address] = free_addresses()?;
        let flags = [
            SIDECAR_SET_GATE,
            "--webhook-bind-address",
            &address.to_string(),
            "--webhook-url",
            &format!("https://{address}"),
            "--lease-duration",
            "3",
        ];
        let stand = Self {
            _kubelet: FakeKubelet::start(&installation.client, None, RESTART),
            flags: flags.map(str::to_owned),
            link,
            installation,
            _place: permit,
        };
        stand.start_manager().await?;
        Ok(stand)
    }

    async fn start_manager(&self) -> Result<()> {
        let flags = self.flags.each_ref().map(String::as_str);
        self.installation.start_manager_with(&flags).await
    }

    async fn replace_manager(&self) -> Result<()> {
        let manager = self.installation.manager.lock().await.take();
        manager.context("a manager runs")?.kill().await?;
        self.start_manager().await
    }

    /// Cuts watches and kills the manager while the flows go on.
    async fn disturb(&self, mut ended: watch::Receiver<usize>, count: usize) -> Result<()> {
        let mut after = async |quarters: usize| {
            let enough = count * quarters / 4;
            ended.wait_for(|ended| *ended >= enough).await?;
            anyhow::Ok(())
        };
        after(0).await?;
        self.link.cut().await?;
        after(1).await?;
        self.replace_manager().await?;
        after(2).await?;
        self.link.cut().await?;
        after(3).await?;
        self.replace_manager().await
    }
}

// SCS-1, SCS-6, SCS-46, SCS-49, SCS-50, SCS-51, SCS-62, SDF-34, SDF-40, SDF-48
pub(crate) async fn generated_flows_end_as_the_model_says(_: Arc<Installation>) -> Result<()> {
    let (count, first) = chosen_flows(FLOWS)?;
    eprintln!("flows of sets: {count}, the first by LEADSMAN_FLOW_SEED={first}");
    let stand = Stand::raise().await?;
    let client = stand.installation.client.clone();
    let ended = watch::Sender::new(0);
    let flows = stream::iter(0..count).map(|number| {
        let (client, ended) = (client.clone(), ended.clone());
        async move {
            let seed = first + number as u64;
            let flow = play(&client, number, seed).await?;
            ended.send_modify(|ended| *ended += 1);
            anyhow::Ok((seed, flow))
        }
    });
    let flows = flows.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>();
    let (mut flows, ()) = tokio::try_join!(flows, stand.disturb(ended.subscribe(), count))?;
    for (seed, flow) in &mut flows {
        let settled = async {
            flow.settle().await?;
            // Nobody is away now: what is created is injected.
            flow.make_last_pod().await?;
            flow.settle().await
        };
        let settled = settled.await;
        settled
            .with_context(|| format!("{}\nafter its end", describe_flow(*seed, &steps(*seed))))?;
    }
    let totals = flows.iter().map(|(_, flow)| flow.tally());
    let [injected, missed] = totals.fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    eprintln!("flows of sets: {injected} injections, {missed} pods created while nobody answered");
    expect_a_start_to_write_nothing(&stand, &client).await
}

/// Whoever starts now has seen everything when it has counted a pod that comes after it, and has nothing to write before.
async fn expect_a_start_to_write_nothing(stand: &Stand, client: &kube::Client) -> Result<()> {
    stand.installation.stop_manager().await?;
    let mark = stand.installation.plane.audit_mark()?;
    stand.start_manager().await?;
    let mut fence = Flow::begin(client, "fence").await?;
    fence.play(&step::Step::MakeSet { set: 0 }).await?;
    fence.settle().await?;
    fence.make_last_pod().await?;
    fence.settle().await?;
    let mut writes = stand.installation.plane.audit(mark)?;
    let is_of_flow = |request: &Request| {
        let name = if request.namespace.is_empty() {
            &request.name
        } else {
            &request.namespace
        };
        name.starts_with("flow-")
    };
    writes.retain(|request| request.user == MANAGER && request.is_write() && is_of_flow(request));
    ensure!(writes.is_empty(), "after the end of all flows: {writes:#?}");
    Ok(())
}

async fn play(client: &kube::Client, number: usize, seed: u64) -> Result<Flow> {
    let mut flow = Flow::begin(client, &format!("flow-{number}")).await?;
    let steps = steps(seed);
    for (place, step) in steps.iter().enumerate() {
        let played = flow.play(step).await;
        played.with_context(|| format!("step {place} of {}", describe_flow(seed, &steps)))?;
    }
    let settled = flow.settle().await;
    settled.with_context(|| format!("the end of {}", describe_flow(seed, &steps)))?;
    Ok(flow)
}
