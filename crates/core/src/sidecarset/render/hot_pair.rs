//! The two containers of a sidecar that take turns: one works, the other waits with an image that does nothing.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::sidecarset::annotations::{other_version_key, version_key};
use crate::sidecarset::container::hot_names;
use crate::workload::JsonObject;
use crate::workload::object::list_mut;

/// Two containers, the first of which works.
pub(super) struct HotPair {
    pub(super) containers: [JsonObject; 2],
    pub(super) working: Arc<str>,
    pub(super) annotations: [(String, String); 4],
}

/// Makes two containers of one.
pub(super) fn render(name: &str, container: &JsonObject, empty_image: &str) -> HotPair {
    let [first, second] = hot_names(name);
    let one = |name: &str| {
        let mut one = container.clone();
        one.insert("name".to_owned(), name.into());
        let environment = list_mut(&mut one, "env");
        let versions = ["SIDECARSET_VERSION", "SIDECARSET_VERSION_ALT"];
        environment.retain(|variable| !versions.iter().any(|own| variable["name"] == *own));
        environment.push(from_annotation(versions[0], &version_key(name)));
        environment.push(from_annotation(versions[1], &other_version_key(name)));
        one
    };
    let mut waiting = one(&second);
    waiting.insert("image".to_owned(), empty_image.into());
    HotPair {
        containers: [one(&first), waiting],
        annotations: [
            (version_key(&first), "1".to_owned()),
            (version_key(&second), "0".to_owned()),
            (other_version_key(&first), "0".to_owned()),
            (other_version_key(&second), "1".to_owned()),
        ],
        working: first,
    }
}

/// A variable with the value of an annotation, which the kubelet reads as it starts the container.
fn from_annotation(name: &str, key: &str) -> Value {
    let path = format!("metadata.annotations['{key}']");
    json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
}
