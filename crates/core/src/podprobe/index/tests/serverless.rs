//! Pods on virtual nodes, whose provider runs the probes and reports by conditions.

use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::{Event, Index, WatchedKind, WriteTarget};
use super::pod::{Mark, Owner, SimPod, mark};
use super::scene::{exec, idle, p0, plain, probe};
use super::world::World;
use crate::podprobe::index::{Config, FINALIZER};
use crate::podprobe::serverless::{MARKERS, PROBES};

/// Virtual node `n0`, pod `a/p0` on it, and a marker `a/way` with these probes.
fn provided(probes: &[Value]) -> World {
    let mut world = World::new(Config {
        serverless: true,
        ..Config::default()
    });
    world.cluster.put_node("n0", true);
    world.settle();
    world.mark("way", probes);
    let pod = SimPod::new("u0", "n0", &[("app", "x")]);
    world.cluster.put_pod(&p0(), pod);
    world.settle();
    world
}

/// A condition as the provider writes it.
fn condition(kind: &str, status: &str, message: &str) -> Mark {
    Mark {
        value: json!({ "type": kind, "status": status, "message": message }),
        owners: [Owner::Status].into(),
    }
}

impl World {
    fn provider_reports(&mut self, kind: &str, status: &str, message: &str) {
        self.edit(|pod| {
            let condition = condition(kind, status, message);
            pod.conditions.insert(kind.into(), condition);
        });
    }

    fn annotation(&self, key: &str) -> Option<String> {
        let annotation = self.pod().annotations.get(key)?;
        annotation.value.as_str().map(str::to_owned)
    }

