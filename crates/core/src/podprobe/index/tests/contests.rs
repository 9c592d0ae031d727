//! What is fought over, undone or refused, and what is made while its kind is listed again, rule by rule.

use std::time::Duration;

use jiff::SignedDuration;
use rstest::rstest;

use super::cluster::{Admission, name};
use super::driver::{Event, WatchedKind, WriteTarget};
use super::pod::SimPod;
use super::scene::{exec, idle, p0, probe};
use super::world::{Fate, World};
use crate::cluster::{Refusal, Source};

/// Somebody takes label `role` away until it is put back a minute later only.
fn fought_over(world: &mut World) {
    for _ in 0..8 {
        while !world.pod().labels.contains_key("role") {
            world.pass(SignedDuration::from_secs(1));
            world.drain();
        }
        world.edit(|pod| drop(pod.labels.remove("role")));
    }
    assert!(!world.pod().labels.contains_key("role"));
}

// PPM-8
#[test]
fn a_mark_that_is_fought_over_waits_alone() {
    let mut world = World::probing(&[idle(), probe("q", "main", exec("b"))]);
    world.verdict("way#idle", "Succeeded", "yes");
    fought_over(&mut world);
    let start = world.monotonic;
    world.verdict("way#q", "Failed", "other");
    assert_eq!(world.pod().conditions["game.io/q"].value["status"], "False");
    // The same probe's other marks go at once too, and what the label is to be then has not been taken away.
    world.verdict("way#idle", "Failed", "no");
    assert_eq!(world.pod().labels["idle"].value, "false");
    assert_eq!(
        world.pod().conditions["game.io/idle"].value["message"],
        "no"
    );
    world.verdict("way#idle", "Succeeded", "yes");
    assert_eq!(world.pod().labels["role"].value, "main");
    world.verdict("way#idle", "Unknown", "restarted");
    assert_eq!(
        world.pod().conditions["game.io/idle"].value["status"],
        "Unknown"
    );
    assert_eq!(world.monotonic, start);
}

// PPM-8, PPM-13
#[test]
fn the_status_names_what_is_fought_over_from_four_seconds_on() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "yes");
    let mut reasons = Vec::new();
    for _ in 0..4 {
        world.edit(|pod| drop(pod.labels.remove("role")));
        world.drain();
        reasons.push(world.ready("way").0);
        world.pass(SignedDuration::from_secs(4));
        world.drain();
        assert_eq!(world.pod().labels["role"].value, "main");
    }
    assert_eq!(reasons, ["Probing", "Probing", "Probing", "Contested"]);
    let (_, message) = world.ready("way");
    assert!(message.contains("p0 (label role)"), "{message}");
}

// PPM-8, PPM-11
#[rstest]
#[case::marks(Admission::Ignore(WatchedKind::Pod))]
#[case::one_mark(Admission::Strip("role"))]
#[case::statuses(Admission::Ignore(WatchedKind::Marker))]
#[case::specs(Admission::Ignore(WatchedKind::NodePodProbe))]
#[case::entries(Admission::EmptySpec)]
fn what_admission_undoes_is_written_ever_more_seldom(#[case] admission: Admission) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Failed", "no");
    world.cluster.admission = Some(admission);
    let other = probe("q", "main", exec("b"));
    world.mark("way", &[idle(), other]);
    world.verdict("way#idle", "Succeeded", "yes");
    world.writes.clear();
    world.rest_for(Duration::from_mins(10));
    assert!(world.writes.len() <= 24, "{}", world.writes.len());
    assert!(world.writes.len() >= 9, "{}", world.writes.len());
    if let Admission::Strip(_) = admission {
        // What is not undone is there.
        assert_eq!(world.pod().labels["idle"].value, "true");
        let (reason, message) = world.ready("way");
        assert_eq!(reason, "Contested");
        assert!(message.contains("p0 (label role)"), "{message}");
    }
    if admission == Admission::EmptySpec {
        let (reason, message) = world.ready("way");
        assert_eq!(reason, "Contested");
        assert!(message.contains("p0 (NodePodProbe n0)"), "{message}");
    }
    world.cluster.admission = None;
    world.rest();
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.entries(), ["way#idle", "way#q"]);
    assert_ne!(world.ready("way").0, "Contested");
}

