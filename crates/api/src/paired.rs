//! One object read as two types, where two features read different fields of a kind that is watched once.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::Guarded;

/// An object as far as it could be decoded as either type. One that is undecodable as one of them can be decoded as the
/// other.
#[derive(Clone, Debug)]
pub struct Paired<A, B> {
    /// As the first type.
    pub first: Guarded<A>,
    /// As the second.
    pub second: Guarded<B>,
}

impl<'de, A: DeserializeOwned, B: DeserializeOwned> Deserialize<'de> for Paired<A, B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?;
        Ok(Self {
            first: Guarded::parse(text.get()).map_err(D::Error::custom)?,
            second: Guarded::parse(text.get()).map_err(D::Error::custom)?,
        })
    }
}

/// The resource of the first type, which is that of the second.
impl<A: Resource<DynamicType = ()>, B> Resource for Paired<A, B> {
    type DynamicType = ();
    type Scope = A::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        A::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        A::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        A::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        A::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        self.first.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.first.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use kube::core::WatchEvent;

    use super::*;
    use crate::slim::workload::WorkloadPod;
    use crate::slim::{Node, Pod};

    fn changed<A: DeserializeOwned, B: DeserializeOwned>(object: &str) -> Paired<A, B> {
        let line = format!(r#"{{"type": "MODIFIED", "object": {object}}}"#);
        let event: WatchEvent<Paired<A, B>> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Modified(pair) = event else {
            panic!("not a change");
        };
        pair
    }

    #[test]
    fn each_type_reads_its_own_fields() {
        let pair = changed::<Pod, WorkloadPod>(
            r#"{"metadata": {"name": "a", "resourceVersion": "7"},
                "spec": {"containers": [{"name": "main", "image": "app:1", "ports": [{"containerPort": 80}]}]}}"#,
        );
        assert_eq!(pair.meta().resource_version.as_deref(), Some("7"));
        let (Guarded::Decoded(pod), Guarded::Decoded(workload)) = (pair.first, pair.second) else {
            panic!("both decode");
        };
        assert_eq!(pod.spec.containers[0].ports[0].container_port, 80);
        assert_eq!(workload.spec.containers[0].image, "app:1");
    }

    #[test]
    fn what_one_type_cannot_read_the_other_can() {
        let pair = changed::<Pod, Node>(r#"{"metadata": {"name": "a"}, "spec": 7}"#);
        assert!(matches!(pair.first, Guarded::Undecodable { .. }));
        assert!(matches!(pair.second, Guarded::Decoded(_)));
        assert_eq!(pair.meta().name.as_deref(), Some("a"));
    }
}
