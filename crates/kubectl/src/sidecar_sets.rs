//! The `SidecarSet`s of a cluster or of files, and what their injection follows from. Of a cluster nothing is read that no
//! set needs: namespaces only if a set selects them by labels, revisions only if one pins them.

use std::collections::BTreeSet;

use futures::future::join_all;
use jiff::Timestamp;
use leadsman_api::slim::Namespace;
use leadsman_api::{Guarded, SidecarSet as SidecarSetWire};
use leadsman_core::podprobe::explain::Unread;
use leadsman_core::sidecarset::explain::{KnownSets, SetObjects, name_of, parse};
use leadsman_core::sidecarset::metadata::CONFIGURATION;
use leadsman_core::sidecarset::revision::SET_LABEL;
use leadsman_core::sidecarset::set::{Namespaces, SidecarSet};
use serde_json::Value;

use crate::VerbError;
use crate::reader::{ListSelection, Reader};
use crate::resources::{CONFIG_MAPS, CONTROLLER_REVISIONS, NAMESPACES, SIDECAR_SETS};

/// The sets, and what could not be read.
#[derive(Debug, Default)]
pub(crate) struct FoundSets {
    pub(crate) sets: KnownSets,
    pub(crate) objects: SetObjects,
    /// Whether the manager is known not to act on sets.
    pub(crate) is_gate_off: bool,
    pub(crate) unread: Vec<String>,
}

/// The sets that are asked for, and what is needed beside them.
pub(crate) struct Needs<'a> {
    /// One set, or all.
    pub(crate) set: Option<&'a str>,
    /// Whether revisions are read although no set pins one.
    pub(crate) all_revisions: bool,
    /// The namespaces of the pods, whose labels a set may select by.
    pub(crate) namespaces: WantedNamespaces<'a>,
}

pub(crate) enum WantedNamespaces<'a> {
    /// All.
    All,
    /// The namespaces of these names.
    These(BTreeSet<&'a str>),
}

/// Objects as they were found.
#[derive(Default)]
struct FoundSetObjects {
    objects: SetObjects,
    is_gate_off: bool,
    unread: Vec<String>,
}

/// The sets of files, with namespaces, revisions and the list of annotations, as far as the files have them.
pub(crate) fn sets_of_files(objects: Vec<Value>) -> Result<FoundSets, VerbError> {
    let mut found = FoundSetObjects::default();
    found.add_objects(objects)?;
    Ok(found.into_found_sets())
}

impl Reader {
    /// The sets of the cluster; `instead` are sets of files, which take the places of those of the same name.
    pub(crate) async fn read_sidecar_sets(
        &self,
        needs: &Needs<'_>,
        instead: Vec<Value>,
        now: Timestamp,
    ) -> Result<FoundSets, VerbError> {
        let selection = ListSelection {
            fields: needs.set.map(|name| format!("metadata.name={name}")),
            ..ListSelection::of(None, 100)
        };
        let sets = self
            .list_objects(SIDECAR_SETS, &selection)
            .await
            .map_err(VerbError::Unread)?;
        let mut found = FoundSetObjects::from_wire(sets);
        found.add_objects(instead)?;
        found.read_needed(self, needs, now).await;
        Ok(found.into_found_sets())
    }

    /// All sets of a cluster for pods of these namespaces, with their revisions; None if it has no such kind.
    pub(crate) async fn read_sidecar_sets_for(
        &self,
        namespaces: BTreeSet<&str>,
        now: Timestamp,
    ) -> Result<Option<FoundSets>, Unread> {
        let selection = ListSelection::of(None, 100);
        let Some(sets) = self.list_if_served(SIDECAR_SETS, &selection).await? else {
            return Ok(None);
        };
        let needs = Needs {
            set: None,
            all_revisions: !sets.is_empty(),
            namespaces: WantedNamespaces::These(namespaces),
        };
        let mut found = FoundSetObjects::from_wire(sets);
        found.read_needed(self, &needs, now).await;
        Ok(Some(found.into_found_sets()))
    }
}

impl FoundSetObjects {
    fn from_wire(sets: Vec<Guarded<SidecarSetWire>>) -> Self {
        let mut found = Self::default();
        found.objects.sets = sets;
        found
    }

