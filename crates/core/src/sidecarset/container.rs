//! A sidecar, parsed: a container of a pod with all fields that it came with, completed, and what a `SidecarSet` says
//! about it beside.

use std::collections::BTreeSet;
use std::sync::Arc;

use leadsman_api::limits;
use leadsman_api::sidecar_container::SidecarContainer as Sidecar;
use serde_json::Value;

use super::fields::{SIDECAR_CONTAINER, sidecar_fields};
use super::host_ports::{HostPort, host_ports, translated_port};
use super::resources::ResourcesFormula;
use crate::cluster::{FieldErrors, names};
use crate::workload::JsonObject;
use crate::workload::core_types::CONTAINER;
use crate::workload::defaults::{complete_container, complete_field_ref, set_default};
use crate::workload::go_json::GoValue;
use crate::workload::object::{inner, items, text};
use crate::workload::quantity::Quantity;
use crate::workload::validity::{check_container, check_pod_part};

/// A container or an init container of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetContainer {
    /// The container's name.
    pub name: Arc<str>,
    /// The container's image.
    pub image: Arc<str>,
    /// The place among the pod's own containers.
    pub position: Position,
    /// How it is upgraded.
    pub upgrade: Upgrade,
    /// Whether it gets the mounts of the pod's own containers.
    pub shares_volumes: bool,
    /// Whether it gets their devices.
    pub shares_devices: bool,
    /// The variables that it gets from them.
    pub transfers: Vec<TransferEnv>,
    /// How its resources are computed from those of the pod's own containers.
    pub resources: Option<ResourcesFormula>,
    /// The kind of container that it is in a pod.
    pub kind: ContainerKind,
    /// Whether its pull policy was derived from its image. A derived field is no part of what a pod is compared by.
    pub is_pull_policy_derived: bool,
    /// All fields, completed, those of the sidecar among them.
    object: JsonObject,
}

/// The kind of container that a sidecar is in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// A container.
    Container,
    /// An init container, which ends before the containers start.
    Init,
    /// An init container that runs on: a native sidecar (`restartPolicy: Always`).
    Native,
}

/// The place of a sidecar among the pod's own containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The sidecar stands in front of them.
    Before,
    /// The sidecar stands behind them.
    After,
}

/// How a sidecar is upgraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// The sidecar's image is replaced.
    Cold,
    /// The sidecar has a second container, which takes over.
    Hot {
        /// The image of the container that waits.
        empty_image: Arc<str>,
    },
}

/// Variables that a sidecar gets from a container of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferEnv {
    /// The container.
    pub source: TransferSource,
    /// The names of the variables, in order.
    pub names: BTreeSet<String>,
}

/// The place where the name of a container stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferSource {
    /// The set has the name.
    Named(String),
    /// A label of the pod has the name.
    Label(String),
    /// An annotation of the pod has the name.
    Annotation(String),
}

/// The list that a sidecar is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerList {
    /// `spec.containers`
    Containers,
    /// `spec.initContainers`
    InitContainers,
}

/// A container that takes turns with another has a suffix, and a container's name has at most 63 characters.
const HOT_NAME: usize = limits::LABEL - "-1".len();

