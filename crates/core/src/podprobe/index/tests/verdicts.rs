//! Which container a verdict is about.

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::cluster::name;
use super::driver::{WatchedKind, WriteTarget};
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, probe};
use super::world::World;
use crate::podprobe::index::Config;

/// The container is replaced by another one, which the kubelet reports running since now.
fn restart(world: &mut World, id: &str) {
    let now = world.cluster.now;
    world.edit(|pod| {
        pod.containers[0].id = id.to_owned();
        pod.containers[0].running_since = now;
    });
}

fn verdict(world: &mut World, state: &str, container: Option<&str>) {
    world.verdict_with("way#idle", state, "", |verdict| {
        verdict.container_id = container.map(str::to_owned);
    });
}

fn pass(world: &mut World, seconds: i64) {
    world.pass(SignedDuration::from_secs(seconds));
    world.drain();
}

/// The kubelet reports `two` running since second 60.
// PPM-12, PRB-10
#[rstest]
#[case::of_this_one(Some("two"), 90, true)]
#[case::of_this_one_by_a_clock_that_jumped(Some("two"), 30, true)]
#[case::of_the_one_before(Some("one"), 59, false)]
#[case::of_one_that_the_kubelet_does_not_report_yet(Some("three"), 61, true)]
#[case::of_openkruise_about_this_one(None, 61, true)]
#[case::of_openkruise_about_the_one_before(None, 59, false)]
#[case::of_openkruise_in_the_same_second(None, 60, true)]
fn a_verdict_counts_for_the_container_that_it_was_made_for(
    #[case] container: Option<&str>,
    #[case] second: i64,
    #[case] counts: bool,
) {
    let mut world = World::probing(&[idle()]);
    let start = world.cluster.now;
    world.cluster.now = start + SignedDuration::from_secs(60);
    restart(&mut world, "two");
    world.cluster.now = start + SignedDuration::from_secs(second);
    verdict(&mut world, "Succeeded", container);
    assert_eq!(world.pod().labels.contains_key("role"), counts);
    assert_eq!(world.status("way").probes[0].pending, i64::from(!counts));
}

/// Whether or not its agent is there to say so.
// PPM-6, PPM-12, PRB-10
#[rstest]
#[case::named(Some("u0-main-1"))]
#[case::openkruise(None)]
fn a_verdict_of_the_container_before_holds_what_is_marked_and_marks_nothing(
    #[case] container: Option<&str>,
) {
    let mut world = World::probing(&[idle()]);
    pass(&mut world, 10);
    verdict(&mut world, "Succeeded", container);
    pass(&mut world, 10);
    world.writes.clear();
    restart(&mut world, "two");
    assert_eq!(world.pod_writes().len(), 0);
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.status("way").probes[0].pending, 1);
    // Nothing is marked by it any more.
    world.edit(|pod| drop(pod.labels.remove("role")));
    assert!(!world.pod().labels.contains_key("role"));
    verdict(&mut world, "Unknown", Some("two"));
    assert!(!world.pod().annotations.contains_key("cost"));
    assert_eq!(
        world.pod().conditions["game.io/idle"].value["status"],
        "Unknown"
    );
    verdict(&mut world, "Succeeded", Some("two"));
    assert_eq!(world.pod().labels["role"].value, "main");
}

/// As on the day when a cluster of `OpenKruise`'s is taken over: neither revision nor container in a verdict.
// PPM-12
#[test]
fn taking_over_verdicts_without_a_container_changes_no_mark() {
    let mut world = World::probing(&[idle()]);
    restart(&mut world, "one");
    pass(&mut world, 1);
    world.verdict_with("way#idle", "Succeeded", "", |verdict| {
        verdict.container_id = None;
        verdict.revision = None;
    });
    pass(&mut world, 3600);
    world.writes.clear();
    world.restart([
        WatchedKind::Pod,
        WatchedKind::NodePodProbe,
        WatchedKind::Marker,
        WatchedKind::Node,
    ]);
    world.drain();
    assert_eq!(world.writes.len(), 0);
    assert_eq!(world.pod().labels["role"].value, "main");
}

