//! `AdvancedCronJob` on a real API server, and what the manager may create and delete for it and for `BroadcastJob`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, Error, ResourceExt};
use leadsman_tests::{Scene, wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;
use crate::rights::client_of;
use crate::stage::PLACES;

const CRON: &str = "--feature-gates=AdvancedCronJobGate=true";
const BOTH: &str = "--feature-gates=AdvancedCronJobGate=true,BroadcastJobGate=true";

fn objects(client: &Client, namespace: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(leadsman_api::GROUP, "v1beta1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

fn pod_template() -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/c:1"}]}})
}

/// Without `BroadcastJob`, whose CRD is not there.
// ACJ-14, ACJ-20, ACJ-21, ACJ-25
pub(crate) async fn a_schedule_runs_its_jobs_once_across_a_restart(
    _shared: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise_idle().await?;
    let (crds, access) = ([CRON, "--only=crds"], [CRON, "--only=access"]);
    installation
        .apply_manifests(&crds, &["--force-conflicts"])
        .await?;
    installation
        .apply_manifests(&access, &["--force-conflicts"])
        .await?;
    installation.start_manager_with(&[CRON]).await?;
    let scene = Scene::new(&installation.client, "n1").await?;
    let schedules = objects(
        &scene.client,
        &scene.ns,
        "AdvancedCronJob",
        "advancedcronjobs",
    );
    wait_for_answer("schedules are served", || async {
        Ok(schedules.list(&ListParams::default()).await.ok().map(drop))
    })
    .await?;
    let spec = json!({"schedule": "@every 2s", "concurrencyPolicy": "Allow", "template": {"jobTemplate": {
        "metadata": {"labels": {"app": "report"}}, "spec": {"template": pod_template()}}}});
    let schedule = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
        "metadata": {"name": "often"}, "spec": spec});
    let schedule = serde_json::from_value(schedule)?;
    let schedule = schedules.create(&PostParams::default(), &schedule).await?;
    let jobs: Api<Job> = Api::namespaced(scene.client.clone(), &scene.ns);
    let some = |count: usize| {
        let jobs = &jobs;
        wait_for_answer("so many jobs", move || async move {
            let all = jobs.list(&ListParams::default()).await?.items;
            Ok((all.len() >= count).then_some(all))
        })
    };
    some(2).await?;
    // SIGKILL.
    drop(installation.manager.lock().await.take());
    installation.start_manager_with(&[CRON]).await?;
    let all = some(4).await?;
    for job in &all {
        let time = job.annotations().get("apps.kruise.io/scheduled-at");
        let time: jiff::Timestamp = time.context("no time stands on it")?.parse()?;
        let name = format!("often-{}", time.as_second());
        ensure!(job.name_any() == name, "{} is of {time}", job.name_any());
        ensure!(
            job.labels().get("app").is_some_and(|app| app == "report"),
            "{:?}",
            job.labels()
        );
        let owner = job.owner_references().first().context("it has no owner")?;
        let is_owned =
            Some(&owner.uid) == schedule.uid().as_ref() && owner.controller == Some(true);
        ensure!(is_owned, "{owner:?}");
    }
    // What has run once and was deleted by hand does not run again.
    let first = all
        .iter()
        .map(ResourceExt::name_any)
        .min()
        .context("there are jobs")?;
    jobs.delete(&first, &DeleteParams::background()).await?;
    some(all.len() + 1).await?;
    ensure!(
        jobs.get_opt(&first).await?.is_none(),
        "{first} was run again"
    );
    wait_for_object(&schedules, "often", "its status", |schedule| {
        let status = &schedule.data["status"];
        let active = status["active"].as_array().map_or(0, Vec::len);
        ensure!(
            active >= 4 && status["lastScheduleTime"].is_string(),
            "{status}"
        );
        Ok(())
    })
    .await?;
    installation.end().await;
    Ok(())
}

/// A child of an object that need not exist: no policy can look.
fn owned(mut object: Value, kind: &str) -> Value {
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": kind,
        "name": "x", "uid": "00000000-0000-0000-0000-000000000000", "controller": true}]);
    object
}

