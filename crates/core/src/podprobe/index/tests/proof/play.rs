//! What each step of a history does to the world.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::NodePodProbe;
use leadsman_api::node_pod_probe::{
    CannotProbeEntry, ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus,
};
use serde_json::json;

use super::super::cluster::{Cluster, name};
use super::super::pod::{Owner, SimPod, mark};
use super::super::world::World;
use super::step::{Report, Step};
use super::{any_marker, marker_name, node_name, pick, pod_name};
use crate::cluster::ObjectName;
use crate::podprobe::index::tests::driver::WatchedKind;

impl Step {
    pub(super) fn take(self, world: &mut World) {
        let cluster = &mut world.cluster;
        match self {
            Self::PutMarker {
                marker,
                selector,
                first,
                second,
                flaw,
                finalizers,
            } => cluster.put_marker(
                &marker_name(marker),
                any_marker(selector, first, second, flaw, finalizers),
            ),
            Self::DeleteMarker(marker) => cluster.delete(WatchedKind::Marker, &marker_name(marker)),
            Self::PutPod {
                pod,
                app,
                tier,
                node,
                is_mirror,
            } => {
                let labels = [("app", pick(&["x", "y"], app)), ("tier", "1")];
                let labels = &labels[..=usize::from(tier)];
                put_pod(cluster, &pod_name(pod), node_name(node), labels, is_mirror);
            }
            Self::DeletePod(pod) => cluster.delete(WatchedKind::Pod, &pod_name(pod)),
            Self::Relabel { pod, app, tier } => {
                cluster.edit_pod(&pod_name(pod), |pod| relabel(pod, app, tier));
            }
            Self::ChangePod { pod, what, how } => {
                let now = cluster.now;
                cluster.edit_pod(&pod_name(pod), |pod| change(pod, what, how, now));
            }
            Self::PutNode { node, is_virtual } => cluster.put_node(node_name(node), is_virtual),
            Self::DeleteNode(node) if node < 2 => {
                cluster.delete(WatchedKind::Node, &name("", node_name(node)));
            }
            Self::EditObject { node, what, how } => {
                cluster.edit_node_pod_probe(node_name(node), |object| {
                    tamper_object(object, what, how);
                });
            }
            Self::DeleteObject(node) if node < 2 => {
                cluster.delete(WatchedKind::NodePodProbe, &name("", node_name(node)));
            }
            Self::Tamper {
                pod,
                mark,
                how,
                owner,
            } => cluster.edit_pod(&pod_name(pod), |pod| tamper(pod, mark, how, owner)),
            Self::DeleteNode(_) | Self::DeleteObject(_) => {}
            Self::Provide {
                pod,
                condition,
                status,
            } => cluster.edit_pod(&pod_name(pod), |pod| {
                let kind = pick(&["game.io/idle", "game.io/slow", "game.io/gone"], condition);
                let mut mark = mark("", Owner::Status);
                mark.value = json!({ "type": kind, "status": status });
                pod.conditions.insert(kind.to_owned(), mark);
            }),
            Self::Report(report) => report.arrive(world),
            Self::Agent { node, ready } => agent(world, node, ready),
            Self::Admit(admission) => cluster.admission = admission,
            Self::ListAgain(kind) => cluster.list_again(kind),
            manager => manager.take_as_manager(world),
        }
    }

    fn take_as_manager(self, world: &mut World) {
        match self {
            Self::Deliver { kind, count } => {
                for _ in 0..count {
                    world.deliver_of(kind);
                }
            }
            Self::Send(which) => drop(world.send(which)),
            Self::Fly(which, fate) => drop(world.fly(which, fate)),
            Self::Drain => world.drain(),
            Self::Restart(kinds) => world.restart(kinds),
            Self::Repeat(which) => {
                let history = &world.cluster.history;
                let which = usize::from(which) % history.len().max(1);
                if let Some(event) = history.get(which).cloned() {
                    // Only what has been seen before can be seen again.
                    while world.deliver() {}
                    world.observe(event);
                }
            }
            Self::Pass(seconds) => {
                // Nothing is seen again after minutes.
                world.cluster.history.clear();
                world.pass(SignedDuration::from_secs(i64::from(seconds)));
            }
            Self::LoseLead => world.lose_lead(),
            Self::LeadAgain => world.lead_again(),
            _ => unreachable!("a step of the cluster"),
        }
    }
}

impl Report {
    /// Writes the verdict into the node's status.
    fn arrive(self, world: &mut World) {
        let now = Time(world.cluster.now);
        let known = world.cluster.pods.clone();
        world
            .cluster
            .edit_node_pod_probe(node_name(self.node), |object| {
                let pods = object.spec.pod_probes.iter();
                let entries: Vec<_> = pods
                    .flat_map(|pod| pod.probes.iter().map(move |entry| (pod, entry)))
                    .collect();
                let Some((pod, entry)) =
                    entries.get(usize::from(self.entry) % entries.len().max(1))
                else {
                    return;
                };
                let running = known.get(&self::name(&pod.namespace, &pod.name));
                let mut containers = running.iter().flat_map(|pod| &pod.containers);
                let running = containers.find(|one| one.name == entry.container_name);
                let running = running.map(|own| &own.id);
                let state = ContainerProbeState {
                    message: self.message.map(str::to_owned),
                    revision: self.revision.of(entry.revision.as_ref()),
                    container_id: self.container.of(running),
                    last_probe_time: Some(now.clone()),
                    last_transition_time: Some(now),
                    ..ContainerProbeState::new(&entry.name, self.state)
                };
                let pod = (**pod).clone();
                put_state(object, &pod, state, self.cannot);
            });
    }
}

