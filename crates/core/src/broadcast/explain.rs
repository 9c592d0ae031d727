//! Why nodes have no pod of a job, for `kubectl leadsman explain`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leadsman_api::BroadcastJob;
use leadsman_api::slim::{Node, Pod};
use leadsman_reconcile::{ObjectName, Reconciler};
use serde::Serialize;

use super::feature::JobWorld;
use super::job::{Job, node_hash};
use super::survey::Survey;
use super::writes::BroadcastJobs;

/// A job, and the nodes that have no pod of it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExplanation {
    /// The job's namespace.
    pub namespace: String,
    /// The job's name.
    pub name: String,
    /// The phase in its status, empty before the first one.
    pub phase: String,
    /// Active, succeeded, failed and desired, as its status has them.
    pub counts: [i32; 4],
    /// The nodes that have no pod, by the reason.
    pub nodes_without_pod: BTreeMap<String, Vec<String>>,
    /// The pods that the scheduler finds no place for, and why.
    pub unschedulable: BTreeMap<String, String>,
}

/// Explains a job by its pods and all nodes.
pub fn explain_job(job: BroadcastJob, pods: Vec<Pod>, nodes: Vec<Node>) -> JobExplanation {
    let name = ObjectName::of(&job.metadata);
    let mut observed = Reconciler::new(BroadcastJobs, || Duration::ZERO);
    observed.observe_all([job]);
    observed.observe_all(pods);
    observed.observe_all(nodes);
    let job = observed.world().jobs.observed(&name);
    explain_in(job.expect("it was just observed"), observed.world())
}

fn explain_in(job: &Job, world: &JobWorld) -> JobExplanation {
    let survey = Survey::take(job, &world.pods, &world.nodes, &*job.succeeded);
    let mut nodes_without_pod = BTreeMap::<_, Vec<_>>::new();
    let pods = world.pods.find_in(&job.name.namespace, &job.uid);
    let with_pod: BTreeSet<_> = pods.filter_map(|pod| pod.node.as_deref()).collect();
    for (node, known) in world.nodes.iter() {
        let node = &*node.name;
        if with_pod.contains(node) {
            continue;
        }
        let misfit = job
            .spec
            .requirements
            .as_ref()
            .map(|it| it.misfit(&known.facts));
        let reason = match misfit {
            _ if survey.lost.contains(&*node_hash(&job.uid, node)) => {
                "the job has succeeded there, and the pod is gone".to_owned()
            }
            Err(error) => format!("spec.template is not the template of a pod: {error}"),
            Ok(Some(misfit)) => misfit.to_string(),
            Ok(None) => why_not_yet(job, &survey),
        };
        nodes_without_pod
            .entry(reason)
            .or_default()
            .push(node.to_owned());
    }
    let waiting = survey.active.iter().filter_map(|pod| {
        let why = pod.unschedulable.clone()?;
        Some((pod.name.name.clone(), why))
    });
    let status = &job.status;
    JobExplanation {
        namespace: job.name.namespace.clone(),
        name: job.name.name.clone(),
        phase: status.phase.clone().unwrap_or_default(),
        counts: [
            status.active,
            status.succeeded,
            status.failed,
            status.desired,
        ],
        nodes_without_pod,
        unschedulable: waiting.collect(),
    }
}

/// Why a node that fits has no pod.
fn why_not_yet(job: &Job, survey: &Survey<'_>) -> String {
    let limit = job
        .spec
        .parallelism
        .map(|amount| amount.of(survey.count_desired()));
    match limit {
        _ if job.end().is_some() => "the job has ended".to_owned(),
        _ if job.spec.is_paused => "the job is paused".to_owned(),
        _ if job.status.phase.as_deref() == Some("paused") => {
            "a pod has failed: set spec.paused, wait until the annotation broadcastjob.leadsman.io/acknowledged names it, and take spec.paused back"
                .to_owned()
        }
        None => "spec.parallelism is no number from 1 and no percentage from 1%".to_owned(),
        Some(limit) if survey.running >= limit => {
            format!("its turn comes later: {limit} pods may run at a time (spec.parallelism)")
        }
        Some(_) => "its pod is not created yet: see the events of the job".to_owned(),
    }
}
