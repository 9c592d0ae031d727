//! The objects that an explanation follows from, as they were read.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use leadsman_api::slim::Namespace;
use leadsman_api::slim::Pod;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_api::{Guarded, SidecarSet as SidecarSetWire, SidecarSetStatus};
use leadsman_reconcile::Reconciler;
use serde::Serialize;

use super::{InvalidSet, KnownSet, KnownSets, Labels};
use crate::cluster::Now;
use crate::sidecarset::metadata::{CONFIGURATION, WHITELIST, Whitelist};
use crate::sidecarset::reconcile::{Config, Inspection, READY, SidecarSets};
use crate::sidecarset::revision::SetRevision;
use crate::sidecarset::selection::SetHistory;
use crate::sidecarset::set::SidecarSet;

/// The sets of a cluster or of files, and what they need.
#[derive(Clone, Debug, Default)]
pub struct SetObjects {
    /// The sets.
    pub sets: Vec<Guarded<SidecarSetWire>>,
    /// The revisions of sets.
    pub revisions: Vec<ControllerRevision>,
    /// The namespaces whose labels are known.
    pub namespaces: Vec<Namespace>,
    /// The `ConfigMap` with the administrator's list of annotations; None if it was not read.
    pub configuration: Option<ConfigMap>,
    /// The manager's settings.
    pub config: Config,
}

/// The label by which the API server names each namespace (KEP-2161).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl SetObjects {
    /// The parsed sets, and what is wrong with the list of annotations.
    pub fn parse(&self) -> (KnownSets, Vec<String>) {
        let text = self.configuration.as_ref();
        let list = text.map(|map| map.data.get(WHITELIST).map(|text| Whitelist::read(text)));
        let (whitelist, errors) = match list {
            Some(Some((whitelist, errors))) => (Some(whitelist), errors),
            Some(None) => (Some(Whitelist::default()), Vec::new()),
            None => (None, Vec::new()),
        };
        let errors = errors
            .iter()
            .map(|error| format!("ConfigMap {CONFIGURATION}, {WHITELIST}: {error}"));
        let mut known = KnownSets {
            whitelist,
            is_allowed_without_rules: self.config.allows_unlisted_metadata,
            render: self.config.render,
            namespaces: self.namespaces.iter().map(labels_of).collect(),
            ..KnownSets::default()
        };
        let revisions: Vec<_> = self.revisions.iter().filter_map(read_revision).collect();
        for wire in &self.sets {
            match parse(wire) {
                Ok(set) => {
                    let status = status_of(wire);
                    let history = SetHistory::new(&set, revisions.clone(), status);
                    known.valid.push(KnownSet {
                        set,
                        history,
                        status: status.cloned().unwrap_or_default(),
                    });
                }
                Err(errors) => known.invalid.push(InvalidSet {
                    name: name_of(wire).to_owned(),
                    errors,
                }),
            }
        }
        (known, errors.collect())
    }

    /// Computes what the manager would know if these were all pods.
    pub fn observe(&self, pods: Vec<Pod>, now: Timestamp) -> ObservedSets {
        let feature = SidecarSets::new(self.config.clone(), ());
        // Nothing is written, so nothing runs that would take time.
        let mut reconciler = Reconciler::new(feature, || Duration::ZERO);
        reconciler.observe_all(self.namespaces.iter().cloned());
        let own = |meta: &ObjectMeta| meta.namespace.as_ref() == Some(&self.config.namespace);
        let revisions = self.revisions.iter().filter(|it| own(&it.identity));
        reconciler.observe_all(revisions.cloned());
        let configuration = self.configuration.iter();
        let is_known = |map: &&ConfigMap| own(&map.identity);
        reconciler.observe_all(configuration.filter(is_known).cloned());
        reconciler.observe_all(self.sets.iter().filter_map(|set| match set {
            Guarded::Decoded(set) => Some((**set).clone()),
            Guarded::Undecodable { .. } => None,
        }));
        reconciler.observe_all(pods);
        ObservedSets {
            reconciler,
            config: self.config.clone(),
            now: Now {
                monotonic: Duration::ZERO,
                wall: now,
            },
        }
    }
}

