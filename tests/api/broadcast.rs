//! `BroadcastJob` on a real API server: what its CRD takes and refuses, and a job over nodes that nobody runs.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_api::BroadcastJob;
use leadsman_api::crd::{advanced_cron_job_crd, broadcast_job_crd, clone_set_crd};
use leadsman_tests::{Scene, wait_for_answer, wait_for_object};
use serde_json::json;

use crate::Installation;
use crate::inject::wait_until_served;
use crate::recorded::RecordedCases;
use crate::stage::PLACES;

const GATE: &str = "--feature-gates=BroadcastJobGate=true";
const RECORDED: RecordedCases<'_> = RecordedCases {
    kind: "BroadcastJob",
    lines: include_str!("../fixtures/openkruise/broadcastjob-admission.jsonl"),
    refused: &[
        "parallelism 0",
        "parallelism -1",
        "parallelism '0%'",
        "parallelism '-5%'",
        "parallelism 'abc'",
        "parallelism '5'",
        "parallelism ''",
        "completionPolicy {'type': 'Foo'}",
        "completionPolicy {'ttlSecondsAfterFinished': -1}",
        "completionPolicy {'activeDeadlineSeconds': -1}",
        "completionPolicy {'activeDeadlineSeconds': 0}",
        "completionPolicy {'type': 'Foo', 'activeDeadlineSeconds': 5}",
        "failurePolicy {'type': 'Foo'}",
        "failurePolicy {'restartLimit': -1}",
        "nodeName",
    ],
    judged_later: &["empty image", "bad label"],
    is_complete: |spec| {
        (spec["parallelism"].is_number() || spec["parallelism"].is_string())
            && spec["completionPolicy"]["type"].is_string()
            && spec["failurePolicy"]["type"].is_string()
    },
};

/// Has the API server serve the kinds of jobs and sets of pods, which only their gates install.
pub(crate) async fn serve_jobs(client: &Client) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in [
        broadcast_job_crd(),
        advanced_cron_job_crd(),
        clone_set_crd(),
    ] {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let apply = PatchParams::apply("tests").force();
        let crd = serde_json::to_value(crd)?;
        crds.patch(&name, &apply, &Patch::Apply(crd)).await?;
        wait_until_served(&crds, &name).await?;
    }
    Ok(())
}

// BCJ-1, BCJ-23, BCD-9, BCD-18, BCD-20, BCD-21
pub(crate) async fn the_api_server_takes_and_refuses_what_was_recorded(
    installation: Arc<Installation>,
) -> Result<()> {
    serve_jobs(&installation.client).await?;
    let scene = Scene::new(&installation.client, "v").await?;
    RECORDED.check(&scene).await
}

/// A job with a pod a node, and the job as soon as its status fulfils a condition.
async fn job_with(
    jobs: &Api<BroadcastJob>,
    what: &str,
    condition: impl Fn(&BroadcastJob) -> bool,
) -> Result<BroadcastJob> {
    wait_for_object(jobs, "ok", what, |job| {
        ensure!(condition(job), "{:?}", job.status);
        Ok(job.clone())
    })
    .await
}

/// Active, succeeded, failed and desired.
fn counts(job: &BroadcastJob) -> [i32; 4] {
    let status = job.status.clone().unwrap_or_default();
    [
        status.active,
        status.succeeded,
        status.failed,
        status.desired,
    ]
}

