//! `BroadcastJob` and `AdvancedCronJob` on a real kubelet, with Kubernetes' own Job controller and garbage collector.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use leadsman_testkit::Cluster;
use leadsman_testkit::images::TARGET;
use leadsman_tests::{History, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};

use crate::Room;

fn objects(room: &Room, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(leadsman_api::GROUP, "v1beta1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(room.scene.client.clone(), &room.scene.ns, &resource)
}

async fn create(objects: &Api<DynamicObject>, kind: &str, spec: &Value) -> Result<()> {
    let object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": kind,
        "metadata": {"name": "kernels"}, "spec": spec});
    let object = serde_json::from_value(object)?;
    objects.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// A pod that prints the kernel of its node and ends.
fn template() -> Value {
    json!({"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [
        {"name": "uname", "image": TARGET, "imagePullPolicy": "Never", "command": ["uname", "-r"]},
    ]}})
}

/// A node that nobody runs and that takes no pods. It is deleted with this.
struct Cordoned(Api<Node>, String);

impl Cordoned {
    async fn add(room: &Room) -> Result<Self> {
        let (nodes, name) = (
            Api::all(room.scene.client.clone()),
            format!("{}-cordoned", room.scene.ns),
        );
        let node = json!({"metadata": {"name": name}, "spec": {"unschedulable": true},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
        nodes
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await?;
        Ok(Self(nodes, name))
    }
}

impl Drop for Cordoned {
    fn drop(&mut self) {
        let (nodes, name) = (self.0.clone(), self.1.clone());
        tokio::spawn(async move { nodes.delete(&name, &DeleteParams::default()).await });
    }
}

// BCJ-3, BCJ-5, BCJ-13, BCJ-20
pub(crate) async fn a_broadcast_runs_once_on_each_node_that_takes_pods(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "broadcast").await?;
    let _cordoned = Cordoned::add(&room).await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    let jobs = objects(&room, "BroadcastJob", "broadcastjobs");
    create(&jobs, "BroadcastJob", &json!({"template": template()})).await?;
    history
        .wait_for_version("the pod of the job", |_| true)
        .await?;
    cluster.kill_manager().await?;
    cluster.start_manager().await?;
    wait_for_object(&jobs, "kernels", "it complete", |job| {
        let status = &job.data["status"];
        let counts =
            ["desired", "succeeded", "failed", "active"].map(|count| status[count].as_i64());
        let is_complete = status["phase"] == "completed";
        ensure!(
            is_complete && counts == [Some(1), Some(1), Some(0), Some(0)],
            "{status}"
        );
        Ok(())
    })
    .await?;
    let versions = history.versions().await?;
    let uids: BTreeSet<_> = versions.values().flatten().filter_map(Pod::uid).collect();
    ensure!(
        uids.len() == 1,
        "{} pods were made for one node",
        uids.len()
    );
    let pods = room.scene.pods().list(&ListParams::default()).await?;
    let [pod] = pods.items.as_slice() else {
        bail!("{} pods are there", pods.items.len());
    };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = kernel_of(&room, node.context("the pod has no node")?).await?;
    let printed = room
        .scene
        .pods()
        .logs(&pod.name_any(), &kube::api::LogParams::default())
        .await?;
    ensure!(
        printed.trim() == node,
        "{printed:?} was printed on a node of kernel {node}"
    );
    Ok(())
}

async fn kernel_of(room: &Room, node: &str) -> Result<String> {
    let node = Api::<Node>::all(room.scene.client.clone())
        .get(node)
        .await?;
    let info = node.status.and_then(|status| status.node_info);
    Ok(info.context("the node tells nothing")?.kernel_version)
}

// ACJ-14, ACD-1
pub(crate) async fn a_schedule_whose_jobs_are_removed_runs_each_time_once(
    cluster: Arc<Cluster>,
) -> Result<()> {
    /// Runs after which the manager is killed, and those that are waited for.
    const KILLED_AFTER: usize = 2;
    const RUNS: usize = 5;
    let room = Room::new(&cluster, "schedule").await?;
    let schedules = objects(&room, "AdvancedCronJob", "advancedcronjobs");
    let jobs: Api<Job> = Api::namespaced(room.scene.client.clone(), &room.scene.ns);
    let template =
        json!({"jobTemplate": {"spec": {"ttlSecondsAfterFinished": 0, "template": template()}}});
    let spec = json!({"schedule": "@every 5s", "concurrencyPolicy": "Allow", "template": template});
    create(&schedules, "AdvancedCronJob", &spec).await?;
    let mut uids = BTreeMap::<String, BTreeSet<String>>::new();
    let watched = async {
        let events = watcher(jobs, watcher::Config::default())
            .default_backoff()
            .touched_objects();
        pin_mut!(events);
        let mut is_killed = false;
        while let Some(job) = events.next().await {
            let Ok(job) = job else {
                continue;
            };
            uids.entry(job.name_any()).or_default().extend(job.uid());
            if uids.len() > KILLED_AFTER && !is_killed {
                is_killed = true;
                cluster.kill_manager().await?;
                cluster.start_manager().await?;
            }
            if uids.len() >= RUNS {
                return Ok(());
            }
        }
        bail!("the watch ended")
    };
    tokio::time::timeout(Duration::from_mins(2), watched)
        .await
        .context("five runs")??;
    // Cases after this one count the manager's writes.
    let foreground = DeleteParams::foreground();
    schedules.delete("kernels", &foreground).await?;
    wait_for_deletion(&schedules, "kernels").await?;
    let doubled: Vec<_> = uids.iter().filter(|(_, uids)| uids.len() > 1).collect();
    ensure!(doubled.is_empty(), "ran more than once: {doubled:?}");
    Ok(())
}
