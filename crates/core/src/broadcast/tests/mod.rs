//! Jobs on a little API server: tables by rule, and a simulation.

mod cluster;
mod cost;
mod end;
mod pods;
mod simulation;

use serde_json::{Value, json};

use self::cluster::{Cluster, JOB, Kind};

/// A template whose pods are restarted by their kubelet.
fn on_failure() -> Value {
    json!({"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}})
}

fn succeed(cluster: &mut Cluster, nodes: &[&str]) {
    for node in nodes {
        cluster.report(node, "Succeeded", 0);
    }
    cluster.settle();
}

fn fail(cluster: &mut Cluster, node: &str) {
    cluster.report(node, "Failed", 0);
    cluster.settle();
}

fn uid_of(cluster: &Cluster, node: &str) -> Option<Value> {
    cluster
        .pod_of(node)
        .map(|(_, pod)| pod["metadata"]["uid"].clone())
}

fn annotate_job(cluster: &mut Cluster, key: &str) {
    cluster.patch(
        Kind::Job,
        JOB,
        &json!({"metadata": {"annotations": {key: "x"}}}),
    );
}
