//! The parts of a set that a pod gets: containers, init containers, volumes, secrets and annotations. These are the five fields
//! that a revision records; selectors and strategies are not among them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{LocalObjectReference, Volume};
use leadsman_api::sidecar_set::PatchPodMetadata;
use leadsman_api::{SidecarSetSpec, limits};
use serde_json::Value;

use super::container::{ContainerKind, ContainerList, SetContainer};
use super::fields::PATCH_POD_METADATA;
use super::host_ports::{HostPort, taken_twice};
use super::metadata::MetadataPatch;
use crate::cluster::{FieldErrors, names};
use crate::workload::JsonObject;
use crate::workload::core_types::{LOCAL_OBJECT_REFERENCE, VOLUME};
use crate::workload::defaults::complete_volume;
use crate::workload::go_json::{FieldOrder, GoValue};
use crate::workload::hash::sha256_of;
use crate::workload::object::{inner, text};
use crate::workload::validity::{REFUSED, check_pod_part, check_volume};

/// The parts of a set that a pod gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// Containers, as declared.
    pub containers: Vec<SetContainer>,
    /// Init containers, as declared.
    pub init_containers: Vec<SetContainer>,
    /// Volumes by name.
    volumes: Vec<JsonObject>,
    /// Secrets for pulling images.
    pub secrets: Vec<JsonObject>,
    /// Annotations.
    pub patches: Vec<MetadataPatch>,
    /// The annotations as they were written, for the revision.
    metadata: Vec<JsonObject>,
}

/// The two hashes of a template: whether a pod has its containers, and whether it has them but for their images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// The hash of the containers.
    pub hash: Arc<str>,
    /// The hash of the containers without their images.
    pub without_image: Arc<str>,
}

impl Template {
    /// Reads a template; `report` is for the object that contains its fields.
    pub fn read(spec: &SidecarSetSpec, report: &mut FieldErrors<'_>) -> Self {
        let mut unique = BTreeSet::new();
        let init_containers = read_containers(
            &spec.init_containers,
            ContainerList::InitContainers,
            &mut unique,
            &mut report.field("initContainers"),
        );
        let containers = read_containers(
            &spec.containers,
            ContainerList::Containers,
            &mut unique,
            &mut report.field("containers"),
        );
        let template = Self {
            containers,
            init_containers,
            volumes: read_volumes(&spec.volumes, &mut report.field("volumes")),
            secrets: read_secrets(
                &spec.image_pull_secrets,
                &mut report.field("imagePullSecrets"),
            ),
            patches: MetadataPatch::read_all(
                &spec.patch_pod_metadata,
                &mut report.field("patchPodMetadata"),
            ),
            metadata: spec
                .patch_pod_metadata
                .iter()
                .map(metadata_object)
                .collect(),
        };
        if template.containers.is_empty() && template.init_containers.is_empty() {
            report
                .field("containers")
                .add("must not be empty unless there are initContainers");
        }
        template.check_mounts(report);
        template.check_host_ports(report);
        template
    }

    /// Reads the template that a revision recorded.
    pub fn of_revision(data: &Value) -> Option<Self> {
        let spec: SidecarSetSpec = serde_json::from_value(data.get("spec")?.clone()).ok()?;
        let mut errors = Vec::new();
        let template = Self::read(&spec, &mut FieldErrors::new(&mut errors, "data.spec"));
        errors.is_empty().then_some(template)
    }

    /// All containers that a pod gets, init containers first.
    pub fn all(&self) -> impl Iterator<Item = &SetContainer> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// The names under which a pod's annotations list the set's containers: containers and native sidecars, in order.
    pub fn sidecar_names(&self) -> BTreeSet<Arc<str>> {
        let natives = self
            .init_containers
            .iter()
            .filter(|one| one.kind == ContainerKind::Native);
        let sidecars = self.containers.iter().chain(natives);
        sidecars.map(|sidecar| sidecar.name.clone()).collect()
    }

    /// A volume by its name.
    pub fn volume(&self, name: &str) -> Option<&JsonObject> {
        let mut volumes = self.volumes.iter();
        volumes.find(|volume| text(volume, "name") == Some(name))
    }

    /// The volumes, as declared and completed.
    pub fn volumes(&self) -> &[JsonObject] {
        &self.volumes
    }

