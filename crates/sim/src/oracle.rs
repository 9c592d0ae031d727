//! The state in which all should be when nothing happens any more, from the objects, and from what really runs on the nodes,
//! by the shortest code that can be read against the rules of `docs/reference.md`.

mod exclusive;
mod marker;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use leadsman_api::{NodePodProbe, PodProbeMarker, SidecarSet};
use leadsman_api_model::ApiServer;
use leadsman_tests::oracle::{is_active, mark_faults, set_faults};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ground::Ground;
use crate::kubelet::node_name;
use crate::resources::TENANT;

/// The objects of the simulation, read at one moment.
pub(crate) struct Oracle<'a> {
    ground: &'a Ground,
    /// The nodes that are there.
    nodes: Vec<String>,
    markers: Vec<PodProbeMarker>,
    /// The pods of the tenant.
    pods: Vec<Pod>,
    node_pod_probes: BTreeMap<String, NodePodProbe>,
    sets: Vec<SidecarSet>,
}

impl<'a> Oracle<'a> {
    /// Reads all objects.
    pub(crate) fn look(server: &ApiServer, ground: &'a Ground, nodes: &[bool]) -> Self {
        let nodes = nodes
            .iter()
            .enumerate()
            .filter(|(_, is_there)| **is_there)
            .map(|(node, _)| node_name(node))
            .collect();
        Self::read(|plural| server.objects(plural), ground, nodes)
    }

    /// Reads all objects, which are found by their plural.
    pub(crate) fn read(
        objects: impl Fn(&str) -> Vec<Arc<Value>>,
        ground: &'a Ground,
        nodes: Vec<String>,
    ) -> Self {
        let mut pods: Vec<Pod> = read(&objects("pods"));
        pods.retain(|pod| pod.namespace().as_deref() == Some(TENANT));
        let probes: Vec<NodePodProbe> = read(&objects("nodepodprobes"));
        Self {
            ground,
            nodes,
            markers: read(&objects("podprobemarkers")),
            pods,
            node_pod_probes: probes
                .into_iter()
                .map(|one| (one.name_any(), one))
                .collect(),
            sets: read(&objects("sidecarsets")),
        }
    }

    /// All that differs from what it should be.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        self.check_nodes(&mut faults);
        self.check_verdicts(&mut faults);
        for pod in self.pods.iter().filter(|pod| is_active(pod)) {
            faults.extend(mark_faults(pod, self.mark_rows(pod)));
        }
        self.check_exclusive(&mut faults);
        for marker in self
            .markers
            .iter()
            .filter(|marker| marker.metadata.deletion_timestamp.is_none())
        {
            self.check_status(marker, &mut faults);
        }
        for set in &self.sets {
            let found = set_faults(set, &self.pods);
            faults.extend(found.expect("a set of the simulation has a container"));
        }
        faults
    }

    /// The faults of an object in what follows from others: in the marks of a pod, or in the entries of a node.
    pub(crate) fn faults_of(&self, plural: &str, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if plural == "pods" {
            let is_it = |pod: &&Pod| is_active(pod) && pod.name_any() == name;
            for pod in self.pods.iter().filter(is_it) {
                faults.extend(mark_faults(pod, self.mark_rows(pod)));
            }
        } else if self.nodes.iter().any(|node| node == name) {
            self.check_node(name, &mut faults);
        }
        faults
    }
}

fn read<T: DeserializeOwned>(objects: &[Arc<Value>]) -> Vec<T> {
    let objects = objects.iter().map(|object| T::deserialize(&**object));
    objects
        .collect::<Result<_, _>>()
        .expect("what the API server stores is of its type")
}
