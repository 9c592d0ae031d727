//! The `SidecarSet`s of a cluster or of files, and what their injection follows from. Of a cluster nothing is read that no
//! set needs: namespaces only if a set selects them by labels, revisions only if one pins them.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use leadsman_api::{Guarded, SidecarSet as SidecarSetWire};
use leadsman_core::podprobe::explain::Unread;
use leadsman_core::sidecarset::explain::{InvalidSet, KnownSet, KnownSets, Labels};
use leadsman_core::sidecarset::metadata::Whitelist;
use leadsman_core::sidecarset::revision::{SET_LABEL, SetRevision};
use leadsman_core::sidecarset::selection::SetHistory;
use leadsman_core::sidecarset::set::{Namespaces, SidecarSet};
use serde_json::Value;

use crate::VerbError;
use crate::reader::{Reader, Selection};
use crate::resources::{CONFIG_MAPS, CONTROLLER_REVISIONS, NAMESPACES, SIDECAR_SETS};

/// The `ConfigMap` with the administrator's list of annotations, and its key.
const CONFIGURATION: &str = "kruise-configuration";
const WHITELIST: &str = "SidecarSet_PatchPodMetadata_WhiteList";
/// The label by which the API server names each namespace (`kubernetes.io/metadata.name`, KEP-2161).
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The sets, and what could not be read.
#[derive(Debug, Default)]
pub(crate) struct FoundSets {
    pub(crate) sets: KnownSets,
    pub(crate) unread: Vec<String>,
}

/// Which sets are asked for, and what beside them.
pub(crate) struct Needs<'a> {
    /// One set, or all.
    pub(crate) set: Option<&'a str>,
    /// Whether revisions are read although no set pins one.
    pub(crate) all_revisions: bool,
    /// The namespaces of the pods, whose labels a set may select by.
    pub(crate) namespaces: WantedNamespaces<'a>,
}

/// Which namespaces.
pub(crate) enum WantedNamespaces<'a> {
    /// All.
    All,
    /// Those of these names.
    These(BTreeSet<&'a str>),
}

/// Objects as they were found.
#[derive(Default)]
struct Found {
    sets: Vec<Guarded<SidecarSetWire>>,
    revisions: Vec<ControllerRevision>,
    namespaces: BTreeMap<String, Labels>,
    whitelist: Option<Whitelist>,
    unread: Vec<String>,
}

/// The sets of files, with namespaces, revisions and the list of annotations, as far as the files have them.
pub(crate) fn of_files(objects: Vec<Value>) -> Result<FoundSets, VerbError> {
    let mut found = Found::default();
    found.add_objects(objects)?;
    Ok(found.finish())
}

impl Reader {
    /// The sets of the cluster; `instead` are sets of files, which take the places of those of the same name.
    pub(crate) async fn sidecar_sets(
        &self,
        needs: &Needs<'_>,
        instead: Vec<Value>,
        now: Timestamp,
    ) -> Result<FoundSets, VerbError> {
        let selection = Selection {
            fields: needs.set.map(|name| format!("metadata.name={name}")),
            page: 100,
            ..Selection::default()
        };
        let sets = self.list(SIDECAR_SETS, &selection).await;
        let mut found = Found {
            sets: sets.map_err(VerbError::Unread)?,
            ..Found::default()
        };
        found.add_objects(instead)?;
        let parsed: Vec<_> = found
            .sets
            .iter()
            .filter_map(|set| parse(set).ok())
            .collect();
        let selects = |set: &SidecarSet| matches!(set.namespaces, Namespaces::Selected(_));
        if parsed.iter().any(selects) {
            found.read_namespaces(self, &needs.namespaces).await;
        }
        let has_pin = needs.all_revisions || parsed.iter().any(|set| set.pin.is_some());
        let has_patch = parsed.iter().any(|set| !set.template.patches.is_empty());
        if has_pin || has_patch {
            let install = self.install(now).await;
            let namespace = install.config.agent_namespace.as_str();
            if has_pin {
                found.read_revisions(self, namespace).await;
            }
            if has_patch {
                found.read_whitelist(self, namespace).await;
            }
        }
        Ok(found.finish())
    }
}

