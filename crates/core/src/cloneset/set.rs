//! A `CloneSet` as the rules read it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use leadsman_api::clone_set::{
    CloneSet, CloneSetStatus, EXCLUDE_HELD_LABEL, ON_DELETE, RollOutSettings,
};
use leadsman_api::limits;
use leadsman_reconcile::{Notice, ObjectName, Regarding, ResourceVersion, Stored};

use super::claim::ClaimTemplate;
use super::lifecycle::Hooks;
use super::scale::Targets;
use super::template::{RevisionData, read_template};
use crate::cluster::{FieldErrors, Selector, names};
use crate::workload::JsonObject;
use crate::workload::amount::Amount;
use crate::workload::object;
use crate::workload::priority::Priority;
use crate::workload::scatter::ScatterLabel;

/// A set. A change of its state costs no copy of its template.
#[derive(Clone, Debug)]
pub struct PodSet {
    /// The set's name.
    pub name: ObjectName,
    /// The set's uid.
    pub uid: String,
    version: ResourceVersion,
    pub(super) generation: i64,
    pub(super) is_going: bool,
    /// Whether pods are created beside held ones.
    pub(super) excludes_held: bool,
    pub(super) spec: Arc<SetSpec>,
    /// The status as it was last written.
    pub status: CloneSetStatus,
}

/// A set's spec as the rules read it.
#[derive(Debug)]
pub(super) struct SetSpec {
    /// A problem with the spec. With such a set nothing is done.
    pub(super) objection: Option<String>,
    pub(super) data: RevisionData,
    pub(super) claims: Vec<ClaimTemplate>,
    /// Whether claims that are left of a pod that others have ended are those of the next one.
    pub(super) reuses_claims: bool,
    pub(super) selector: Selector,
    /// The selector as `kubectl scale` and autoscalers read it.
    pub(super) selector_text: String,
    pub(super) replicas: usize,
    pub(super) pods_to_delete: BTreeSet<String>,
    unavailable_to_scale: Option<Amount>,
    pub(super) kind: UpdateKind,
    pub(super) partition: Amount,
    unavailable: Amount,
    surge: Amount,
    pub(super) is_paused: bool,
    pub(super) priority: Priority,
    pub(super) scatter: Vec<ScatterLabel>,
    pub(super) grace: SignedDuration,
    pub(super) min_ready: SignedDuration,
    pub(super) history_limit: usize,
    /// The time without progress after which a roll-out counts as failed.
    pub(super) progress_deadline: Option<SignedDuration>,
    pub(super) hooks: Hooks,
}

/// How pods get another revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateKind {
    ReCreate,
    InPlaceIfPossible,
    InPlaceOnly,
    /// Pods are left alone until others delete them.
    OnDelete,
}

impl PodSet {
    /// Reads a set.
    pub fn read(set: &CloneSet) -> Self {
        let metadata = &set.metadata;
        let label = metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(EXCLUDE_HELD_LABEL));
        Self {
            name: ObjectName::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            generation: metadata.generation.unwrap_or_default(),
            is_going: metadata.deletion_timestamp.is_some(),
            excludes_held: label.is_some_and(|value| value == "true")
                || set.spec.scale_strategy.exclude_preparing_delete,
            spec: Arc::new(SetSpec::read(set)),
            status: set.status.clone().unwrap_or_default(),
        }
    }

    /// The numbers that it asks for.
    pub(super) fn targets(&self) -> Targets {
        let spec = &self.spec;
        let replicas = spec.replicas;
        let surge = if self.is_updated() {
            spec.surge.of(replicas)
        } else {
            0
        };
        Targets {
            replicas,
            partition: spec.partition.staying(replicas),
            // A share is rounded up without a surge, so that one pod at least may be unavailable, and down with one.
            unavailable: match spec.unavailable {
                Amount::Percent(percent) if surge > 0 => replicas * percent as usize / 100,
                amount => amount.of(replicas),
            },
            surge,
            unavailable_to_scale: spec.unavailable_to_scale.map(|most| most.of(replicas)),
            excludes_held: self.excludes_held,
            leaving: 0,
        }
    }

    /// Whether pods are updated.
    pub(super) fn is_updated(&self) -> bool {
        !self.spec.is_paused && self.spec.kind != UpdateKind::OnDelete
    }

    /// Whether a pod is named to be deleted, by the set or by its own label.
    pub(super) fn specifies(&self, pod: &super::ClonePod) -> bool {
        pod.is_specified() || self.spec.pods_to_delete.contains(&pod.name.name)
    }

    /// Something to tell people about the set.
    pub(super) fn notice(
        &self,
        is_warning: bool,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) -> Notice {
        Notice {
            regarding: Regarding {
                api_version: "apps.kruise.io/v1alpha1",
                kind: "CloneSet",
                name: self.name.clone(),
                uid: self.uid.clone(),
            },
            is_warning,
            reason,
            action,
            note,
        }
    }

    /// The version that its status is a patch of.
    pub(super) fn version_text(&self) -> Option<String> {
        self.version.number().map(|version| version.to_string())
    }
}