    fn check_mounts(&self, report: &mut FieldErrors<'_>) {
        let lists = [
            ("initContainers", &self.init_containers),
            ("containers", &self.containers),
        ];
        for (field, list) in lists {
            for (index, container) in list.iter().enumerate() {
                for name in container
                    .volumes()
                    .filter(|name| self.volume(name).is_none())
                {
                    let mut at = report.field(field);
                    at.index(index).add(format!(
                        "mounts volume {name:?}, which is not in volumes: declare it there"
                    ));
                }
                // `validateVolumeDevices` (`pkg/apis/core/validation/validation.go`)
                let is_claim = |volume: &JsonObject| {
                    ["persistentVolumeClaim", "ephemeral"]
                        .iter()
                        .any(|source| inner(volume, source).is_some())
                };
                let mut devices = container.devices();
                let other =
                    devices.find(|name| self.volume(name).is_some_and(|volume| !is_claim(volume)));
                if let Some(name) = other {
                    let mut at = report.field(field);
                    at.index(index).field("volumeDevices").add(format!(
                        "volume {name:?} is no persistentVolumeClaim and not ephemeral, so it cannot be a device: {REFUSED}"
                    ));
                }
            }
        }
    }

    /// The ports of the host that its containers take in a pod, each as often as it is taken there. Init containers run one
    /// after the other: the API server compares their ports with nothing.
    pub fn host_ports(&self, is_on_host_network: bool) -> impl Iterator<Item = HostPort> {
        self.containers.iter().flat_map(move |sidecar| {
            let ports = move |_| sidecar.host_ports(is_on_host_network);
            sidecar.names_in_pod().flat_map(ports)
        })
    }

    /// Two containers of a pod cannot take one port of the host, nor one container twice.
    fn check_host_ports(&self, report: &mut FieldErrors<'_>) {
        let mut taken = BTreeSet::new();
        for (index, container) in self.containers.iter().enumerate() {
            for port in container.host_ports(false) {
                if !taken.insert(port.clone()) {
                    let mut at = report.field("containers");
                    at.index(index)
                        .field("ports")
                        .add(format!("host port {port} is taken by this set already"));
                }
            }
        }
        for (index, container) in self.init_containers.iter().enumerate() {
            if let Some(port) = taken_twice(BTreeSet::new(), container.host_ports(false)) {
                let mut at = report.field("initContainers");
                at.index(index)
                    .field("ports")
                    .add(format!("host port {port} is taken twice"));
            }
        }
    }

    /// The text that is hashed, of containers with or without their images.
    fn hashed_text(&self, go_value: impl Fn(&SetContainer) -> GoValue) -> String {
        let mut text = "{\"containers\":".to_owned();
        write_list(&self.containers, &go_value, FieldOrder::Declared, &mut text);
        // All of them as soon as one is native, as `encodeSidecarSet` has it
        // (`pkg/control/sidecarcontrol/hash.go` of `OpenKruise`).
        if self
            .init_containers
            .iter()
            .any(|one| one.kind == ContainerKind::Native)
        {
            text.push_str(",\"initContainers\":");
            write_list(
                &self.init_containers,
                &go_value,
                FieldOrder::Declared,
                &mut text,
            );
        }
        text.push('}');
        text
    }

    /// The hashes of the template.
    pub fn hashes(&self) -> Hashes {
        let with_image = self.hashed_text(SetContainer::go_value);
        let without_image = self.hashed_text(|sidecar| {
            let mut value = sidecar.go_value();
            // `SidecarSetHashWithoutImage` (in the same file) empties the field, and Go leaves it
            // out then.
            value.remove("image");
            value
        });
        Hashes {
            hash: sha256_of(&with_image).into(),
            without_image: sha256_of(&without_image).into(),
        }
    }

    /// The hash without images if each container whose pull policy was derived had the policy that it has in a pod. With
    /// another tag another policy is derived, which does not make a pod's container another one.
    pub fn hash_without_image_in(&self, pull_policy: impl Fn(&str) -> Option<Arc<str>>) -> String {
        sha256_of(&self.hashed_text(|sidecar| {
            let in_pod = sidecar.names_in_pod().find_map(|name| pull_policy(&name));
            let mut value = match in_pod {
                Some(policy) if sidecar.is_pull_policy_derived => {
                    sidecar.go_value_with_pull_policy(&policy)
                }
                _ => sidecar.go_value(),
            };
            value.remove("image");
            value
        }))
    }

