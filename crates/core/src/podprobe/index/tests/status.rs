//! What a marker's status says of pods without a verdict, and of agents that do not report.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{CannotProbeEntry, PodProbeStatus};
use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::{WatchedKind, WriteTarget};
use super::pod::SimPod;
use super::proof::marker;
use super::scene::{app_x, exec, idle, probe};
use super::world::World;
use crate::cluster::ObjectName;
use crate::podprobe::index::Config;

const KINDS: [WatchedKind; 4] = [
    WatchedKind::Marker,
    WatchedKind::Pod,
    WatchedKind::Node,
    WatchedKind::NodePodProbe,
];

fn agent(by: &str) -> ObjectName {
    name("leadsman-system", by)
}

/// The agent's pod of node `n0` as it is now.
fn put_agent(world: &mut World, by: &str, ready: bool) {
    let labels = [
        ("app.kubernetes.io/name", "leadsman"),
        ("app.kubernetes.io/component", "agent"),
    ];
    let mut pod = SimPod::new(by, "n0", &labels);
    pod.ready = ready;
    world.cluster.put_pod(&agent(by), pod);
    world.drain();
}

fn pass(world: &mut World, seconds: i64) {
    world.pass(SignedDuration::from_secs(seconds));
    world.drain();
}

fn get(port: u16) -> Value {
    json!({ "httpGet": { "port": port } })
}

/// Says of a probe of `a/p0` that it cannot be run.
fn cannot_probe(world: &mut World, entry: &str, message: &str) {
    let one = CannotProbeEntry {
        name: entry.to_owned(),
        message: message.to_owned(),
    };
    world.cluster.edit_node_pod_probe("n0", |object| {
        let pods = &mut object.status.get_or_insert_default().pod_probe_statuses;
        if pods.is_empty() {
            pods.push(PodProbeStatus {
                name: "p0".to_owned(),
                namespace: "a".to_owned(),
                uid: "u0".to_owned(),
                ..PodProbeStatus::default()
            });
        }
        pods[0].cannot_probe = vec![one];
    });
    world.drain();
}

// PPM-13
#[rstest]
#[case::not_ready(Some(false), 119, false)]
#[case::not_ready_for_too_long(Some(false), 120, true)]
#[case::ready(Some(true), 3600, false)]
#[case::no_pod_but_fresh(None, 1199, false)]
#[case::no_pod_and_old(None, 1200, true)]
fn an_agent_that_does_not_report_is_silent(
    #[case] agent: Option<bool>,
    #[case] seconds: i64,
    #[case] silent: bool,
) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    if let Some(ready) = agent {
        put_agent(&mut world, "agent", ready);
    }
    pass(&mut world, seconds);
    let check = |world: &World| {
        let reason = if silent { "AgentSilent" } else { "Probing" };
        assert_eq!(world.ready("way").0, reason);
        assert_eq!(world.status("way").probes[0].silent, i64::from(silent));
        assert_eq!(world.status("way").probes[0].succeeded, 1);
        assert_eq!(world.pod().labels["role"].value, "main");
    };
    check(&world);
    // The manager's own start shows it nothing else.
    world.writes.clear();
    world.restart(KINDS);
    world.drain();
    assert_eq!(world.writes, []);
    check(&world);
}

// PPM-11, PPM-13
#[rstest]
#[case::its_container_restarts(false)]
#[case::its_pod_is_replaced(true)]
fn an_agents_restart_writes_no_status_and_no_mark(#[case] replaced: bool) {
    let mut world = World::probing(&[idle()]);
    for number in 1..50 {
        let own = name("a", &format!("p{number}"));
        let pod = SimPod::new(&format!("u{number}"), "n0", &[("app", "x")]);
        world.cluster.put_pod(&own, pod);
    }
    put_agent(&mut world, "first", true);
    world.verdict("way#idle", "Succeeded", "");
    pass(&mut world, 600);
    world.writes.clear();

    put_agent(&mut world, "first", false);
    if replaced {
        pass(&mut world, 10);
        world.cluster.delete(WatchedKind::Pod, &agent("first"));
        world.drain();
        pass(&mut world, 20);
        put_agent(&mut world, "second", false);
    }
    pass(&mut world, 80);
    put_agent(&mut world, if replaced { "second" } else { "first" }, true);
    pass(&mut world, 600);
    assert_eq!(world.writes, []);
}

/// It was Ready for a moment, and the watch was broken then.
// PPM-13
#[test]
fn an_agent_that_is_not_ready_again_has_its_time_again() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    put_agent(&mut world, "agent", false);
    pass(&mut world, 100);
    let now = world.cluster.now;
    let again = |pod: &mut SimPod| pod.ready_since = now;
    world.cluster.edit_pod(&agent("agent"), again);
    world.drain();
    pass(&mut world, 119);
    assert_eq!(world.ready("way").0, "Probing");
    pass(&mut world, 1);
    assert_eq!(world.ready("way").0, "AgentSilent");
}

