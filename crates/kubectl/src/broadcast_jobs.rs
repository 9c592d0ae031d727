//! The nodes without a pod of a `BroadcastJob`, and why they have none.

use leadsman_api::BroadcastJob;
use leadsman_api::broadcast_job::JOB_NAME_LABEL;
use leadsman_api::slim::{Node, Pod};
use leadsman_core::broadcast::{JobExplanation, explain_job};
use leadsman_core::podprobe::explain::Unread;
use serde::Serialize;

use crate::VerbError;
use crate::reader::{ListSelection, Reader};
use crate::report::{Report, Text, bold, line};
use crate::resources::{BROADCAST_JOBS, NODES, PODS};

/// The most nodes that are named for a reason, unless all are asked for.
const FEW_NODES: usize = 5;

/// A job, as far as the cluster may be read.
#[derive(Serialize)]
pub(crate) struct ExplainedJob {
    #[serde(flatten)]
    job: JobExplanation,
    /// Why a part of the answer is left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

/// Reads a job, its pods and all nodes, and explains it. `view` has no right on nodes; without them the job and its pods are
/// explained.
pub(crate) async fn explain(
    reader: &Reader,
    namespace: &str,
    name: &str,
) -> Result<ExplainedJob, VerbError> {
    let job: BroadcastJob = reader
        .require(BROADCAST_JOBS, "broadcastjob", name, Some(namespace))
        .await?;
    let of_job = ListSelection {
        labels: Some(format!("{JOB_NAME_LABEL}={name}")),
        ..ListSelection::of(Some(namespace), 500)
    };
    let all = ListSelection::of(None, 500);
    let (pods, nodes) = futures::join!(
        reader.list_objects::<Pod>(PODS, &of_job),
        reader.list_objects::<Node>(NODES, &all),
    );
    let (nodes, unread) = match nodes {
        Ok(nodes) => (nodes, Vec::new()),
        Err(Unread(why)) => (Vec::new(), vec![why]),
    };
    Ok(ExplainedJob {
        job: explain_job(job, pods?, nodes),
        unread,
    })
}

impl Report for ExplainedJob {
    fn add_text(&self, text: &mut Text) {
        let job = &self.job;
        let [active, succeeded, failed, desired] = job.counts;
        let phase = if job.phase.is_empty() {
            "not seen yet"
        } else {
            &job.phase
        };
        let name = bold(format_args!("broadcastjob {}", job.name));
        line!(text, 0 => "{name}: {phase}, of {desired} nodes {succeeded} succeeded, {failed} failed, {active} active");
        for (reason, nodes) in &job.nodes_without_pod {
            let named = if text.is_wide {
                nodes.len()
            } else {
                FEW_NODES.min(nodes.len())
            };
            let more = match nodes.len() - named {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            line!(text, 2 => "{} without a pod: {reason}", nodes.len());
            line!(text, 4 => "{}{more}", nodes[..named].join(", "));
        }
        for (pod, why) in &job.unschedulable {
            line!(text, 2 => "pod {pod} is not scheduled: {why}");
        }
        text.add_unread(&self.unread);
    }

    fn names(&self) -> Vec<String> {
        vec![format!("broadcastjob/{}", self.job.name)]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::reader::FakeServer;
    use crate::report::plain_text;

    const JOB: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/broadcastjobs/j";
    const OWN_PODS: &str = "/api/v1/namespaces/ns/pods";

    fn job() -> Value {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "BroadcastJob",
            "metadata": {"name": "j", "namespace": "ns", "uid": "u"}, "spec": {"template": template, "parallelism": 1},
            "status": {"phase": "running", "active": 1, "succeeded": 0, "failed": 0, "desired": 2}})
    }

    fn own_pods() -> Value {
        let pod = json!({"metadata": {"name": "j-x", "namespace": "ns",
                "labels": {"broadcastjob-name": "j", "broadcastjob-controller-uid": "u"},
                "ownerReferences": [{"uid": "u", "controller": true}]}, "spec": {"nodeName": "n1"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no ports"}]}});
        json!({"metadata": {}, "items": [pod]})
    }

    async fn explained(server: &FakeServer) -> String {
        let explained = explain(&server.reader(), "ns", "j").await.unwrap();
        plain_text(&explained, false, "2026-01-01T01:00:00Z")
    }

    // BCD-8
    #[tokio::test]
    async fn nodes_without_a_pod_are_told_with_the_reason() {
        let node = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec, "status": {"allocatable": {"cpu": "4", "pods": "110"}}});
        let taints = json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]});
        let nodes = [
            node("n1", json!({})),
            node("n2", taints),
            node("n3", json!({"unschedulable": true})),
            node("n4", json!({})),
        ];
        let nodes = json!({"metadata": {}, "items": nodes});
        let server = FakeServer::new([
            (JOB, job()),
            (OWN_PODS, own_pods()),
            ("/api/v1/nodes", nodes),
        ]);
        let expected = "\
broadcastjob j: running, of 2 nodes 0 succeeded, 0 failed, 1 active
  1 without a pod: it is cordoned
    n3
  1 without a pod: its turn comes later: 1 pods may run at a time (spec.parallelism)
    n4
  1 without a pod: taint gpu:NoSchedule is not tolerated
    n2
  pod j-x is not scheduled: no ports
";
        assert_eq!(explained(&server).await, expected);
    }

    #[tokio::test]
    async fn nodes_that_may_not_be_read_are_left_out_and_named() {
        let server = FakeServer::new([(JOB, job()), (OWN_PODS, own_pods())]);
        let text = explained(&server).await;
        let expected = "\
broadcastjob j: running, of 2 nodes 0 succeeded, 0 failed, 1 active
  pod j-x is not scheduled: no ports

Not read
  the API server does not serve nodes";
        assert!(text.starts_with(expected), "{text}");
    }
}
