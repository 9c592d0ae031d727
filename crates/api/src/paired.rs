//! One object read as two types, where two features read different fields of a kind that is watched once.

use std::borrow::Cow;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::Guarded;

/// An object as far as it could be decoded as either type. One that is undecodable as one of them can be decoded as the
/// other.
#[derive(Debug)]
pub struct Paired<A, B, R = OneAfterTheOther> {
    /// As the first type.
    pub first: Guarded<A>,
    /// As the second.
    pub second: Guarded<B>,
    reader: PhantomData<R>,
}

/// How an object is read as two types.
pub trait ReadPair<A, B> {
    /// Reads the text of an object; an error if it has not even a name that can be read. What either type is read as must
    /// be what it would be read as alone.
    fn read(text: &str) -> serde_json::Result<(Guarded<A>, Guarded<B>)>;
}

/// Reads an object once as each type. Any two types can be read so.
#[derive(Clone, Copy, Debug)]
pub struct OneAfterTheOther;

impl<A: DeserializeOwned, B: DeserializeOwned> ReadPair<A, B> for OneAfterTheOther {
    fn read(text: &str) -> serde_json::Result<(Guarded<A>, Guarded<B>)> {
        Ok((Guarded::parse(text)?, Guarded::parse(text)?))
    }
}

impl<'de, A, B, R: ReadPair<A, B>> Deserialize<'de> for Paired<A, B, R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?;
        let (first, second) = R::read(text.get()).map_err(D::Error::custom)?;
        Ok(Self {
            first,
            second,
            reader: PhantomData,
        })
    }
}

impl<A: Clone, B: Clone, R> Clone for Paired<A, B, R> {
    fn clone(&self) -> Self {
        Self {
            first: self.first.clone(),
            second: self.second.clone(),
            reader: PhantomData,
        }
    }
}

/// The resource of the first type, which is that of the second.
impl<A: Resource<DynamicType = ()>, B, R> Resource for Paired<A, B, R> {
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