/// Those of the API server, the manager and the agent.
// PPM-11, PPM-13
#[rstest]
fn clocks_a_minute_apart_move_no_mark_and_blame_no_agent(
    #[values(-60, 0, 60)] managers: i64,
    #[values(-60, 60)] agents: i64,
) {
    let mut world = World::probing(&[idle()]);
    world.clock_error = SignedDuration::from_secs(managers);
    put_agent(&mut world, "agent", true);
    world.restart(KINDS);
    for (state, idle) in [("Succeeded", "true"), ("Failed", "false")] {
        world.settle();
        let reported = Some(Time(world.cluster.now + SignedDuration::from_secs(agents)));
        world.verdict_with("way#idle", state, "", |verdict| {
            verdict.last_probe_time.clone_from(&reported);
            verdict.last_transition_time = reported;
        });
        pass(&mut world, 600);
        assert_eq!(world.pod().labels["idle"].value, idle);
        assert_eq!(world.pod_writes().len(), 1);
        assert_eq!(world.ready("way").0, "Probing");
    }
    world.settle();
    put_agent(&mut world, "agent", false);
    pass(&mut world, 50);
    assert_eq!(world.ready("way").0, "Probing");
    pass(&mut world, 70);
    assert_eq!(world.ready("way").0, "AgentSilent");
    assert!(world.pod_writes().is_empty());
}

/// A spec is written whenever a pod comes or goes, by us.
// PPM-13
#[test]
fn the_managers_own_writes_are_no_sign_of_an_agents_life() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    pass(&mut world, 1199);
    world.mark("way", &[idle(), probe("p", "main", exec("a"))]);
    pass(&mut world, 1);
    assert_eq!(world.ready("way").0, "AgentSilent");
}

// PPM-13
#[test]
fn a_write_of_the_status_without_a_verdict_is_a_sign_of_life() {
    let mut world = World::probing(&[idle()]);
    pass(&mut world, 60);
    cannot_probe(&mut world, "way#idle", "the runtime does not answer");
    pass(&mut world, 600);
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "CannotProbe");
    assert!(
        message.contains("p0, probe idle: the runtime does not answer"),
        "{message}"
    );
}

/// The container does not start, or has a long initial delay: its agent has nothing to report.
// PPM-13
#[test]
fn a_working_agent_without_verdicts_is_not_silent() {
    let mut world = World::probing(&[idle()]);
    put_agent(&mut world, "agent", true);
    pass(&mut world, 7200);
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "Probing");
    assert_eq!(
        message,
        "0 of 1 matching pods have their verdicts; 1 pending: 1 Starting"
    );
}

// PPM-13
#[rstest]
#[case::starting("Starting", "Probing", |_: &mut World| {})]
#[case::startup_probe("StartupProbe", "Probing", |world: &mut World| {
    world.mark("way", &[probe("p", "slow", exec("a"))]);
})]
#[case::no_node("NoNode", "NoNode", |world: &mut World| world.cluster.delete(WatchedKind::Node, &name("", "n0")))]
#[case::virtual_node("VirtualNode", "VirtualNode", |world: &mut World| world.cluster.put_node("n0", true))]
#[case::no_agent("NoAgent", "NoAgent", |world: &mut World| pass(world, 120))]
#[case::cannot_probe("CannotProbe", "CannotProbe", |world: &mut World| {
    cannot_probe(world, "way#idle", "no place");
})]
#[case::no_address("NoAddress", "NoAddress", |world: &mut World| {
    world.mark("way", &[probe("p", "main", get(80))]);
    world.edit(|pod| pod.ip.clear());
})]
#[case::a_command_needs_no_address("Starting", "Probing", |world: &mut World| world.edit(|pod| pod.ip.clear()))]
fn pending_is_never_silent(
    #[case] pending: &str,
    #[case] reason: &str,
    #[case] happens: fn(&mut World),
) {
    let mut world = World::probing(&[idle()]);
    happens(&mut world);
    world.drain();
    let ready = world.ready("way");
    assert_eq!(ready.0, reason);
    let progress = format!("0 of 1 matching pods have their verdicts; 1 pending: 1 {pending}");
    assert!(ready.1.ends_with(&progress), "{}", ready.1);
    assert_eq!(ready.1.contains("p0"), reason != "Probing");
}

