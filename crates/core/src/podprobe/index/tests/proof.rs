//! After any sequence of events the world is what the model says, and nothing more is written.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{
    CannotProbeEntry, ContainerProbe, ContainerProbeState, PodProbe, PodProbeStatus,
};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::cluster::{Admission, OTHERS, Owner, SimPod, mark, name};
use super::model::Model;
use super::world::{Fate, World};
use crate::cluster::ObjectName;
use crate::podprobe::event::{WatchedKind, WriteTarget};
use crate::podprobe::index::Config;
use crate::podprobe::index::FINALIZER;

const KINDS: [WatchedKind; 4] = [
    WatchedKind::Marker,
    WatchedKind::Pod,
    WatchedKind::Node,
    WatchedKind::NodePodProbe,
];

fn pick<T: Copy>(all: &[T], by: u8) -> T {
    all[usize::from(by) % all.len()]
}

const MARKERS: [(&str, &str); 4] = [("a", "way"), ("a", "gateway"), ("a", "third"), ("b", "way")];

fn marker_name(by: u8) -> ObjectName {
    let (namespace, own) = pick(&MARKERS, by);
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
    match by % 8 {
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
        // What a selector requires by value.
        6 => json!({
            "name": "seven", "containerName": "main", "probe": exec("false"),
            "markerPolicy": [{ "state": "Failed", "labels": { "tier": "2" } }],
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

/// What is wrong with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    BadName,
    ReadsWhatItWrites,
}

fn any_marker(
    selector: u8,
    first: u8,
    second: Option<u8>,
    flaw: Flaw,
    finalizers: u8,
) -> PodProbeMarker {
    let selector = match selector % 9 {
        0 => json!({ "matchLabels": { "app": "x" } }),
        1 => json!({ "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] }),
        2 => {
            json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x", "y"] }] })
        }
        3 => json!({}),
        5 => {
            json!({ "matchLabels": { "app": "x" }, "matchExpressions": [{ "key": "role", "operator": "NotIn", "values": ["gone"] }] })
        }
        6 => {
            json!({ "matchExpressions": [{ "key": "idle", "operator": "NotIn", "values": ["gone"] }, { "key": "app", "operator": "Exists" }] })
        }
        7 => {
            json!({ "matchLabels": { "tier": "1" }, "matchExpressions": [{ "key": "role", "operator": "NotIn", "values": ["gone"] }] })
        }
        8 => {
            json!({ "matchLabels": { "tier": "2" }, "matchExpressions": [{ "key": "idle", "operator": "NotIn", "values": ["gone"] }] })
        }
        _ => json!({ "matchLabels": { "app": "x", "tier": "1" } }),
    };
    let mut probes = vec![probe(first)];
    if let Some(second) = second.map(probe)
        && second["name"] != probes[0]["name"]
    {
        probes.push(second);
    }
    let kinds: Vec<_> = probes
        .iter()
        .filter_map(|probe| probe["podConditionType"].as_str())
        .collect();
    if kinds.len() == 2 && kinds[0] == kinds[1] {
        probes.pop();
    }
    match flaw {
        Flaw::BadName => probes[0]["containerName"] = json!("no name"),
        // One of its selector's keys, so that it reads what it writes unless the selector is empty.
        Flaw::ReadsWhatItWrites if selector != json!({}) => {
            let key = if selector.to_string().contains("app") {
                "app"
            } else {
                "tier"
            };
            probes[0]["markerPolicy"] = json!([{ "state": "Failed", "labels": { key: "z" } }]);
        }
        Flaw::None | Flaw::ReadsWhatItWrites => {}
    }
    let mut marker = marker(&selector, &probes);
    marker.metadata.finalizers = match finalizers % 4 {
        0 => Some(vec![FINALIZER.to_owned()]),
        1 => Some(vec!["example.com/other".to_owned(), FINALIZER.to_owned()]),
        _ => None,
    };
    marker
}

/// What a verdict says of the entry that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportedId {
    Right,
    Wrong,
    Nothing,
}

impl ReportedId {
    fn of(self, right: Option<&String>) -> Option<String> {
        match self {
            Self::Right => right.cloned(),
            Self::Wrong => Some("wrong".to_owned()),
            Self::Nothing => None,
        }
    }
}

/// One thing that happens. Numbers pick one of few.
#[derive(Clone, Debug)]
enum Step {
    PutMarker {
        marker: u8,
        selector: u8,
        first: u8,
        second: Option<u8>,
        flaw: Flaw,
        finalizers: u8,
    },
    DeleteMarker(u8),
    PutPod {
        pod: u8,
        app: u8,
        tier: bool,
        node: u8,
        /// It is the mirror of a static pod.
        is_mirror: bool,
    },
    DeletePod(u8),
    Relabel {
        pod: u8,
        app: u8,
        tier: Option<bool>,
    },
    ChangePod {
        pod: u8,
        what: u8,
        how: u8,
    },
    PutNode {
        node: u8,
        is_virtual: bool,
    },
    DeleteNode(u8),
    FieldErrors {
        node: u8,
        entry: u8,
        state: &'static str,
        message: Option<&'static str>,
        revision: ReportedId,
        container: ReportedId,
        /// Whether it says that it cannot probe, alone or beside a verdict.
        cannot: Option<bool>,
    },
    EditObject {
        node: u8,
        what: u8,
        how: u8,
    },
    DeleteObject(u8),
    Tamper {
        pod: u8,
        mark: u8,
        how: u8,
        owner: Owner,
    },
    /// The provider of a virtual node reports.
    Provide {
        pod: u8,
        condition: u8,
        status: &'static str,
    },
    /// The agent of a node comes or changes, or goes.
    Agent {
        node: u8,
        ready: Option<bool>,
    },
    /// The watches show some of what happened; one kind alone, or all in order.
    Deliver {
        kind: Option<WatchedKind>,
        count: u8,
    },
    /// The watch of a kind breaks and begins again with a list.
    ListAgain(WatchedKind),
    /// An event that was seen before is seen once more.
    Repeat(u8),
    Send(usize),
    Fly(usize, Fate),
    Drain,
    Pass(u16),
    Admit(Option<Admission>),
    Restart([WatchedKind; 4]),
    LoseLead,
    LeadAgain,
}

fn some_kind() -> impl Strategy<Value = WatchedKind> {
    proptest::sample::select(&KINDS[..])
}

/// What users, nodes and agents do.
fn cluster_step() -> impl Strategy<Value = Step> {
    let flaw = prop_oneof![
        20 => Just(Flaw::None),
        1 => Just(Flaw::BadName),
        1 => Just(Flaw::ReadsWhatItWrites),
    ];
    let marker = (
        0..4u8,
        0..9u8,
        0..8u8,
        proptest::option::of(0..8u8),
        flaw,
        0..4u8,
    );
    let reported = || prop_oneof![6 => Just(ReportedId::Right), 1 => Just(ReportedId::Wrong), 1 => Just(ReportedId::Nothing)];
    let states = [
        "Succeeded",
        "Failed",
        "Unknown",
        "Succeeded",
        "Failed",
        "Odd",
    ];
    let messages = [None, Some("hi"), Some("ho")];
    let statuses = ["True", "False", "Unknown", "Odd"];
    let report = (
        (0..2u8, any::<u8>()),
        proptest::sample::select(states.to_vec()),
        proptest::sample::select(messages.to_vec()),
        (reported(), reported()),
        proptest::option::weighted(0.15, any::<bool>()),
    );
    let owner = proptest::sample::select(OTHERS.to_vec());
    prop_oneof![
        2 => marker.prop_map(|(marker, selector, first, second, flaw, finalizers)| Step::PutMarker { marker, selector, first, second, flaw, finalizers }),
        1 => (0..4u8).prop_map(Step::DeleteMarker),
        2 => (0..3u8, 0..2u8, any::<bool>(), 0..2u8, proptest::bool::weighted(0.25)).prop_map(|(pod, app, tier, node, is_mirror)| Step::PutPod { pod, app, tier, node, is_mirror }),
        1 => (0..3u8).prop_map(Step::DeletePod),
        1 => (0..3u8, 0..3u8, any::<Option<bool>>()).prop_map(|(pod, app, tier)| Step::Relabel { pod, app, tier }),
        2 => (0..3u8, 0..8u8, any::<u8>()).prop_map(|(pod, what, how)| Step::ChangePod { pod, what, how }),
        1 => (0..2u8, proptest::bool::weighted(0.2)).prop_map(|(node, is_virtual)| Step::PutNode { node, is_virtual }),
        1 => (0..4u8).prop_map(Step::DeleteNode),
        5 => report.prop_map(|((node, entry), state, message, (revision, container), cannot)| Step::FieldErrors { node, entry, state, message, revision, container, cannot }),
        1 => (0..2u8, 0..4u8, any::<u8>()).prop_map(|(node, what, how)| Step::EditObject { node, what, how }),
        1 => (0..8u8).prop_map(Step::DeleteObject),
        3 => (0..3u8, 0..3u8, proptest::sample::select(statuses.to_vec())).prop_map(|(pod, condition, status)| Step::Provide { pod, condition, status }),
        2 => (0..3u8, 0..6u8, 0..3u8, owner).prop_map(|(pod, mark, how, owner)| Step::Tamper { pod, mark, how, owner }),
        1 => (0..2u8, any::<Option<bool>>()).prop_map(|(node, ready)| Step::Agent { node, ready }),
    ]
}

/// What happens between the API server and the manager.
fn manager_step() -> impl Strategy<Value = Step> {
    use Admission::{EmptySpec, Ignore, Strip};
    let fates = [
        Fate::CarriedOut,
        Fate::Answered,
        Fate::ReplyLost,
        Fate::Unavailable,
        Fate::Refused,
    ];
    let fate = prop_oneof![
        4 => Just(Fate::CarriedOut),
        6 => Just(Fate::Answered),
        4 => proptest::sample::select(fates.to_vec()),
    ];
    let admissions = [
        None,
        None,
        Some(Ignore(WatchedKind::Pod)),
        Some(Ignore(WatchedKind::Marker)),
        Some(Ignore(WatchedKind::NodePodProbe)),
        Some(Strip("role")),
        Some(Strip("note")),
        Some(EmptySpec),
    ];
    prop_oneof![
        4 => (proptest::option::of(some_kind()), 1..8u8).prop_map(|(kind, count)| Step::Deliver { kind, count }),
        5 => (0..8usize).prop_map(Step::Send),
        6 => (0..8usize, fate).prop_map(|(which, fate)| Step::Fly(which, fate)),
        2 => some_kind().prop_map(Step::ListAgain),
        1 => any::<u8>().prop_map(Step::Repeat),
        2 => Just(Step::Drain),
        2 => prop_oneof![0..10u16, 0..8000u16].prop_map(Step::Pass),
        1 => proptest::sample::select(admissions.to_vec()).prop_map(Step::Admit),
        1 => Just(KINDS).prop_shuffle().prop_map(Step::Restart),
        1 => Just(Step::LoseLead),
        1 => Just(Step::LeadAgain),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(prop_oneof![cluster_step(), manager_step()], 0..100)
}

impl Step {
    fn take(self, world: &mut World) {
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
                let name = pod_name(pod);
                let uid = format!("{name}-{}", cluster.version);
                let labels = [("app", pick(&["x", "y"], app)), ("tier", "1")];
                let labels = &labels[..=usize::from(tier)];
                if !cluster.pods.contains_key(&name) {
                    let mut pod = SimPod::new(&uid, node_name(node), labels);
                    if is_mirror {
                        pod.mirror(&format!("static-{uid}"));
                    }
                    cluster.put_pod(&name, pod);
                }
            }
            Self::DeletePod(pod) => cluster.delete(WatchedKind::Pod, &pod_name(pod)),
            Self::Relabel { pod, app, tier } => cluster.edit_pod(&pod_name(pod), |pod| {
                let app = mark(pick(&["x", "y", "z"], app), Owner::User);
                pod.labels.insert("app".to_owned(), app);
                match tier {
                    Some(false) => drop(pod.labels.remove("tier")),
                    Some(true) => {
                        drop(pod.labels.insert("tier".to_owned(), mark("1", Owner::User)));
                    }
                    None => {}
                }
            }),
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
            Self::FieldErrors { .. } => self.report(world),
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

    /// An agent's verdict about one of the entries it has been given.
    fn report(self, world: &mut World) {
        let Self::FieldErrors {
            node,
            entry,
            state,
            message,
            revision,
            container,
            cannot,
        } = self
        else {
            return;
        };
        let now = Time(world.cluster.now);
        let known = world.cluster.pods.clone();
        world
            .cluster
            .edit_node_pod_probe(node_name(node), |object| {
                let pods = object.spec.pod_probes.iter();
                let entries: Vec<_> = pods
                    .flat_map(|pod| pod.probes.iter().map(move |entry| (pod, entry)))
                    .collect();
                let Some((pod, entry)) = entries.get(usize::from(entry) % entries.len().max(1))
                else {
                    return;
                };
                let running = known.get(&self::name(&pod.namespace, &pod.name));
                let mut containers = running.iter().flat_map(|pod| &pod.containers);
                let running = containers.find(|one| one.name == entry.container_name);
                let running = running.map(|own| &own.id);
                let state = ContainerProbeState {
                    message: message.map(str::to_owned),
                    revision: revision.of(entry.revision.as_ref()),
                    container_id: container.of(running),
                    last_probe_time: Some(now.clone()),
                    last_transition_time: Some(now),
                    ..ContainerProbeState::new(&entry.name, state)
                };
                let pod = (**pod).clone();
                put_state(object, &pod, state, cannot);
            });
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

fn assert_right(world: &World) {
    let faults = Model::new(world).faults();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// However long somebody undoes what is written, no object is written more often than its growing distance allows.
fn assert_few_writes(world: &mut World) {
    /// 0, 0, 1, 2, 4 … 60 s apart, for each of some marks.
    const MOST: usize = 60;
    world.drain();
    world.writes.clear();
    world.rest_for(Duration::from_mins(10));
    let mut counts: BTreeMap<&WriteTarget, usize> = BTreeMap::new();
    for (object, _) in &world.writes {
        *counts.entry(object).or_default() += 1;
    }
    let many: Vec<_> = counts.iter().filter(|(_, count)| **count > MOST).collect();
    assert!(many.is_empty(), "written without end: {many:?}");
}

fn prove(node_bytes: usize, drops_extensions: bool, serverless: bool, steps: &[Step]) {
    let mut world = World::new(Config {
        node_bytes,
        serverless,
        ..Config::default()
    });
    world.drop_extensions(drops_extensions);
    world.cluster.put_node("n0", serverless);
    let pod = |pod| Step::PutPod {
        pod,
        app: 0,
        tier: true,
        node: 0,
        is_mirror: false,
    };
    let marker = Step::PutMarker {
        marker: 0,
        selector: 0,
        first: 0,
        second: Some(1),
        flaw: Flaw::None,
        finalizers: 2,
    };
    let begin = [marker, pod(0), pod(1)];
    for (which, step) in begin.iter().chain(steps).enumerate() {
        step.clone().take(&mut world);
        // Time moves, so that no two creations have to be distinguished by name alone, but some are.
        if which % 3 == 0 {
            world.pass(SignedDuration::from_secs(1));
        }
    }
    world.lead_again();
    if world.cluster.admission.is_some() {
        assert_few_writes(&mut world);
        world.cluster.admission = None;
    }
    world.drain();
    if world.waits_for_nothing() {
        assert_right(&world);
    }
    world.rest();
    assert_right(&world);

    // A restart costs nothing. Where the API server drops fields it may cost writes: only where they lead to is judged.
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

/// Fast enough for each test run; more by the environment's `PROPTEST_CASES`.
fn histories() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        failure_persistence: None,
        cases: asked.and_then(|cases| cases.parse().ok()).unwrap_or(1000),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(histories())]

    // PPM-2, PPM-6, PPM-7, PPM-8, PPM-9, PPM-10, PPM-11, PPM-13
    #[test]
    fn any_history_ends_in_the_world_that_the_model_says(
        small in 0..4u8,
        drops in 0..6u8,
        serverless in proptest::bool::weighted(0.3),
        steps in any_steps(),
    ) {
        prove(if small == 0 { 900 } else { 512 * 1024 }, drops == 0, serverless, &steps);
    }
}
