//! The four watched kinds: what they are called, and the event that a sight of each one is.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, NodePodProbeSpec, PodProbeMarker};
use leadsman_core::cluster::{ObjectName, Source};
use leadsman_core::podprobe::event::{Event, Kind};
use serde::de::DeserializeOwned;

/// A kind that the index follows.
pub(crate) trait Watched:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
    /// The kind, as the index calls it.
    const KIND: Kind;

    /// How many come with one page of a list. A page is in memory about four times over, as it was received, in one
    /// piece, as text and decoded: so the size of a page is what a start takes beyond what is kept.
    const PAGE: u32;

    /// The event that a sight of this object is.
    fn seen(self: Box<Self>, source: Source) -> Event;

    /// What an object that does not decode is taken for, if there is anything.
    fn stand_in(_metadata: ObjectMeta) -> Option<Box<Self>> {
        None
    }
}

macro_rules! watched {
    ($type:ty, $kind:ident, $page:literal $(, $stand_in:item)?) => {
        impl Watched for $type {
            const KIND: Kind = Kind::$kind;
            const PAGE: u32 = $page;

            fn seen(self: Box<Self>, source: Source) -> Event {
                Event::$kind(self, source)
            }

            $($stand_in)?
        }
    };
}
// Pages of about a megabyte of text each, as large as the objects commonly are.
watched!(PodProbeMarker, Marker, 250);
watched!(Pod, Pod, 150);
watched!(Node, Node, 100);
watched!(
    NodePodProbe,
    NodePodProbe,
    25,
    /// Its spec is ours: what we cannot read of it is written anew, under the version that it has now.
    fn stand_in(metadata: ObjectMeta) -> Option<Box<Self>> {
        Some(Box::new(Self {
            metadata,
            spec: NodePodProbeSpec::default(),
            status: None,
        }))
    }
);

/// All of them.
pub(crate) const KINDS: [Kind; 4] = [Kind::Marker, Kind::Pod, Kind::Node, Kind::NodePodProbe];

/// The resource as `kubectl` and RBAC name it.
pub(crate) const fn resource(kind: Kind) -> &'static str {
    match kind {
        Kind::Marker => "podprobemarkers.apps.kruise.io",
        Kind::Pod => "pods",
        Kind::Node => "nodes",
        Kind::NodePodProbe => "nodepodprobes.apps.kruise.io",
    }
}

/// The name of an object.
pub(crate) fn name_of(object: &impl Resource) -> ObjectName {
    ObjectName {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}
