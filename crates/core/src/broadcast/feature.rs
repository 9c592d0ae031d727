//! The jobs as a feature of the kernel: what a change affects, and what is wanted for a job.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::BroadcastJob;
use leadsman_api::broadcast_job::BroadcastJobStatus;
use leadsman_api::slim::{Node, Pod};
use leadsman_reconcile::{
    After, Assumption, Change, Class, Fate, Feature, Key, Notice, ObjectName, Plan, Purpose,
    Regarding, Store, Watch, WriteKind,
};
use serde_json::{Value, json};

use super::job::{End, Job, OnFailure, UNFINISHED, node_hash, word_of_pods};
use super::memory::JobMemories;
use super::pod::{JobPod, JobPodPhase, new_pod};
use super::survey::{KnownNode, Survey, node_name};
use super::verdict::{JobVerdict, notice, number, status};
use super::writes::{
    BroadcastJobs, CREATE_POD, DELETE_JOB, DELETE_POD, PODS, RECORD, STATUS, STOP_POD, TELL,
};

/// Writes on pods that a run plans, at most; with those on the job they are 64 at most.
const MOST: usize = 60;
/// Refused creations of a job beside which no further node is tried. What refuses so many, as a quota does, refuses all, and
/// each creation is tried again by itself after a while.
const REFUSED: usize = 10;

/// The jobs, pods and nodes that are known.
#[derive(Default)]
pub struct JobWorld {
    /// The jobs.
    pub jobs: Store<Job>,
    /// The pods.
    pub pods: Store<JobPod>,
    /// The nodes.
    pub nodes: Store<KnownNode>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobKey(pub ObjectName);

impl Key for JobKey {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }
}

impl Feature for BroadcastJobs {
    const NAME: &'static str = "broadcastjob";
    const EVENTS_FROM: &'static str = "broadcastjob-controller";
    const WRITES: &'static [WriteKind] = &[
        CREATE_POD, DELETE_POD, STOP_POD, STATUS, RECORD, DELETE_JOB, TELL,
    ];
    const CLASSES: &'static [Class] = &[
        Class::new("broadcastjob_pods"),
        Class::new("broadcastjob_status").spacing(Duration::from_secs(2)),
        Class::new("broadcastjob_jobs"),
        Class::new("broadcastjob_events").after(After {
            class: PODS,
            at_most: Duration::from_secs(2),
        }),
    ];

    type Key = JobKey;
    type World = JobWorld;
    type Memory = JobMemories;

    fn keys(&self, world: &JobWorld) -> Vec<JobKey> {
        let jobs = world.jobs.iter();
        jobs.map(|(name, _)| JobKey((**name).clone())).collect()
    }

    fn reconcile(
        &self,
        JobKey(name): &JobKey,
        world: &JobWorld,
        memory: &mut JobMemories,
        plan: &mut Plan<'_, Self>,
    ) {
        // The state that events have shown decides, not what was asked for: what follows from an end must outlive this process.
        let job = world.jobs.observed(name).filter(|job| !job.is_going);
        match job.map(|job| (job, job.end())) {
            None => {
                memory.0.remove(name);
            }
            Some((job, Some(end))) => {
                memory.0.remove(name);
                clean_up(job, end, world, plan);
            }
            Some((job, None)) => carry_on(job, world, memory, plan),
        }
    }
}

impl Job {
    /// How many pods may run at a time.
    pub(super) fn limit(&self, survey: &Survey<'_>) -> Option<usize> {
        let amount = self.spec.parallelism?;
        Some(amount.of(survey.count_desired()))
    }

    /// The metadata by which a patch changes this state of the job alone.
    pub(super) fn metadata_of_patch(&self, annotations: Value) -> Value {
        let version = self.version.number().map(|version| version.to_string());
        let mut metadata = json!({"uid": self.uid, "resourceVersion": version});
        if !annotations.is_null() {
            metadata["annotations"] = annotations;
        }
        metadata
    }

