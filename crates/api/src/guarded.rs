//! An object of a list or a watch, decoded or not: an undecodable one must not stop the watch of the others.
//!
//! kube's `DeserializeGuard` does the same through a tree of values. This one borrows the text, so that an object is still
//! parsed directly into the fields that are read. It reads only JSON, which is what the API server is asked for.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object as far as it could be decoded.
#[derive(Clone, Debug)]
pub enum Guarded<K> {
    /// The object.
    Decoded(Box<K>),
    /// The metadata alone could be decoded.
    Undecodable {
        /// Metadata, name and namespace at least.
        metadata: Box<ObjectMeta>,
        /// The error of decoding the object.
        error: String,
    },
}

/// The longest metadata that is decoded of an object that is undecodable itself; of longer ones the names are. Whoever makes
/// an object may fill it with labels, which take many times their length.
const LONGEST_METADATA: usize = 64 * 1024;

#[derive(Deserialize)]
struct MetadataOnly<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Default, Deserialize)]
struct NameOnly {
    #[serde(default)]
    metadata: Names,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
}

impl<'de, K: DeserializeOwned + Resource> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?;
        Self::parse(text.get()).map_err(D::Error::custom)
    }
}

impl<K: DeserializeOwned + Resource> Guarded<K> {
    /// Parses the text of an object; an error if it has not even a name that can be read. It comes without its managedFields, which
    /// nobody reads and which take several times what the rest of a small object does.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let error = match serde_json::from_str::<K>(text) {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                return Ok(Self::Decoded(Box::new(object)));
            }
            Err(error) => error.to_string(),
        };
        let metadata = Box::new(read_metadata(text).map_or_else(|| names_only(text), Ok)?);
        Ok(Self::Undecodable { metadata, error })
    }
}

/// The metadata, unless it is undecodable or too long.
fn read_metadata(text: &str) -> Option<ObjectMeta> {
    let object: MetadataOnly<'_> = serde_json::from_str(text).ok()?;
    let raw = object.metadata.get();
    let metadata = Some(raw).filter(|raw| raw.len() <= LONGEST_METADATA)?;
    serde_json::from_str(metadata).ok()
}

/// The name and the resourceVersion, whatever the rest of the metadata looks like: the name says which object it is, and
/// the resourceVersion where the watch continues.
fn names_only(text: &str) -> serde_json::Result<ObjectMeta> {
    let NameOnly { metadata } = serde_json::from_str(text)?;
    Ok(ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    })
}

impl<K: Resource<DynamicType = ()>> Resource for Guarded<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Decoded(object) => object.meta(),
            Self::Undecodable { metadata, .. } => metadata,
        }
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Decoded(object) => object.meta_mut(),
            Self::Undecodable { metadata, .. } => metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slim::Pod;
    use kube::core::{ObjectList, WatchEvent};

    #[test]
    fn one_undecodable_object_leaves_the_others_of_its_list() {
        let list = r#"{"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [
            {"metadata": {"name": "a", "namespace": "shop"}},
            {"metadata": {"name": "b", "namespace": "shop"}, "spec": {"containers": "none"}},
            {"metadata": {"name": "c", "namespace": "shop", "labels": 7}},
            {"metadata": {"name": "d", "namespace": "shop", "managedFields": "none", "resourceVersion": "6"}},
            {"metadata": {"name": "e", "namespace": "shop", "managedFields": [{"fieldsV1": [7]}, {"fieldsV1": "f:"}]}}
        ]}"#;
        let list: ObjectList<Guarded<Pod>> = serde_json::from_str(list).unwrap();
        let decoded: Vec<_> = list
            .items
            .iter()
            .map(|pod| {
                let name = pod.meta().name.as_deref();
                (name.unwrap(), matches!(pod, Guarded::Decoded(_)))
            })
            .collect();
        let expected = [
            ("a", true),
            ("b", false),
            ("c", false),
            ("d", false),
            ("e", true),
        ];
        assert_eq!(decoded, expected);
        let version = list.items[3].meta().resource_version.as_deref();
        assert_eq!(version, Some("6"));
    }

    /// Labels that are kept take many times their text: of 60 pods with 100,000 each nothing may be kept but names.
    // PPM-11
    #[test]
    fn of_a_pod_with_too_many_labels_its_names_are_kept() {
        let labels = |count: usize| {
            let labels = (0..count).map(|at| format!("\"big-{at}\":\"\""));
            let labels: Vec<_> = labels.collect();
            format!(
                r#"{{"metadata":{{"name":"big","namespace":"shop","resourceVersion":"7","labels":{{{}}}}}}}"#,
                labels.join(",")
            )
        };
        let Guarded::Undecodable { metadata, error } =
            Guarded::<Pod>::parse(&labels(100_000)).unwrap()
        else {
            panic!("it is too large");
        };
        let names = ObjectMeta {
            name: Some("big".into()),
            namespace: Some("shop".into()),
            resource_version: Some("7".into()),
            ..ObjectMeta::default()
        };
        assert_eq!(*metadata, names);
        assert!(error.contains("take more than 65536 bytes"), "{error}");
        let usual = Guarded::<Pod>::parse(&labels(1_000)).unwrap();
        assert!(matches!(usual, Guarded::Decoded(pod) if pod.labels.len() == 1_000));
    }

    #[test]
    fn a_watch_event_carries_an_undecodable_object() {
        let line = r#"{"type": "MODIFIED", "object": {"metadata": {"name": "b"}, "spec": 7}}"#;
        let event: WatchEvent<Guarded<Pod>> = serde_json::from_str(line).unwrap();
        let WatchEvent::Modified(Guarded::Undecodable { metadata, error }) = event else {
            panic!("{event:?}");
        };
        assert_eq!(metadata.name.as_deref(), Some("b"));
        assert!(error.contains("invalid type: integer `7`"), "{error}");
    }
}
