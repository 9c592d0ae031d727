//! Jobs: a pod on each node, once, and again by a schedule.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};

use super::NAMESPACE;
use crate::cluster::Demo;
use crate::see::{Look, named, see};
use crate::tell::Tell;

const JOB: &str = "kernels";

pub(super) async fn play(cluster: &Demo, tell: &Tell) -> Result<()> {
    Tell::title(
        "A BroadcastJob that prints the kernel of each node, and an AdvancedCronJob that does so each minute",
    );
    let since = tell.step(
        "kubectl apply -f demo/manifests/kernels.yaml",
        "a pod on each node has succeeded",
    );
    cluster.apply(&["demo/manifests/kernels.yaml"]).await?;
    let jobs = objects(cluster, "BroadcastJob", "broadcastjobs");
    let status = see(&jobs, named(JOB), |jobs| {
        let status = status_of(jobs);
        match (status["phase"].as_str(), status["succeeded"].as_i64()) {
            (Some("completed"), Some(1..)) => Look::Seen(status),
            (Some("failed"), _) => Look::Never(status.to_string()),
            _ => Look::NotYet(status.to_string()),
        }
    });
    let status = status.await?;
    let (succeeded, desired) = (&status["succeeded"], &status["desired"]);
    let label = format!("broadcastjob-name={JOB}");
    let kernels = cluster
        .kubectl(&["-n", NAMESPACE, "logs", "-l", &label])
        .await?;
    tell.seen(
        since,
        &format!("{succeeded} of {desired} nodes: {}", kernels.trim()),
    );
    let since = tell.step(
        "wait for the next minute",
        "the schedule has a run, whose job goes five seconds after its end and is not run again",
    );
    let schedules = objects(cluster, "AdvancedCronJob", "advancedcronjobs");
    let ran = see(&schedules, named(JOB), |schedules| {
        let status = status_of(schedules);
        let is_over = status["active"].as_array().is_none_or(Vec::is_empty);
        match status["lastScheduleTime"].as_str() {
            Some(time) if is_over => Look::Seen(time.to_owned()),
            _ => Look::NotYet(status.to_string()),
        }
    });
    tell.seen(since, &format!("status.lastScheduleTime is {}", ran.await?));
    Ok(())
}

fn objects(cluster: &Demo, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(leadsman_api::GROUP, "v1beta1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(cluster.client.clone(), NAMESPACE, &resource)
}

fn status_of(objects: &BTreeMap<String, DynamicObject>) -> serde_json::Value {
    let object = objects.get(JOB);
    object.map_or_else(Default::default, |object| object.data["status"].clone())
}
