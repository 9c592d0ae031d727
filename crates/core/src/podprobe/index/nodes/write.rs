//! What is written of a node: its `NodePodProbe`.

use std::time::Duration;

use leadsman_api::node_pod_probe::{NodePodProbe, NodePodProbeSpec};

use super::{NodeState, Nodes};
use crate::podprobe::contest::{SentValue, fingerprint};
use crate::podprobe::event::Write;
use crate::podprobe::index::context::{DueWrite, IndexContext, NodeName, Sent, Timer};

impl Nodes {
    /// Fingerprint of what is wanted of a node's object.
    fn wanted_fingerprint(&self, node: &NodeState) -> u64 {
        fingerprint((node.wanted_revision, node.is_served(), self.keeps_fields))
    }

    /// Compares a node's object with what is wanted. Marks its pods for planning when it becomes contested or ceases to
    /// be. Returns whether a write is due now.
    pub(in crate::podprobe::index) fn compare_object(
        &mut self,
        name: &NodeName,
        cx: &mut IndexContext,
    ) -> bool {
        let Some(node) = self.by_name.get(name) else {
            return false;
        };
        let (wanted, differs) = (self.wanted_fingerprint(node), node.must_be_written());
        let Some(node) = self.by_name.get_mut(name) else {
            return false;
        };
        let now = cx.now.monotonic;
        // Also where nothing differs, since that is what ends a contest.
        node.contest.observe_value(wanted, differs, now);
        let is_contested = node.contest.is_visible();
        if std::mem::replace(&mut node.is_contested, is_contested) != is_contested {
            cx.affected.pods.extend(node.wanting_pods().cloned());
        }
        let next = node.contest.next_comparison_at(now);
        cx.timers.reset(&mut node.contest_timer, next, || {
            Timer::SpecContest(name.clone())
        });
        differs && !node.contest.delays_writes(now)
    }

    /// The write of a node's object that is due.
    pub(in crate::podprobe::index) fn due_write(
        &self,
        name: &str,
        now: Duration,
    ) -> Option<DueWrite> {
        let node = self
            .by_name
            .get(name)
            .filter(|node| node.must_be_written())?;
        if node.contest.delays_writes(now) {
            return None;
        }
        let wanted = self.wanted_fingerprint(node);
        let object = node.object.as_ref();
        if !node.is_served() {
            return Some(DueWrite {
                write: Write::DeleteNodePodProbe {
                    name: name.to_owned(),
                    uid: object?.meta.uid.clone().unwrap_or_default(),
                },
                // The deletion is shown by the watch, not by the reply.
                sent: Sent::of_single_value(wanted, false),
            });
        }
        let pods = node.pods.keys().filter_map(|key| {
            let entries = node.desired_entries(key)?;
            Some(entries.to_wire(&key.0, &key.1, self.keeps_fields))
        });
        let spec = NodePodProbeSpec {
            pod_probes: pods.collect(),
        };
        let mut replacement = NodePodProbe::new(name, spec);
        let write = match object {
            None => Write::CreateNodePodProbe(Box::new(replacement)),
            Some(object) => {
                // With the resourceVersion that was observed: a PUT onto a newer object is answered with 409, and
                // planned again.
                replacement.metadata = object.meta.clone();
                Write::ReplaceNodePodProbe(Box::new(replacement))
            }
        };
        Some(DueWrite {
            write,
            sent: Sent::of_single_value(wanted, true),
        })
    }

    /// Records that a node's object is being written.
    pub(in crate::podprobe::index) fn note_sent(&mut self, name: &str, sent: SentValue) {
        if let Some(node) = self.by_name.get_mut(name) {
            node.contest.record_send(sent);
        }
    }

    /// Records that a write was carried out. Returns whether somebody has undone it.
    pub(in crate::podprobe::index) fn note_written(&mut self, name: &str, now: Duration) -> bool {
        let node = self.by_name.get_mut(name);
        node.is_some_and(|node| node.contest.record_written(now))
    }
}