// PPM-8
#[test]
fn a_status_that_is_overwritten_waits_although_another_condition_changes_too() {
    let mut world = World::probing(&[idle()]);
    world.writes.clear();
    for number in 0..8 {
        let theirs = serde_json::json!({
            "type": "Theirs", "status": "True", "reason": "Theirs", "message": number.to_string(),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        world.cluster.edit_marker(&name("a", "way"), |marker| {
            let status = marker.status.get_or_insert_default();
            status.matched_pods = Some(99);
            status.conditions.retain(|one| one.type_ == "Ready");
            let theirs = serde_json::from_value(theirs).unwrap();
            status.conditions.push(theirs);
        });
        world.drain();
    }
    assert!(world.writes.len() <= 2, "{:#?}", world.writes);
}

// PPM-8
#[rstest]
#[case::not_there(Fate::Unavailable)]
#[case::reply_lost(Fate::ReplyLost)]
fn a_write_that_fails_is_no_contest(#[case] fate: Fate) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "yes");
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    while world.deliver() {}
    for _ in 0..8 {
        // As the world is, the marks are due alone.
        world.send(0);
        world.fly(0, fate);
        world.pass(SignedDuration::from_secs(1));
    }
    let start = world.monotonic;
    world.drain();
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.ready("way").0, "Probing");
    assert_eq!(world.monotonic, start);
}

/// The object of a node is made while the watch of its kind lists again.
fn made_while_listing() -> World {
    let mut world = World::probing(&[idle()]);
    world.cluster.put_node("n1", false);
    while world.deliver() {}
    world.cluster.list_again(WatchedKind::NodePodProbe);
    world.send(0);
    world.fly(0, Fate::Answered);
    assert!(world.cluster.node_pod_probes.contains_key("n1"));
    world
}

// PPM-2
#[test]
fn an_object_made_while_its_kind_is_listed_is_not_taken_for_deleted() {
    let mut world = made_while_listing();
    world.writes.clear();
    world.drain();
    assert_eq!(world.writes, []);
    let pod = SimPod::new("u9", "n1", &[("app", "x")]);
    world.cluster.put_pod(&name("a", "p9"), pod);
    world.drain();
    let reported = &world.cluster.node_pod_probes["n1"].spec.pod_probes;
    assert_eq!(reported.len(), 1);
}

// PPM-2
#[test]
fn an_object_that_is_made_again_outlives_the_late_event_of_its_predecessors_end() {
    let mut world = World::probing(&[idle()]);
    let old = world.cluster.next_version();
    world
        .cluster
        .delete(WatchedKind::NodePodProbe, &name("", "n0"));
    world.drain();
    assert_eq!(world.entries(), ["way#idle"]);
    world.observe(Event::Deleted(
        WatchedKind::NodePodProbe,
        name("", "n0"),
        super::cluster::at(old),
    ));
    world.writes.clear();
    world.drain();
    assert_eq!(world.writes, []);
}

// PPM-2
#[test]
fn after_a_restored_store_a_list_takes_away_what_it_does_not_name() {
    let mut world = World::probing(&[idle()]);
    world.cluster.pods.remove(&p0());
    // The store counts from an earlier version.
    world.cluster.version = 1;
    world.cluster.list_again(WatchedKind::Pod);
    while world.deliver() {}
    world.drain();
    assert!(world.entries().is_empty());
}

// PPM-2
#[test]
fn what_is_there_already_is_read_back_and_compared() {
    let mut world = World::probing(&[idle()]);
    world
        .cluster
        .delete(WatchedKind::NodePodProbe, &name("", "n0"));
    while world.deliver() {}
    // Another manager is quicker, and the watch lags.
    let empty = leadsman_api::NodePodProbe::new("n0", leadsman_api::NodePodProbeSpec::default());
    world.cluster.put_node_pod_probe(empty);
    world.send(0);
    world.fly(0, Fate::Answered);
    world.pass(SignedDuration::from_secs(1));
    world.send(0);
    world.fly(0, Fate::Answered);
    assert_eq!(world.entries(), ["way#idle"]);
}

// PPM-8, PPM-13
#[test]
fn a_refusal_is_of_the_write_that_was_sent() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "yes");
    let marks = WriteTarget::PodMarks(p0());
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    while world.deliver() {}
    assert!(world.index.due(&marks, world.now()).is_some());
    // Before the refusal comes, something else is due.
    world.verdict("way#idle", "Failed", "no");
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("idle")));
    while world.deliver() {}
    let refusal = Refusal::Forbidden("no such value".to_owned());
    world.observe(Event::Refused(marks, refusal));
    world.drain();
    assert_eq!(world.pod().labels["idle"].value, "false");
    assert_eq!(world.ready("way").0, "Probing");
}