// PPM-13
#[test]
fn what_was_missing_is_not_reported_once_it_is_there() {
    let mut world = World::probing(&[idle()]);
    pass(&mut world, 120);
    assert_eq!(world.ready("way").0, "NoAgent");
    put_agent(&mut world, "agent", false);
    assert_eq!(world.ready("way").0, "Probing");
    world.cluster.put_node("n0", true);
    world.drain();
    assert_eq!(world.ready("way").0, "VirtualNode");
    world.cluster.delete(WatchedKind::Node, &name("", "n0"));
    world.drain();
    assert_eq!(world.ready("way").0, "NoNode");
    world.cluster.put_node("n0", false);
    world.drain();
    world.verdict("way#idle", "Failed", "");
    let ready = (
        "Probing".to_owned(),
        "all matching pods have their verdicts".to_owned(),
    );
    assert_eq!(world.ready("way"), ready);
}

// PPM-13
#[test]
fn an_agents_pod_that_was_just_deleted_is_given_time() {
    let mut world = World::probing(&[idle()]);
    put_agent(&mut world, "agent", true);
    pass(&mut world, 3600);
    world.cluster.delete(WatchedKind::Pod, &agent("agent"));
    world.drain();
    pass(&mut world, 119);
    assert_eq!(world.ready("way").0, "Probing");
    pass(&mut world, 1);
    assert_eq!(world.ready("way").0, "NoAgent");
}

// PPM-13
#[test]
fn pods_are_counted_by_why_they_are_pending() {
    let mut world = World::with(Config::default());
    world.cluster.put_node("v", true);
    world.mark("way", &[idle(), probe("p", "slow", exec("a"))]);
    for (own, node) in [
        ("p0", "n0"),
        ("p1", "n0"),
        ("p2", "v"),
        ("p3", "v"),
        ("p4", "gone"),
    ] {
        let mut pod = SimPod::new(&format!("u-{own}"), node, &[("app", "x")]);
        pod.containers[1].started = own == "p0";
        world.cluster.put_pod(&name("a", own), pod);
    }
    world.drain();
    world.verdict("way#idle", "Succeeded", "");
    world.verdict("way#p", "Failed", "");
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "NoNode");
    assert!(message.contains("p4 on gone"), "{message}");
    let progress = "1 of 5 matching pods have their verdicts; 4 pending: 1 NoNode, 2 VirtualNode, 1 StartupProbe";
    assert!(message.ends_with(progress), "{message}");
    assert_eq!(world.pod().labels["role"].value, "main");
    let status = WriteTarget::MarkerStatus(name("a", "way"));
    assert_eq!(world.index.due(&status, world.now()), None);
}

// PPM-13
#[test]
fn a_restart_of_the_manager_writes_no_status_of_pending_pods() {
    let mut world = World::probing(&[idle(), probe("p", "main", get(80))]);
    world.edit(|pod| pod.ip.clear());
    cannot_probe(&mut world, "way#p", "no place");
    pass(&mut world, 600);
    world.writes.clear();
    world.restart(KINDS);
    world.drain();
    assert_eq!(world.writes, []);
}

/// A webhook or a policy is in the way of a node's object.
// PPM-13
#[test]
fn a_refused_spec_is_reported_and_not_repeated_with_each_verdict() {
    let mut world = World::probing(&[idle()]);
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    let marker = marker(&app_x(), &[idle(), probe("p", "main", exec("a"))]);
    world.cluster.put_marker(&name("a", "way"), marker);
    while world.deliver() {}
    world.refuse(&node, "quota exceeded");
    world.drain();
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "Refused");
    assert!(message.contains("n0: quota exceeded"), "{message}");
    world.verdict("way#idle", "Succeeded", "");
    assert_eq!(world.entries(), ["way#idle"]);
    assert_eq!(world.ready("way").0, "Refused");
    assert_eq!(world.pod().labels["role"].value, "main");
    // Another spec is tried at once, the same one after five minutes.
    pass(&mut world, 300);
    assert_eq!(world.entries(), ["way#idle", "way#p"]);
    assert_eq!(world.ready("way").0, "Probing");
}

// PPM-13
#[test]
fn a_node_pod_probe_that_is_being_deleted_and_stays_is_reported() {
    let mut world = World::probing(&[idle()]);
    let now = Time(world.cluster.now);
    world.cluster.edit_node_pod_probe("n0", |object| {
        object.spec.pod_probes.clear();
        object.metadata.deletion_timestamp = Some(now);
        object.metadata.finalizers = Some(vec!["example.io/hold".to_owned()]);
    });
    world.drain();
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "Refused");
    let text = "NodePodProbe n0 is being deleted and waits for finalizer example.io/hold";
    assert!(message.contains(text), "{message}");
    world
        .cluster
        .delete(WatchedKind::NodePodProbe, &name("", "n0"));
    world.drain();
    assert_eq!(world.ready("way").0, "Probing");
    assert_eq!(world.entries(), ["way#idle"]);
}
