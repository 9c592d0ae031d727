//! The parts of a pod that an injection reads.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::sidecarset::container::ContainerKind;
use crate::workload::JsonObject;
use crate::workload::object::{inner, items, text};

/// The variable by which anyone recognises a container that was injected.
pub(super) const IS_INJECTED: &str = "IS_INJECTED";

/// A pod that is being created.
#[derive(Clone, Debug)]
pub struct PodView<'a> {
    pub(super) containers: Vec<&'a JsonObject>,
    pub(super) init_containers: Vec<&'a JsonObject>,
    pub(super) volumes: Vec<&'a JsonObject>,
    /// The pod's secrets for pulling images.
    pub(super) secrets: Vec<&'a JsonObject>,
    /// Whether it is on the host's network.
    pub(super) is_on_host_network: bool,
    pub(super) annotations: BTreeMap<String, String>,
    /// The pod's resources, for all its containers together.
    pub(super) resources: Option<&'a JsonObject>,
    labels: Option<&'a JsonObject>,
    pub(super) spec: Option<&'a JsonObject>,
}

/// Whether a container was injected.
pub fn is_injected(container: &JsonObject) -> bool {
    items(container, "env").any(|variable| {
        text(variable, "name") == Some(IS_INJECTED) && text(variable, "value") == Some("true")
    })
}

impl<'a> PodView<'a> {
    /// The parts of a pod.
    pub fn new(pod: &'a JsonObject) -> Self {
        let metadata = inner(pod, "metadata");
        let spec = inner(pod, "spec");
        let list = |field| {
            spec.into_iter()
                .flat_map(move |spec| items(spec, field))
                .collect()
        };
        let annotations = metadata
            .and_then(|metadata| inner(metadata, "annotations"))
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| {
                let value = value.as_str()?;
                Some((key.clone(), value.to_owned()))
            });
        Self {
            containers: list("containers"),
            init_containers: list("initContainers"),
            volumes: list("volumes"),
            secrets: list("imagePullSecrets"),
            is_on_host_network: spec.and_then(|spec| spec.get("hostNetwork")?.as_bool())
                == Some(true),
            annotations: annotations.collect(),
            resources: spec.and_then(|spec| inner(spec, "resources")),
            labels: metadata.and_then(|metadata| inner(metadata, "labels")),
            spec,
        }
    }

    /// Whether a container of this kind and name cannot be injected: the pod has one of the name that was not injected, or one
    /// in the other list, which would remain beside it.
    pub(super) fn is_in_the_way(&self, kind: ContainerKind, name: &str) -> bool {
        let (same, other) = if kind == ContainerKind::Container {
            (&self.containers, &self.init_containers)
        } else {
            (&self.init_containers, &self.containers)
        };
        let is_named = |one: &&&JsonObject| text(one, "name") == Some(name);
        let mut same = same.iter().filter(is_named);
        // The pod's own container wins. `OpenKruise` replaces it without a word
        // (`mergeSidecarContainers`, `pkg/webhook/pod/mutating/sidecarset.go`).
        same.any(|one| !is_injected(one)) || other.iter().any(|one| is_named(&one))
    }

    /// A field of its spec.
    pub(super) fn field(&self, name: &str) -> Option<&'a Value> {
        self.spec?.get(name)
    }

    /// A volume.
    pub(super) fn volume(&self, name: &str) -> Option<&'a JsonObject> {
        let mut volumes = self.volumes.iter().copied();
        volumes.find(|volume| text(volume, "name") == Some(name))
    }

    /// The containers that were not injected.
    pub(super) fn own_containers(&self) -> impl Iterator<Item = &'a JsonObject> {
        self.containers
            .iter()
            .copied()
            .filter(|one| !is_injected(one))
    }

    /// The pod's own containers that run as long as it does: these, and native sidecars among the init containers.
    pub(super) fn own_running_containers(&self) -> impl Iterator<Item = &'a JsonObject> {
        let init_containers = self.init_containers.iter().copied();
        let native = init_containers
            .filter(|one| text(one, "restartPolicy") == Some("Always") && !is_injected(one));
        native.chain(self.own_containers())
    }

    /// The value of a label.
    pub(super) fn label(&self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).and_then(Value::as_str)
    }
}
