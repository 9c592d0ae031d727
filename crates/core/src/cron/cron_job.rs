//! A cron job and its runs, as they are read from the wire.

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::advanced_cron_job::{CronJobTemplate, RunReference, RunTemplate};
use leadsman_api::limits::{CRON_JOB_NAME, LABEL};
use leadsman_api::slim::run;
use leadsman_api::verbatim::UnreadableTemplate;
use leadsman_api::{AdvancedCronJob, AdvancedCronJobStatus};
use leadsman_reconcile::{ObjectName, ResourceVersion, Stored};
use serde_json::{Value, json};

use super::schedule::Schedule;
use super::schedule_error::ScheduleError;
use crate::workload::hash::sha256_of;

/// The annotation of a run that has its time.
pub const SCHEDULED_AT: &str = "apps.kruise.io/scheduled-at";

/// The kind of a cron job's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    /// A `Job` of Kubernetes.
    Job,
    /// A `BroadcastJob`.
    BroadcastJob,
}

impl RunKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Job, Self::BroadcastJob];

    /// The name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::BroadcastJob => "BroadcastJob",
        }
    }

    /// The template of the kind.
    pub(super) fn template(self, template: &CronJobTemplate) -> Option<&RunTemplate> {
        match self {
            Self::Job => template.job_template.as_ref(),
            Self::BroadcastJob => template.broadcast_job_template.as_ref(),
        }
    }

    /// The version in which it is written.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Job => "batch/v1",
            Self::BroadcastJob => "apps.kruise.io/v1beta1",
        }
    }
}

/// A cron job.
#[derive(Clone, Debug)]
pub struct CronJob {
    /// The object; its status is in `status`.
    pub wire: Arc<AdvancedCronJob>,
    /// The status.
    pub status: AdvancedCronJobStatus,
    /// The schedule, or why it cannot be read.
    pub schedule: Result<Schedule, ScheduleError>,
    /// The template of its runs, or why it has nothing to run.
    pub template: Result<CronTemplate, TemplateError>,
}

/// The template of a cron job's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CronTemplate {
    /// The kind of the runs.
    pub kind: RunKind,
    /// How long a run stays after its end before it is cleaned up, if it is.
    pub time_to_live: Option<SignedDuration>,
}

/// Why a cron job has nothing to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The number of templates is not one.
    #[error("spec.template has {0} templates instead of one: jobTemplate or broadcastJobTemplate")]
    NotOne(usize),
    /// Images that are pulled.
    #[error(
        "leadsman does not run imageListPullJobTemplate: use jobTemplate or broadcastJobTemplate"
    )]
    ImageList,
    /// The template itself is at fault.
    #[error("nothing can be made of the spec of the template: {0}")]
    Unreadable(#[from] UnreadableTemplate),
}

impl CronJob {
    /// Reads a cron job; `default_zone` is that of schedules that name none.
    pub fn read(wire: &Arc<AdvancedCronJob>, default_zone: &TimeZone) -> Self {
        let spec = &wire.spec;
        Self {
            status: wire.status.clone().unwrap_or_default(),
            schedule: Schedule::parse(&spec.schedule, spec.time_zone.as_deref(), default_zone),
            template: CronTemplate::read(&spec.template),
            wire: wire.clone(),
        }
    }

    /// The latest time for which a run was begun, as the status says.
    pub fn last_schedule_time(&self) -> Option<Timestamp> {
        self.status.last_schedule_time.as_ref().map(|time| time.0)
    }

    /// The time after which its schedule begins.
    pub fn created(&self) -> Timestamp {
        let created = self.wire.metadata.creation_timestamp.as_ref();
        created.map(|time| time.0).unwrap_or_default()
    }

    /// The run of a time. The API server takes names of 63 characters for jobs, and a cron job of `OpenKruise` may have one
    /// that leaves too few for the time.
    pub fn run_name(&self, time: Timestamp) -> ObjectName {
        let ObjectName { namespace, name } = self.name();
        let time = time.as_second();
        let name = if name.len() <= CRON_JOB_NAME {
            format!("{name}-{time}")
        } else {
            let hash = &sha256_of(&name)[..8];
            let rest = LABEL - format!("-{hash}-{time}").len();
            let kept: String = name.chars().take(rest).collect();
            format!("{kept}-{hash}-{time}")
        };
        ObjectName { namespace, name }
    }
}

