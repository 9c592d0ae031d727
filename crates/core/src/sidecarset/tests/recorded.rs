//! The objects that were recorded from `OpenKruise`, and pods from a kubelet, for tests.

use serde::Deserialize;
use serde_json::Value;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$((
            $name,
            include_str!(concat!("../../../tests/fixtures/sidecarset/", $name, ".yaml")),
        )),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "01-sidecarset-stored",
    "02-controllerrevision-first",
    "03-pod-injected",
    "04-pod-upgraded-in-place",
    "05-revisions-after-rollback",
    "06-pinned-injection",
    "07-hot-upgrade",
    "08-pod-not-upgradable",
    "09-patch-pod-metadata",
    "10-native-sidecar",
    "11-old-annotation-form",
    "12-conversion",
    "13-pod-of-several-sets",
    "14-kubelet",
];

/// The documents of a file.
pub(in crate::sidecarset) fn documents(name: &str) -> Vec<Value> {
    let file = FILES.iter().find(|(own, _)| *own == name);
    let (_, text) = file.unwrap_or_else(|| panic!("no file {name}"));
    let documents = serde_norway::Deserializer::from_str(text);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// All documents.
pub(in crate::sidecarset) fn all() -> impl Iterator<Item = Value> {
    FILES.iter().flat_map(|(name, _)| documents(name))
}