impl SetContainer {
    /// Reads a sidecar; None if it has no name that could be used.
    pub fn read(
        wire: &JsonObject,
        list: ContainerList,
        report: &mut FieldErrors<'_>,
    ) -> Option<Self> {
        let object = complete(wire, list);
        let name = text(&object, "name").unwrap_or_default();
        report.field("name").check(names::dns_label(name));
        let image = text(&object, "image").unwrap_or_default();
        check_image(image, &mut report.field("image"));
        check_contents(&object, report);
        check_pod_part::<Sidecar>(wire, CONTAINER, report);
        let restart_policy = text(wire, "restartPolicy");
        let kind = match (list, restart_policy) {
            (ContainerList::Containers, _) => ContainerKind::Container,
            (ContainerList::InitContainers, Some("Always")) => ContainerKind::Native,
            (ContainerList::InitContainers, _) => ContainerKind::Init,
        };
        check_container(wire, kind == ContainerKind::Init, report);
        Some(Self {
            position: read_position(&object, report),
            upgrade: read_upgrade(&object, name, list, report),
            shares_volumes: read_sharing(&object, "shareVolumePolicy", report),
            shares_devices: read_sharing(&object, "shareVolumeDevicePolicy", report),
            transfers: read_transfers(&object, &mut report.field("transferEnv")),
            resources: read_resources(wire, kind, report),
            kind,
            is_pull_policy_derived: text(wire, "imagePullPolicy").is_none(),
            name: name.into(),
            image: image.into(),
            object,
        })
    }

    /// The container for a pod: without the fields that only a sidecar has.
    pub fn container(&self) -> JsonObject {
        let mut container = self.object.clone();
        for field in sidecar_fields() {
            container.remove(field);
        }
        container
    }

    /// How its resources are computed, as it was written.
    pub fn resources_policy(&self) -> Option<&Value> {
        self.object.get("resourcesPolicy")
    }

    /// The sidecar as Go holds it.
    pub fn go_value(&self) -> GoValue {
        GoValue::structure(&self.object, SIDECAR_CONTAINER)
    }

    /// The same with another pull policy.
    pub fn go_value_with_pull_policy(&self, policy: &str) -> GoValue {
        let mut object = self.object.clone();
        object.insert("imagePullPolicy".to_owned(), policy.into());
        GoValue::structure(&object, SIDECAR_CONTAINER)
    }

    /// The names of its containers in a pod.
    pub fn names_in_pod(&self) -> impl Iterator<Item = Arc<str>> + use<> {
        let names = match self.upgrade {
            Upgrade::Cold => [Some(self.name.clone()), None],
            Upgrade::Hot { .. } => {
                let [first, second] = hot_names(&self.name);
                [Some(first), Some(second)]
            }
        };
        names.into_iter().flatten()
    }

    /// The volumes that it mounts or uses as devices.
    pub fn volumes(&self) -> impl Iterator<Item = &str> {
        let mounts = items(&self.object, "volumeMounts").filter_map(|mount| text(mount, "name"));
        mounts.chain(self.devices())
    }

    /// The volumes that it uses as devices.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        let devices = items(&self.object, "volumeDevices");
        devices.filter_map(|device| text(device, "name"))
    }

    /// The ports of the host that one container of it takes.
    pub fn host_ports(&self, is_on_host_network: bool) -> impl Iterator<Item = HostPort> {
        host_ports(&self.object, is_on_host_network)
    }

    /// A port because of which it cannot be on the host's network.
    pub fn translated_port(&self) -> Option<HostPort> {
        translated_port(&self.object)
    }
}

/// The names of two containers that take turns.
pub fn hot_names(name: &str) -> [Arc<str>; 2] {
    [format!("{name}-1").into(), format!("{name}-2").into()]
}

/// Fills in what is left out.
fn complete(wire: &JsonObject, list: ContainerList) -> JsonObject {
    let mut object = wire.clone();
    complete_container(&mut object);
    // The defaults of `OpenKruise` (`setDefaultSidecarContainer`,
    // `apis/apps/defaults/v1alpha1.go`), in which there is none for `shareVolumeDevicePolicy`: they
    // are hashed.
    let position = match list {
        ContainerList::Containers => "BeforeAppContainer",
        ContainerList::InitContainers => "AfterAppContainer",
    };
    set_default(&mut object, "podInjectPolicy", position);
    for (policy, field, value) in [
        ("upgradeStrategy", "upgradeType", "ColdUpgrade"),
        ("shareVolumePolicy", "type", "disabled"),
    ] {
        let policy = object.entry(policy).or_insert(Value::Null);
        if policy.is_null() {
            *policy = JsonObject::new().into();
        }
        if let Some(policy) = policy.as_object_mut() {
            set_default(policy, field, value);
        }
    }
    let transfers = object.get_mut("transferEnv").and_then(Value::as_array_mut);
    for transfer in transfers.into_iter().flatten() {
        let from = transfer.get_mut("sourceContainerNameFrom");
        if let Some(from) = from.and_then(Value::as_object_mut) {
            complete_field_ref(from);
        }
    }
    let policy = object.get_mut("resourcesPolicy");
    if let Some(policy) = policy.and_then(Value::as_object_mut) {
        set_default(policy, "targetContainersNameRegex", ".*");
    }
    object
}