/// The sets and their pods as the manager would know them.
pub struct ObservedSets {
    reconciler: Reconciler<SidecarSets>,
    config: Config,
    now: Now,
}

impl ObservedSets {
    /// Inspects the sets and their pods.
    pub fn inspect(&self) -> Inspection<'_> {
        Inspection::new(&self.config, self.reconciler.world(), self.now)
    }
}

fn labels_of(namespace: &Namespace) -> (String, Labels) {
    let name = namespace.identity.name.clone().unwrap_or_default();
    let mut labels: Labels = namespace
        .labels
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // A namespace in a file may lack it; the API server adds it (`SetDefaults_Namespace`, `pkg/apis/core/v1/defaults.go`).
    labels.insert(NAME_LABEL.to_owned(), name.clone());
    (name, labels)
}

/// The name of a set.
pub fn name_of(set: &Guarded<SidecarSetWire>) -> &str {
    let metadata = match set {
        Guarded::Decoded(set) => &set.metadata,
        Guarded::Undecodable { metadata, .. } => metadata,
    };
    metadata.name.as_deref().unwrap_or_default()
}

fn status_of(set: &Guarded<SidecarSetWire>) -> Option<&SidecarSetStatus> {
    match set {
        Guarded::Decoded(set) => set.status.as_ref(),
        Guarded::Undecodable { .. } => None,
    }
}

/// The set, or what is wrong with it.
pub fn parse(set: &Guarded<SidecarSetWire>) -> Result<SidecarSet, Vec<String>> {
    match set {
        Guarded::Decoded(set) => SidecarSet::parse(set)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect()),
        Guarded::Undecodable { error, .. } => Err(vec![format!("cannot be decoded: {error}")]),
    }
}

/// A set at a glance, by its own status.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetSummary {
    /// The set's name.
    pub name: String,
    /// The creation time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// The set's generation.
    pub generation: i64,
    /// The generation that the status reflects.
    pub observed_generation: i64,
    /// The pods that it selects.
    pub matched_pods: i64,
    /// The pods of the set's present revision.
    pub updated_pods: i64,
    /// The pods that are ready.
    pub ready_pods: i64,
    /// The pods that are both updated and ready.
    pub updated_ready_pods: i64,
    /// Whether nothing is wrong.
    pub ready: bool,
    /// The reason of its condition `Ready`; `Unobserved` while no manager has written one, `Undecodable` if the set cannot
    /// be decoded.
    pub reason: String,
    /// The message of its condition `Ready`, or what is wrong where `reason` is `Unobserved` or `Undecodable`.
    pub message: String,
}

/// Sums up a set.
pub fn summarize_set(set: &Guarded<SidecarSetWire>) -> SetSummary {
    let (metadata, error) = match set {
        Guarded::Decoded(set) => (&set.metadata, None),
        Guarded::Undecodable { metadata, error } => (&**metadata, Some(error)),
    };
    let status = status_of(set).cloned().unwrap_or_default();
    let mut conditions = status.conditions.iter();
    let ready = conditions.find(|one| one.type_ == READY);
    let (reason, message) = match (error, ready) {
        (Some(error), _) => ("Undecodable", error.as_str()),
        (None, Some(ready)) => (ready.reason.as_str(), ready.message.as_str()),
        (None, None) => (
            "Unobserved",
            "no manager has written its status yet; look at the manager's pods",
        ),
    };
    SetSummary {
        name: name_of(set).to_owned(),
        created: metadata.creation_timestamp.clone(),
        generation: metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation,
        matched_pods: status.matched_pods,
        updated_pods: status.updated_pods,
        ready_pods: status.ready_pods,
        updated_ready_pods: status.updated_ready_pods,
        ready: ready.is_some_and(|ready| ready.status == "True"),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn read_revision(revision: &ControllerRevision) -> Option<SetRevision> {
    SetRevision::read(&revision.identity, revision.revision, &revision.data)
}
