//! After any sequence of events the world is what the model says, and nothing more is written.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::PodProbeMarker;
use leadsman_api::node_pod_probe::{
    CannotProbe, ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::cluster::{OTHERS, Owner, SimPod, mark, name};
use super::model::Model;
use super::world::World;
use crate::podprobe::event::{Kind, ObjectName};
use crate::podprobe::index::Config;
use crate::podprobe::index::finalizers::FINALIZER;

const KINDS: [Kind; 4] = [Kind::Marker, Kind::Pod, Kind::Node, Kind::NodePodProbe];

fn pick<T: Copy>(all: &[T], by: u8) -> T {
    all[usize::from(by) % all.len()]
}

fn marker_name(by: u8) -> ObjectName {
    let (namespace, own) = pick(&[("a", "way"), ("a", "gateway"), ("b", "way")], by);
    name(namespace, own)
}

fn pod_name(by: u8) -> ObjectName {
    let (namespace, own) = pick(&[("a", "p0"), ("a", "p1"), ("b", "p0")], by);
    name(namespace, own)
}

fn node_name(by: u8) -> &'static str {
    pick(&["n0", "n1"], by)
}

fn probe(by: u8) -> Value {
    let exec = |word: &str| json!({ "exec": { "command": [word] } });
    match by % 7 {
        0 => json!({
            "name": "one", "containerName": "main", "probe": exec("true"),
            "podConditionType": "game.io/idle",
            "markerPolicy": [
                { "state": "Succeeded", "labels": { "role": "main" }, "annotations": { "note": "up" } },
                { "state": "Failed", "labels": { "role": "back" } },
            ],
        }),
        1 => json!({
            "name": "two", "containerName": "main",
            "probe": { "httpGet": { "port": "http" }, "periodSeconds": 5 },
            "markerPolicy": [{ "state": "Succeeded", "labels": { "role": "web", "idle": "no" } }],
        }),
        2 => json!({
            "name": "three", "containerName": "gone", "probe": exec("true"), "podConditionType": "game.io/gone",
        }),
        3 => json!({
            "name": "four", "containerName": "slow", "probe": exec("false"), "podConditionType": "game.io/slow",
            "markerPolicy": [{ "state": "Failed", "labels": { "idle": "yes" } }],
        }),
        4 => json!({
            "name": "five", "containerName": "main", "probe": { "httpGet": { "port": "nope" } },
            "podConditionType": "game.io/idle",
        }),
        5 => json!({
            "name": "one", "containerName": "main", "probe": exec("edited"), "podConditionType": "game.io/idle",
        }),
        _ => json!({
            "name": "six", "containerName": "main", "probe": exec("true"),
            "markerPolicy": [{ "state": "Failed", "annotations": { "note": "down" } }],
        }),
    }
}

pub(super) fn marker(selector: &Value, probes: &[Value]) -> PodProbeMarker {
    serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker", "metadata": {},
        "spec": { "selector": selector, "probes": probes },
    }))
    .unwrap()
}