    /// Something to tell people about the job.
    pub(super) fn notice(&self, is_warning: bool, reason: &'static str, note: String) -> Notice {
        Notice {
            regarding: Regarding {
                api_version: "apps.kruise.io/v1beta1",
                kind: "BroadcastJob",
                name: self.name.clone(),
                uid: self.uid.clone(),
            },
            is_warning,
            reason,
            action: "Reconcile",
            note,
        }
    }

    /// Wants another status, whose times do not count.
    fn plan_status(
        &self,
        status: &BroadcastJobStatus,
        notice: Option<Notice>,
        plan: &mut Plan<'_, BroadcastJobs>,
    ) {
        if *status == self.status {
            return;
        }
        let BroadcastJobStatus {
            phase,
            active,
            succeeded,
            failed,
            desired,
            ..
        } = status;
        let purpose = Purpose::of((phase, active, succeeded, failed, desired));
        let body = json!({"metadata": self.metadata_of_patch(Value::Null), "status": status});
        let write = plan.patch(&STATUS, self.name.clone(), &body);
        write.with_purpose(purpose);
        if let Some(notice) = notice {
            write.tell_when_done(notice);
        }
    }
}

/// Wants a pod deleted.
fn delete_pod(job: &Job, pod: &JobPod, plan: &mut Plan<'_, BroadcastJobs>) {
    let note = format!("Delete pod: {}", pod.name.name);
    plan.delete::<Pod>(&DELETE_POD, pod.name.clone(), &pod.uid)
        .tell_when_done(job.notice(false, "SuccessfulDelete", note));
}

/// A job that has ended: the rest of its pods is deleted if it has failed, and itself when its time is over.
fn clean_up(job: &Job, end: End, world: &JobWorld, plan: &mut Plan<'_, BroadcastJobs>) {
    let mut active = 0;
    if end == End::Failed {
        let pods = world.pods.find_in(&job.name.namespace, &job.uid);
        for pod in pods.filter(|pod| pod.phase == JobPodPhase::Active && !pod.is_going) {
            active += 1;
            if active <= MOST {
                delete_pod(job, pod, plan);
            }
        }
    }
    let status = BroadcastJobStatus {
        active: number(active),
        ..job.status.clone()
    };
    job.plan_status(&status, None, plan);
    let ended = job.status.completion_time.as_ref();
    let gone_at = ended.and_then(|ended| ended.0.checked_add(job.spec.ttl?).ok());
    match gone_at {
        Some(at) if at <= plan.now().wall => {
            plan.delete::<BroadcastJob>(&DELETE_JOB, job.name.clone(), &job.uid);
        }
        Some(at) => plan.wake_at_time(at),
        None => {}
    }
}

/// A job that has not ended.
fn carry_on(
    job: &Job,
    world: &JobWorld,
    memory: &mut JobMemories,
    plan: &mut Plan<'_, BroadcastJobs>,
) {
    let now = plan.now().wall;
    let memory = memory.of(job);
    let survey = Survey::take(job, &world.pods, &world.nodes, memory.done(job));
    memory.record(job, &survey, plan);
    let verdict = JobVerdict::of(job, &survey, now);
    let told = notice(job, &survey, verdict);
    job.plan_status(&status(job, &survey, verdict, now), told, plan);
    if let Some(at) = job.deadline(now).filter(|at| *at > now) {
        plan.wake_at_time(at);
    }
    if verdict.end(job, &survey).is_some() {
        return;
    }
    let mut room = MOST;
    tell_what_stands(job, &survey, memory.is_edited(), plan);
    for pod in survey.surplus.iter().chain(&survey.orphaned).take(room) {
        delete_pod(job, pod, plan);
        room -= 1;
    }
    if job.spec.on_failure != OnFailure::Fail {
        let to_stop = survey.over_limit.iter().filter(|pod| !pod.is_stopped);
        for pod in to_stop.take(room) {
            stop_pod(pod, plan);
            room -= 1;
        }
    }
    if verdict == JobVerdict::Running {
        create_pods(job, &survey, room, world, plan);
    }
}