// BCJ-2, BCJ-8, BCJ-9, BCJ-13, BCJ-15, BCJ-18
pub(crate) async fn a_job_over_all_nodes_runs_to_its_end(_shared: Arc<Installation>) -> Result<()> {
    const NODES: [&str; 3] = ["n1", "n2", "n3"];
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise_idle().await?;
    serve_jobs(&installation.client).await?;
    installation
        .apply_manifests(&[GATE, "--only=access"], &["--force-conflicts"])
        .await?;
    installation.start_manager_with(&[GATE]).await?;
    let scene = Scene::new(&installation.client, NODES[0]).await?;
    for node in &NODES[1..] {
        scene.add_node(node, json!({})).await?;
    }
    let allocatable =
        json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(scene.client.clone());
    for node in NODES {
        nodes
            .patch_status(node, &PatchParams::default(), &Patch::Merge(&allocatable))
            .await?;
    }
    let jobs: Api<BroadcastJob> = Api::namespaced(scene.client.clone(), &scene.ns);
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), &scene.ns);
    let job: BroadcastJob = serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "metadata": {"name": "ok"},
        "spec": {
            "template": {"metadata": {"labels": {"app": "x"}},
                // The API server taints new nodes as not ready (`TaintNodesByCondition`), and nobody makes these ready.
                "spec": {"restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "c", "image": "busybox:1"}]}},
            "failurePolicy": {"type": "Continue"}, "parallelism": 2,
        },
    }))?;
    let job = jobs.create(&PostParams::default(), &job).await?;
    let uid = job.metadata.uid.context("a job has a uid")?;
    job_with(&jobs, "two pods", |job| counts(job) == [2, 0, 0, 3]).await?;
    for phase in ["Succeeded", "Failed", "Succeeded"] {
        let pod = wait_for_answer("a pod that runs", || async {
            let all = pods.list(&ListParams::default()).await?;
            let mut all = all.into_iter();
            Ok(all.find(|pod| {
                pod.status.as_ref().and_then(|it| it.phase.as_deref()) == Some("Pending")
            }))
        })
        .await?;
        check_pod(&pod, &uid)?;
        let name = pod.metadata.name.context("a pod has a name")?;
        let status = json!({"status": {"phase": phase}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    let job = job_with(&jobs, "its end", |job| counts(job) == [0, 2, 1, 3]).await?;
    let job = if job
        .status
        .as_ref()
        .is_some_and(|it| it.conditions.is_empty())
    {
        job_with(&jobs, "its condition", |job| {
            job.status
                .as_ref()
                .is_some_and(|it| !it.conditions.is_empty())
        })
        .await?
    } else {
        job
    };
    let status = job.status.context("a status")?;
    let condition = status.conditions.first().context("a condition")?;
    ensure!(
        condition.type_ == "Complete"
            && status.phase.as_deref() == Some("completed")
            && condition.message.as_deref()
                == Some("Job completed, 2 pods succeeded, 1 pods failed"),
        "{status:?}"
    );
    // Its time to live is set afterwards.
    let ttl = json!({"spec": {"completionPolicy": {"ttlSecondsAfterFinished": 0}}});
    jobs.patch("ok", &PatchParams::default(), &Patch::Merge(&ttl))
        .await?;
    leadsman_tests::wait_for_deletion(&jobs, "ok").await?;
    installation.end().await;
    Ok(())
}

/// Labels, owner and affinity of a pod, as they were recorded of `OpenKruise`.
fn check_pod(pod: &Pod, uid: &str) -> Result<()> {
    let pod = serde_json::to_value(pod)?;
    let labels = json!({"app": "x", "broadcastjob-name": "ok", "broadcastjob-controller-uid": uid});
    let owners = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "name": "ok", "uid": uid,
        "controller": true, "blockOwnerDeletion": true}]);
    let metadata = &pod["metadata"];
    ensure!(
        metadata["labels"] == labels && metadata["ownerReferences"] == owners,
        "{metadata}"
    );
    let required =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let term = &required["nodeSelectorTerms"][0]["matchFields"][0];
    let node = term["values"][0].as_str().unwrap_or_default();
    ensure!(
        term["key"] == "metadata.name" && term["operator"] == "In" && node.starts_with('n'),
        "{required}"
    );
    ensure!(pod["spec"]["readinessGates"].is_null(), "{}", pod["spec"]);
    Ok(())
}
