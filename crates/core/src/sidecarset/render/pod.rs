//! The parts of a pod that an injection reads.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::workload::JsonObject;
use crate::workload::object::{inner, items, text};

/// The variable by which anyone recognises a container that was injected.
pub(super) const IS_INJECTED: &str = "IS_INJECTED";

/// A pod that is being created.
#[derive(Clone, Debug)]
pub struct PodView<'a> {
    /// Its containers.
    pub(super) containers: Vec<&'a JsonObject>,
    /// Its init containers.
    pub(super) init_containers: Vec<&'a JsonObject>,
    /// Its volumes.
    pub(super) volumes: Vec<&'a JsonObject>,
    /// Its secrets for pulling images.
    pub(super) secrets: Vec<&'a JsonObject>,
    /// Its annotations.
    pub(super) annotations: BTreeMap<String, String>,
    labels: Option<&'a JsonObject>,
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
        let list = |field| {
            let spec = inner(pod, "spec");
            spec.into_iter()
                .flat_map(move |spec| items(spec, field))
                .collect()
        };
        let annotations = metadata.and_then(|metadata| inner(metadata, "annotations"));
        let annotations = annotations.into_iter().flatten();
        let annotations = annotations.filter_map(|(key, value)| {
            let value = value.as_str()?;
            Some((key.clone(), value.to_owned()))
        });
        Self {
            containers: list("containers"),
            init_containers: list("initContainers"),
            volumes: list("volumes"),
            secrets: list("imagePullSecrets"),
            annotations: annotations.collect(),
            labels: metadata.and_then(|metadata| inner(metadata, "labels")),
        }
    }

    /// Whether a container or an init container of this name was not injected.
    pub(super) fn has_own(&self, name: &str) -> bool {
        let all = self.containers.iter().chain(&self.init_containers);
        all.into_iter()
            .any(|one| text(one, "name") == Some(name) && !is_injected(one))
    }

    /// The containers that were not injected.
    pub(super) fn own_containers(&self) -> impl Iterator<Item = &'a JsonObject> {
        self.containers
            .iter()
            .copied()
            .filter(|one| !is_injected(one))
    }

    /// These, and the native sidecars among the init containers: those that run as long as the pod does.
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
