//! Values of a label that only one pod has: tables of the rules. The proof is in `histories`.

mod histories;

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::limits::EXCLUSIVE_ANNOTATION;
use leadsman_api::marker::ExclusiveHolder;
use leadsman_api::node_pod_probe::{ContainerProbeState, PodProbeStatus};
use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::{Cluster, name};
use super::driver::{WatchedKind, WriteTarget};
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec};
use super::world::{Fate, World};
use crate::cluster::ObjectName;
use crate::podprobe::exclusive::Records;
use crate::podprobe::index::Config;

const KINDS: [WatchedKind; 4] = [
    WatchedKind::Pod,
    WatchedKind::Marker,
    WatchedKind::Node,
    WatchedKind::NodePodProbe,
];

/// A probe of a role, of which one pod is the primary.
fn role(is_versioned: bool, group_by: Option<&str>) -> Value {
    let mut exclusive = json!({ "label": "role", "value": "primary" });
    if is_versioned {
        exclusive["version"] = json!("$(version)");
    }
    if let Some(label) = group_by {
        exclusive["groupBy"] = json!(label);
    }
    json!({
        "name": "role", "containerName": "main", "probe": exec("role"), "podConditionType": "db/role",
        "output": { "matches": "^(?<role>[a-z]+)(?: (?<version>[0-9a-z]+))?$" },
        "markerPolicy": [{
            "state": "Succeeded", "labels": { "role": "$(role)" }, "exclusive": exclusive,
        }],
    })
}

fn pod_name(pod: usize) -> ObjectName {
    name("a", &format!("p{pod}"))
}

fn node_of(pod: usize) -> &'static str {
    ["n0", "n1"][pod % 2]
}

fn records_of(pod: &SimPod) -> Records {
    let annotation = pod.annotations.get(EXCLUSIVE_ANNOTATION);
    let text = annotation.and_then(|mark| mark.value.as_str());
    text.map_or_else(Records::new, |text| serde_json::from_str(text).unwrap())
}

impl SimPod {
    /// Whether a marker has made it the primary. What users have labelled themselves is theirs.
    pub(super) fn is_marked_primary(&self) -> bool {
        let label = self.labels.get("role");
        label.is_some_and(|mark| mark.value == "primary" && mark.owners.contains(&Owner::Ours))
    }
}

impl Cluster {
    /// No other pod has the value that a write has given to a pod, where a marker says that one has it.
    pub(super) fn assert_one_holder(&self, written: &ObjectName) {
        let probes = self.markers.values().flat_map(|marker| &marker.spec.probes);
        let mut policies = probes.flat_map(|probe| &probe.marker_policy);
        let is_exclusive = policies.any(|policy| policy.exclusive.is_some());
        let group = |pod: &SimPod| pod.labels.get("group").map(|mark| mark.value.clone());
        let pod = self.pods.get(written);
        let Some(pod) = pod.filter(|pod| is_exclusive && pod.is_marked_primary()) else {
            return;
        };
        let held = |pod: &SimPod| {
            let records = records_of(pod).into_iter();
            let held = records.filter(|(_, record)| record.holds);
            held.map(|(entry, _)| entry).collect::<Vec<_>>()
        };
        let own = held(pod);
        let others = self.pods.iter().filter(|(other, one)| {
            let theirs = held(one);
            other.namespace == written.namespace
                && *other != written
                && one.is_marked_primary()
                && group(one) == group(pod)
                && (theirs.is_empty() || theirs.iter().any(|entry| own.contains(entry)))
        });
        let others: Vec<_> = others.map(|(other, _)| other).collect();
        assert!(others.is_empty(), "{written} is primary beside {others:?}");
        assert!(!own.is_empty(), "{written} is primary without a record");
    }
}

impl World {
    /// Three pods on two nodes, and the marker.
    fn database(probe: &Value) -> Self {
        let mut world = Self::new(Config::default());
        for node in ["n0", "n1"] {
            world.cluster.put_node(node, false);
        }
        let marker = marker(&app_x(), std::slice::from_ref(probe));
        world.cluster.put_marker(&name("a", "way"), marker);
        for pod in 0..3 {
            world.add_pod(pod);
        }
        world.settle();
        world
    }