/// Checks an image, as `validateContainerCommon` does (`pkg/apis/core/validation/validation.go`). Whether there is such an
/// image, the kubelet finds out.
fn check_image(image: &str, report: &mut FieldErrors<'_>) {
    report.at_most_chars(image, limits::IMAGE);
    if image.is_empty() {
        report.add("must not be empty");
    } else if image.trim() != image {
        report.add(format!("{image:?} has blanks around it"));
    }
}

/// Checks what would make every pod invalid that gets this container. What is not checked here the API server does when a
/// pod is created.
fn check_contents(object: &JsonObject, report: &mut FieldErrors<'_>) {
    let mut paths = BTreeSet::new();
    for (list, field) in [
        ("volumeMounts", "mountPath"),
        ("volumeDevices", "devicePath"),
    ] {
        let mut at = report.field(list);
        at.at_most(items(object, list).count(), limits::MOUNTS, list);
        for (index, mount) in items(object, list).enumerate() {
            let mut at = at.index(index);
            if let Some(path) = text(mount, field)
                && !paths.insert(path)
            {
                at.field(field).add(format!("{path:?} is mounted twice"));
            }
        }
    }
    for (index, port) in items(object, "ports").enumerate() {
        let mut list = report.field("ports");
        let mut at = list.index(index);
        if let Some(name) = text(port, "name") {
            at.field("name").check(names::port_name(name));
        }
    }
    for list in ["limits", "requests"] {
        let amounts = inner(object, "resources").and_then(|resources| inner(resources, list));
        for (resource, amount) in amounts.into_iter().flatten() {
            if Quantity::of(amount).is_none() {
                let mut resources = report.field("resources");
                let mut at = resources.field(list);
                at.key(resource)
                    .add(format!("{amount} is not a quantity such as 500m or 1.5Gi"));
            }
        }
    }
}

fn read_position(object: &JsonObject, report: &mut FieldErrors<'_>) -> Position {
    match text(object, "podInjectPolicy") {
        Some("BeforeAppContainer") => Position::Before,
        Some("AfterAppContainer") => Position::After,
        other => {
            let other = other.unwrap_or_default();
            report.field("podInjectPolicy").add(format!(
                "{other:?} is not one of BeforeAppContainer, AfterAppContainer"
            ));
            Position::Before
        }
    }
}

fn read_sharing(object: &JsonObject, field: &str, report: &mut FieldErrors<'_>) -> bool {
    let kind = inner(object, field).and_then(|policy| text(policy, "type"));
    match kind {
        Some("enabled") => true,
        None | Some("disabled") => false,
        Some(other) => {
            let message = format!("{other:?} is not one of enabled, disabled");
            report.field(field).field("type").add(message);
            false
        }
    }
}

fn read_resources(
    wire: &JsonObject,
    kind: ContainerKind,
    report: &mut FieldErrors<'_>,
) -> Option<ResourcesFormula> {
    let policy = ResourcesFormula::from_wire(wire, report);
    if kind == ContainerKind::Init && inner(wire, "resourcesPolicy").is_some() {
        report.field("resourcesPolicy").add(
            "is for sidecars alone, not for an init container that ends before the pod's containers start: set \
             restartPolicy: Always, or resources",
        );
    }
    policy
}