// PPM-8
#[test]
fn a_flip_is_planned_when_it_is_seen_and_when_its_reply_is_seen_and_not_to_be_written() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    let before = world.index.pods.plans;
    world.verdict("way#idle", "Failed", "");
    assert_eq!(world.pod_writes().len(), 1);
    // Seen, the reply, and that it was carried out: where these two come together, as they do, the pod is planned once.
    assert_eq!(world.index.pods.plans - before, 3);
}

/// How many seconds before now the verdict changed from which the due marks of the pod follow.
fn age_of_due_marks(world: &mut World) -> Option<i64> {
    while world.deliver() {}
    let since = world.index.verdict_since(&WriteTarget::PodMarks(p0()))?;
    Some(world.cluster.now.duration_since(since).as_secs())
}

#[test]
fn due_marks_are_as_old_as_the_verdict_that_they_follow_from() {
    let mut world = World::probing(&[idle()]);
    pass(&mut world, 10);
    world.report("way#idle", "Succeeded", "", |_| {});
    world.cluster.now += SignedDuration::from_secs(3);
    assert_eq!(age_of_due_marks(&mut world), Some(3));
    // Before it is written, the next verdict comes: something has been due for as long as before.
    world.report("way#idle", "Failed", "", |_| {});
    assert_eq!(age_of_due_marks(&mut world), Some(3));
    world.drain();
    assert_eq!(age_of_due_marks(&mut world), None, "nothing is due");
    assert_eq!(world.pod().labels["idle"].value, "false");
}

#[test]
fn a_verdict_that_counts_again_after_an_edit_was_undone_has_not_changed_then() {
    let mut world = World::probing(&[idle()]);
    world.mark("other", &[probe("warm", "main", exec("/warm"))]);
    world.verdict("way#idle", "Succeeded", "");
    pass(&mut world, 3600);
    let mut edited = idle();
    edited["probe"] = exec("/other");
    world.mark("way", &[edited]);
    world.drain();
    // The same probe as at first, and another mark.
    let mut undone = idle();
    undone["markerPolicy"][0]["labels"]["idle"] = json!("yes");
    let undone = marker(&app_x(), &[undone]);
    world.cluster.put_marker(&name("a", "way"), undone);
    let marks = WriteTarget::PodMarks(p0());
    while world.deliver() || world.work() {
        assert_eq!(world.index.verdict_since(&marks), None);
    }
    assert_eq!(world.pod().labels["idle"].value, "yes");
}

#[test]
fn marks_that_another_client_or_a_restart_makes_due_have_no_age() {
    let mut world = World::probing(&[idle()]);
    pass(&mut world, 10);
    world.verdict("way#idle", "Succeeded", "");
    pass(&mut world, 10);
    let remove = |pod: &mut SimPod| drop(pod.labels.remove("idle"));
    world.cluster.edit_pod(&p0(), remove);
    assert_eq!(age_of_due_marks(&mut world), None);
    world.drain();
    assert_eq!(world.pod().labels["idle"].value, "true");
    world.cluster.edit_pod(&p0(), remove);
    world.restart([
        WatchedKind::Pod,
        WatchedKind::NodePodProbe,
        WatchedKind::Marker,
        WatchedKind::Node,
    ]);
    assert_eq!(age_of_due_marks(&mut world), None);
    world.drain();
    assert_eq!(world.pod().labels["idle"].value, "true");
}

// PPM-16
#[test]
fn a_pod_is_not_planned_because_an_annotation_of_others_has_another_length() {
    for serverless in [false, true] {
        let mut world = World::with(Config {
            serverless,
            ..Config::default()
        });
        world.mark("way", &[idle()]);
        let pod = SimPod::new("u0", "n0", &[("app", "x")]);
        world.cluster.put_pod(&p0(), pod);
        let mut annotate = |bytes: usize| {
            world.cluster.edit_pod(&p0(), |pod| {
                let theirs = mark(&"x".repeat(bytes), Owner::User);
                pod.annotations.insert("theirs".to_owned(), theirs);
            });
            world.settle();
            world.index.pods.plans
        };
        let before = annotate(5);
        assert_eq!(annotate(12), before, "{serverless}");
        if !serverless {
            // Longer than what leaves all the room that probes may have.
            assert_eq!(annotate(150_000), before);
            assert_eq!(annotate(200_000), before);
        }
    }
}