    /// The names of the probes that the provider is asked to run.
    fn injected(&self) -> Vec<String> {
        let probes = self.annotation(PROBES).unwrap_or_else(|| "[]".to_owned());
        let probes: Vec<Value> = serde_json::from_str(&probes).unwrap();
        let names = probes.iter().map(|probe| probe["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }
}

// PPM-16, PPM-6, PPM-7, DEF-18
#[test]
fn marks_follow_the_condition_and_the_condition_stays_the_providers() {
    let mut world = provided(&[idle()]);
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x" }));
    for (status, labels) in [
        (
            "True",
            json!({ "app": "x", "idle": "true", "role": "main" }),
        ),
        ("False", json!({ "app": "x", "idle": "false" })),
        (
            "True",
            json!({ "app": "x", "idle": "true", "role": "main" }),
        ),
        ("Unknown", json!({ "app": "x" })),
    ] {
        world.provider_reports("game.io/idle", status, "");
        assert_eq!(plain(&world.pod().labels), labels, "{status}");
        let kept = &world.pod().conditions["game.io/idle"];
        assert_eq!(*kept, condition("game.io/idle", status, ""));
    }
    assert_eq!(world.cluster.node_pod_probes.len(), 0);
}

// PPM-16
#[test]
fn what_is_no_verdict_changes_nothing() {
    let mut world = provided(&[idle()]);
    world.provider_reports("game.io/idle", "True", "");
    let marked = world.pod().labels.clone();
    world.edit(|pod| drop(pod.conditions.remove("game.io/idle")));
    assert_eq!(world.pod().labels, marked);
    world.provider_reports("game.io/idle", "Perhaps", "");
    assert_eq!(world.pod().labels, marked);
    world.settle();
    world.provider_reports("game.io/idle", "True", "another message");
    assert_eq!(world.pod_writes().len(), 0, "the message is the provider's");
}

// PPM-16, PPM-11
#[test]
fn a_pod_that_was_created_with_its_probes_costs_no_write() {
    let mut world = provided(&[idle()]);
    let [probes, markers] = [PROBES, MARKERS].map(|key| world.annotation(key).unwrap());
    assert_eq!(markers, "way");
    let mut pod = SimPod::new("u1", "n0", &[("app", "x")]);
    for (key, value) in [(PROBES, probes), (MARKERS, markers)] {
        pod.annotations
            .insert(key.into(), mark(&value, Owner::User));
    }
    world.cluster.put_pod(&name("a", "p1"), pod.clone());
    world.settle();
    world
        .cluster
        .edit_pod(&name("a", "p1"), |pod| pod.ready = true);
    world.drain();
    assert_eq!(world.pod_writes().len(), 0);
    let known = &world.cluster.pods[&name("a", "p1")].annotations;
    assert_eq!(*known, pod.annotations);
}

// PPM-16, DEF-18
#[test]
fn annotations_follow_the_markers() {
    let mut world = provided(&[idle()]);
    assert_eq!(world.injected(), ["idle"]);
    world.mark("way", &[idle(), probe("two", "main", exec("/two"))]);
    assert_eq!(world.injected(), ["idle", "two"]);
    world.mark("bee", &[probe("three", "main", exec("/three"))]);
    assert_eq!(world.annotation(MARKERS).unwrap(), "bee,way");
    world.provider_reports("game.io/idle", "True", "");
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert_eq!(world.injected(), ["three"]);
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x" }));
    world.cluster.delete(WatchedKind::Marker, &name("a", "bee"));
    world.drain();
    assert_eq!(plain(&world.pod().annotations), json!({}));
    // It was the provider's, who sees from the annotation that nobody asks for it any more.
    assert!(world.pod().conditions.contains_key("game.io/idle"));
}

// PPM-9, PPM-16, DEF-4
#[test]
fn a_marker_is_held_until_its_annotations_are_gone() {
    let mut world = provided(&[idle()]);
    let way = name("a", "way");
    world.cluster.edit_marker(&way, |marker| {
        marker.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    });
    world.settle();
    world.cluster.delete(WatchedKind::Marker, &way);
    while world.deliver() {}
    let finalizer = WriteTarget::MarkerFinalizer(way.clone());
    assert_eq!(world.index.due(&finalizer, world.now()), None);
    world.drain();
    assert_eq!(plain(&world.pod().annotations), json!({}));
    assert!(!world.cluster.markers.contains_key(&way));
}

// PPM-16, PPM-11
#[test]
fn an_edited_policy_leaves_the_annotations_alone_and_an_edited_probe_costs_one_write() {
    let mut world = provided(&[idle()]);
    world.provider_reports("game.io/idle", "False", "");
    let before = world.annotation(PROBES);
    let mut edited = idle();
    edited["markerPolicy"][1]["labels"]["idle"] = json!("no");
    world.mark("way", &[edited.clone()]);
    assert_eq!(plain(&world.pod().labels)["idle"], "no");
    assert_eq!(world.annotation(PROBES), before);
    edited["probe"]["periodSeconds"] = json!(5);
    world.cluster.put_marker(
        &name("a", "way"),
        super::proof::marker(&super::scene::app_x(), &[edited]),
    );
    world.writes.clear();
    world.drain();
    assert_eq!(world.pod_writes().len(), 1);
    assert_ne!(world.annotation(PROBES), before);
}

// PPM-16
#[rstest]
#[case::of_another_pod(&[PROBES, MARKERS], false)]
#[case::somebody_elses(&[PROBES], true)]
fn annotations_that_no_marker_wants(#[case] keys: &[&str], #[case] stay: bool) {
    let mut world = provided(&[]);
    let mut pod = SimPod::new("u1", "n0", &[("app", "y")]);
    for key in keys {
        pod.annotations
            .insert((*key).into(), mark("[]", Owner::User));
    }
    world.cluster.put_pod(&name("a", "p1"), pod);
    world.drain();
    let annotations = &world.cluster.pods[&name("a", "p1")].annotations;
    assert_eq!(!annotations.is_empty(), stay);
}

// PPM-16
#[test]
fn annotations_of_a_pod_that_is_not_initialized_yet_are_left_alone() {
    let mut world = provided(&[idle()]);
    let mut pod = SimPod::new("u1", "n0", &[("app", "x")]);
    pod.initialized = false;
    pod.annotations
        .insert(MARKERS.into(), mark("gone", Owner::User));
    world.cluster.put_pod(&name("a", "p1"), pod);
    world.drain();
    assert!(
        world.cluster.pods[&name("a", "p1")]
            .annotations
            .contains_key(MARKERS)
    );
}

// PPM-16, PPM-13
#[rstest]
#[case::waiting(idle(), "Probing", "1 pending: 1 AwaitingProvider")]
#[case::no_condition(json!({ "name": "p", "containerName": "main", "probe": exec("true"),
    "markerPolicy": [{ "state": "Failed", "labels": { "k": "v" } }] }), "NoConditionType", "1 pending: 1 NoConditionType")]