async fn refusal<K>(api: &Api<K>, object: &Value) -> Result<String>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api
        .create(&dry, &serde_json::from_value(object.clone())?)
        .await
    {
        Ok(_) => Ok(String::new()),
        Err(Error::Api(status)) => Ok(status.message),
        Err(other) => Err(other.into()),
    }
}

pub(crate) async fn the_manager_creates_and_deletes_what_its_jobs_control(
    _shared: Arc<Installation>,
) -> Result<()> {
    const PART: &str = "this one is of something else";
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise_idle().await?;
    for part in ["--only=crds", "--only=access"] {
        installation
            .apply_manifests(&[BOTH, part], &["--force-conflicts"])
            .await?;
    }
    let scene = Scene::new(&installation.client, "n1").await?;
    let manager = client_of(&installation.kubeconfig).await?;
    let pods: Api<Pod> = Api::namespaced(manager.clone(), &scene.ns);
    let jobs: Api<Job> = Api::namespaced(manager.clone(), &scene.ns);
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
    pod["spec"] = pod_template()["spec"].clone();
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"template": pod_template()}});
    wait_for_answer("the policies are in force", || async {
        let told = (refusal(&pods, &pod).await?, refusal(&jobs, &job).await?);
        Ok((told.0.contains(PART) && told.1.contains(PART)).then_some(()))
    })
    .await?;
    for (kind, may_make_pods) in [("BroadcastJob", true), ("AdvancedCronJob", false)] {
        let told = refusal(&pods, &owned(pod.clone(), kind)).await?;
        ensure!(
            told.contains(PART) != may_make_pods,
            "a pod of a {kind}: {told:?}"
        );
        let told = refusal(&jobs, &owned(job.clone(), kind)).await?;
        ensure!(
            told.contains(PART) == may_make_pods,
            "a Job of a {kind}: {told:?}"
        );
    }
    let broadcast = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob",
        "metadata": {"name": "b"}, "spec": {"template": pod_template()}});
    let broadcasts = objects(&manager, &scene.ns, "BroadcastJob", "broadcastjobs");
    for (kind, may_make_broadcasts) in [("BroadcastJob", false), ("AdvancedCronJob", true)] {
        let told = refusal(&broadcasts, &owned(broadcast.clone(), kind)).await?;
        ensure!(
            told.contains(PART) != may_make_broadcasts,
            "a BroadcastJob of a {kind}: {told:?}"
        );
    }
    // Pods of others stay, and so does a BroadcastJob that has not ended.
    let made: Api<Pod> = Api::namespaced(scene.client.clone(), &scene.ns);
    made.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    let mine = objects(&scene.client, &scene.ns, "BroadcastJob", "broadcastjobs");
    mine.create(&PostParams::default(), &serde_json::from_value(broadcast)?)
        .await?;
    let of_pod = pods.delete("p", &DeleteParams::default()).await.err();
    let of_job = broadcasts.delete("b", &DeleteParams::default()).await.err();
    for refused in [of_pod, of_job] {
        let told = refused.map(|error| error.to_string()).unwrap_or_default();
        ensure!(told.contains(PART), "{told:?}");
    }
    for (patch, part) in [
        (
            json!({"metadata": {"annotations": {"broadcastjob.leadsman.io/succeeded": "a"}}}),
            "",
        ),
        (
            json!({"metadata": {"annotations": {"other": "a"}}}),
            "annotations of others",
        ),
        (json!({"spec": {"parallelism": 1}}), "spec, labels"),
    ] {
        let params = PatchParams::default();
        let refused = broadcasts
            .patch("b", &params, &Patch::Merge(&patch))
            .await
            .err();
        let told = refused.map(|error| error.to_string()).unwrap_or_default();
        ensure!(
            told.contains(part) && told.is_empty() == part.is_empty(),
            "{patch}: {told:?}"
        );
    }
    installation.end().await;
    Ok(())
}
