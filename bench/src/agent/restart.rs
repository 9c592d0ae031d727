//! The agent starting again with nothing to do and with one stale verdict, and one flip among all pods of a node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use leadsman_testkit::audit::{Mark, Request};
use leadsman_tests::{see, until};
use serde_json::json;

use super::probed_node::ProbedNode;
use super::{Size, with_probed_node};
use crate::clock;
use crate::engine::wait;
use crate::report::{Figure, Report, Target, count};
use leadsman_testkit::leadsman::{AGENT, MANAGER};

/// The label that says what a pod's role is.
const LABEL: &str = "bench.io/role";
/// How long is looked for writes that should not come.
const QUIET: Duration = Duration::from_secs(5);
/// How the figures of this room were obtained.
const HOW: &str = "The agent's half: a real node with pods of one container each, probed over HTTP each second by ten \
    markers. Ended by SIGTERM and started again; the writes that the API server's audit log has of agent and manager from \
    then until each pod was probed three times, and 5 s more. With one stale verdict: the status says Failed of one pod, \
    written while the agent was down, after the manager has marked it; time from the agent's start until the status, and \
    until the pod, is right again. One flip: one target turns, and all that is written until its mark is right, and 5 s \
    more.";

/// Adds the agent's half of the bench of restarts. Must not be called within a Tokio runtime.
pub(crate) fn restart(scale: f64, report: &mut Report) -> Result<()> {
    let size = Size::of(scale);
    if !report.how.is_empty() {
        report.how.push(' ');
    }
    report.how.push_str(HOW);
    with_probed_node(size.pods, async |node| all(node, report).await)
}

async fn all(node: &mut ProbedNode, report: &mut Report) -> Result<()> {
    let endpoint = node.bed.runtime_endpoint();
    for target in &node.targets {
        node.set(target, "role=main").await?;
    }
    node.start_ready_agent(&endpoint).await?;
    node.mark("restart", &probe()).await?;
    for target in &node.targets {
        role(node, &target.name, "main").await?;
    }
    wait("settling", QUIET).await;
    nothing(node, &endpoint, report).await?;
    stale(node, &endpoint, report).await?;
    flip(node, report).await?;
    node.stop_agent().await
}

fn probe() -> serde_json::Value {
    json!({"name": "role", "containerName": "main", "podConditionType": "bench.io/role",
        "probe": {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1,
            "httpGet": {"path": "/role", "port": 8080}},
        "markerPolicy": [{"state": "Succeeded", "labels": {LABEL: "main"}},
            {"state": "Failed", "labels": {LABEL: "secondary"}}]})
}

/// Waits until a pod bears the label.
async fn role(node: &ProbedNode, pod: &str, role: &str) -> Result<()> {
    let pods = node.namespaced::<Pod>();
    see(&pods, pod, &format!("role {role}"), |pod| {
        let labels = pod.metadata.labels.as_ref();
        let found = labels.and_then(|labels| labels.get(LABEL));
        ensure!(
            found.is_some_and(|found| found == role),
            "its role is {found:?}"
        );
        Ok(())
    })
    .await
}

/// What agent and manager wrote since then, leases left out.
fn writes(node: &ProbedNode, mark: Mark) -> Result<Vec<Request>> {
    let requests = node.bed.audit(mark)?.into_iter();
    let written = requests.filter(|request| {
        [AGENT, MANAGER].contains(&request.user.as_str())
            && !["get", "list", "watch"].contains(&request.verb.as_str())
            && request.resource != "leases"
    });
    Ok(written.collect())
}

fn number(writes: &[Request], user: &str, resource: &str) -> f64 {
    let of = writes
        .iter()
        .filter(|request| request.user == user && request.resource == resource);
    count(of.count() as u64)
}

