//! The rules of a second, tiny feature: a pod that names a `ConfigMap` of its namespace by the annotation
//! `example.com/colour-from` gets that `ConfigMap`'s label `example.com/colour`. What a crate of rules would hold: pure, and
//! without a client.

use std::collections::{BTreeMap, BTreeSet};

use leadsman_core::cluster::{ObjectName, ResourceVersion, Source};

/// The label that is copied.
pub const COLOUR: &str = "example.com/colour";
/// The annotation of a pod that names the `ConfigMap`.
pub const COLOUR_FROM: &str = "example.com/colour-from";

/// What happened.
#[derive(Debug)]
pub enum LabelsEvent {
    ConfigMap {
        name: ObjectName,
        version: ResourceVersion,
        source: Source,
        colour: Option<String>,
    },
    Pod {
        name: ObjectName,
        version: ResourceVersion,
        source: Source,
        colour: Option<String>,
        from: Option<String>,
    },
    Deleted(LabelsKind, ObjectName),
    /// A list is complete: what is not named here did not exist at its version.
    Listed(LabelsKind, BTreeSet<ObjectName>, ResourceVersion),
    /// It is not tried again until another colour is due.
    Refused(ObjectName, Option<String>),
    /// Nothing that these rules need.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelsKind {
    ConfigMap,
    Pod,
}

/// A colour, or that there is no such label.
pub type Colour = Option<String>;

/// What is observed.
#[derive(Default)]
pub struct LabelsIndex {
    colours: BTreeMap<ObjectName, (ResourceVersion, Option<String>)>,
    pods: BTreeMap<ObjectName, LabelledPod>,
    refused: BTreeMap<ObjectName, Option<String>>,
}

struct LabelledPod {
    version: ResourceVersion,
    colour: Option<String>,
    from: Option<String>,
}

impl LabelsIndex {
    /// Takes in an event. Returns the pods whose label may have to be written.
    pub fn apply_event(&mut self, event: LabelsEvent) -> Vec<ObjectName> {
        match event {
            LabelsEvent::ConfigMap {
                name,
                version,
                source,
                colour,
            } => {
                let known = self.colours.get(&name).map(|(version, _)| *version);
                if is_news(source, version, known) {
                    self.colours.insert(name.clone(), (version, colour));
                }
                self.pods_coloured_from(&name)
            }
            LabelsEvent::Pod {
                name,
                version,
                source,
                colour,
                from,
            } => {
                let known = self.pods.get(&name).map(|pod| pod.version);
                if is_news(source, version, known) {
                    let pod = LabelledPod {
                        version,
                        colour,
                        from,
                    };
                    self.pods.insert(name.clone(), pod);
                }
                vec![name]
            }
            LabelsEvent::Deleted(LabelsKind::ConfigMap, name) => {
                self.colours.remove(&name);
                self.pods_coloured_from(&name)
            }
            LabelsEvent::Deleted(LabelsKind::Pod, name) => {
                self.pods.remove(&name);
                self.refused.remove(&name);
                Vec::new()
            }
            LabelsEvent::Listed(LabelsKind::ConfigMap, names, listed) => {
                let is_newer = |known: ResourceVersion| known.is_later_than(listed);
                self.colours
                    .retain(|name, (known, _)| names.contains(name) || is_newer(*known));
                self.all_pods()
            }
            LabelsEvent::Listed(LabelsKind::Pod, names, listed) => {
                let is_newer = |known: ResourceVersion| known.is_later_than(listed);
                self.pods
                    .retain(|name, pod| names.contains(name) || is_newer(pod.version));
                self.refused.retain(|name, _| self.pods.contains_key(name));
                Vec::new()
            }
            LabelsEvent::Refused(name, colour) => {
                self.refused.insert(name, colour);
                Vec::new()
            }
            LabelsEvent::Other => Vec::new(),
        }
    }

    /// All pods.
    pub fn all_pods(&self) -> Vec<ObjectName> {
        self.pods.keys().cloned().collect()
    }

    /// The colour that a pod is due, if it is due another one than it has.
    pub fn due_colour(&self, name: &ObjectName) -> Option<Colour> {
        let pod = self.pods.get(name)?;
        let config_map = ObjectName {
            namespace: name.namespace.clone(),
            name: pod.from.clone()?,
        };
        let colour = self.colours.get(&config_map);
        let wanted = colour.and_then(|(_, colour)| colour.clone());
        let is_refused = self.refused.get(name) == Some(&wanted);
        (pod.colour != wanted && !is_refused).then_some(wanted)
    }

    fn pods_coloured_from(&self, config_map: &ObjectName) -> Vec<ObjectName> {
        let pods = self.pods.iter().filter(|(name, pod)| {
            name.namespace == config_map.namespace
                && pod.from.as_deref() == Some(config_map.name.as_str())
        });
        pods.map(|(name, _)| name.clone()).collect()
    }
}

fn is_news(source: Source, version: ResourceVersion, known: Option<ResourceVersion>) -> bool {
    matches!(source, Source::List(_)) || known.is_none_or(|known| version.is_newer_than(known))
}