    fn add_objects(&mut self, objects: Vec<Value>) -> Result<(), VerbError> {
        let found = &mut self.objects;
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            match kind.as_str() {
                "SidecarSet" => {
                    let set = decode_object(&object)?;
                    let name = name_of(&set).to_owned();
                    found.sets.retain(|known| name_of(known) != name);
                    found.sets.push(set);
                }
                "ControllerRevision" => found.revisions.push(decode_object(&object)?),
                "Namespace" => found.namespaces.push(decode_object(&object)?),
                "ConfigMap" if object["metadata"]["name"] == CONFIGURATION => {
                    found.configuration = Some(decode_object(&object)?);
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

    /// Reads what the sets need.
    async fn read_needed(&mut self, reader: &Reader, needs: &Needs<'_>, now: Timestamp) {
        let sets = self.objects.sets.iter();
        let parsed: Vec<SidecarSet> = sets.filter_map(|set| parse(set).ok()).collect();
        let selects = |set: &SidecarSet| matches!(set.namespaces, Namespaces::Selected(_));
        if parsed.iter().any(selects) {
            self.read_namespaces(reader, &needs.namespaces).await;
        }
        let has_pin = needs.all_revisions || parsed.iter().any(|set| set.pin.is_some());
        let has_patch = parsed.iter().any(|set| !set.template.patches.is_empty());
        let has_order = has_order_of_init_containers(&parsed);
        if has_pin || has_patch || has_order {
            // The install is read only where the answer depends on it: this takes further rights, in leadsman's own namespace.
            let install = reader.read_install(now).await;
            let namespace = install.config.agent_namespace.as_str();
            self.objects.config = install.sidecar_sets;
            self.is_gate_off = install.assumed.is_none() && !install.gates.sidecar_set;
            let assumed = install.assumed.filter(|_| has_order);
            self.unread.extend(assumed.map(|Unread(why)| why));
            if has_pin {
                self.read_revisions(reader, namespace).await;
            }
            if has_patch {
                self.read_configuration(reader, namespace).await;
            }
        }
    }

    async fn read_namespaces(&mut self, reader: &Reader, wanted: &WantedNamespaces<'_>) {
        let found = match wanted {
            WantedNamespaces::These(names) => {
                let gets = names
                    .iter()
                    .map(|name| reader.get_object::<Namespace>(NAMESPACES, None, name));
                let found = join_all(gets).await.into_iter();
                found.map(|found| found.map(Vec::from_iter)).collect()
            }
            WantedNamespaces::All => {
                let selection = ListSelection::of(None, 500);
                vec![reader.list_objects(NAMESPACES, &selection).await]
            }
        };
        for namespaces in found {
            match namespaces {
                Ok(namespaces) => self.objects.namespaces.extend(namespaces),
                Err(Unread(why)) => self.unread.push(why),
            }
        }
    }

    async fn read_revisions(&mut self, reader: &Reader, namespace: &str) {
        let selection = ListSelection {
            labels: Some(SET_LABEL.to_owned()),
            ..ListSelection::of(Some(namespace), 100)
        };
        match reader.list_objects(CONTROLLER_REVISIONS, &selection).await {
            Ok(revisions) => self.objects.revisions.extend::<Vec<_>>(revisions),
            Err(Unread(why)) => self.unread.push(why),
        }
    }

    async fn read_configuration(&mut self, reader: &Reader, namespace: &str) {
        let map = reader.get_object(CONFIG_MAPS, Some(namespace), CONFIGURATION);
        match map.await {
            // No ConfigMap: no annotation is listed.
            Ok(map) => self.objects.configuration = Some(map.unwrap_or_default()),
            Err(Unread(why)) => self.unread.push(format!(
                "{why}: annotations that sets patch are taken for allowed"
            )),
        }
    }

    fn into_found_sets(self) -> FoundSets {
        let (sets, errors) = self.objects.parse();
        FoundSets {
            sets,
            objects: self.objects,
            is_gate_off: self.is_gate_off,
            unread: [self.unread, errors].concat(),
        }
    }
}

/// Whether pods can get init containers whose order the manager decides.
pub(crate) fn has_order_of_init_containers<'a>(
    sets: impl IntoIterator<Item = &'a SidecarSet>,
) -> bool {
    let of_sets = sets
        .into_iter()
        .map(|set| set.template.init_containers.len());
    of_sets.sum::<usize>() > 1
}

fn decode_object<T: serde::de::DeserializeOwned>(object: &Value) -> Result<T, VerbError> {
    // Text is decoded, since `Guarded` borrows that of an object (`RawValue`), and a `Value` has none.
    let decoded = serde_json::from_str(&object.to_string());
    decoded.map_err(|error| {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        VerbError::Usage(format!("{kind} {name} cannot be decoded: {error}"))
    })
}
