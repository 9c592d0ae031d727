//! The agent starting again with nothing to do and with one stale verdict, and one flip among all pods of a node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman::{AGENT, MANAGER};
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::json;

use super::probed_node::ProbedNode;
use crate::clock;
use crate::progress::wait;
use crate::report::{Report, Target};
use crate::requests::Requests;

/// The label that says what a pod's role is.
const LABEL: &str = "bench.io/role";
/// How long is looked for writes that should not come.
const QUIET: Duration = Duration::from_secs(5);

const HOW: &str = " The agent's half: a real node with pods of one container each, probed over HTTP each second by ten \
markers. Ended by SIGTERM and started again; the writes that the API server's audit log has of agent and manager from then \
until each pod was probed three times, and 5 s more. With one stale verdict: the status says Failed of one pod, written \
while the agent was down, after the manager has marked it; time from the agent's start until the status, and until the \
pod, is right again. One flip: one target turns, and all that is written until its mark is right, and 5 s more.";

/// Adds the agent's half of the bench of restarts. Must not be called within a Tokio runtime.
pub(crate) fn measure(scale: f64, report: &mut Report) -> Result<()> {
    report.how.push_str(HOW);
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
    wait_for_object(
        &node.namespaced::<Pod>(),
        pod,
        &format!("role {role}"),
        |pod| {
            let found = pod
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(LABEL));
            ensure!(
                found.is_some_and(|found| found == role),
                "its role is {found:?}"
            );
            Ok(())
        },
    )
    .await
}

/// What agent and manager have sent since then, and all writes of both by kind.
fn sent(node: &ProbedNode, mark: Mark) -> Result<(Requests, Requests, String)> {
    let requests = node.bed.audit(mark)?;
    let [agent, manager] = [AGENT, MANAGER].map(|user| Requests::of(user, &requests));
    let requests = format!("agent: {}; manager: {}", agent.listed(), manager.listed());
    Ok((agent, manager, requests))
}

async fn nothing_to_do(node: &ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    node.stop_agent().await?;
    let mark = node.bed.audit_mark()?;
    node.start_ready_agent(endpoint).await?;
    let wanted = 3 * node.targets.len() as u64;
    wait_for_answer(&format!("{wanted} probes"), || async {
        let runs = node.counted(&["leadsman_probe_runs_total"]).await?;
        Ok((runs >= wanted).then_some(()))
    })
    .await?;
    wait("restart with nothing to do", QUIET).await;
    let (agent, manager, requests) = sent(node, mark)?;
    let writes = agent.writes() + manager.writes();
    report
        .add("agent's restart, nothing to do: writes", writes, "writes")
        .reach(Target::Exactly(0.0))
        .note(requests);
    Ok(())
}

async fn stale_verdict(node: &ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    let pod = &node.targets.first().context("there are pods")?.name;
    node.stop_agent().await?;
    say_failed(node, pod).await?;
    has_role(node, pod, "secondary").await?;
    wait("one stale verdict: settling", QUIET).await;
    let mark = node.bed.audit_mark()?;
    let begun = clock::now();
    // Both watches stand before the agent starts; its start is within the time.
    let right = async {
        shows(node, pod, "Succeeded").await?;
        let status = begun.elapsed();
        has_role(node, pod, "main").await?;
        Ok((status, begun.elapsed()))
    };
    let ((), (status, marked)) = tokio::try_join!(node.start_agent_at(endpoint), right)?;
    wait("one stale verdict: what else is written", QUIET).await;
    let (agent, manager, requests) = sent(node, mark)?;
    let mut add = report.section("agent's restart, one stale verdict");
    add.add("status right after", status, "s")
        .reach(Target::AtMost(1.0));
    add.add("pod right after", marked, "s");
    let once = Target::Exactly(1.0);
    add.add("status writes", agent.writes_of("nodepodprobes"), "writes")
        .reach(once)
        .note(requests);
    add.add("pod writes", manager.writes_of("pods"), "writes")
        .reach(once);
    Ok(())
}

/// Says in the node's status that the probe of a pod failed.
async fn say_failed(node: &ProbedNode, pod: &str) -> Result<()> {
    let (probes, node) = (node.probes(), node.bed.node_name());
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
    wait_for_object(&node.probes(), node.bed.node_name(), state, |object| {
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
    let begun = clock::now();
    node.set(target, "role=secondary").await?;
    has_role(node, &target.name, "secondary").await?;
    let took = begun.elapsed();
    wait("one flip: what else is written", QUIET).await;
    let (agent, manager, requests) = sent(node, mark)?;
    let mut add = report.section(format!("one flip among {} pods", node.targets.len()));
    let once = Target::Exactly(1.0);
    add.add("status writes", agent.writes_of("nodepodprobes"), "writes")
        .reach(once)
        .note(requests);
    add.add("pod writes", manager.writes_of("pods"), "writes")
        .reach(once);
    add.add("events", agent.writes_of("events"), "writes")
        .reach(once);
    add.add("until the mark", took, "s");
    Ok(())
}
