//! The objects of the nodes: which there should be, the entries in them, and who has no room in a full one.

use std::collections::BTreeSet;

use leadsman_api::node_pod_probe::PodProbe;

use super::Model;
use crate::cluster::ObjectName;
use crate::cluster::go_json::stored_bytes;

impl<'a> Model<'a> {
    /// The entries that the pods of a node want.
    fn wanted(&self, node: &str) -> Vec<(&'a ObjectName, PodProbe)> {
        let mut wanted = Vec::new();
        for (name, pod) in &self.cluster.pods {
            if pod.node.as_deref() != Some(node) {
                continue;
            }
            let rows = self.rows(name, pod).into_iter();
            let mut probes: Vec<_> = rows.filter_map(|row| row.entry.ok()).collect();
            probes.sort_by(|a, b| a.name.cmp(&b.name));
            let one = PodProbe {
                name: name.name.clone(),
                namespace: name.namespace.clone(),
                uid: pod.node_uid().to_owned(),
                ip: pod.ip.clone(),
                probes,
            };
            if !one.probes.is_empty() {
                wanted.push((name, one));
            }
        }
        wanted
    }

    /// The spec of a node that is served, and the pods it has no room for: who is in depends on who came first, so
    /// those are in whom the object names.
    pub(super) fn spec(&self, node: &str) -> (Vec<PodProbe>, BTreeSet<&'a ObjectName>) {
        let (mut pods, mut refused) = (Vec::new(), BTreeSet::new());
        for (name, one) in self.wanted(node) {
            let pod = &self.cluster.pods[name];
            if self.is_served(node) && self.observed(name, pod).is_none() {
                refused.insert(name);
            } else {
                pods.push(one);
            }
        }
        (pods, refused)
    }

    /// No object is too large, and nobody is refused who would fit: in all, and in the three quarters that its
    /// namespace may have of what the others leave.
    fn check_room(&self, node: &str, faults: &mut Vec<String>) {
        let size = |one: &PodProbe| stored_bytes(one);
        let (pods, refused) = self.spec(node);
        let total: usize = pods.iter().map(size).sum();
        let most = self.config.node_bytes;
        if total > most {
            faults.push(format!("{node}: {total} bytes"));
        }
        for (name, one) in self.wanted(node) {
            let own = pods.iter().filter(|pod| pod.namespace == name.namespace);
            let own: usize = own.map(size).sum();
            let share = (most + own).saturating_sub(total) / 4 * 3;
            if refused.contains(name) && own + size(&one) <= share {
                faults.push(format!("{node} has room for {name}"));
            }
        }
    }

    pub(super) fn is_served(&self, node: &str) -> bool {
        self.cluster.nodes.get(node) == Some(&false)
    }

    pub(super) fn check_nodes(&self, faults: &mut Vec<String>) {
        for node in self.cluster.nodes.keys() {
            if self.is_served(node) && !self.cluster.node_pod_probes.contains_key(node) {
                faults.push(format!("{node} has no NodePodProbe"));
            }
        }
        for (node, object) in &self.cluster.node_pod_probes {
            if !self.is_served(node) {
                faults.push(format!("{node} has a NodePodProbe"));
                continue;
            }
            self.check_room(node, faults);
            let mut observed = object.spec.pod_probes.clone();
            let mut expected = self.spec(node).0;
            for probe in observed.iter_mut().flat_map(|pod| &mut pod.probes) {
                if probe.revision.is_none() != self.cluster.drops_extensions {
                    faults.push(format!("{node}: revision of {}", probe.name));
                }
                probe.revision = None;
            }
            for probe in expected.iter_mut().flat_map(|pod| &mut pod.probes) {
                probe.revision = None;
                if self.cluster.drops_extensions {
                    probe.started_container_id = None;
                }
            }
            if observed != expected {
                faults.push(format!("{node}: {observed:#?} should be {expected:#?}"));
            }
        }
    }
}