/// Nothing if there is a pod of that name.
fn put_pod(
    cluster: &mut Cluster,
    name: &ObjectName,
    node: &str,
    labels: &[(&str, &str)],
    is_mirror: bool,
) {
    if cluster.pods.contains_key(name) {
        return;
    }
    let uid = format!("{name}-{}", cluster.version);
    let mut pod = SimPod::new(&uid, node, labels);
    if is_mirror {
        pod.mirror(&format!("static-{uid}"));
    }
    cluster.put_pod(name, pod);
}

fn relabel(pod: &mut SimPod, app: u8, tier: Option<bool>) {
    let app = mark(pick(&["x", "y", "z"], app), Owner::User);
    pod.labels.insert("app".to_owned(), app);
    match tier {
        Some(false) => drop(pod.labels.remove("tier")),
        Some(true) => drop(pod.labels.insert("tier".to_owned(), mark("1", Owner::User))),
        None => {}
    }
}

fn put_state(
    object: &mut NodePodProbe,
    pod: &PodProbe,
    state: ContainerProbeState,
    cannot: Option<bool>,
) {
    let statuses = &mut object.status.get_or_insert_default().pod_probe_statuses;
    let known = statuses.iter().position(|one| {
        one.uid == pod.uid && one.name == pod.name && one.namespace == pod.namespace
    });
    let known = known.unwrap_or_else(|| {
        statuses.push(PodProbeStatus {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
            ..PodProbeStatus::default()
        });
        statuses.len() - 1
    });
    let cannot_probe = &mut statuses[known].cannot_probe;
    cannot_probe.retain(|one| one.name != state.name);
    if let Some(alone) = cannot {
        cannot_probe.push(CannotProbeEntry {
            name: state.name.clone(),
            message: "the runtime does not answer".to_owned(),
        });
        if alone {
            return;
        }
    }
    let states = &mut statuses[known].probe_states;
    states.retain(|one| one.name != state.name);
    states.push(state);
}

fn tamper_object(object: &mut NodePodProbe, what: u8, how: u8) {
    match what % 4 {
        0 => object.status = None,
        1 => object.spec.pod_probes.clear(),
        2 => object.spec.pod_probes.push(foreign(how)),
        _ => {
            for pod in &mut object.spec.pod_probes {
                pod.probes.truncate(1);
                pod.ip = "10.9.9.9".to_owned();
            }
        }
    }
}

fn change(pod: &mut SimPod, what: u8, how: u8, now: Timestamp) {
    match what % 8 {
        0 => pod.ip = pick(&["", "10.0.0.2", "10.0.0.3"], how).to_owned(),
        1 | 2 => {
            let container = &mut pod.containers[usize::from(how % 2)];
            container.id.push('x');
            container.started = !container.startup_probe;
            container.running_since = now;
        }
        3 | 4 => pod.containers[1].started = how.is_multiple_of(2),
        5 => pod.initialized = how < 200,
        6 if how > 200 => pod.phase = "Succeeded",
        7 if how > 200 => pod.deleting = true,
        _ => pod.ready = how.is_multiple_of(2),
    }
}

fn tamper(pod: &mut SimPod, place: u8, how: u8, owner: Owner) {
    let is_condition = place == 3;
    let (marks, key) = match place {
        0 => (&mut pod.labels, "role"),
        1 => (&mut pod.labels, "idle"),
        2 => (&mut pod.annotations, "note"),
        4 => (&mut pod.annotations, "kruise.io/podprobe"),
        5 => (&mut pod.annotations, "kruise.io/podprobemarker-list"),
        _ => (&mut pod.conditions, "game.io/idle"),
    };
    match how % 3 {
        0 => drop(marks.remove(key)),
        1 => {
            if let Some(mark) = marks.get_mut(key) {
                mark.owners.insert(owner);
            }
        }
        _ => {
            let mut mark = mark("hacked", owner);
            if is_condition {
                mark.value = json!({ "type": key, "status": "False", "message": "hacked" });
            }
            marks.insert(key.to_owned(), mark);
        }
    }
}

fn foreign(by: u8) -> PodProbe {
    let pod = pod_name(by);
    PodProbe {
        name: pod.name,
        namespace: pod.namespace,
        uid: pick(&["old", "older"], by).to_owned(),
        ip: "10.1.1.1".to_owned(),
        probes: vec![ContainerProbe {
            name: pick(&["way#one", "nobody#one", "odd"], by).to_owned(),
            container_name: "main".to_owned(),
            ..ContainerProbe::default()
        }],
    }
}

/// The agent of a node comes, turns Ready or not, goes.
fn agent(world: &mut World, node: u8, ready: Option<bool>) {
    let node = node_name(node);
    let name = name("leadsman-system", &format!("agent-{node}"));
    let Some(ready) = ready else {
        world.cluster.delete(WatchedKind::Pod, &name);
        return;
    };
    let labels = [
        ("app.kubernetes.io/name", "leadsman"),
        ("app.kubernetes.io/component", "agent"),
    ];
    let known = world.cluster.pods.get(&name).cloned();
    let mut pod = known.unwrap_or_else(|| SimPod::new(&format!("agent-{node}"), node, &labels));
    pod.ready = ready;
    world.cluster.put_pod(&name, pod);
}