/// Tells what is not as it should be, once when it begins.
fn tell_what_stands(
    job: &Job,
    survey: &Survey<'_>,
    is_edited: bool,
    plan: &mut Plan<'_, BroadcastJobs>,
) {
    let warning = |reason, note: String| job.notice(true, reason, note);
    if let Err(error) = &job.spec.requirements {
        let note = format!("spec.template is not the template of a pod: {error}");
        plan.tell(warning("InvalidTemplate", note));
    }
    match job.limit(survey) {
        None => {
            let note =
                "spec.parallelism is no number from 1 and no percentage from 1%: no pod is created";
            plan.tell(warning("InvalidParallelism", note.to_owned()));
        }
        Some(limit) if survey.running > limit => {
            let note = "Number of active pods exceed parallelism limit";
            plan.tell(warning("TooManyActivePods", note.to_owned()));
        }
        Some(_) => {}
    }
    for pod in &survey.surplus {
        let node = pod.node.as_deref().unwrap_or_default();
        let text = format!("Duplicated pod {} found on same node {node}", pod.name.name);
        plan.tell(warning("DuplicatePodCreatedOnSameNode", text));
    }
    let has_pods = survey.running > 0 || survey.count_succeeded() + survey.failed.len() > 0;
    if is_edited && has_pods {
        let note = "spec.template was edited: pods that were created before are of the earlier one";
        plan.tell(warning("TemplateChanged", note.to_owned()));
    }
    let waiting = survey.active.iter().find(|pod| pod.unschedulable.is_some());
    if let Some(pod) = waiting {
        let (name, node) = (&pod.name.name, pod.node.as_deref().unwrap_or_default());
        let why = pod.unschedulable.as_deref().unwrap_or_default();
        let text = format!("pod {name} for node {node} cannot be scheduled: {why}");
        plan.tell(warning("Unschedulable", text));
    }
}