    fn add_pod(&mut self, pod: usize) {
        let uid = format!("u{pod}-{}", self.cluster.version);
        let new = SimPod::new(&uid, node_of(pod), &[("app", "x")]);
        if !self.cluster.pods.contains_key(&pod_name(pod)) {
            self.cluster.put_pod(&pod_name(pod), new);
        }
    }

    /// The agent of a pod's node reports what its probe printed.
    fn say(&mut self, pod: usize, state: &str, output: &str) {
        let now = Time(self.cluster.now);
        let name = pod_name(pod);
        let Some(known) = self.cluster.pods.get(&name).cloned() else {
            return;
        };
        self.cluster.edit_node_pod_probe(node_of(pod), |object| {
            let mut pods = object.spec.pod_probes.iter();
            let Some(entries) = pods.find(|one| one.uid == known.uid) else {
                return;
            };
            let (role, version) = output.split_once(' ').unwrap_or((output, ""));
            let values = [("role", role), ("version", version)];
            let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let states = entries.probes.iter().map(|entry| ContainerProbeState {
                message: Some(output.to_owned()),
                last_probe_time: Some(now.clone()),
                last_transition_time: Some(now.clone()),
                revision: entry.revision.clone(),
                values: (state == "Succeeded").then(|| values.clone().into()),
                ..ContainerProbeState::new(&entry.name, state)
            });
            let states = states.collect();
            let statuses = &mut object.status.get_or_insert_default().pod_probe_statuses;
            statuses.retain(|one| one.uid != known.uid);
            statuses.push(PodProbeStatus {
                name: name.name.clone(),
                namespace: name.namespace.clone(),
                uid: known.uid.clone(),
                probe_states: states,
                ..PodProbeStatus::default()
            });
        });
    }

    /// Reports, and lets everything follow.
    fn says(&mut self, pod: usize, output: &str) {
        self.say(pod, "Succeeded", output);
        self.drain();
        self.pass(SignedDuration::from_secs(1));
        self.drain();
    }

    /// The role of each pod that is there, `-` for none.
    fn roles(&self) -> String {
        let pods = (0..3).filter_map(|pod| self.cluster.pods.get(&pod_name(pod)));
        let roles = pods.map(|pod| {
            let role = pod.labels.get("role");
            role.map_or("-", |mark| mark.value.as_str().unwrap())
                .to_owned()
        });
        roles.collect::<Vec<_>>().join(" ")
    }

    fn holders(&self) -> Vec<ExclusiveHolder> {
        self.status("way").probes[0].holders.clone()
    }

    /// What the index says of a pod.
    fn ruling(&self, pod: usize) -> String {
        let inspected = self.index.inspect_pod(&pod_name(pod), self.now()).unwrap();
        format!("{:?}", inspected.rulings[0].1)
    }
}

// PPM-23
#[test]
fn the_higher_version_wins_and_a_lower_one_never_comes_back() {
    let mut world = World::database(&role(true, None));
    world.says(0, "primary 7");
    world.says(1, "replica 7");
    assert_eq!(world.roles(), "primary replica -");
    // The first one says nothing new: its node is silent.
    world.says(1, "primary 8");
    assert_eq!(world.roles(), "- primary -");
    assert_eq!(world.ruling(0), "Outdated(8)");
    world.says(2, "primary 6");
    assert_eq!(world.roles(), "- primary -");
    // Only these two know now of the eighth version.
    world.cluster.delete(WatchedKind::Pod, &pod_name(1));
    world.drain();
    assert_eq!(world.roles(), "- -");
    world.restart(KINDS);
    world.drain();
    assert_eq!(world.roles(), "- -");
    world.says(2, "primary 8");
    assert_eq!(world.roles(), "- primary");
    world.says(0, "primary 9");
    assert_eq!(world.roles(), "primary -");
}