#[case::no_container(
    probe("p", "gone", exec("true")),
    "ContainerNotFound",
    "1 pending: 1 ContainerNotFound"
)]
#[case::no_port(probe("p", "main", json!({ "tcpSocket": { "port": "nope" } })), "PortNotFound", "1 pending: 1 PortNotFound")]
fn pending_says_what_the_provider_lacks(
    #[case] probe: Value,
    #[case] reason: &str,
    #[case] progress: &str,
) {
    let world = provided(&[probe]);
    let (found, message) = world.ready("way");
    assert_eq!(found, reason, "{message}");
    assert!(message.ends_with(progress), "{message}");
}

// PPM-16, PPM-13
#[test]
fn annotations_of_others_leave_room_for_the_probes_or_the_marker_says_so() {
    let mut world = provided(&[idle()]);
    let fill = |world: &mut World, bytes: usize| {
        world.edit(|pod| {
            let long = mark(&"x".repeat(bytes), Owner::User);
            pod.annotations.insert("theirs".into(), long);
        });
        world.rest();
    };
    assert_eq!(world.injected(), ["idle"]);
    world.provider_reports("game.io/idle", "True", "");
    let labels = world.pod().labels.clone();
    fill(&mut world, 262_000);
    assert_eq!(world.injected(), Vec::<String>::new());
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "TooManyProbes", "{message}");
    assert_eq!(world.pod().labels, labels, "what was known is not over");
    fill(&mut world, 100_000);
    assert_eq!(world.injected(), ["idle"]);
    assert_eq!(world.ready("way").0, "Probing");
}

// PPM-16
#[test]
fn the_bytes_left_free_are_for_whoever_comes_after_the_probes() {
    let theirs = |bytes: usize| mark(&"x".repeat(bytes), Owner::User);
    let mut world = provided(&[idle()]);
    world.settle();
    for bytes in [224 * 1024, 225 * 1024, 250 * 1024] {
        world.edit(|pod| drop(pod.annotations.insert("theirs".into(), theirs(bytes))));
        world.rest();
        assert_eq!(world.injected(), ["idle"], "{bytes}");
        assert_eq!(world.pod_writes().len(), 0, "{bytes}");
    }
    world.edit(|pod| pod.annotations.retain(|key, _| key == "theirs"));
    world.rest();
    assert_eq!(world.injected(), Vec::<String>::new(), "it gets none now");
}

// PPM-16, PPM-10
#[test]
fn the_younger_of_two_markers_does_not_get_the_condition() {
    let mut world = provided(&[idle()]);
    let mut rival = idle();
    rival["name"] = json!("rival");
    rival["markerPolicy"] = json!([{ "state": "Succeeded", "labels": { "rival": "yes" } }]);
    world.mark("zoo", &[rival]);
    world.provider_reports("game.io/idle", "True", "");
    world.rest();
    assert_eq!(world.injected(), ["idle"]);
    assert!(
        !world.pod().labels.contains_key("rival"),
        "its probe was never run"
    );
    let (reason, message) = world.ready("zoo");
    assert_eq!(reason, "Conflict");
    assert!(message.ends_with("1 pending: 1 Conflict"), "{message}");
}

