//! A parsed `SidecarSet`. Parsing is validation: a set that was created while no webhook answered is not acted on, and its
//! status says why.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::sidecar_set::InjectRevision;

use super::selectors::{read_optional, read_required};
use super::strategy::RolloutStrategy;
use super::template::{Hashes, Template};
use crate::cluster::{FieldErrors, Invalid, Selector, names};

/// Label of a set in v1alpha1, and of its revisions: a name for the revision.
pub const CUSTOM_VERSION_LABEL: &str = "apps.kruise.io/sidecarset-custom-version";
/// Annotation of a set that takes another's place on some pods.
pub const CANARY_ANNOTATION: &str = "apps.kruise.io/sidecarset-canary";
/// Label of a namespace: its name.
pub(super) const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Annotation of a set, ours: what becomes of a pod while no webhook answers.
pub const FAILURE_POLICY_ANNOTATION: &str = "sidecarset.leadsman.io/failure-policy";
/// Annotation of a set, ours: for how many seconds an upgraded pod has to be ready before it counts as available, as
/// `minReadySeconds` says of a Deployment.
pub const MIN_READY_SECONDS_ANNOTATION: &str = "sidecarset.leadsman.io/min-ready-seconds";
/// Annotation of a set that was made anew under the name of an earlier one, ours: `true` takes over the pods of that.
pub const ADOPT_PODS: &str = "sidecarset.leadsman.io/adopt-pods";
/// Annotations of a set that its pods depend on: an edit of one is judged as an edit of the spec is.
pub const JUDGED_ANNOTATIONS: [&str; 3] = [
    FAILURE_POLICY_ANNOTATION,
    CANARY_ANNOTATION,
    MIN_READY_SECONDS_ANNOTATION,
];
/// Revisions that are kept.
const HISTORY: i32 = 10;

/// A set that can be acted on.
#[derive(Clone, Debug, PartialEq)]
pub struct SidecarSet {
    /// The set's name, by which pods know it.
    pub name: Arc<str>,
    /// The set's uid.
    pub uid: Arc<str>,
    /// The version in which it was read, which the containers of pods get that take turns.
    pub version: Arc<str>,
    /// The set's generation.
    pub generation: i64,
    /// The time of its creation; of two sets that conflict on a pod the older wins.
    pub created: Timestamp,
    /// Whether it takes over the pods of an earlier set of its name.
    pub adopts_pods: bool,
    /// The set's labels, which the administrator's whitelist selects by.
    pub labels: BTreeMap<String, String>,
    /// Selects pods.
    pub selector: Selector,
    /// The namespaces of the pods.
    pub namespaces: Namespaces,
    /// The parts of the set that a pod gets.
    pub template: Template,
    /// The hashes of what a pod gets.
    pub hashes: Hashes,
    /// The rule for a new pod while no webhook answers.
    pub failure_policy: FailurePolicy,
    /// Whether new pods get nothing.
    pub is_injection_paused: bool,
    /// The revision that new pods are pinned to.
    pub pin: Option<Pin>,
    /// How pods are upgraded.
    pub update: RolloutStrategy,
    /// How many revisions are kept.
    pub history_limit: i32,
    /// A name for the present revision.
    pub custom_version: Option<Arc<str>>,
}

/// The rule for a new pod that a set selects while no webhook answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailurePolicy {
    /// The pod is created without the set's containers.
    #[default]
    Ignore,
    /// The pod is refused.
    Fail,
}

/// The namespaces whose pods are selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces.
    All,
    /// One namespace.
    Named(Arc<str>),
    /// Namespaces with some labels.
    Selected(Selector),
}

/// A revision that new pods are pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The pinned revision.
    pub revision: PinnedRevision,
    /// The new pods that get it.
    pub policy: PinPolicy,
}

/// A revision by a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinnedRevision {
    /// The name of its `ControllerRevision`.
    Name(Arc<str>),
    /// The custom version that the set had when the revision was the present one.
    CustomVersion(Arc<str>),
}

/// The new pods that get the pinned revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinPolicy {
    /// All new pods.
    Always,
    /// A part of the new pods, as large as the partition of the update strategy says.
    Partial,
}

impl fmt::Display for PinnedRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "the name {name:?}"),
            Self::CustomVersion(version) => write!(f, "custom version {version:?}"),
        }
    }
}

impl SidecarSet {
    /// Parses a set.
    ///
    /// # Errors
    ///
    /// All fields that are invalid. Fields that the API server sets (uid, generation, creation time) may be missing.
    pub fn parse(wire: &SidecarSetWire) -> Result<Self, Vec<Invalid>> {
        let (set, errors) = Self::read(wire);
        if errors.is_empty() {
            Ok(set)
        } else {
            Err(errors)
        }
    }

