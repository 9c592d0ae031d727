//! The writes of a node's object.

use std::sync::Arc;

use leadsman_api::node_pod_probe::{NodePodProbe, NodePodProbeSpec};
use leadsman_reconcile::{Fate, ObjectName, Plan, Purpose, Refusal, Rest};

use super::{NodeState, Nodes};
use crate::podprobe::index::PodProbes;
use crate::podprobe::index::context::{IndexContext, NodeName, is_contested};
use crate::podprobe::writes::{
    CREATE_NODE_POD_PROBE, DELETE_NODE_POD_PROBE, REPLACE_NODE_POD_PROBE,
};

impl Nodes {
    /// The purpose of a write of a node's object.
    fn purpose(&self, node: &NodeState) -> Purpose {
        Purpose::of((node.wanted_revision, node.is_served(), self.keeps_fields))
    }

    /// Wants a node's object written if it differs from what is wanted. Marks its pods for planning where that is refused or
    /// undone, or ceases to be.
    pub(in crate::podprobe::index) fn plan_object(
        &mut self,
        name: &NodeName,
        plan: &mut Plan<'_, PodProbes>,
        cx: &mut IndexContext,
    ) {
        self.end_waits(name, cx);
        // Room before comparison: a pod that gets none has no entries in the object.
        self.allocate_room(name, cx);
        let id = ObjectName {
            namespace: String::new(),
            name: name.to_string(),
        };
        let Some(node) = self.by_name.get(name) else {
            return;
        };
        let mut fate = ObjectFate::new(self.purpose(node), &id, plan);
        if let Some(purpose) = fate.too_large.filter(|_| node.must_be_written())
            && node.too_large != Some(purpose)
        {
            self.shrink_room(name, purpose, cx);
            self.allocate_room(name, cx);
        }
        let Some(node) = self.by_name.get(name) else {
            return;
        };
        let purpose = self.purpose(node);
        if purpose != fate.purpose {
            fate = ObjectFate::new(purpose, &id, plan);
        }
        if node.must_be_written() {
            self.want_object(node, id, purpose, plan);
        } else {
            (fate.refusal, fate.is_contested) = (None, false);
        }
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        if (&node.refusal, node.is_contested) != (&fate.refusal, fate.is_contested) {
            (node.refusal, node.is_contested) = (fate.refusal, fate.is_contested);
            cx.affected.pods.extend(node.wanting_pods().cloned());
        }
        let until = node.shrunk_room.map(|(_, until)| until);
        for time in until.into_iter().chain(node.agent_changes_at) {
            plan.wake_at(time);
        }
    }

    fn want_object(
        &self,
        node: &NodeState,
        id: ObjectName,
        purpose: Purpose,
        plan: &mut Plan<'_, PodProbes>,
    ) {
        let object = node.object.as_ref();
        if !node.is_served() {
            let uid = object
                .and_then(|object| object.meta.uid.as_deref())
                .unwrap_or_default();
            plan.delete::<NodePodProbe>(&DELETE_NODE_POD_PROBE, id, uid)
                .waiting_for(&REPLACE_NODE_POD_PROBE);
            return;
        }
        let pods = node.pods.keys().filter_map(|key| {
            let entries = node.desired_entries(key)?;
            Some((key.clone(), entries.clone()))
        });
        let (pods, keeps_fields): (Vec<_>, _) = (pods.collect(), self.keeps_fields);
        // The observed resourceVersion is sent: a PUT onto a newer object is answered with 409, and planned again.
        let meta = object.map(|object| object.meta.clone());
        let (kind, own) = match object {
            None => (&CREATE_NODE_POD_PROBE, id.name.clone()),
            Some(_) => (&REPLACE_NODE_POD_PROBE, id.name.clone()),
        };
        let build = move || {
            let pods = pods
                .iter()
                .map(|(key, entries)| entries.to_wire(&key.0, &key.1, keeps_fields));
            let spec = NodePodProbeSpec {
                pod_probes: pods.collect(),
            };
            let mut object = NodePodProbe::new(&own, spec);
            if let Some(meta) = &meta {
                object.metadata = meta.clone();
            }
            object
        };
        if object.is_some() {
            plan.replace(kind, id, purpose, build)
                .waiting_for(&DELETE_NODE_POD_PROBE);
        } else {
            plan.create(kind, id, purpose, build);
        }
    }
}

/// The fate of the writes of a node's object that have this purpose.
struct ObjectFate {
    purpose: Purpose,
    refusal: Option<Arc<str>>,
    is_contested: bool,
    /// The purpose, if the API server refuses it for its size.
    too_large: Option<Purpose>,
}

impl ObjectFate {
    fn new(purpose: Purpose, id: &ObjectName, plan: &Plan<'_, PodProbes>) -> Self {
        let kinds = [&CREATE_NODE_POD_PROBE, &REPLACE_NODE_POD_PROBE];
        let rests = kinds
            .into_iter()
            .filter_map(|kind| plan.fate_of(kind, id, purpose));
        let mut fate = Self {
            purpose,
            refusal: None,
            is_contested: false,
            too_large: None,
        };
        for Rest { fate: one, .. } in rests {
            match one {
                Fate::Refused(refusal) => {
                    if let Refusal::TooLarge(_) = refusal {
                        fate.too_large = Some(purpose);
                    }
                    fate.refusal = Some(refusal.clone().into_reason().into());
                }
                Fate::Undone(times) => {
                    fate.is_contested |= is_contested(times);
                }
                Fate::Gone(_) => {}
            }
        }
        fate
    }
}
