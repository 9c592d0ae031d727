//! The kinds of the feature's writes and their classes, and what a write is to achieve.

use std::time::Duration;

use leadsman_api::{GROUP, VERSION};
use leadsman_reconcile::{After, Class, Purpose, RightScope, WriteKind, WriteVerb};
use serde_json::Value;

use super::pod::FIELD_MANAGER;

// Indices into CLASSES.
const MARKS: usize = 0;
const SPECS: usize = 1;
const STATUSES: usize = 2;
const FINALIZERS: usize = 3;

/// The classes of its writes.
pub(super) const CLASSES: &[Class] = &[
    Class::new("pod_marks").paced_by_size(),
    Class::new("nodepodprobes"),
    // A marker's status changes with every pod. It says that specs are written: written before them, it would be
    // written twice. But specs may come without end.
    Class::new("marker_status")
        .paced_by_size()
        .spacing(Duration::from_secs(2))
        .after(After {
            class: SPECS,
            at_most: Duration::from_secs(10),
        }),
    Class::new("marker_finalizers").paced_by_size(),
];

/// All kinds of its writes.
pub(super) const WRITES: &[WriteKind] = &[
    CREATE_NODE_POD_PROBE,
    REPLACE_NODE_POD_PROBE,
    DELETE_NODE_POD_PROBE,
    REMOVE_MARKS,
    APPLY_MARKS,
    MARKER_STATUS,
    MARKER_FINALIZERS,
];

pub(super) const CREATE_NODE_POD_PROBE: WriteKind =
    of_node("create_nodepodprobe", WriteVerb::Create);
pub(super) const REPLACE_NODE_POD_PROBE: WriteKind =
    of_node("replace_nodepodprobe", WriteVerb::Replace);
pub(super) const DELETE_NODE_POD_PROBE: WriteKind =
    of_node("delete_nodepodprobe", WriteVerb::Delete);
pub(super) const REMOVE_MARKS: WriteKind = WriteKind {
    label: "pod_mark_removal",
    ..of_marks(WriteVerb::StrategicPatch)
};
pub(super) const APPLY_MARKS: WriteKind = of_marks(WriteVerb::Apply(FIELD_MANAGER));
pub(super) const MARKER_STATUS: WriteKind = WriteKind {
    label: "marker_status",
    resource: "podprobemarkers/status",
    class: STATUSES,
    ..of_node("", WriteVerb::MergePatch)
};
pub(super) const MARKER_FINALIZERS: WriteKind = WriteKind {
    label: "marker_finalizers",
    resource: "podprobemarkers",
    class: FINALIZERS,
    ..of_node("", WriteVerb::MergePatch)
};

const fn of_node(label: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        label,
        group: GROUP,
        version: VERSION,
        resource: "nodepodprobes",
        verb,
        scope: RightScope::Cluster,
        class: SPECS,
    }
}

const fn of_marks(verb: WriteVerb) -> WriteKind {
    WriteKind {
        label: "pod_marks",
        group: "",
        version: "v1",
        resource: "pods/status",
        verb,
        scope: RightScope::Cluster,
        class: MARKS,
    }
}

/// The purpose of a write of this body. Two writes that differ in times and versions alone are refused for the same reason.
pub(super) fn purpose_of(body: &Value) -> Purpose {
    let mut body = body.clone();
    forget_times_and_versions(&mut body);
    Purpose::of(body.to_string())
}

fn forget_times_and_versions(body: &mut Value) {
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        // The version of a fenced write moves with each change of its pod.
        metadata.remove("resourceVersion");
    }
    let conditions = body
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for condition in conditions.filter_map(Value::as_object_mut) {
        // No webhook and no schema refuses a condition for its time.
        condition.remove("lastTransitionTime");
        condition.remove("lastProbeTime");
    }
}
