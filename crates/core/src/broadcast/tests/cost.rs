//! What a job costs: requests, and time.

use std::time::Duration;

use serde_json::json;

use super::cluster::{Cluster, Kind};

const NODES: usize = 5_000;

fn with_nodes(count: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for node in 0..count {
        cluster.add_node(&format!("node-{node:05}"));
    }
    cluster.watch(Kind::Node, usize::MAX);
    cluster.turn();
    cluster
}

/// One write a node, and a status each two seconds.
#[test]
fn a_pod_a_node_and_a_status_each_two_seconds_are_written() {
    let mut cluster = with_nodes(NODES);
    cluster.create_job(json!({}));
    cluster.watch(Kind::Job, 1);
    cluster.turn();
    let mut seconds = 0;
    while cluster.status().1[0] < i64::try_from(NODES).unwrap() {
        let sent = cluster.writes_under_way();
        assert!(sent <= 64, "{sent} writes of a run");
        // As many replies as the API server gives in a second; the job runs again after the last one.
        for _ in 0..8 {
            cluster.step();
        }
        cluster.wait(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 60, "{:?}", cluster.status());
    }
    assert_eq!(cluster.writes["broadcastjob_create_pod"], NODES);
    assert!(
        cluster.writes["broadcastjob_status"] <= seconds / 2 + 2,
        "{:?}",
        cluster.writes
    );
    // As client-go bounds events about one object.
    assert!(
        cluster.writes["broadcastjob_event"] <= 25,
        "{:?}",
        cluster.writes
    );
    assert_eq!(cluster.writes.len(), 3, "{:?}", cluster.writes);
}

/// The time of a run, with all pods running, or as many of them ended: what an event of a pod costs at most, since a job runs
/// five times a second at most while nothing is due (`REST` of the kernel).
fn time_of_run(count: usize, ended: usize) -> Duration {
    let mut cluster = with_nodes(count);
    cluster.create_job(json!({}));
    while cluster.nodes_with_pod_count() < count {
        cluster.step();
    }
    for node in 0..ended {
        cluster.report(&format!("node-{node:05}"), "Succeeded", 0);
        cluster.watch(Kind::Pod, 1);
    }
    // As many nodes in all as there are with fewer runs of more of them.
    let runs = 4 * NODES / count;
    let before = cpu_time();
    for _ in 0..runs {
        cluster.reconciler.begin_term();
        cluster.reconciler.run_keys(cluster.time());
    }
    cpu_time().saturating_sub(before) / u32::try_from(runs).unwrap()
}

/// How long this thread has run, which other processes do not lengthen (`Documentation/scheduler/sched-stats.rst`).
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = stat.split(' ').next().unwrap();
    Duration::from_nanos(nanos.parse().unwrap())
}

#[test]
fn a_run_costs_time_in_proportion_to_the_nodes() {
    for ended in [0, 9] {
        let [few, many] = [NODES / 10, NODES].map(|count| time_of_run(count, count * ended / 10));
        eprintln!(
            "a run takes {few:?} with 500 nodes, {many:?} with {NODES}; {ended} of 10 have ended"
        );
        assert!(
            many < few * 60,
            "{few:?} with 500 nodes, {many:?} with {NODES}; {ended} of 10 have ended"
        );
    }
}

/// An event of a node makes a job run only if its fitness changes.
// BCD-12, BCJ-25
#[test]
fn a_node_makes_jobs_run_only_where_it_begins_or_ceases_to_fit() {
    use super::super::{BroadcastJobs, KnownNode};
    use leadsman_reconcile::{Change, Watch};
    use std::sync::Arc;

    let mut cluster = with_nodes(3);
    cluster.create_job(
        json!({"template": {"spec": {"nodeSelector": {"zone": "a"}, "restartPolicy": "Never"}}}),
    );
    cluster.settle();
    let node = |labels: &str, cordoned: bool| {
        let node = json!({"metadata": {"name": "n", "labels": {"zone": labels, "other": "x"}}, "spec": {"unschedulable": cordoned},
            "status": {"allocatable": {"pods": "110"}}});
        Some(Arc::new(KnownNode::read(
            &serde_json::from_value(node).unwrap(),
        )))
    };
    for (before, now, affected) in [
        (None, node("a", false), 1),
        (node("a", false), None, 1),
        (None, node("b", false), 1),
        (node("a", false), node("a", true), 1),
        (node("b", false), node("a", false), 1),
        (node("b", false), node("b", true), 0),
        (node("c", false), node("b", true), 0),
    ] {
        let change = Change {
            name: Arc::new(super::cluster::node_name("n")),
            before,
            now,
            is_listed: false,
        };
        let mut found = 0;
        Watch::<leadsman_api::slim::Node>::find_affected(
            &BroadcastJobs,
            &change,
            cluster.reconciler.world(),
            &mut |_| found += 1,
        );
        assert_eq!(found, affected, "{change:?}");
    }
}