impl Found {
    fn add_objects(&mut self, objects: Vec<Value>) -> Result<(), VerbError> {
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            match kind.as_str() {
                "SidecarSet" => {
                    let set: Guarded<SidecarSetWire> = decode(&object)?;
                    let name = name_of(&set);
                    self.sets.retain(|known| name_of(known) != name);
                    self.sets.push(set);
                }
                "ControllerRevision" => self.revisions.push(decode(&object)?),
                "Namespace" => {
                    let namespace: Namespace = decode(&object)?;
                    self.add_namespace(namespace);
                }
                "ConfigMap" if object["metadata"]["name"] == CONFIGURATION => {
                    let map: ConfigMap = decode(&object)?;
                    self.add_whitelist(Some(&map));
                }
                _ => {
                    return Err(VerbError::Usage(format!(
                        "--set takes SidecarSets, Namespaces, ControllerRevisions and the ConfigMap {CONFIGURATION}, not {kind:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn add_namespace(&mut self, namespace: Namespace) {
        let name = namespace.metadata.name.unwrap_or_default();
        let mut labels = namespace.metadata.labels.unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), name.clone());
        self.namespaces.insert(name, labels);
    }

    fn add_whitelist(&mut self, map: Option<&ConfigMap>) {
        let data = map.and_then(|map| map.data.as_ref());
        let (whitelist, errors) = match data.and_then(|data| data.get(WHITELIST)) {
            Some(text) => Whitelist::read(text),
            None => (Whitelist::default(), Vec::new()),
        };
        let errors = errors.iter();
        let told = errors.map(|error| format!("ConfigMap {CONFIGURATION}, {WHITELIST}: {error}"));
        self.unread.extend(told);
        self.whitelist = Some(whitelist);
    }

    async fn read_namespaces(&mut self, reader: &Reader, wanted: &WantedNamespaces<'_>) {
        let found = match wanted {
            WantedNamespaces::These(names) => {
                let gets = names.iter();
                let gets = gets.map(|name| reader.get::<Namespace>(NAMESPACES, None, name));
                let found = join_all(gets).await.into_iter();
                found.map(|found| found.map(Vec::from_iter)).collect()
            }
            WantedNamespaces::All => {
                let selection = Selection {
                    page: 500,
                    ..Selection::default()
                };
                vec![reader.list(NAMESPACES, &selection).await]
            }
        };
        for namespaces in found {
            match namespaces {
                Ok(namespaces) => {
                    for namespace in namespaces {
                        self.add_namespace(namespace);
                    }
                }
                Err(Unread(why)) => self.unread.push(why),
            }
        }
    }

    async fn read_revisions(&mut self, reader: &Reader, namespace: &str) {
        let selection = Selection {
            namespace: Some(namespace),
            labels: Some(SET_LABEL.to_owned()),
            page: 100,
            ..Selection::default()
        };
        match reader.list(CONTROLLER_REVISIONS, &selection).await {
            Ok(revisions) => self.revisions.extend::<Vec<ControllerRevision>>(revisions),
            Err(Unread(why)) => self.unread.push(why),
        }
    }

    async fn read_whitelist(&mut self, reader: &Reader, namespace: &str) {
        let map = reader.get::<ConfigMap>(CONFIG_MAPS, Some(namespace), CONFIGURATION);
        match map.await {
            Ok(map) => self.add_whitelist(map.as_ref()),
            Err(Unread(why)) => self.unread.push(format!(
                "{why}: annotations that sets patch are taken for allowed"
            )),
        }
    }

    fn finish(self) -> FoundSets {
        let mut sets = KnownSets {
            namespaces: self.namespaces,
            whitelist: self.whitelist,
            ..KnownSets::default()
        };
        let revisions: Vec<_> = self.revisions.iter().filter_map(read_revision).collect();
        for wire in &self.sets {
            match parse(wire) {
                Ok(set) => {
                    let status = match wire {
                        Guarded::Decoded(wire) => wire.status.as_ref(),
                        Guarded::Undecodable { .. } => None,
                    };
                    let history = SetHistory::new(&set, revisions.clone(), status);
                    sets.valid.push(KnownSet { set, history });
                }
                Err(errors) => sets.invalid.push(InvalidSet {
                    name: name_of(wire).to_owned(),
                    errors,
                }),
            }
        }
        FoundSets {
            sets,
            unread: self.unread,
        }
    }
}

fn decode<T: serde::de::DeserializeOwned>(object: &Value) -> Result<T, VerbError> {
    let decoded = serde_json::from_str(&object.to_string());
    decoded.map_err(|error| {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        VerbError::Usage(format!("{kind} {name} cannot be decoded: {error}"))
    })
}

fn name_of(set: &Guarded<SidecarSetWire>) -> &str {
    let metadata = match set {
        Guarded::Decoded(set) => &set.metadata,
        Guarded::Undecodable { metadata, .. } => metadata,
    };
    metadata.name.as_deref().unwrap_or_default()
}

/// The set, or what is wrong with it.
fn parse(set: &Guarded<SidecarSetWire>) -> Result<SidecarSet, Vec<String>> {
    match set {
        Guarded::Decoded(set) => SidecarSet::parse(set)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect()),
        Guarded::Undecodable { error, .. } => Err(vec![format!("cannot be decoded: {error}")]),
    }
}

fn read_revision(revision: &ControllerRevision) -> Option<SetRevision> {
    let data = revision.data.as_ref()?;
    SetRevision::read(&revision.metadata, revision.revision, &data.0)
}