    /// Reads a set as far as it can be read, and all that is invalid. Invalid fields are as if they were absent; the hashes
    /// are empty unless all is valid.
    pub(super) fn read(wire: &SidecarSetWire) -> (Self, Vec<Invalid>) {
        let mut errors = Vec::new();
        let meta = &wire.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let mut report = FieldErrors::new(&mut errors, "metadata");
        // A longer name is no value of a label, which its revisions have.
        report.field("name").check(names::dns_label(name));
        refuse_canary(meta, &mut report);
        let failure_policy = read_failure_policy(meta, &mut report);
        let min_ready = read_min_ready(meta, &mut report);
        let custom_version = read_custom_version(wire, &mut errors);
        let mut report = FieldErrors::new(&mut errors, "spec");
        let spec = &wire.spec;
        let selector = read_required(spec.selector.as_ref(), &mut report.field("selector"));
        let namespaces = read_namespaces(wire, &mut report);
        let template = Template::read(spec, &mut report);
        let update = RolloutStrategy {
            min_ready,
            ..RolloutStrategy::read(&spec.update_strategy, &mut report.field("updateStrategy"))
        };
        let mut at = report.field("injectionStrategy");
        let given = spec.injection_strategy.revision.as_ref();
        let pin = given.and_then(|given| read_pin(given, &mut at.field("revision")));
        let hashes = if errors.is_empty() {
            template.hashes()
        } else {
            Hashes::default()
        };
        let created = meta.creation_timestamp.as_ref();
        let set = Self {
            name: name.into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: meta.resource_version.as_deref().unwrap_or_default().into(),
            generation: meta.generation.unwrap_or_default(),
            created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            adopts_pods: annotation(meta, ADOPT_PODS) == Some("true"),
            labels: meta.labels.clone().unwrap_or_default(),
            selector,
            namespaces,
            hashes,
            template,
            failure_policy,
            is_injection_paused: spec.injection_strategy.paused,
            pin,
            update,
            // The newest revision is kept in any case.
            history_limit: spec.revision_history_limit.unwrap_or(HISTORY).max(1),
            custom_version,
        };
        (set, errors)
    }

    /// A set that is invalid and yet keeps its pods from being created without it: it asks for [`FailurePolicy::Fail`], and
    /// which pods are its own can be read all the same. Nothing else of it may be used.
    pub(super) fn read_refusing(wire: &SidecarSetWire) -> Option<Self> {
        let (set, errors) = Self::read(wire);
        let refuses = set.failure_policy == FailurePolicy::Fail
            && !set.is_injection_paused
            // A selector of which a part is missing would select more pods.
            && !errors.iter().any(concerns_selection);
        refuses.then_some(set)
    }

    /// Whether it selects pods with these labels in a namespace; `None` for the labels of a namespace that is not known.
    pub fn selects<'a, 'b>(
        &self,
        namespace: &str,
        namespace_label: Option<impl Fn(&str) -> Option<&'b str>>,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        self.namespaces.contain(namespace, namespace_label) && self.selector.matches(label)
    }

    /// Whether no pod can be selected by both, as far as that follows from the two alone.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.selector.is_disjoint(&other.selector) || self.namespaces.is_disjoint(&other.namespaces)
    }

    /// The order of two sets that cannot both be on a pod: the lower comes first.
    pub fn precedence(&self) -> (Timestamp, &str) {
        (self.created, &self.name)
    }
}

impl Namespaces {
    /// Whether no namespace is one of both, as far as that follows from the two alone.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(own), Self::Named(other)) => own != other,
            (Self::Selected(own), Self::Selected(other)) => own.is_disjoint(other),
            (Self::Named(name), Self::Selected(selector))
            | (Self::Selected(selector), Self::Named(name)) => {
                // The API server sets the label (`NamespaceDefaultLabelName`, KEP-2161).
                let mut requirements = selector.requirements();
                requirements.any(|(key, operator)| {
                    **key == *NAMESPACE_NAME && !operator.matches(Some(name))
                })
            }
            (Self::All, _) | (_, Self::All) => false,
        }
    }

    /// Whether a namespace is one of them.
    pub fn contain<'a>(&self, name: &str, label: Option<impl Fn(&str) -> Option<&'a str>>) -> bool {
        match self {
            Self::All => true,
            Self::Named(own) => **own == *name,
            Self::Selected(selector) => label.is_some_and(|label| selector.matches(label)),
        }
    }
}

