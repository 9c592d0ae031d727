//! The agent starting again with nothing to do and with one stale verdict, and one flip among all pods of a node.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams};
use leadsman_testkit::leadsman::{AGENT, MANAGER};
use leadsman_tests::room::{is_main, role};
use leadsman_tests::wait_for_answer;
use serde_json::json;

use super::probed_node::ProbedNode;
use crate::figures;
use crate::progress::wait;
use crate::report::Report;
use crate::requests::{Requests, Since};

/// How long is looked for writes that should not come.
const QUIET: Duration = Duration::from_secs(5);

/// Adds the agent's half of the bench of restarts. Must not be called within a Tokio runtime.
pub(crate) fn measure(scale: f64, report: &mut Report) -> Result<()> {
    super::on_node(scale, async |node| {
        for target in &node.targets {
            node.room.set(&target.name, "role=main").await?;
        }
        let endpoint = node.bed.runtime_endpoint();
        node.start_ready_agent(&endpoint).await?;
        let mut probe = role();
        probe["probe"]["timeoutSeconds"] = json!(5);
        node.mark("restart", &probe).await?;
        for target in &node.targets {
            has_role(node, &target.name, true).await?;
        }
        wait("settling", QUIET).await;
        nothing_to_do(node, &endpoint, report).await?;
        stale_verdict(node, &endpoint, report).await?;
        flip(node, report).await?;
        node.stop_agent().await
    })
}

/// Waits until a pod is marked as main or secondary.
async fn has_role(node: &ProbedNode, pod: &str, main: bool) -> Result<()> {
    let marked = node.room.scene.wait_for_marks(pod, is_main(main));
    marked.await.map(drop)
}

/// What agent and manager have sent.
struct Sent {
    agent: Requests,
    manager: Requests,
}

impl Sent {
    /// What they have sent since then, and send in the time in which nothing more should come.
    async fn since(node: &ProbedNode, since: Since, name: &str) -> Result<Self> {
        wait(format!("{name}: what else is written"), QUIET).await;
        Ok(Self {
            agent: since.requests(&node.bed, AGENT)?,
            manager: since.requests(&node.bed, MANAGER)?,
        })
    }

    fn listed(&self) -> String {
        let [agent, manager] = [&self.agent, &self.manager].map(Requests::listed);
        format!("agent: {agent}; manager: {manager}")
    }

    /// The writes of one verdict that has changed.
    fn add_figures(&self, add: &mut Report) {
        let statuses = self.agent.writes_of("nodepodprobes");
        add.add(&figures::STATUS_WRITES, statuses)
            .note(self.listed());
        add.add(&figures::POD_WRITES, self.manager.writes_of("pods"));
    }
}

async fn nothing_to_do(node: &ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    node.stop_agent().await?;
    let since = Since::now(&node.bed)?;
    node.start_ready_agent(endpoint).await?;
    let wanted = 3 * node.targets.len() as u64;
    wait_for_answer(&format!("{wanted} probes"), || async {
        let runs = node.counted(&[&["leadsman_prober_probe_total"]]).await?;
        Ok((runs[0] >= wanted).then_some(()))
    })
    .await?;
    let name = "agent's restart, nothing to do";
    let sent = Sent::since(node, since, name).await?;
    let writes = sent.agent.writes() + sent.manager.writes();
    let add = report.section(name);
    add.add(&figures::AGENT_WRITES, writes).note(sent.listed());
    Ok(())
}

async fn stale_verdict(node: &ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    let pod = &node.targets.first().context("there are pods")?.name;
    let name = "agent's restart, one stale verdict";
    node.stop_agent().await?;
    say_failed(node, pod).await?;
    has_role(node, pod, false).await?;
    wait(format!("{name}: settling"), QUIET).await;
    let since = Since::now(&node.bed)?;
    node.start_agent_at(endpoint).await?;
    has_role(node, pod, true).await?;
    let sent = Sent::since(node, since, name).await?;
    let add = report.section(name);
    let status = sent.agent.last_write("nodepodprobes");
    add.add(&figures::STATUS_RIGHT, status);
    add.add(&figures::POD_RIGHT, sent.manager.last_write("pods"));
    sent.add_figures(add);
    Ok(())
}

/// Says in the node's status that the probe of a pod failed.
async fn say_failed(node: &ProbedNode, pod: &str) -> Result<()> {
    let (probes, node) = (node.room.scene.probes(), &node.room.scene.node);
    let mut status = probes.get(node).await?.status.unwrap_or_default();
    let of_pod = status
        .pod_probe_statuses
        .iter_mut()
        .filter(|status| status.name == pod);
    for state in of_pod.flat_map(|pod| &mut pod.probe_states) {
        "Failed".clone_into(&mut state.state);
    }
    let patch = Patch::Merge(json!({"status": status}));
    probes
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn flip(node: &ProbedNode, report: &mut Report) -> Result<()> {
    let pod = &node.targets.last().context("there are pods")?.name;
    let name = format!("one flip among {} pods", node.targets.len());
    let since = Since::now(&node.bed)?;
    node.room.set(pod, "role=secondary").await?;
    has_role(node, pod, false).await?;
    let sent = Sent::since(node, since, &name).await?;
    let add = report.section(name);
    sent.add_figures(add);
    add.add(&figures::EVENTS, sent.agent.writes_of("events"));
    add.add(&figures::UNTIL_MARK, sent.manager.last_write("pods"));
    Ok(())
}
