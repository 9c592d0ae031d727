//! The agent starting again with nothing to do and with one stale verdict, and one flip among all pods of a node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{Patch, PatchParams};
use leadsman_process::clock;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman::{AGENT, MANAGER};
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::json;

use super::probed_node::ProbedNode;
use crate::figures;
use crate::progress::wait;
use crate::report::{Report, Section};
use crate::requests::Requests;

/// The label that says what a pod's role is.
const LABEL: &str = "bench.io/role";
/// How long is looked for writes that should not come.
const QUIET: Duration = Duration::from_secs(5);

/// Adds the agent's half of the bench of restarts. Must not be called within a Tokio runtime.
pub(crate) fn measure(scale: f64, report: &mut Report) -> Result<()> {
    super::on_node(scale, async |node| {
        for target in &node.targets {
            node.set(target, "role=main").await?;
        }
        let endpoint = node.bed.runtime_endpoint();
        node.start_ready_agent(&endpoint).await?;
        let probe = json!({"name": "role", "containerName": "main", "podConditionType": "bench.io/role",
            "probe": {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1,
                "httpGet": {"path": "/role", "port": 8080}},
            "markerPolicy": [{"state": "Succeeded", "labels": {LABEL: "main"}},
                {"state": "Failed", "labels": {LABEL: "secondary"}}]});
        node.mark("restart", &probe).await?;
        for target in &node.targets {
            has_role(node, &target.name, "main").await?;
        }
        wait("settling", QUIET).await;
        nothing_to_do(node, &endpoint, report).await?;
        stale_verdict(node, &endpoint, report).await?;
        flip(node, report).await?;
        node.stop_agent().await
    })
}

/// Waits until a pod has the label.
async fn has_role(node: &ProbedNode, pod: &str, role: &str) -> Result<()> {
    let marks = json!({"labels": {LABEL: role}});
    node.scene.wait_for_marks(pod, marks).await.map(drop)
}

/// What agent and manager have sent since then, and all writes of both by kind.
struct Sent {
    agent: Requests,
    manager: Requests,
}

impl Sent {
    fn since(node: &ProbedNode, mark: Mark) -> Result<Self> {
        let requests = node.bed.audit(mark)?;
        let [agent, manager] = [AGENT, MANAGER].map(|user| Requests::of(user, &requests));
        Ok(Self { agent, manager })
    }

    fn listed(&self) -> String {
        let [agent, manager] = [&self.agent, &self.manager].map(Requests::listed);
        format!("agent: {agent}; manager: {manager}")
    }

    /// The writes of one verdict that has changed.
    fn add_figures(&self, add: &mut Section<'_>) {
        add.add(
            &figures::STATUS_WRITES,
            self.agent.writes_of("nodepodprobes"),
        )
        .note(self.listed());
        add.add(&figures::POD_WRITES, self.manager.writes_of("pods"));
    }
}

async fn nothing_to_do(node: &ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    node.stop_agent().await?;
    let mark = node.bed.audit_mark()?;
    node.start_ready_agent(endpoint).await?;
    let wanted = 3 * node.targets.len() as u64;
    wait_for_answer(&format!("{wanted} probes"), || async {
        let [runs] = node.counted([&["leadsman_probe_runs_total"]]).await?;
        Ok((runs >= wanted).then_some(()))
    })
    .await?;
    wait("restart with nothing to do", QUIET).await;
    let sent = Sent::since(node, mark)?;
    let writes = sent.agent.writes() + sent.manager.writes();
    let mut add = report.section("agent's restart, nothing to do");
    add.add(&figures::AGENT_WRITES, writes).note(sent.listed());
    Ok(())
}

async fn stale_verdict(node: &ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    let pod = &node.targets.first().context("there are pods")?.name;
    node.stop_agent().await?;
    say_failed(node, pod).await?;
    has_role(node, pod, "secondary").await?;
    wait("one stale verdict: settling", QUIET).await;
    let mark = node.bed.audit_mark()?;
    let begun = clock::monotonic();
    // Both watches stand before the agent starts; its start is within the time.
    let right = async {
        shows(node, pod, "Succeeded").await?;
        let status = begun.elapsed();
        has_role(node, pod, "main").await?;
        Ok((status, begun.elapsed()))
    };
    let ((), (status, marked)) = tokio::try_join!(node.start_agent_at(endpoint), right)?;
    wait("one stale verdict: what else is written", QUIET).await;
    let mut add = report.section("agent's restart, one stale verdict");
    add.add(&figures::STATUS_RIGHT, status);
    add.add(&figures::POD_RIGHT, marked);
    Sent::since(node, mark)?.add_figures(&mut add);
    Ok(())
}

/// Says in the node's status that the probe of a pod failed.
async fn say_failed(node: &ProbedNode, pod: &str) -> Result<()> {
    let (probes, node) = (node.scene.probes(), &node.scene.node);
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

/// Waits until the node's status says this of a pod.
async fn shows(node: &ProbedNode, pod: &str, state: &str) -> Result<()> {
    wait_for_object(&node.scene.probes(), &node.scene.node, state, |object| {
        let statuses = object
            .status
            .iter()
            .flat_map(|status| &status.pod_probe_statuses);
        let verdicts = statuses
            .filter(|status| status.name == pod)
            .flat_map(|status| &status.probe_states);
        let found: Vec<_> = verdicts.map(|verdict| &verdict.state).collect();
        ensure!(found == [state], "it says {found:?}");
        Ok(())
    })
    .await
}

async fn flip(node: &ProbedNode, report: &mut Report) -> Result<()> {
    let target = node.targets.last().context("there are pods")?;
    let mark = node.bed.audit_mark()?;
    let begun = clock::monotonic();
    node.set(target, "role=secondary").await?;
    has_role(node, &target.name, "secondary").await?;
    let took = begun.elapsed();
    wait("one flip: what else is written", QUIET).await;
    let sent = Sent::since(node, mark)?;
    let mut add = report.section(format!("one flip among {} pods", node.targets.len()));
    sent.add_figures(&mut add);
    add.add(&figures::EVENTS, sent.agent.writes_of("events"));
    add.add(&figures::UNTIL_MARK, took);
    Ok(())
}