/// Has the kubelet end a pod (`activeDeadlineHandler`, `pkg/kubelet/active_deadline.go`). It is failed then, and says so to
/// whoever looks, while a pod that is deleted would be made again.
fn stop_pod(pod: &JobPod, plan: &mut Plan<'_, BroadcastJobs>) {
    let patch = json!({"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}});
    plan.patch(&STOP_POD, pod.name.clone(), &patch);
}

/// Creates pods on the nodes that lack one, as many as may run.
fn create_pods(
    job: &Job,
    survey: &Survey<'_>,
    room: usize,
    world: &JobWorld,
    plan: &mut Plan<'_, BroadcastJobs>,
) {
    let limit = job.limit(survey).unwrap_or_default();
    // The answer may have been lost of those that no event has shown. They have their place already, unless fewer may run now.
    let asked = survey.active.iter().filter(|pod| pod.uid.is_empty());
    let is_there = |node: &&str| world.nodes.observed(&node_name(node)).is_some();
    let mut wanted: Vec<_> = asked
        .filter_map(|pod| Some((pod.name.clone(), pod.node.as_deref().filter(is_there)?)))
        .collect();
    let beyond = survey.running.saturating_sub(limit);
    wanted.truncate(wanted.len().saturating_sub(beyond).min(room));
    let room = limit
        .saturating_sub(survey.running)
        .min(room - wanted.len());
    let (mut fresh, mut refused) = (Vec::new(), Vec::new());
    for node in &survey.missing {
        if fresh.len() == room || refused.len() == REFUSED {
            break;
        }
        let name = job.pod_name(&node_hash(&job.uid, node));
        if world.pods.assumed(&name).is_some() || world.pods.undecodable().contains(&name) {
            // The job is looked at again once that pod is gone.
            let note = format!(
                "pod {} is not the job's or cannot be decoded, and has the name of its pod for node {node}",
                name.name
            );
            plan.tell(job.notice(true, "PodNameTaken", note));
            continue;
        }
        let is_refused = matches!(plan.fate(&CREATE_POD, &name), Some(Fate::Refused(_)));
        let list = if is_refused { &mut refused } else { &mut fresh };
        list.push((name, *node));
    }
    // A refused one is tried again by itself, but not in the place of one that may be let through.
    wanted.extend(fresh.into_iter().chain(refused).take(room));
    let ended = survey.count_succeeded() + survey.failed.len();
    for (name, node) in wanted {
        let created = Arc::new(JobPod::new(job, name.clone(), node));
        let note = format!("Created pod: {}", name.name);
        let refused = job.notice(true, "FailedCreate", String::new());
        let parts = (job.clone(), name.clone(), node.to_owned());
        // A quota lets a pod through when another one has ended, and an edit of the template may help.
        let purpose = Purpose::of((job.generation, ended));
        let pod = move || new_pod(&parts.0, &parts.1, &parts.2);
        plan.create(&CREATE_POD, name.clone(), purpose, pod)
            .assuming::<Pod>(move || Assumption::Created(created.clone()))
            .tell_when_done(job.notice(false, "SuccessfulCreate", note))
            .tell_when_refused(move |refusal| Notice {
                note: format!("Error creating: {}", refusal.clone().into_reason()),
                ..refused.clone()
            });
    }
}

impl Watch<BroadcastJob> for BroadcastJobs {
    type Stored = Job;

    fn store(world: &mut JobWorld) -> &mut Store<Job> {
        &mut world.jobs
    }

    fn read(&self, job: &Arc<BroadcastJob>) -> Arc<Job> {
        Arc::new(Job::read(job))
    }

    fn find_affected(&self, change: &Change<Job>, _: &JobWorld, affected: &mut dyn FnMut(JobKey)) {
        affected(JobKey((*change.name).clone()));
    }
}

impl Watch<Pod> for BroadcastJobs {
    type Stored = JobPod;

    fn store(world: &mut JobWorld) -> &mut Store<JobPod> {
        &mut world.pods
    }

    fn read(&self, pod: &Arc<Pod>) -> Arc<JobPod> {
        Arc::new(JobPod::read(pod))
    }

    fn find_affected(
        &self,
        change: &Change<JobPod>,
        world: &JobWorld,
        affected: &mut dyn FnMut(JobKey),
    ) {
        for pod in change.before.iter().chain(&change.now) {
            let namespace = &pod.name.namespace;
            if let Some(owner) = &pod.owner {
                affected(JobKey(pod.name.beside(&owner.job)));
                continue;
            }
            // A pod without an owner may have had the name of a job's pod.
            let Some((prefix, _)) = pod.name.name.rsplit_once('-') else {
                continue;
            };
            for job in world.jobs.find_in(namespace, &word_of_pods(prefix)) {
                affected(JobKey(job.name.clone()));
            }
        }
    }
}

impl Watch<Node> for BroadcastJobs {
    type Stored = KnownNode;

    fn store(world: &mut JobWorld) -> &mut Store<KnownNode> {
        &mut world.nodes
    }

    fn read(&self, node: &Arc<Node>) -> Arc<KnownNode> {
        Arc::new(KnownNode::read(node))
    }

    /// A node that comes or goes affects the jobs that have not ended; another change those of them for which it begins or
    /// ceases to fit.
    fn find_affected(
        &self,
        change: &Change<KnownNode>,
        world: &JobWorld,
        affected: &mut dyn FnMut(JobKey),
    ) {
        for job in world.jobs.find(UNFINISHED) {
            let Ok(requirements) = &job.spec.requirements else {
                continue;
            };
            let fits = |node: &Option<Arc<KnownNode>>| {
                node.as_ref()
                    .map(|node| requirements.misfit(&node.facts).is_none())
            };
            if fits(&change.before) != fits(&change.now) {
                affected(JobKey(job.name.clone()));
            }
        }
    }
}