// PPM-23
#[test]
fn a_manager_that_begins_gives_no_value_to_a_claim_that_is_outdated() {
    let mut world = World::database(&role(true, None));
    world.says(0, "primary 7");
    world.says(0, "replica 7");
    world.says(0, "primary 6");
    assert_eq!(world.ruling(0), "Outdated(7)");
    // So that the entry on the node differs, and the pod is planned again only once it is written.
    let mut edited = role(true, None);
    edited["probe"]["failureThreshold"] = json!(7);
    let edited = marker(&app_x(), &[edited]);
    world.cluster.put_marker(&name("a", "way"), edited);
    world.restart(KINDS);
    world.drain();
    assert_eq!(world.roles(), "- - -");
}

// PPM-23
#[test]
fn of_one_version_the_pod_that_has_the_value_keeps_it() {
    let mut world = World::database(&role(true, None));
    world.says(1, "primary 7");
    world.says(0, "primary 7");
    assert_eq!(world.roles(), "- primary -");
    assert!(world.ruling(0).starts_with("Lost("), "{}", world.ruling(0));
    // Its own restart gives the other one the value.
    world.say(1, "Unknown", "");
    world.drain();
    assert_eq!(world.roles(), "primary - -");
    world.says(1, "primary 7");
    assert_eq!(world.roles(), "primary - -");
}

// PPM-23
#[test]
fn without_versions_the_later_claim_wins_and_what_is_claimed_no_more_counts_again() {
    let mut world = World::database(&role(false, None));
    world.says(0, "primary");
    world.says(1, "primary");
    assert_eq!(world.roles(), "- primary -");
    // Its node is asked nothing, and nothing is known of it: it keeps what it has.
    world
        .cluster
        .delete(WatchedKind::NodePodProbe, &name("", "n1"));
    world.drain();
    assert_eq!(world.roles(), "- primary -");
    world.says(2, "primary");
    assert_eq!(world.roles(), "- - primary");
    world.says(2, "replica");
    assert_eq!(world.roles(), "primary - replica");
}

// PPM-23
#[test]
fn the_value_is_given_only_when_nobody_else_can_have_it() {
    let mut world = World::database(&role(true, None));
    world.says(0, "primary 7");
    world.settle();
    world.say(1, "Succeeded", "primary 8");
    while world.deliver() {}
    // Both may be written at once, and neither gives the label.
    while world.send(0) {}
    assert_eq!(world.roles(), "primary - -");
    let gives = |world: &World| {
        let writes = world.writes.iter().map(|(_, write)| format!("{write:?}"));
        let gives = writes.filter(|write| write.contains("\"role\": String(\"primary\")"));
        gives.count()
    };
    assert_eq!(gives(&world), 0);
    // The record is there, the label of the other one too, whose reply is lost.
    world.fly(1, Fate::Answered);
    while world.deliver() {}
    assert!(
        world.ruling(1).starts_with("Awaits("),
        "{}",
        world.ruling(1)
    );
    world.fly(0, Fate::ReplyLost);
    assert_eq!(world.roles(), "- - -");
    while world.deliver() {}
    while world.send(0) {}
    assert_eq!(gives(&world), 1);
    world.drain();
    assert_eq!(world.roles(), "- primary -");
}

// PPM-23
#[test]
fn a_pod_that_ends_keeps_the_value_until_another_one_claims_it() {
    for (phase, deleting) in [("Failed", false), ("Running", true)] {
        let mut world = World::database(&role(true, None));
        world.says(0, "primary 7");
        world.cluster.edit_pod(&pod_name(0), |pod| {
            (pod.phase, pod.deleting) = (phase, deleting);
            pod.labels.insert("mine".to_owned(), mark("1", Owner::User));
        });
        world.drain();
        assert_eq!(world.roles(), "primary - -");
        world.says(1, "primary 6");
        assert_eq!(world.roles(), "primary - -");
        let before = world.cluster.pods[&pod_name(0)].clone();
        world.says(1, "primary 8");
        assert_eq!(world.roles(), "- primary -");
        let after = &world.cluster.pods[&pod_name(0)];
        assert_eq!(after.conditions, before.conditions);
        assert!(after.labels.contains_key("mine"));
    }
}