impl SetSpec {
    fn read(set: &CloneSet) -> Self {
        let spec = &set.spec;
        let strategy = spec.update_strategy.settings();
        let mut errors = Vec::new();
        let mut report = FieldErrors::new(&mut errors, "spec");
        let selector = Selector::read(&spec.selector, &mut report.field("selector"));
        if selector.is_empty() {
            report.field("selector").add("must not be empty");
        }
        let template = spec.template.read();
        let data = match &template {
            Ok(template) => RevisionData::of(template),
            Err(_) => RevisionData::default(),
        };
        match &template {
            Ok(template) => check_template(template, &selector, &mut report.field("template")),
            Err(error) => report.field("template").add(error.to_string()),
        }
        let claims = read_claims(set, template.as_ref().ok(), &mut report);
        let mut at = report.field("updateStrategy");
        let [partition, unavailable, surge] = read_amounts(&strategy, &mut at);
        let priority = Priority::read(
            strategy.priority_strategy.as_ref(),
            &mut at.field("priorityStrategy"),
        );
        let scatter = read_scatter(&strategy, &mut at.field("scatterStrategy"));
        let kind = read_kind(spec.update_strategy.policy(), &mut at);
        let mut at = report.field("scaleStrategy");
        let scale = spec.scale_strategy.max_unavailable.as_ref();
        let unavailable_to_scale = scale.and_then(|wire| {
            let read = Amount::read(wire);
            read.map_err(|error| at.field("maxUnavailable").add(error))
                .ok()
        });
        let seconds = |seconds: Option<i32>| SignedDuration::from_secs(seconds.unwrap_or(0).into());
        let grace = strategy.in_place_update_strategy.as_ref();
        let invalid = errors.first().map(ToString::to_string);
        Self {
            objection: invalid,
            data,
            claims,
            reuses_claims: !spec.scale_strategy.disable_pvc_reuse
                && spec.scale_strategy.enable_pvc_reuse != Some(false),
            selector_text: selector.to_string(),
            selector,
            replicas: spec
                .replicas
                .map_or(1, |count| usize::try_from(count).unwrap_or(0)),
            pods_to_delete: spec.scale_strategy.pods_to_delete.iter().cloned().collect(),
            unavailable_to_scale,
            kind,
            partition,
            unavailable,
            surge,
            is_paused: strategy.paused,
            priority,
            scatter,
            grace: seconds(grace.and_then(|grace| grace.grace_period_seconds)),
            min_ready: seconds(spec.min_ready_seconds),
            history_limit: usize::try_from(spec.revision_history_limit.unwrap_or(10))
                .unwrap_or(0)
                .min(limits::REVISIONS),
            progress_deadline: read_deadline(spec.progress_deadline_seconds),
            hooks: Hooks::read(spec.lifecycle.as_ref()),
        }
    }
}

/// Reads how many pods stay as they are, may be unavailable, and may be there beyond the replicas.
fn read_amounts(strategy: &RollOutSettings, report: &mut FieldErrors<'_>) -> [Amount; 3] {
    let none = Amount::Number(0);
    let amounts = [
        ("partition", &strategy.partition, none),
        (
            "maxUnavailable",
            &strategy.max_unavailable,
            Amount::Percent(20),
        ),
        ("maxSurge", &strategy.max_surge, none),
    ];
    let [partition, unavailable, surge] = amounts.map(|(field, wire, default)| {
        let read = wire.as_ref().map_or(Ok(default), Amount::read);
        read.unwrap_or_else(|error| {
            report.field(field).add(error);
            default
        })
    });
    if unavailable.is_zero() && surge.is_zero() {
        let mut at = report.field("maxUnavailable");
        at.add("must not be 0 beside maxSurge 0: set paused for that");
    }
    [partition, unavailable, surge]
}