// PPM-16, PPM-10
#[test]
fn a_probe_of_a_container_that_the_pod_lacks_does_not_take_the_condition() {
    let mut other = idle();
    other["containerName"] = json!("other");
    let mut world = provided(&[other]);
    world.mark("zoo", &[idle()]);
    world.rest();
    assert_eq!(world.injected(), ["idle"]);
    assert_eq!(world.annotation(MARKERS).as_deref(), Some("zoo"));
    world.provider_reports("game.io/idle", "True", "");
    world.rest();
    assert_eq!(plain(&world.pod().labels)["role"], "main");
    assert_eq!(world.ready("zoo").0, "Probing");
    assert_eq!(world.ready("way").0, "ContainerNotFound");
}

/// Pod `a/p0`, which the agent of `n0` has found idle. Nobody has seen yet that the node has become virtual, nor this edit.
fn probed_before_the_node_is_virtual(edit: impl FnOnce(&mut SimPod)) -> World {
    let mut world = World::with(Config {
        serverless: true,
        ..Config::default()
    });
    world.mark("way", &[idle()]);
    let pod = SimPod::new("u0", "n0", &[("app", "x")]);
    world.cluster.put_pod(&p0(), pod);
    world.settle();
    world.verdict("way#idle", "Succeeded", "");
    assert!(world.pod().conditions["game.io/idle"].owners == [Owner::Ours].into());
    world.cluster.edit_pod(&p0(), edit);
    world.cluster.put_node("n0", true);
    world
}

// PPM-16
#[test]
fn the_agents_condition_goes_when_the_node_becomes_virtual_and_is_no_verdict_of_the_provider() {
    let mut world = probed_before_the_node_is_virtual(|_| {});
    world.deliver_of(Some(WatchedKind::Node));
    let (marker, now) = (name("a", "way"), world.now());
    let status = world.index.due(&WriteTarget::MarkerStatus(marker), now);
    assert!(
        format!("{status:?}").contains("1 AwaitingProvider"),
        "before the condition is gone: {status:?}"
    );
    world.rest();
    assert!(!world.pod().conditions.contains_key("game.io/idle"));
    assert_eq!(plain(&world.pod().labels)["idle"], "true", "no verdict yet");
    world.provider_reports("game.io/idle", "False", "");
    assert_eq!(plain(&world.pod().labels)["idle"], "false");
    let kept = &world.pod().conditions["game.io/idle"];
    assert_eq!(*kept, condition("game.io/idle", "False", ""));
}

// PPM-16, PPM-9
#[rstest]
#[case::while_a_marker_names_it(false)]
#[case::when_no_marker_names_it(true)]
fn a_condition_that_the_provider_owns_too_is_left_to_it(#[case] is_deleted: bool) {
    let mut world = probed_before_the_node_is_virtual(|pod| {
        let condition = pod.conditions.get_mut("game.io/idle").unwrap();
        condition.owners.insert(Owner::Status);
    });
    if is_deleted {
        world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    }
    world.drain();
    let kept = world.pod().conditions.get("game.io/idle");
    assert_eq!(kept.unwrap().owners, [Owner::Status].into());
}

// PPM-16
#[test]
fn a_report_that_the_watch_has_not_shown_yet_is_not_reverted() {
    let mut world = probed_before_the_node_is_virtual(|pod| {
        let report = condition("game.io/idle", "False", "");
        pod.conditions.insert("game.io/idle".into(), report);
    });
    world.deliver_of(Some(WatchedKind::Node));
    while world.work() {}
    assert!(!world.pod_writes().is_empty());
    let kept = &world.pod().conditions["game.io/idle"];
    assert_eq!(*kept, condition("game.io/idle", "False", ""));
}

// PPM-16, PPM-5
#[test]
fn a_pod_without_entries_follows_when_its_node_becomes_virtual() {
    let mut world = World::new(Config {
        serverless: true,
        ..Config::default()
    });
    world.mark("way", &[probe("slow", "slow", exec("true"))]);
    world
        .cluster
        .put_pod(&p0(), SimPod::new("u0", "n0", &[("app", "x")]));
    world.settle();
    assert_eq!(world.injected(), Vec::<String>::new());
    world.cluster.put_node("n0", true);
    world.settle();
    assert_eq!(world.injected(), ["slow"]);
    world.cluster.put_node("n0", false);
    world.settle();
    assert_eq!(world.injected(), Vec::<String>::new());
}

