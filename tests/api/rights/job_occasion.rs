//! What a manager meets of `AdvancedCronJob`s and `BroadcastJob`s when it starts, so that it uses a right on them.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use leadsman_api::{AdvancedCronJob, BroadcastJob};
use serde_json::{Value, json};

const VERSION: &str = "apps.kruise.io/v1beta1";

/// The schedules and jobs of a namespace.
pub(super) struct JobOccasions {
    schedules: Api<AdvancedCronJob>,
    jobs: Api<BroadcastJob>,
    pods: Api<Pod>,
    nodes: Api<Node>,
}

impl JobOccasions {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            schedules: Api::namespaced(client.clone(), namespace),
            jobs: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client.clone()),
        }
    }

    /// A schedule that runs each second. Nobody ends its runs.
    pub(super) async fn make_schedule(&self, number: usize, template: &str) -> Result<()> {
        let run = json!({"spec": {"template": pod_template("Never")}});
        let schedule = json!({
            "apiVersion": VERSION, "kind": "AdvancedCronJob", "metadata": {"name": format!("often-{number}")},
            "spec": {"schedule": "@every 1s", "concurrencyPolicy": "Replace", "template": {template: run}},
        });
        let schedule = serde_json::from_value(schedule)?;
        self.schedules
            .create(&PostParams::default(), &schedule)
            .await?;
        Ok(())
    }

    /// A job that has no pod yet, and a node that takes pods.
    pub(super) async fn make_broadcast(&self, node: &str, number: usize) -> Result<()> {
        let allocatable = json!({"status": {"allocatable": {"pods": "110"}}});
        self.nodes
            .patch_status(node, &PatchParams::default(), &Patch::Merge(allocatable))
            .await?;
        self.make(&format!("new-{number}"), json!({})).await?;
        Ok(())
    }

    /// A job that is paused by its spec, on one of whose nodes the pod has failed, and on another one is restarted.
    pub(super) async fn make_failed_broadcast(&self, number: usize) -> Result<()> {
        let name = format!("failed-{number}");
        let spec = json!({"paused": true, "failurePolicy": {"type": "Pause"}});
        let uid = self.make(&name, spec).await?;
        let restarted =
            json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 1}]);
        for (node, status) in [
            ("n1", json!({"phase": "Failed"})),
            (
                "n2",
                json!({"phase": "Running", "containerStatuses": restarted}),
            ),
        ] {
            let pod = self.make_pod(&name, &uid, node).await?;
            let status = Patch::Merge(json!({"status": status}));
            self.pods
                .patch_status(&pod, &PatchParams::default(), &status)
                .await?;
        }
        Ok(())
    }

    /// A job that has failed long ago, and a pod of it.
    pub(super) async fn make_ended_broadcast(&self, number: usize) -> Result<()> {
        const LONG_AGO: &str = "2026-01-01T00:00:00Z";
        let name = format!("ended-{number}");
        let spec = json!({"completionPolicy": {"ttlSecondsAfterFinished": 0}});
        let uid = self.make(&name, spec).await?;
        self.make_pod(&name, &uid, "n1").await?;
        let failed = json!([{"type": "Failed", "status": "True", "lastTransitionTime": LONG_AGO}]);
        let status = json!({"status": {"conditions": failed, "completionTime": LONG_AGO, "phase": "failed",
            "active": 1, "succeeded": 0, "failed": 1, "desired": 2}});
        self.jobs
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    async fn make(&self, name: &str, mut spec: Value) -> Result<String> {
        spec["template"] = pod_template("OnFailure");
        let job = json!({"apiVersion": VERSION, "kind": "BroadcastJob", "metadata": {"name": name}, "spec": spec});
        let job = serde_json::from_value(job)?;
        let job = self.jobs.create(&PostParams::default(), &job).await?;
        job.uid().context("a job has a uid")
    }

    /// A pod of a job, for a node that need not be there.
    async fn make_pod(&self, job: &str, uid: &str, node: &str) -> Result<String> {
        let owner = json!([{"apiVersion": VERSION, "kind": "BroadcastJob", "name": job, "uid": uid, "controller": true}]);
        let mut pod = pod_template("OnFailure");
        let name = format!("{job}-{node}");
        pod["metadata"] = json!({"name": name, "ownerReferences": owner,
            "labels": {"broadcastjob-name": job, "broadcastjob-controller-uid": uid}});
        pod["spec"]["nodeName"] = json!(node);
        self.pods
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        Ok(name)
    }
}

fn pod_template(restart_policy: &str) -> Value {
    json!({"spec": {"restartPolicy": restart_policy, "automountServiceAccountToken": false,
        "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}})
}