fn any_marker(selector: u8, first: u8, second: u8) -> PodProbeMarker {
    let selector = match selector % 5 {
        0 => json!({ "matchLabels": { "app": "x" } }),
        1 => json!({ "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] }),
        2 => {
            json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x", "y"] }] })
        }
        3 => json!({}),
        _ => json!({ "matchLabels": { "app": "x", "tier": "1" } }),
    };
    let mut probes = vec![probe(first)];
    if probe(second)["name"] != probes[0]["name"] && second < 200 {
        probes.push(probe(second));
    }
    let kinds: Vec<_> = probes
        .iter()
        .filter_map(|probe| probe["podConditionType"].as_str())
        .collect();
    if kinds.len() == 2 && kinds[0] == kinds[1] {
        probes.pop();
    }
    match second {
        250..=252 => probes[0]["containerName"] = json!("no name"),
        // Both of its selector's keys, so that it reads what it writes unless the selector is empty.
        253.. if selector != json!({}) => {
            let key = if selector.to_string().contains("app") {
                "app"
            } else {
                "tier"
            };
            probes[0]["markerPolicy"] = json!([{ "state": "Failed", "labels": { key: "z" } }]);
        }
        _ => {}
    }
    let mut marker = marker(&selector, &probes);
    marker.metadata.finalizers = match second % 4 {
        0 => Some(vec![FINALIZER.to_owned()]),
        1 => Some(vec!["example.com/other".to_owned(), FINALIZER.to_owned()]),
        _ => None,
    };
    marker
}

/// One thing that happens.
fn step(world: &mut World, [what, a, b, c]: [u8; 4]) {
    let cluster = &mut world.cluster;
    match what % 26 {
        0 | 1 => cluster.put_marker(&marker_name(a), any_marker(b, c, a.wrapping_mul(31) ^ b)),
        2 => cluster.delete(Kind::Marker, &marker_name(a)),
        3 | 4 => {
            let name = pod_name(a);
            let uid = format!("{name}-{}", cluster.version);
            let labels = [("app", pick(&["x", "y"], b)), ("tier", "1")];
            let labels = &labels[..if b < 100 { 1 } else { 2 }];
            if !cluster.pods.contains_key(&name) {
                let mut pod = SimPod::new(&uid, node_name(c), labels);
                if c % 8 > 5 {
                    pod.mirror(&format!("static-{uid}"));
                }
                cluster.put_pod(&name, pod);
            }
        }
        5 => cluster.delete(Kind::Pod, &pod_name(a)),
        6 => cluster.edit_pod(&pod_name(a), |pod| {
            pod.labels.insert(
                "app".to_owned(),
                mark(pick(&["x", "y", "z"], b), Owner::User),
            );
            match c % 3 {
                0 => drop(pod.labels.remove("tier")),
                1 => drop(pod.labels.insert("tier".to_owned(), mark("1", Owner::User))),
                _ => {}
            }
        }),
        7 | 8 => {
            let now = cluster.now;
            cluster.edit_pod(&pod_name(a), |pod| change(pod, b, c, now));
        }
        9 => cluster.put_node(node_name(a), b > 200),
        10 if b > 128 => cluster.delete(Kind::Node, &name("", node_name(a))),
        11..=14 => report(world, node_name(a), b, c),
        15 => cluster.edit_node_pod_probe(node_name(a), |object| match b % 4 {
            0 => object.status = None,
            1 => object.spec.pod_probes.clear(),
            2 => object.spec.pod_probes.push(foreign(c)),
            _ => {
                for pod in &mut object.spec.pod_probes {
                    pod.probes.truncate(1);
                    pod.ip = "10.9.9.9".to_owned();
                }
            }
        }),
        16 if b > 200 => cluster.delete(Kind::NodePodProbe, &name("", node_name(a))),
        17 | 18 => cluster.edit_pod(&pod_name(a), |pod| tamper(pod, b, c)),
        19 => {
            for _ in 0..a % 8 {
                world.deliver();
            }
        }
        20 => {
            for _ in 0..a % 8 {
                world.work();
            }
        }
        21 => world.drain(),
        22 => {
            let mut kinds = KINDS;
            kinds.swap(usize::from(a % 4), usize::from(b % 4));
            kinds.swap(usize::from(c % 4), 0);
            world.restart(kinds);
        }
        23 => {
            let history = &world.cluster.history;
            if let Some(event) = history.get(usize::from(a) % history.len().max(1)).cloned() {
                // Only what has been seen before can be seen again.
                while world.deliver() {}
                world.tell(event);
            }
        }
        24 => {
            // Nothing is seen again after minutes.
            world.cluster.history.clear();
            world.pass(SignedDuration::from_secs(i64::from(a) * i64::from(b) / 8));
        }
        _ => agent(world, a, b),
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

fn tamper(pod: &mut SimPod, what: u8, how: u8) {
    let owner = pick(&OTHERS, how);
    let (place, action) = (usize::from(what % 4), what / 4 % 3);
    let is_condition = place == 3;
    let (marks, key) = match place {
        0 => (&mut pod.labels, "role"),
        1 => (&mut pod.labels, "idle"),
        2 => (&mut pod.annotations, "note"),
        _ => (&mut pod.conditions, "game.io/idle"),
    };
    match action {
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

/// An agent's verdict about one of the entries it has been given.
fn report(world: &mut World, node: &str, which: u8, how: u8) {
    let now = world.cluster.now;
    let pods = world.cluster.pods.clone();
    world.cluster.edit_node_pod_probe(node, |object| {
        let told = object.spec.pod_probes.iter();
        let entries: Vec<_> = told
            .flat_map(|pod| pod.probes.iter().map(move |entry| (pod, entry)))
            .collect();
        let Some((pod, entry)) = entries.get(usize::from(which) % entries.len().max(1)) else {
            return;
        };
        let state = ContainerProbeState {
            name: entry.name.clone(),
            state: pick(
                &[
                    "Succeeded",
                    "Failed",
                    "Unknown",
                    "Succeeded",
                    "Failed",
                    "Odd",
                ],
                how,
            )
            .to_owned(),
            message: pick(&[None, Some("hi"), Some("ho")], which).map(str::to_owned),
            revision: match how / 6 % 8 {
                0 => Some("wrong".to_owned()),
                1 => None,
                _ => entry.revision.clone(),
            },
            container_id: match how / 48 {
                0 => Some("wrong".to_owned()),
                1 => None,
                2 => entry.started_container_id.clone(),
                _ => {
                    let running = pods.get(&self::name(&pod.namespace, &pod.name));
                    let mut containers = running.iter().flat_map(|pod| &pod.containers);
                    let own = containers.find(|one| one.name == entry.container_name);
                    own.map(|own| own.id.clone())
                }
            },
            last_probe_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        };
        let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
        let statuses = &mut object.status.get_or_insert_default().pod_probe_statuses;
        let known = statuses
            .iter()
            .position(|one| one.uid == uid && one.name == name && one.namespace == namespace);
        let known = known.unwrap_or_else(|| {
            statuses.push(PodProbeStatus {
                name,
                namespace,
                uid,
                probe_states: Vec::new(),
                ..PodProbeStatus::default()
            });
            statuses.len() - 1
        });
        let cannot_probe = &mut statuses[known].cannot_probe;
        cannot_probe.retain(|one| one.name != state.name);
        if how.is_multiple_of(7) {
            cannot_probe.push(CannotProbe {
                name: state.name.clone(),
                message: "the runtime does not answer".to_owned(),
            });
            if how.is_multiple_of(2) {
                return;
            }
        }
        let states = &mut statuses[known].probe_states;
        states.retain(|one| one.name != state.name);
        states.push(state);
    });
}

/// The agent of a node comes, turns Ready or not, goes.
fn agent(world: &mut World, which: u8, how: u8) {
    let node = node_name(which);
    let name = name("leadsman-system", &format!("agent-{node}"));
    if how > 200 {
        world.cluster.delete(Kind::Pod, &name);
        return;
    }
    let labels = [
        ("app.kubernetes.io/name", "leadsman"),
        ("app.kubernetes.io/component", "agent"),
    ];
    let known = world.cluster.pods.get(&name).cloned();
    let mut pod = known.unwrap_or_else(|| SimPod::new(&format!("agent-{node}"), node, &labels));
    pod.ready = how < 130;
    world.cluster.put_pod(&name, pod);
}

fn assert_right(world: &World) {
    let faults = Model::new(world).faults();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn prove(node_bytes: usize, drops_extensions: bool, steps: &[[u8; 4]]) {
    let mut world = World::new(Config {
        node_bytes,
        ..Config::default()
    });
    world.cluster.drops_extensions = drops_extensions;
    world.cluster.put_node("n0", false);
    for (which, step) in [[0, 0, 0, 0], [3, 0, 0, 0], [3, 1, 0, 0]]
        .iter()
        .chain(steps)
        .enumerate()
    {
        self::step(&mut world, *step);
        // Time moves, so that no two creations have to be told apart by name alone, but some are.
        if which % 3 == 0 {
            world.pass(SignedDuration::from_secs(1));
        }
    }
    world.drain();
    let fought_over =
        |pod: &crate::podprobe::index::PodState| pod.contest.deadline(world.monotonic).is_some();
    if !world.index.pods.values().any(|pod| fought_over(pod)) {
        assert_right(&world);
    }
    world.rest();
    assert_right(&world);

    // A restart costs nothing; where the API server drops fields, one write of each object until that is known.
    let mut kinds = KINDS;
    kinds.rotate_left(steps.len() % 4);
    world.writes.clear();
    world.restart(kinds);
    world.rest();
    if drops_extensions {
        assert_right(&world);
    } else {
        assert!(world.writes.is_empty(), "{:#?}", world.writes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_in_the_world_that_the_model_says(
        small in 0..4u8,
        drops in 0..6u8,
        steps in proptest::collection::vec(any::<[u8; 4]>(), 0..80),
    ) {
        prove(if small == 0 { 900 } else { 512 * 1024 }, drops == 0, &steps);
    }
}