/// Whether it is wrong which pods a set selects, so that nothing is known about them.
pub(super) fn concerns_selection(invalid: &Invalid) -> bool {
    let fields = ["spec.selector", "spec.namespace"];
    fields.iter().any(|field| invalid.path.starts_with(field))
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    let value = meta.annotations.as_ref()?.get(key)?;
    Some(value)
}

fn refuse_canary(meta: &ObjectMeta, report: &mut FieldErrors<'_>) {
    if annotation(meta, CANARY_ANNOTATION) == Some("true") {
        let message =
            "canary sets are not supported yet; the set would be injected beside its base";
        report
            .field("annotations")
            .key(CANARY_ANNOTATION)
            .add(message);
    }
}

fn read_failure_policy(meta: &ObjectMeta, report: &mut FieldErrors<'_>) -> FailurePolicy {
    match annotation(meta, FAILURE_POLICY_ANNOTATION).unwrap_or("Ignore") {
        "Ignore" => FailurePolicy::Ignore,
        "Fail" => FailurePolicy::Fail,
        other => {
            let mut at = report.field("annotations");
            at.key(FAILURE_POLICY_ANNOTATION)
                .add(format!("{other:?} is not one of Ignore, Fail"));
            FailurePolicy::Ignore
        }
    }
}

fn read_min_ready(meta: &ObjectMeta, report: &mut FieldErrors<'_>) -> Duration {
    let text = annotation(meta, MIN_READY_SECONDS_ANNOTATION).unwrap_or("0");
    // The maximum is that of minReadySeconds, which is an int32.
    if let Ok(Ok(seconds)) = text.parse::<u32>().map(i32::try_from) {
        return Duration::from_secs(seconds.unsigned_abs().into());
    }
    let mut at = report.field("annotations");
    at.key(MIN_READY_SECONDS_ANNOTATION).add(format!(
        "{text:?} is not a number of seconds such as \"10\""
    ));
    Duration::ZERO
}

fn read_custom_version(wire: &SidecarSetWire, errors: &mut Vec<Invalid>) -> Option<Arc<str>> {
    let field = wire.spec.custom_version.as_ref();
    let labels = wire.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(CUSTOM_VERSION_LABEL));
    let (given, path) = match field.filter(|version| !version.is_empty()) {
        Some(version) => (version, "spec.customVersion".to_owned()),
        None => (label?, format!("metadata.labels[{CUSTOM_VERSION_LABEL}]")),
    };
    // The set's revision has the version as a label.
    FieldErrors::new(errors, path).check(names::label_value(given))?;
    Some(given.as_str())
        .filter(|given| !given.is_empty())
        .map(Into::into)
}

fn read_namespaces(wire: &SidecarSetWire, report: &mut FieldErrors<'_>) -> Namespaces {
    let spec = &wire.spec;
    let name = spec.namespace.as_deref().unwrap_or_default();
    if !name.is_empty() {
        // The webhook configuration names it, beside those of other sets: the API server would refuse all of it.
        report.field("namespace").check(names::dns_label(name));
    }
    let given = spec.namespace_selector.as_ref();
    let selector = read_optional(given, &mut report.field("namespaceSelector"));
    match selector {
        Some(_) if !name.is_empty() => {
            report.field("namespaceSelector").add(format!(
                "cannot be set beside namespace {name:?}: select it by label kubernetes.io/metadata.name"
            ));
            Namespaces::Named(name.into())
        }
        Some(selector) => Namespaces::Selected(selector),
        None if !name.is_empty() => Namespaces::Named(name.into()),
        None => Namespaces::All,
    }
}

fn read_pin(wire: &InjectRevision, report: &mut FieldErrors<'_>) -> Option<Pin> {
    let given = |text: &Option<String>| {
        let text = text.as_deref().filter(|text| !text.is_empty());
        text.map(Arc::from)
    };
    let policy = match wire.policy.as_deref().unwrap_or_default() {
        "" | "Always" => PinPolicy::Always,
        "Partial" => PinPolicy::Partial,
        other => {
            let message = format!("{other:?} is not one of Always, Partial");
            report.field("policy").add(message);
            PinPolicy::Always
        }
    };
    let name = given(&wire.revision_name).map(PinnedRevision::Name);
    let version = given(&wire.custom_version).map(PinnedRevision::CustomVersion);
    // The name counts if both are given (`getControllerRevision`, `pkg/control/sidecarcontrol/history_control.go` of
    // `OpenKruise`).
    let Some(revision) = name.or(version) else {
        report.add("names no revision: set revisionName or customVersion");
        return None;
    };
    Some(Pin { revision, policy })
}

#[cfg(test)]
mod tests;