// PPM-8
/// A time of transition that the agent leaves out is made up again for each write.
#[test]
fn a_refused_write_is_not_repeated_for_another_time_in_it() {
    let mut world = World::probing(&[idle()]);
    while world.deliver() {}
    world.cluster.admission = Some(Admission::Ignore(WatchedKind::Pod));
    world.verdict_with("way#idle", "Succeeded", "yes", |state| {
        state.last_transition_time = None;
    });
    world.cluster.admission = None;
    world.pass(SignedDuration::from_mins(1));
    let marks = WriteTarget::PodMarks(p0());
    world.refuse(&marks, "no");
    world.pass(SignedDuration::from_secs(7));
    assert_eq!(world.index.due(&marks, world.now()), None);
}

// PPM-2
#[test]
fn the_late_reply_to_a_write_does_not_bring_an_object_back() {
    let mut world = World::probing(&[idle()]);
    let reply = world
        .cluster
        .snapshot(WatchedKind::Pod, &p0(), Source::Reply);
    world.cluster.delete(WatchedKind::Pod, &p0());
    // The watch breaks before it shows that.
    world.cluster.list_again(WatchedKind::Pod);
    world.drain();
    world.observe(reply.unwrap());
    world.drain();
    assert!(world.entries().is_empty());
}

/// Sends the marks of the pod, and nothing else.
fn send_marks(world: &mut World) {
    let marks = WriteTarget::PodMarks(p0());
    let place = world.dirty.iter().position(|object| *object == marks);
    assert!(world.send(place.expect("the marks are due")));
}

// PPM-8, PPM-13
/// The reply to a write shows what is not wanted any more: that is our own doing, and nobody's who takes marks away.
#[test]
fn a_probe_that_flaps_faster_than_the_api_server_answers_is_no_contest() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "yes");
    let start = world.monotonic;
    for _ in 0..8 {
        world.report("way#idle", "Failed", "no", |_| {});
        while world.deliver() {}
        send_marks(&mut world);
        world.report("way#idle", "Succeeded", "yes", |_| {});
        while world.deliver() {}
        assert!(world.fly(0, Fate::Answered));
        assert_eq!(world.pod().labels["idle"].value, "false");
        world.drain();
        assert_eq!(world.pod().labels["idle"].value, "true");
    }
    assert_eq!(world.ready("way").0, "Probing");
    assert_eq!(world.monotonic, start);
}

// PPM-8, PPM-13
#[test]
fn a_refused_write_of_marks_is_not_repeated_with_each_snapshot_of_the_pod() {
    let mut world = World::probing(&[idle()]);
    world.report("way#idle", "Succeeded", "yes", |_| {});
    while world.deliver() {}
    world.refuse(&WriteTarget::PodMarks(p0()), "no such value");
    world.drain();
    let reported = world.ready("way");
    assert!(reported.1.contains("no such value"), "{reported:?}");
    world.writes.clear();
    for phase in ["Pending", "Running"] {
        world.edit(|pod| pod.phase = phase);
        assert_eq!(
            (world.writes.len(), world.ready("way")),
            (0, reported.clone())
        );
    }
    // What is due is another write: it goes, and nothing is said any more.
    world.verdict("way#idle", "Failed", "no");
    assert_eq!(world.pod().labels["idle"].value, "false");
    assert_eq!(world.ready("way").0, "Probing");
}
