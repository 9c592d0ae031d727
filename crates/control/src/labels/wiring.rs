//! The tiny feature as the control loop runs it: its kinds and its one request. What a manager would hold.

use http::Request as HttpRequest;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request as Builder;
use leadsman_api::slim::Pod;
use leadsman_core::cluster::{Now, ObjectName, ResourceVersion, Source};
use serde_json::json;

use super::rules::{self, COLOUR, COLOUR_FROM, LabelsEvent, LabelsIndex};
use crate::{Class, Effects, Kind, Observation, Observe, Request, RequestKind, RightScope, Rules};

/// The feature.
#[derive(Default)]
pub struct CopyLabels(LabelsIndex);

const POD_LABEL: RequestKind = RequestKind {
    label: "pod_label",
    group: "",
    resource: "pods",
    verb: "patch",
    scope: RightScope::Cluster,
};

impl Rules for CopyLabels {
    const NAME: &'static str = "copylabels";
    const KINDS: &'static [Kind<Self>] = &[
        Kind::new::<ConfigMap>(500).relisted_on_takeover(),
        Kind::new::<Pod>(500),
    ];
    const REQUESTS: &'static [RequestKind] = &[POD_LABEL];
    const CLASSES: &'static [Class] = &[Class::new("labels")];

    type Event = LabelsEvent;
    type Target = ObjectName;

    fn observe_event(&mut self, event: LabelsEvent, _now: Now) -> Effects<ObjectName> {
        to_effects(self.0.apply_event(event))
    }

    fn synced(&mut self, _now: Now) -> Effects<ObjectName> {
        to_effects(self.0.all_pods())
    }

    fn deadline_passed(&mut self, _now: Now) -> Effects<ObjectName> {
        Effects::default()
    }

    fn due_request(&mut self, pod: &ObjectName, _now: Now) -> Option<Request<LabelsEvent>> {
        let colour = self.0.due_colour(pod)?;
        let patch = Patch::Merge(json!({"metadata": {"labels": {COLOUR: colour}}}));
        let pods = Builder::new(Pod::url_path(&(), Some(&pod.namespace)));
        let patch = pods.patch(&pod.name, &PatchParams::default(), &patch);
        let pod = pod.clone();
        Some(Request {
            kind: POD_LABEL,
            steps: patch.map(|patch: HttpRequest<_>| vec![patch]),
            reply: Some(|body| Ok(pod_event(&serde_json::from_slice(body)?, Source::Reply))),
            read_back: None,
            measured: None,
            written: LabelsEvent::Other,
            refused: Box::new(|_| LabelsEvent::Refused(pod, colour)),
        })
    }

    fn class_index(_: &ObjectName) -> usize {
        0
    }

    fn namespace(pod: &ObjectName) -> Option<&str> {
        Some(&pod.namespace)
    }
}

fn to_effects(dirty: Vec<ObjectName>) -> Effects<ObjectName> {
    Effects {
        dirty,
        deadline: None,
    }
}

impl Observe<ConfigMap> for CopyLabels {
    fn event_from_observation(observation: Observation<ConfigMap>) -> LabelsEvent {
        map_observation(
            observation,
            rules::LabelsKind::ConfigMap,
            |object, source| {
                let mut labels = object.metadata.labels.iter().flatten();
                LabelsEvent::ConfigMap {
                    name: ObjectName::of(&object.metadata),
                    version: ResourceVersion::parse(object.metadata.resource_version.as_deref()),
                    source,
                    colour: labels
                        .find(|(key, _)| *key == COLOUR)
                        .map(|(_, colour)| colour.clone()),
                }
            },
        )
    }
}

impl Observe<Pod> for CopyLabels {
    fn event_from_observation(observation: Observation<Pod>) -> LabelsEvent {
        map_observation(observation, rules::LabelsKind::Pod, pod_event)
    }
}

fn pod_event(pod: &Pod, source: Source) -> LabelsEvent {
    let value = |pairs: &[(String, String)], wanted: &str| {
        let mut pairs = pairs.iter();
        let found = pairs.find(|(key, _)| key == wanted);
        found.map(|(_, value)| value.clone())
    };
    LabelsEvent::Pod {
        name: ObjectName::of(&pod.identity),
        version: ResourceVersion::parse(pod.identity.resource_version.as_deref()),
        source,
        colour: value(&pod.labels, COLOUR),
        from: value(&pod.annotations, COLOUR_FROM),
    }
}

fn map_observation<K>(
    observation: Observation<K>,
    kind: rules::LabelsKind,
    object: impl Fn(&K, Source) -> LabelsEvent,
) -> LabelsEvent {
    match observation {
        Observation::Object(seen, source) => object(&seen, source),
        Observation::Deleted(name, _) => LabelsEvent::Deleted(kind, name),
        Observation::Listed(names, version) | Observation::Relisted(names, version) => {
            LabelsEvent::Listed(kind, names.iter().cloned().collect(), version)
        }
        Observation::Undecodable(..) | Observation::FieldsKept(_) => LabelsEvent::Other,
    }
}