/// Reads the labels by which pods are spread over an update.
fn read_scatter(strategy: &RollOutSettings, report: &mut FieldErrors<'_>) -> Vec<ScatterLabel> {
    let terms = strategy.scatter_strategy.iter().enumerate();
    let labels = terms.map(|(index, term)| {
        let mut at = report.index(index);
        at.field("key").check(names::qualified_name(&term.key));
        ScatterLabel {
            key: term.key.as_str().into(),
            value: (term.value != "*").then(|| term.value.as_str().into()),
        }
    });
    labels.collect()
}

/// Reads how pods get another revision.
fn read_kind(policy: Option<&str>, report: &mut FieldErrors<'_>) -> UpdateKind {
    match policy {
        None | Some("" | "ReCreate") => UpdateKind::ReCreate,
        Some("InPlaceIfPossible") => UpdateKind::InPlaceIfPossible,
        Some("InPlaceOnly") => UpdateKind::InPlaceOnly,
        Some(ON_DELETE) => UpdateKind::OnDelete,
        Some(other) => {
            let message = format!("{other:?} is not known");
            report.field("type").add(message);
            UpdateKind::InPlaceOnly
        }
    }
}

/// Reads a deadline: the largest number means none.
fn read_deadline(seconds: Option<i32>) -> Option<SignedDuration> {
    let seconds = seconds.filter(|seconds| *seconds != i32::MAX)?;
    Some(SignedDuration::from_secs(seconds.into()))
}

/// Reads the templates of claims. Each is a volume of the pods, so no other one has its name.
fn read_claims(
    set: &CloneSet,
    template: Option<&JsonObject>,
    report: &mut FieldErrors<'_>,
) -> Vec<ClaimTemplate> {
    let spec = &set.spec;
    let mut report = report.field("volumeClaimTemplates");
    let (mut claims, mut names) = (Vec::new(), BTreeSet::new());
    let pod = template.and_then(|template| read_template(template).spec);
    let volumes = pod
        .into_iter()
        .flat_map(|pod| object::items(pod, "volumes"));
    names.extend(
        volumes
            .filter_map(|volume| object::text(volume, "name"))
            .map(str::to_owned),
    );
    report.at_most(
        spec.volume_claim_templates.len(),
        limits::CLAIM_TEMPLATES,
        "templates",
    );
    for (index, template) in spec.volume_claim_templates.iter().enumerate() {
        let mut at = report.index(index);
        let template = match template.read() {
            Ok(template) => template,
            Err(error) => {
                at.add(error.to_string());
                continue;
            }
        };
        let selected = spec.selector.match_labels.clone().unwrap_or_default();
        let claim = ClaimTemplate::read(&template, selected.into_iter(), &mut at);
        let mut at = at.field("metadata.name");
        if !names.insert(claim.name.clone()) {
            at.add(format!("{:?} is the name of another volume", claim.name));
        }
        let longest = set.metadata.name.as_deref().unwrap_or_default().len() + claim.name.len() + 7;
        if longest > limits::SUBDOMAIN {
            at.add("makes the names of claims too long, with the name of the set");
        }
        claims.push(claim);
    }
    let bytes = ClaimTemplate::record(&claims).len();
    if bytes > limits::TEMPLATE_BYTES {
        report.add(format!(
            "has {bytes} bytes, more than {}",
            limits::TEMPLATE_BYTES
        ));
    }
    claims
}

fn check_template(template: &JsonObject, selector: &Selector, report: &mut FieldErrors<'_>) {
    let template = read_template(template);
    let label = |key: &str| template.labels.and_then(|labels| labels.get(key)?.as_str());
    if !selector.matches(label) {
        report
            .field("metadata.labels")
            .add("does not match spec.selector");
    }
    let policy = template
        .spec
        .and_then(|pod| object::text(pod, "restartPolicy"));
    if policy.is_some_and(|policy| policy != "Always") {
        report.field("spec.restartPolicy").add("must be Always");
    }
    let containers = template
        .spec
        .map(|pod| object::items(pod, "containers").count());
    if containers.unwrap_or(0) == 0 {
        report.field("spec.containers").add("must not be empty");
    }
}

impl Stored for PodSet {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, other: &Self) -> bool {
        // Each edit of the spec has a generation of its own.
        self.generation == other.generation
            && self.is_going == other.is_going
            && self.excludes_held == other.excludes_held
            && self.status == other.status
    }
}
