//! The annotations of a pod that is being created, from the markers in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use leadsman_api::slim;

use super::{MARKERS, PROBES, ProviderProbes};
use crate::cluster::{Interners, ObjectName};
use crate::podprobe::injected;
use crate::podprobe::marker::{MARKERS_PER_POD, Marker};
use crate::podprobe::pod::IndexedPod;

/// The annotations to change, each with its new value; None removes it.
pub type Changes = Vec<(&'static str, Option<Arc<str>>)>;

/// The active markers with a probe that a provider can report, by namespace, in order of precedence.
///
/// A clone is cheap: namespaces are shared until they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderMarkers {
    pub(super) namespaces: BTreeMap<Arc<str>, Arc<Vec<Arc<Marker>>>>,
}

impl ProviderMarkers {
    /// Adds or replaces a marker; None removes it. A marker without a probe that names a condition counts as None.
    pub fn set_marker(&mut self, name: &ObjectName, marker: Option<Arc<Marker>>) {
        let names_condition = |marker: &Arc<Marker>| {
            let mut probes = marker.probes.iter();
            probes.any(|probe| probe.condition_type.is_some())
        };
        let marker = marker.filter(names_condition);
        if marker.is_none() && !self.namespaces.contains_key(&*name.namespace) {
            return;
        }
        let namespace = self.namespaces.entry(name.namespace.as_str().into());
        let markers = Arc::make_mut(namespace.or_default());
        markers.retain(|known| known.name != *name);
        markers.extend(marker);
        // The order of `Markers::markers_matching`: webhook and index must plan the same
        // annotations.
        markers.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        if markers.is_empty() {
            self.namespaces.remove(&*name.namespace);
        }
    }

    /// Whether it has no marker.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// The changes to a pod that is being created in this namespace, which the pod's own metadata need not name.
    ///
    /// Annotations that are there already were copied from another pod or from a template, and are removed where no
    /// marker matches. But [`PROBES`] without [`MARKERS`] belongs to somebody else and stays.
    pub fn review_pod(&self, namespace: &str, pod: &slim::Pod) -> Changes {
        let seen = IndexedPod {
            // Nothing is a mark yet, whatever managedFields the request brings along, as those of a copy.
            injected_room: injected::annotation_room_in(
                &pod.annotations,
                injected::Moment::Creation,
                |_| false,
            ),
            ..IndexedPod::new(pod, None, &mut Interners::default())
        };
        let label = |key: &str| seen.labels.get(key).map(|value| &**value);
        let of_namespace = self.namespaces.get(namespace).into_iter();
        let markers = of_namespace.flat_map(|markers| markers.iter());
        let matching: Vec<_> = markers
            .filter(|marker| marker.selector.matches(label))
            .map(|marker| &**marker)
            .take(MARKERS_PER_POD)
            .collect();
        let wanted = ProviderProbes::plan_probes(&matching, &seen).annotations;
        let [probes, markers] = [PROBES, MARKERS].map(|key| annotation_value(pod, key));
        match wanted {
            Some(wanted) => [
                (PROBES, wanted.probes, probes),
                (MARKERS, wanted.markers, markers),
            ]
            .into_iter()
            .filter(|(_, wanted, seen)| *seen != Some(&**wanted))
            .map(|(key, wanted, _)| (key, Some(wanted)))
            .collect(),
            None if markers.is_some() => {
                let stale = [(PROBES, probes), (MARKERS, markers)]
                    .into_iter()
                    .filter(|(_, seen)| seen.is_some());
                stale.map(|(key, _)| (key, None)).collect()
            }
            None => Changes::new(),
        }
    }
}

fn annotation_value<'a>(pod: &'a slim::Pod, key: &str) -> Option<&'a str> {
    let mut annotations = pod.annotations.iter();
    let found = annotations.find(|(known, _)| known == key);
    found.map(|(_, value)| value.as_str())
}