// PPM-23
#[test]
fn a_pod_that_the_marker_selects_no_more_loses_the_value_first() {
    let mut world = World::database(&role(true, None));
    world.says(0, "primary 7");
    world.say(1, "Succeeded", "primary 8");
    world.cluster.edit_pod(&pod_name(0), |pod| {
        pod.labels.insert("app".to_owned(), mark("y", Owner::User));
    });
    world.drain();
    assert_eq!(world.roles(), "- primary -");
    assert!(world.cluster.pods[&pod_name(0)].annotations.is_empty());
}

// PPM-23
#[test]
fn groups_have_a_holder_each() {
    let mut world = World::database(&role(true, Some("group")));
    for (pod, group) in [(0, "one"), (1, "two")] {
        world.cluster.edit_pod(&pod_name(pod), |pod| {
            pod.labels
                .insert("group".to_owned(), mark(group, Owner::User));
        });
    }
    for (pod, output) in [(0, "primary 7"), (1, "primary 3"), (2, "primary 1")] {
        world.says(pod, output);
    }
    assert_eq!(world.roles(), "primary primary primary");
    world.rest_for(Duration::from_secs(5));
    let holders = world.holders().into_iter();
    let holders: Vec<_> = holders
        .map(|one| (one.group, one.pod, one.version))
        .collect();
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        (None, "p2".to_owned(), text("1")),
        (text("one"), "p0".to_owned(), text("7")),
        (text("two"), "p1".to_owned(), text("3")),
    ];
    assert_eq!(holders, expected);
    // It moves with its label, and what it has is compared there.
    world.cluster.edit_pod(&pod_name(0), |pod| {
        pod.labels
            .insert("group".to_owned(), mark("two", Owner::User));
    });
    world.drain();
    assert_eq!(world.roles(), "primary - primary");
}

// PPM-23
#[rstest]
#[case::no_number("primary x")]
#[case::too_large("primary 18446744073709551616")]
#[case::none("primary")]
fn a_claim_without_a_valid_version_is_refused_and_said(#[case] output: &str) {
    let mut world = World::database(&role(true, None));
    world.says(0, output);
    world.rest_for(Duration::from_secs(5));
    assert_eq!(world.roles(), "- - -");
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "InvalidValue");
    assert!(message.contains("is not a number from 0 to"), "{message}");
    world.says(0, "primary 18446744073709551615");
    world.rest_for(Duration::from_secs(5));
    assert_eq!(
        (world.roles().as_str(), world.ready("way").0.as_str()),
        ("primary - -", "Probing")
    );
}

// PPM-23
#[test]
fn the_status_says_who_has_the_value_its_version_and_since_when() {
    let mut world = World::database(&role(true, None));
    let since = world.cluster.now;
    world.says(0, "primary 7");
    world.rest_for(Duration::from_secs(5));
    let holder = ExclusiveHolder {
        pod: "p0".to_owned(),
        version: Some("7".to_owned()),
        since: Some(Time(since)),
        group: None,
    };
    assert_eq!(world.holders(), [holder]);
    world.says(0, "replica 7");
    world.rest_for(Duration::from_secs(5));
    assert_eq!(world.holders(), []);
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert!(world.cluster.pods[&pod_name(0)].annotations.is_empty());
}

// PPM-23
#[test]
fn what_others_write_into_the_annotation_counts_for_nothing() {
    let mut world = World::database(&role(true, None));
    world.cluster.edit_pod(&pod_name(1), |pod| {
        let record = r#"{"way#role":{"holds":true,"version":18446744073709551615}}"#;
        let annotation = mark(record, Owner::User);
        pod.annotations
            .insert(EXCLUSIVE_ANNOTATION.to_owned(), annotation);
    });
    world.says(0, "primary 7");
    assert_eq!(world.roles(), "primary - -");
    // Who removes what is recorded begins anew.
    for pod in 0..2 {
        world.cluster.edit_pod(&pod_name(pod), |pod| {
            pod.annotations.remove(EXCLUSIVE_ANNOTATION);
        });
    }
    world.say(0, "Succeeded", "replica 0");
    world.says(1, "primary 1");
    assert_eq!(world.roles(), "replica primary -");
}

