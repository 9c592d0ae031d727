//! The pods of a `NodePodProbe`, as they are read: their entries from the spec, their verdicts from the status.

use std::collections::{BTreeMap, HashMap};

use leadsman_api::limits;
use leadsman_api::node_pod_probe::{NodePodProbe, NodePodProbeSpec, NodePodProbeStatus};

use super::Nodes;
use super::pod::{Obstacle, PodObservation, PodOnNode};
use crate::cluster::{Interners, ObjectName};
use crate::podprobe::index::context::{IndexContext, NodeName, PodKey};
use crate::podprobe::plan::PodEntries;
use crate::podprobe::verdict::Verdict;

impl Nodes {
    /// The pods of an object, and whether it names a pod twice. Most snapshots of an object differ in verdicts alone,
    /// so entries are read again only if the generation has changed, or in a list: an API server that was restored may
    /// show an old generation with another spec.
    pub(super) fn read_pods(
        &self,
        name: &NodeName,
        wire: &NodePodProbe,
        is_listed: bool,
        cx: &mut IndexContext,
    ) -> (BTreeMap<PodKey, PodObservation>, bool) {
        let known = self.by_name.get(name);
        let object = known.and_then(|node| node.object.as_ref());
        let same = object.filter(|object| {
            let (old, new) = (&object.meta, &wire.metadata);
            let moved = new.generation.is_none() || old.generation != new.generation;
            // The API server increments `generation` with every change of a spec, so the same one means the same
            // entries.
            !is_listed && old.uid == new.uid && !moved
        });
        let known = known.map(|node| &node.pods);
        let (mut pods, malformed) = match (same, known) {
            (Some(object), Some(known)) => (known_entries(known), object.malformed),
            _ => read_entries(&wire.spec, cx),
        };
        read_verdicts(wire.status.as_ref(), known, &mut pods, &mut cx.interners);
        (pods, malformed)
    }
}

/// The entries of an object by pod, and whether it names a pod twice.
fn read_entries(
    spec: &NodePodProbeSpec,
    cx: &mut IndexContext,
) -> (BTreeMap<PodKey, PodObservation>, bool) {
    let mut pods: BTreeMap<PodKey, PodObservation> = BTreeMap::new();
    let mut malformed = false;
    for pod in &spec.pod_probes {
        let key = intern_pod_key(&pod.namespace, &pod.name, &pod.uid, &mut cx.interners);
        let read = PodEntries::from_wire(pod, &mut cx.interners, &mut cx.entries);
        let entries = &mut pods.entry(key).or_default().entries;
        malformed |= entries.replace(read).is_some();
    }
    (pods, malformed)
}

/// The entries of an object as they were read before.
fn known_entries(pods: &BTreeMap<PodKey, PodOnNode>) -> BTreeMap<PodKey, PodObservation> {
    let known = pods.iter().filter_map(|(key, pod)| {
        let entries = Some(pod.observed.clone()?);
        let known = PodObservation {
            entries,
            ..PodObservation::default()
        };
        Some((key.clone(), known))
    });
    known.collect()
}

/// Adds the verdicts. Keys and strings that have not changed are taken from the `known` pods of the node: looking them
/// up among those of all nodes would miss the processor's caches.
fn read_verdicts(
    status: Option<&NodePodProbeStatus>,
    known: Option<&BTreeMap<PodKey, PodOnNode>>,
    pods: &mut BTreeMap<PodKey, PodObservation>,
    interners: &mut Interners,
) {
    // The keys are borrowed: owned ones would be allocated for each pod of each status.
    let known: HashMap<_, _> = known
        .into_iter()
        .flatten()
        .map(|(key, pod)| {
            let (name, uid) = key;
            ((&*name.namespace, &*name.name, &**uid), (key, pod))
        })
        .collect();
    for pod in status.iter().flat_map(|status| &status.pod_probe_statuses) {
        let known = known.get(&(&*pod.namespace, &*pod.name, &*pod.uid));
        let key = match known {
            Some((key, _)) => (*key).clone(),
            None => intern_pod_key(&pod.namespace, &pod.name, &pod.uid, interners),
        };
        let observed = pods.entry(key).or_default();
        let strings = &mut interners.strings;
        for (place, state) in pod.probe_states.iter().enumerate() {
            // The agent writes its verdicts in the same order each time, so the known one is mostly in the same place.
            let known = known.and_then(|(_, pod)| pod.verdicts.get(place));
            let verdict = Verdict::from_wire(state, known.map(|(_, verdict)| verdict), strings);
            let name = strings.share_like(known.map(|(name, _)| name), &state.name);
            let verdict = verdict.map(|verdict| (name, verdict));
            observed.verdicts.extend(verdict);
        }
        let obstacles = pod.cannot_probe.iter().map(|one| Obstacle {
            entry: strings.share(one.name.as_str()),
            message: strings.share(truncate_obstacle(&one.message)),
        });
        observed.obstacles.extend(obstacles);
    }
}

/// The schema bounds an obstacle's message, but the API server may have another schema.
fn truncate_obstacle(message: &str) -> &str {
    &message[..message.floor_char_boundary(limits::CANNOT_PROBE_MESSAGE)]
}

fn intern_pod_key(namespace: &str, name: &str, uid: &str, interners: &mut Interners) -> PodKey {
    let name = ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    (interners.objects.share(name), interners.strings.share(uid))
}