    /// The data of a revision, as text.
    pub fn revision_data(&self) -> String {
        // The fields are sorted by name, since `getPatch` reads the set into maps
        // (`pkg/control/sidecarcontrol/history_control.go` of `OpenKruise`).
        let order = FieldOrder::Sorted;
        let mut text = "{\"spec\":{\"$patch\":\"replace\",\"containers\":".to_owned();
        write_list(&self.containers, SetContainer::go_value, order, &mut text);
        text.push_str(",\"imagePullSecrets\":");
        write_objects(&self.secrets, LOCAL_OBJECT_REFERENCE, &mut text);
        text.push_str(",\"initContainers\":");
        write_list(
            &self.init_containers,
            SetContainer::go_value,
            order,
            &mut text,
        );
        text.push_str(",\"patchPodMetadata\":");
        write_objects(&self.metadata, PATCH_POD_METADATA, &mut text);
        text.push_str(",\"volumes\":");
        write_objects(&self.volumes, VOLUME, &mut text);
        text.push_str("}}");
        text
    }
}

fn write_list(
    containers: &[SetContainer],
    go_value: impl Fn(&SetContainer) -> GoValue,
    order: FieldOrder,
    text: &mut String,
) {
    if containers.is_empty() {
        // Go writes an absent list so, and the API server keeps an empty one as absent: as `[]` it
        // would have another hash after the next write.
        text.push_str("null");
    } else {
        GoValue::List(containers.iter().map(go_value).collect()).write(order, text);
    }
}

fn write_objects(
    objects: &[JsonObject],
    fields: &'static [crate::workload::go_json::Field],
    text: &mut String,
) {
    if objects.is_empty() {
        text.push_str("null");
    } else {
        GoValue::list(objects, &[fields]).write(FieldOrder::Sorted, text);
    }
}

fn read_containers(
    wire: &[JsonObject],
    list: ContainerList,
    unique: &mut BTreeSet<Arc<str>>,
    report: &mut FieldErrors<'_>,
) -> Vec<SetContainer> {
    let mut containers = Vec::new();
    let mut declared = BTreeSet::new();
    report.at_most(wire.len(), limits::SIDECARS, "containers");
    for (index, wire) in wire.iter().enumerate() {
        let mut at = report.index(index);
        let Some(container) = SetContainer::read(wire, list, &mut at) else {
            continue;
        };
        let mut taken: BTreeSet<_> = container.names_in_pod().collect();
        taken.retain(|name| !unique.insert(name.clone()));
        // One that takes turns has other names in a pod, and the API server refuses its own a second time all the same.
        if !declared.insert(container.name.clone()) && taken.is_empty() {
            taken.insert(container.name.clone());
        }
        for name in taken {
            at.field("name")
                .add(format!("another container of this set is named {name:?}"));
        }
        containers.push(container);
    }
    containers
}

fn read_volumes(wire: &[JsonObject], report: &mut FieldErrors<'_>) -> Vec<JsonObject> {
    let mut unique = BTreeSet::new();
    let mut volumes = Vec::new();
    report.at_most(wire.len(), limits::VOLUMES, "volumes");
    for (index, wire) in wire.iter().enumerate() {
        let mut at = report.index(index);
        let mut volume = wire.clone();
        complete_volume(&mut volume);
        check_pod_part::<Volume>(wire, VOLUME, &mut at);
        check_volume(wire, &mut at);
        let name = text(wire, "name").unwrap_or_default();
        at.field("name").check(names::dns_label(name));
        if !unique.insert(name) {
            at.field("name")
                .add(format!("another volume of this set is named {name:?}"));
        }
        volumes.push(volume);
    }
    volumes
}

fn read_secrets(wire: &[JsonObject], report: &mut FieldErrors<'_>) -> Vec<JsonObject> {
    for (index, secret) in wire.iter().enumerate() {
        let mut at = report.index(index);
        check_pod_part::<LocalObjectReference>(secret, LOCAL_OBJECT_REFERENCE, &mut at);
    }
    wire.to_vec()
}

fn metadata_object(patch: &PatchPodMetadata) -> JsonObject {
    let sorted: BTreeMap<_, _> = patch.annotations.iter().collect();
    let annotations = sorted
        .into_iter()
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    let policy = patch.patch_policy.as_deref().unwrap_or("Retain");
    let mut object = JsonObject::new();
    object.insert(
        "annotations".to_owned(),
        Value::Object(annotations.collect()),
    );
    object.insert("patchPolicy".to_owned(), policy.into());
    object
}