// PPM-23
#[test]
fn a_version_of_another_group_says_nothing() {
    let mut world = World::database(&role(true, None));
    world.says(0, "primary 9");
    world.says(1, "primary 3");
    assert_eq!(world.roles(), "primary - -");
    for (pod, group) in [(0, "a"), (1, "b")] {
        world.cluster.edit_pod(&pod_name(pod), |pod| {
            pod.labels
                .insert("group".to_owned(), mark(group, Owner::User));
        });
    }
    world.mark("way", &[role(true, Some("group"))]);
    assert_eq!(world.roles(), "primary primary -");
}

// PPM-23
#[test]
fn labels_from_before_stay_with_one_pod() {
    let mut plain = role(true, None);
    plain["markerPolicy"][0]["exclusive"] = Value::Null;
    let mut world = World::database(&plain);
    world.says(0, "primary 7");
    world.cluster.edit_pod(&pod_name(1), |pod| {
        pod.labels
            .insert("role".to_owned(), mark("primary", Owner::User));
    });
    world.says(1, "primary 8");
    assert_eq!(world.roles(), "primary primary -");
    assert!(world.cluster.pods[&pod_name(0)].annotations.is_empty());
    world.mark("way", &[role(true, None)]);
    assert_eq!(world.roles(), "- primary -");
}

// PPM-23
#[test]
fn a_pod_that_the_marker_made_anew_does_not_select_loses_the_value_first() {
    let mut world = World::database(&role(true, None));
    world.says(2, "primary 7");
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.cluster.edit_pod(&pod_name(2), |pod| {
        pod.labels.insert("app".to_owned(), mark("y", Owner::User));
    });
    while world.deliver() {}
    // The label is to be taken, and the API server is not there.
    let target = WriteTarget::PodMarks(pod_name(2));
    let which = world.dirty.iter().position(|one| *one == target);
    world.send(which.unwrap());
    world.fly(0, Fate::Unavailable);
    let again = marker(&app_x(), &[role(true, None)]);
    world.cluster.put_marker(&name("a", "way"), again);
    world.say(0, "Succeeded", "primary 8");
    world.drain();
    assert_eq!(world.roles(), "- - primary");
    world.rest();
    assert_eq!(world.roles(), "primary - -");
}

// PPM-23
#[test]
fn a_label_from_before_goes_first_though_its_pod_waits_for_its_turn() {
    let mut plain = role(true, None);
    plain["markerPolicy"][0]["exclusive"] = Value::Null;
    let mut world = World::database(&plain);
    world.says(2, "primary 7");
    world.says(0, "replica 7");
    let edited = marker(&app_x(), &[role(true, None)]);
    world.cluster.put_marker(&name("a", "way"), edited);
    world.deliver();
    world.say(0, "Succeeded", "primary 8");
    world.drain();
    assert_eq!(world.roles(), "primary - -");
}

// PPM-23
#[test]
fn the_value_of_another_marker_keeps_no_pod_from_its_marks() {
    let mut rank = role(true, None);
    let policy = &mut rank["markerPolicy"][0];
    policy["labels"] = json!({ "rank": "$(role)" });
    policy["exclusive"]["label"] = json!("rank");
    let mut world = World::database(&rank);
    let everywhere = json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] });
    let other = marker(&everywhere, &[role(true, None)]);
    world.cluster.put_marker(&name("a", "zz"), other);
    world.cluster.edit_pod(&pod_name(1), |pod| {
        pod.labels.insert("app".to_owned(), mark("y", Owner::User));
    });
    world.drain();
    world.says(1, "primary 7");
    world.says(0, "primary 5");
    assert_eq!(world.roles(), "- primary -");
    // It sets the label now, and the pod has a record of the other marker's.
    let edited = marker(&app_x(), &[role(true, None)]);
    world.cluster.put_marker(&name("a", "way"), edited);
    world.drain();
    assert_eq!(world.roles(), "primary primary -");
}
