//! The kinds that `PodProbeMarker` observes.

use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_control::{Kind, OptionalFields, Reconciled, WatchedKinds};
use leadsman_core::podprobe::PodProbes;

/// The kinds that it watches.
pub(crate) struct ProbeKinds;

impl WatchedKinds for ProbeKinds {
    type Feature = PodProbes;

    const KINDS: &'static [Kind<Reconciled<Self>>] = KINDS;
}

/// Fields of a marker's status that `OpenKruise`'s CRD lacks.
const MARKER_FIELDS: OptionalFields = OptionalFields {
    paths: &["status.probes[].name", "status.conditions[].type"],
    content: "a marker's state (status.conditions, status.probes)",
    later: &[
        ("spec.probes[].output.matches", "no output is judged"),
        (
            "spec.probes[].file.path",
            "markers with file probes have no handler and are invalid",
        ),
        (
            "spec.probes[].markerPolicy[].holdSeconds",
            "verdicts count at once",
        ),
        (
            "spec.probes[].markerPolicy[].exclusive.label",
            "no value is exclusive: any number of pods may have it",
        ),
    ],
};

/// Fields of an entry in a node's object, and of a verdict about it, that `OpenKruise`'s CRD lacks.
const NODE_POD_PROBE_FIELDS: OptionalFields = OptionalFields {
    paths: &[
        "spec.podProbes[].probes[].revision",
        "spec.podProbes[].probes[].startedContainerID",
        "status.podProbeStatuses[].probeStates[].revision",
        "status.podProbeStatuses[].probeStates[].containerID",
    ],
    content: "what a verdict is about (revision, containerID, startedContainerID)",
    later: &[
        (
            "spec.podProbes[].probes[].output.matches",
            "outputs are judged by messages, late and without thresholds",
        ),
        (
            "status.podProbeStatuses[].probeStates[].values",
            "outputs are judged by messages, late and without thresholds",
        ),
        (
            "spec.podProbes[].probes[].file.path",
            "agents cannot run file probes",
        ),
    ],
};

/// The kinds, in pages of about a megabyte of text each, as large as the objects commonly are.
///
/// Markers and `NodePodProbe`s are re-listed by a new leader: with a verdict from before the last
/// leader's mark it would put the old mark back. A pod that is seen late costs a write that changes
/// nothing, or is refused where the pod has to do with an exclusive value.
const KINDS: &[Kind<Reconciled<ProbeKinds>>] = &[
    Kind::new::<PodProbeMarker>(250)
        .relisted_on_takeover()
        .with_optional_fields(MARKER_FIELDS)
        .if_undecodable(
            "the last marker that could be decoded stays in force; without one its entries, and marks in its namespace \
             that no other marker names, stay as they are. Correct the marker or delete it",
        ),
    Kind::new::<Pod>(150).if_undecodable(
        "the last pod that could be decoded counts; without one its entries and marks stay as they are. Correct the pod or delete it",
    ),
    Kind::new::<Node>(100),
    Kind::new::<NodePodProbe>(25)
        .relisted_on_takeover()
        .with_optional_fields(NODE_POD_PROBE_FIELDS)
        .if_undecodable("its spec is replaced, nothing has to be done"),
];

#[cfg(test)]
mod tests {
    use leadsman_api::slim::crd::CustomResourceDefinition;
    use leadsman_api::{VERSION, crd::podprobe_crds};
    use serde_json::Value;

    use super::*;

    /// Our CRD, and without the part of its schema at a path.
    fn ours(plural: &str, without: Option<&str>) -> CustomResourceDefinition {
        let crd = podprobe_crds()
            .into_iter()
            .find(|crd| crd.spec.names.plural == plural);
        let mut crd = serde_json::to_value(crd.unwrap()).unwrap();
        if let Some((parent, last)) = without.and_then(|path| path.rsplit_once('/')) {
            let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
            let parent = crd.pointer_mut(&format!("{schema}{parent}"));
            let parent = parent.and_then(Value::as_object_mut);
            parent.unwrap().remove(last).unwrap();
        }
        serde_json::from_value(crd).unwrap()
    }

    #[test]
    fn our_own_crds_keep_the_optional_fields_and_those_without_one_do_not() {
        const ENTRY: &str = "/spec/properties/podProbes/items/properties/probes/items/properties";
        let (markers, nodes) = ("podprobemarkers", "nodepodprobes");
        for (plural, fields, without, kept) in [
            (markers, MARKER_FIELDS, None, true),
            (nodes, NODE_POD_PROBE_FIELDS, None, true),
            (
                markers,
                MARKER_FIELDS,
                Some("/status/properties/probes".to_owned()),
                false,
            ),
            (
                markers,
                MARKER_FIELDS,
                Some("/status/properties/conditions".to_owned()),
                false,
            ),
            (
                nodes,
                NODE_POD_PROBE_FIELDS,
                Some(format!("{ENTRY}/revision")),
                false,
            ),
            (
                nodes,
                NODE_POD_PROBE_FIELDS,
                Some(format!("{ENTRY}/startedContainerID")),
                false,
            ),
        ] {
            let crd = ours(plural, without.as_deref());
            assert_eq!(fields.are_kept(&crd, VERSION), kept, "{without:?}");
            assert_eq!(fields.lacks_later(&crd, VERSION), None);
        }
        let crd = ours(nodes, Some(&format!("{ENTRY}/output")));
        assert!(NODE_POD_PROBE_FIELDS.are_kept(&crd, VERSION));
        let lacks = NODE_POD_PROBE_FIELDS.lacks_later(&crd, VERSION);
        assert_eq!(lacks, Some(NODE_POD_PROBE_FIELDS.later[0]));
    }
}