// PPM-16, PPM-5
#[test]
fn without_the_gate_pods_on_virtual_nodes_are_left_alone() {
    let mut world = World::new(Config::default());
    world.cluster.put_node("n0", true);
    world.mark("way", &[idle()]);
    let mut pod = SimPod::new("u0", "n0", &[("app", "x")]);
    pod.conditions
        .insert("game.io/idle".into(), condition("game.io/idle", "True", ""));
    world.cluster.put_pod(&p0(), pod);
    world.drain();
    assert_eq!(world.pod_writes().len(), 0);
    world.rest();
    assert_eq!(world.ready("way").0, "VirtualNode");
}

// PPM-16
#[test]
fn markers_are_in_force_while_they_are_acted_on() {
    let mut world = provided(&[idle()]);
    let made = world.index.take_changed_markers();
    assert!(
        matches!(&made[..], [(name, Some(_))] if name.name == "way"),
        "{made:?}"
    );
    assert_eq!(world.index.take_changed_markers(), []);
    world.mark("way", &[probe("two", "main", exec("true"))]);
    assert_eq!(world.index.take_changed_markers().len(), 1);
    world.cluster.edit_marker(&name("a", "way"), |marker| {
        marker.metadata.labels = Some([("no".to_owned(), "matter".to_owned())].into());
    });
    world.drain();
    assert_eq!(world.index.take_changed_markers(), []);
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    let gone = world.index.take_changed_markers();
    assert!(
        matches!(&gone[..], [(name, None)] if name.name == "way"),
        "{gone:?}"
    );
}

// PPM-16, PPM-11
#[test]
fn annotations_outlast_a_node_that_registers_again() {
    let mut world = provided(&[idle()]);
    let before = world.pod().annotations.clone();
    assert!(before.contains_key(PROBES));
    world.cluster.delete(WatchedKind::Node, &name("", "n0"));
    world.settle();
    world.cluster.put_node("n0", true);
    world.drain();
    assert_eq!(world.pod_writes().len(), 0);
    assert_eq!(world.pod().annotations, before);
    world.cluster.delete(WatchedKind::Node, &name("", "n0"));
    world.cluster.put_node("n0", false);
    world.drain();
    assert_eq!(plain(&world.pod().annotations), json!({}));
}

// PPM-16, PPM-13
#[test]
fn a_standby_does_not_inject_the_probes_of_a_marker_that_closes_a_loop() {
    let sets_and_reads = |sets: &str, reads: &str| {
        let mut probe = idle();
        probe["markerPolicy"] = json!([{ "state": "Succeeded", "labels": { sets: "yes" } }]);
        let without = json!({ "key": reads, "operator": "NotIn", "values": ["gone"] });
        let selector = json!({ "matchLabels": { "app": "x" }, "matchExpressions": [without] });
        super::proof::marker(&selector, &[probe])
    };
    let mut world = provided(&[]);
    for (own, sets, reads) in [("old", "a", "b"), ("young", "b", "a")] {
        let marker = sets_and_reads(sets, reads);
        world.cluster.put_marker(&name("a", own), marker);
        world.settle();
    }
    let mut standby = Index::new(world.config.clone());
    for event in world.cluster.lists([
        WatchedKind::Marker,
        WatchedKind::Pod,
        WatchedKind::Node,
        WatchedKind::NodePodProbe,
    ]) {
        if !matches!(event, Event::Synced) {
            standby.observe(event, world.now());
        }
    }
    let markers = standby.take_changed_markers();
    let is_active = |own: &str| {
        let mut markers = markers.iter();
        markers.any(|(name, marker)| name.name == own && marker.is_some())
    };
    assert!(is_active("old") && !is_active("young"));
}