fn read_upgrade(
    object: &JsonObject,
    name: &str,
    list: ContainerList,
    report: &mut FieldErrors<'_>,
) -> Upgrade {
    let mut at = report.field("upgradeStrategy");
    let strategy = inner(object, "upgradeStrategy");
    let empty_image = strategy.and_then(|strategy| text(strategy, "hotUpgradeEmptyImage"));
    match strategy.and_then(|strategy| text(strategy, "upgradeType")) {
        None | Some("ColdUpgrade") => Upgrade::Cold,
        Some("HotUpgrade") => {
            if list == ContainerList::InitContainers {
                at.field("upgradeType")
                    .add("init containers have only ColdUpgrade");
            }
            // Each pod that the set is injected into would be invalid without it, and be refused.
            if empty_image.is_none() {
                let message =
                    "must not be empty: HotUpgrade needs an image for the container that waits";
                at.field("hotUpgradeEmptyImage").add(message);
            }
            if let Some(port) = host_ports(object, false).next() {
                let message = format!(
                    "host port {port} cannot be taken by both containers of HotUpgrade: remove hostPort"
                );
                report.field("ports").add(message);
            }
            if name.len() > HOT_NAME {
                let message = format!(
                    "HotUpgrade appends \"-1\" and \"-2\" to {name:?}, which has more than {HOT_NAME} characters"
                );
                report.field("name").add(message);
            }
            Upgrade::Hot {
                empty_image: empty_image.unwrap_or_default().into(),
            }
        }
        Some(other) => {
            let message = format!("{other:?} is not one of ColdUpgrade, HotUpgrade");
            at.field("upgradeType").add(message);
            Upgrade::Cold
        }
    }
}

fn read_transfers(object: &JsonObject, report: &mut FieldErrors<'_>) -> Vec<TransferEnv> {
    let mut transfers = Vec::new();
    let count = items(object, "transferEnv").count();
    report.at_most(count, limits::TRANSFERS, "entries");
    for (index, transfer) in items(object, "transferEnv").enumerate() {
        let listed = transfer
            .get("envNames")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        // The older field counts beside the list.
        let names = listed.chain(text(transfer, "envName"));
        let source = read_transfer_source(transfer, &mut report.index(index));
        transfers.extend(source.map(|source| TransferEnv {
            source,
            names: names.map(str::to_owned).collect(),
        }));
    }
    transfers
}

fn read_transfer_source(
    transfer: &JsonObject,
    report: &mut FieldErrors<'_>,
) -> Option<TransferSource> {
    let from = inner(transfer, "sourceContainerNameFrom");
    let Some(field) = from.and_then(|from| inner(from, "fieldRef")) else {
        let name = text(transfer, "sourceContainerName").unwrap_or_default();
        return Some(TransferSource::Named(name.to_owned()));
    };
    let mut outer = report.field("sourceContainerNameFrom");
    let mut at = outer.field("fieldRef");
    if text(field, "apiVersion") != Some("v1") {
        at.field("apiVersion").add("must be v1");
    }
    let path = text(field, "fieldPath").unwrap_or_default();
    at.field("fieldPath")
        .at_most_chars(path, limits::FIELD_PATH);
    let key = |prefix: &str| {
        let key = path.strip_prefix(prefix)?.strip_prefix("['")?;
        key.strip_suffix("']").filter(|key| !key.is_empty())
    };
    let source = match (key("metadata.labels"), key("metadata.annotations")) {
        (Some(key), _) => Some(TransferSource::Label(key.to_owned())),
        (_, Some(key)) => Some(TransferSource::Annotation(key.to_owned())),
        (None, None) => None,
    };
    if source.is_none() {
        at.field("fieldPath").add(format!(
            "{path:?} is not a label or an annotation: metadata.labels['KEY'] or metadata.annotations['KEY']"
        ));
    }
    source
}