impl CronJob {
    /// The run of a name and a time.
    pub(super) fn run(&self, kind: RunKind, name: &ObjectName, time: Timestamp) -> Value {
        let template = kind.template(&self.wire.spec.template);
        let metadata = template.map(|template| &template.metadata);
        let mut annotations = metadata
            .map(|metadata| metadata.annotations.clone())
            .unwrap_or_default();
        annotations.insert(SCHEDULED_AT.to_owned(), time.to_string());
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.name(),
            "metadata": {
                "name": name.name,
                "namespace": name.namespace,
                "labels": metadata.map(|metadata| &metadata.labels),
                "annotations": annotations,
                "ownerReferences": [{
                    "apiVersion": RunKind::BroadcastJob.api_version(),
                    "kind": "AdvancedCronJob",
                    "name": self.name().name,
                    "uid": self.uid(),
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": template.and_then(|template| template.spec.read().ok()),
        })
    }
}

impl CronTemplate {
    fn read(template: &CronJobTemplate) -> Result<Self, TemplateError> {
        const FIELD: &str = "ttlSecondsAfterFinished";
        let images = &template.image_list_pull_job_template;
        let given = RunKind::ALL.map(|kind| kind.template(template));
        let count = given.iter().flatten().count() + usize::from(images.is_some());
        let (1, Some((kind, only))) = (
            count,
            RunKind::ALL
                .into_iter()
                .zip(given)
                .find_map(|(kind, given)| Some((kind, given?))),
        ) else {
            return Err(match (count, images) {
                (1, Some(_)) => TemplateError::ImageList,
                _ => TemplateError::NotOne(count),
            });
        };
        let spec = only.spec.read()?;
        let field = match kind {
            RunKind::Job => spec.get(FIELD),
            RunKind::BroadcastJob => spec
                .get("completionPolicy")
                .and_then(|policy| policy.get(FIELD)),
        };
        let seconds = field.and_then(Value::as_i64);
        Ok(Self {
            kind,
            time_to_live: seconds.map(SignedDuration::from_secs),
        })
    }
}

impl Stored for CronJob {
    fn name(&self) -> ObjectName {
        ObjectName::of(&self.wire.metadata)
    }

    fn uid(&self) -> &str {
        self.wire.metadata.uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> ResourceVersion {
        ResourceVersion::parse(self.wire.metadata.resource_version.as_deref())
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        // The runs of a cron job name it by its uid.
        found(self.uid());
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_terminating = |job: &Self| job.wire.metadata.deletion_timestamp.is_some();
        self.wire.spec == other.wire.spec
            && self.status == other.status
            && is_terminating(self) == is_terminating(other)
    }
}

/// A run of a cron job, or another object of such a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The run's name.
    pub name: ObjectName,
    /// The run's uid; empty for one that is about to be made.
    pub uid: String,
    /// The version that was seen.
    pub version: ResourceVersion,
    /// The uid of its controller.
    pub owner: Option<String>,
    /// The time that it is the run of.
    pub time: Option<Timestamp>,
    /// The time at which it began; that of its creation until it says another one.
    pub began: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<RunOutcome>,
    /// Whether it is being deleted.
    pub is_terminating: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The condition `Complete` is True.
    Succeeded,
    /// The condition `Failed` is True.
    Failed,
}

impl Run {
    /// Reads a run.
    pub fn read(wire: &run::Run) -> Self {
        let metadata = &wire.identity;
        let name = ObjectName::of(metadata);
        let outcome = wire.status.conditions.iter().find_map(|condition| {
            let outcome = match &*condition.type_ {
                "Complete" => RunOutcome::Succeeded,
                "Failed" => RunOutcome::Failed,
                _ => return None,
            };
            (condition.status == "True").then_some(outcome)
        });
        let began = wire
            .status
            .start_time
            .as_ref()
            .or(metadata.creation_timestamp.as_ref());
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            owner: controller(metadata),
            time: run_time(metadata, &name),
            began: began.map(|time| time.0),
            outcome,
            is_terminating: metadata.deletion_timestamp.is_some(),
            name,
        }
    }

    /// A reference for the status.
    pub fn reference(&self, kind: RunKind) -> RunReference {
        RunReference {
            api_version: kind.api_version().to_owned(),
            kind: kind.name().to_owned(),
            namespace: self.name.namespace.clone(),
            name: self.name.name.clone(),
            uid: Some(self.uid.clone()).filter(|uid| !uid.is_empty()),
        }
    }
}

fn controller(metadata: &ObjectMeta) -> Option<String> {
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.map(|owner| owner.uid.clone())
}

/// The time that an object is the run of. Whoever may edit it may change the annotation, but not the name.
fn run_time(metadata: &ObjectMeta, name: &ObjectName) -> Option<Timestamp> {
    let seconds = name
        .name
        .rsplit('-')
        .next()
        .and_then(|seconds| seconds.parse().ok());
    let named = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    named.or_else(|| {
        let annotations = metadata.annotations.as_ref()?;
        annotations.get(SCHEDULED_AT)?.parse().ok()
    })
}

impl Stored for Run {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        if let Some(owner) = &self.owner {
            found(owner);
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let version = other.version;
        Self {
            version,
            ..self.clone()
        } == *other
    }
}
