//! The memory of a job beside what its objects show.
//!
//! A pod that has succeeded may be deleted, by a user or by the garbage collection of ended pods
//! (`--terminated-pod-gc-threshold`), and its node must not run the pod again. So the job has an annotation with the nodes on
//! which it has succeeded. It is written once it is needed: when such a pod is gone, and else [`RECORDED_WITHIN`] after a
//! success, so that a short job costs no write. What this process has seen counts at once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leadsman_reconcile::{ObjectName, Plan, Purpose};
use serde_json::{Value, json};

use super::job::{ACKNOWLEDGED, Job, JobSpec, NodeHashes, OnFailure, SUCCEEDED};
use super::survey::Survey;
use super::writes::{BroadcastJobs, RECORD};

/// How long a success is known to this process alone, at most.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

/// The memory of all jobs that have not ended.
#[derive(Debug, Default)]
pub struct JobMemories(pub(super) BTreeMap<ObjectName, JobMemory>);

/// The memory of a job.
#[derive(Debug, Default)]
pub(super) struct JobMemory {
    uid: String,
    /// The successes that are not in the job's annotation.
    unrecorded: NodeHashes,
    /// The time at which the first of them was seen, or the annotation without them.
    since: Option<Duration>,
    /// The annotation as it was last seen.
    recorded: Arc<NodeHashes>,
    /// The spec as it was last seen.
    spec: Option<Arc<JobSpec>>,
    /// Whether the template was edited while this process looked.
    is_edited: bool,
}

impl JobMemories {
    /// Returns the memory of a job, without that of an earlier one of its name.
    pub(super) fn of(&mut self, job: &Job) -> &mut JobMemory {
        let memory = self.0.entry(job.name.clone()).or_default();
        if memory.uid != job.uid {
            *memory = JobMemory {
                uid: job.uid.clone(),
                ..JobMemory::default()
            };
        }
        let last = memory.spec.get_or_insert_with(|| job.spec.clone());
        if !Arc::ptr_eq(last, &job.spec) {
            memory.is_edited |= last.template != job.spec.template;
            memory.spec = Some(job.spec.clone());
        }
        memory
    }
}

impl JobMemory {
    /// Whether pods may be of an earlier template.
    pub(super) fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// The nodes on which the job is known to have succeeded.
    pub(super) fn done<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a String> {
        job.succeeded.iter().chain(&self.unrecorded)
    }

    /// Remembers what a survey shows, and writes what has to outlive this process.
    pub(super) fn record(
        &mut self,
        job: &Job,
        survey: &Survey<'_>,
        plan: &mut Plan<'_, BroadcastJobs>,
    ) {
        if job.spec.requirements.is_err() {
            // The job's nodes are not known, and none is forgotten.
            return;
        }
        let now = plan.now().monotonic;
        let is_news = |hash: &&Cow<'_, str>| {
            !job.succeeded.contains(&***hash) && !self.unrecorded.contains(&***hash)
        };
        let news: Vec<_> = survey.succeeded.iter().filter(is_news).collect();
        self.unrecorded
            .extend(news.into_iter().map(ToString::to_string));
        // The success on a node that is gone is forgotten with its pod: another one may come under its name.
        let is_there =
            |hash: &String| survey.succeeded.contains(&**hash) || survey.lost.contains(&**hash);
        self.unrecorded
            .retain(|hash| is_there(hash) && !job.succeeded.contains(hash));
        // A job of many nodes always has some whose success is news: a record is followed by the next one after a while.
        if self.unrecorded.is_empty() || *self.recorded != *job.succeeded {
            self.recorded = job.succeeded.clone();
            self.since = None;
        }
        if !self.unrecorded.is_empty() {
            self.since.get_or_insert(now);
        }
        let due = self
            .since
            .map(|since| since.saturating_add(RECORDED_WITHIN));
        let is_due = due.is_some_and(|due| due <= now)
            || survey
                .lost
                .iter()
                .any(|hash| self.unrecorded.contains(&**hash))
            || !job.succeeded.iter().all(is_there);
        let succeeded = if is_due {
            let known = survey.succeeded.union(&survey.lost);
            Cow::Owned(known.map(ToString::to_string).collect())
        } else {
            Cow::Borrowed(&*job.succeeded)
        };
        let acknowledged = acknowledge(job, survey);
        if *succeeded != *job.succeeded || *acknowledged != *job.acknowledged {
            let annotations = json!({
                SUCCEEDED: join(&succeeded),
                ACKNOWLEDGED: join(&acknowledged),
            });
            let purpose = Purpose::of(annotations.to_string());
            let metadata = job.metadata_of_patch(annotations);
            plan.patch(&RECORD, job.name.clone(), &json!({"metadata": metadata}))
                .with_purpose(purpose);
        } else if let Some(due) = due {
            plan.wake_at(due);
        }
    }
}

/// The failures that are acknowledged: those that there are while the spec pauses the job.
fn acknowledge<'a>(job: &'a Job, survey: &Survey<'_>) -> Cow<'a, NodeHashes> {
    if job.spec.on_failure != OnFailure::Pause {
        Cow::Borrowed(&*job.acknowledged)
    } else if job.spec.is_paused {
        Cow::Owned(survey.failed.iter().map(ToString::to_string).collect())
    } else {
        // A pod that is made again in the place of a failed one may fail anew.
        let is_failed = |hash: &&String| survey.failed.contains(&***hash);
        Cow::Owned(job.acknowledged.iter().filter(is_failed).cloned().collect())
    }
}

/// The value of an annotation, null to remove it.
fn join(hashes: &NodeHashes) -> Value {
    if hashes.is_empty() {
        return Value::Null;
    }
    let mut hashes: Vec<_> = hashes.iter().map(String::as_str).collect();
    hashes.sort_unstable();
    json!(hashes.join(","))
}