/// Each kind of write with its number.
fn listed(writes: &[Request]) -> String {
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for request in writes {
        let who = if request.user == AGENT {
            "agent"
        } else {
            "manager"
        };
        let subresource = match request.subresource.as_str() {
            "" => String::new(),
            name => format!("/{name}"),
        };
        let kind = format!("{who}: {} {}{subresource}", request.verb, request.resource);
        *kinds.entry(kind).or_default() += 1;
    }
    let kinds = kinds
        .iter()
        .map(|(kind, number)| format!("{number} × {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

async fn nothing(node: &mut ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    node.stop_agent().await?;
    let mark = node.bed.audit_mark()?;
    node.start_ready_agent(endpoint).await?;
    probed(node, 3).await?;
    wait("restart with nothing to do", QUIET).await;
    let writes = writes(node, mark)?;
    report.add(
        Figure::new(
            "agent's restart, nothing to do: writes",
            count(writes.len() as u64),
            "writes",
        )
        .reach(Target::Exactly(0.0))
        .note(listed(&writes)),
    );
    Ok(())
}

/// Waits until each pod was probed so often.
async fn probed(node: &ProbedNode, times: u64) -> Result<()> {
    let wanted = times * node.targets.len() as u64;
    until(&format!("{wanted} probes"), || async {
        let runs = node.counted(&["leadsman_probe_runs_total"]).await?;
        Ok((runs >= wanted).then_some(()))
    })
    .await
}

async fn stale(node: &mut ProbedNode, endpoint: &str, report: &mut Report) -> Result<()> {
    let pod = node.targets.first().context("there are pods")?.name.clone();
    node.stop_agent().await?;
    say_failed(node, &pod).await?;
    role(node, &pod, "secondary").await?;
    wait("one stale verdict: settling", QUIET).await;
    let mark = node.bed.audit_mark()?;
    let begun = clock::now();
    let right = async {
        shows(node, &pod, "Succeeded").await?;
        let status = begun.elapsed();
        role(node, &pod, "main").await?;
        anyhow::Ok((status, begun.elapsed()))
    };
    // Both watches stand before the agent starts; its start is within the time.
    let agent = node.start_agent_at(endpoint);
    let (agent, right) = tokio::join!(agent, right);
    agent?;
    let (status, marked) = right?;
    wait("one stale verdict: what else is written", QUIET).await;
    let writes = writes(node, mark)?;
    let figure = |what: &str, value: f64, unit: &str| {
        Figure::new(
            format!("agent's restart, one stale verdict: {what}"),
            value,
            unit,
        )
    };
    report.add(figure("status right after", status.as_secs_f64(), "s").reach(Target::AtMost(1.0)));
    report.add(figure("pod right after", marked.as_secs_f64(), "s"));
    let statuses = number(&writes, AGENT, "nodepodprobes");
    report.add(
        figure("status writes", statuses, "writes")
            .reach(Target::Exactly(1.0))
            .note(listed(&writes)),
    );
    let pods = number(&writes, MANAGER, "pods");
    report.add(figure("pod writes", pods, "writes").reach(Target::Exactly(1.0)));
    Ok(())
}

/// Says in the node's status that the probe of a pod failed.
async fn say_failed(node: &ProbedNode, pod: &str) -> Result<()> {
    let (probes, node) = (node.probes(), node.bed.node_name());
    let mut status = probes.get(node).await?.status.unwrap_or_default();
    let of_pod = status
        .pod_probe_statuses
        .iter_mut()
        .find(|status| status.name == pod);
    for state in of_pod.into_iter().flat_map(|pod| &mut pod.probe_states) {
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
    see(&node.probes(), node.bed.node_name(), state, |object| {
        let status = object.status.clone().unwrap_or_default();
        let of_pod = status.pod_probe_statuses.into_iter();
        let verdicts = of_pod
            .filter(|status| status.name == pod)
            .flat_map(|status| status.probe_states);
        let found: Vec<_> = verdicts.map(|verdict| verdict.state).collect();
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
    role(node, &target.name, "secondary").await?;
    let took = begun.elapsed();
    wait("one flip: what else is written", QUIET).await;
    let writes = writes(node, mark)?;
    let name = format!("one flip among {} pods", node.targets.len());
    let figure = |what: &str, value: f64| {
        Figure::new(format!("{name}: {what}"), value, "writes").reach(Target::Exactly(1.0))
    };
    let statuses = number(&writes, AGENT, "nodepodprobes");
    report.add(figure("status writes", statuses).note(listed(&writes)));
    report.add(figure("pod writes", number(&writes, MANAGER, "pods")));
    report.add(figure("events", number(&writes, AGENT, "events")));
    report.add(Figure::new(
        format!("{name}: until the mark"),
        took.as_secs_f64(),
        "s",
    ));
    Ok(())
}
