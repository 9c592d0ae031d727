//! Whatever the order of events, replies, failures and crashes, and whatever nodes, kubelets and users do: no node has two pods
//! of a job, none that has succeeded runs again (but for what BCJ-11 says), no more pods run than may, counts are exact, and a job
//! ends when it should.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, JOB, KINDS, Kind};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

#[derive(Clone, Debug)]
enum Step {
    AddNode(&'static str),
    RemoveNode(&'static str),
    Cordon(&'static str, bool),
    Taint(&'static str, Option<&'static str>),
    Report(&'static str, &'static str, i64),
    DeletePod(&'static str),
    /// A kubelet ends a pod that is being deleted, or the garbage collector one whose node is gone.
    Collect(&'static str),
    Pause(bool),
    Parallelism(u32),
    Watch(Kind, usize),
    /// The watch shows some events, and what was queued is sent before the job has run.
    WatchAndSend(Kind, usize),
    List(Kind),
    Answer(Answer),
    /// The process ends, and the next one begins; whether the writes that were under way are carried out.
    Crash(bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || select(&NODES[..]);
    let kind = || select(&KINDS[..]);
    let effect = select(vec![None, Some("NoSchedule"), Some("NoExecute")]);
    let phase = select(vec![
        ("Running", 0),
        ("Running", 1),
        ("Succeeded", 0),
        ("Failed", 0),
    ]);
    let answer = prop_oneof![
        8 => Just(Answer::Done),
        2 => Just(Answer::DoneAndLost),
        2 => Just(Answer::Lost),
        1 => Just(Answer::NotDone),
        1 => Just(Answer::Refused),
    ];
    prop_oneof![
        2 => node().prop_map(Step::AddNode),
        1 => node().prop_map(Step::RemoveNode),
        1 => (node(), any::<bool>()).prop_map(|(node, on)| Step::Cordon(node, on)),
        1 => (node(), effect).prop_map(|(node, effect)| Step::Taint(node, effect)),
        8 => (node(), phase).prop_map(|(node, (phase, restarts))| Step::Report(node, phase, restarts)),
        2 => node().prop_map(Step::DeletePod),
        3 => node().prop_map(Step::Collect),
        1 => any::<bool>().prop_map(Step::Pause),
        1 => (1..4_u32).prop_map(Step::Parallelism),
        6 => (kind(), 1..4_usize).prop_map(|(kind, events)| Step::Watch(kind, events)),
        3 => (kind(), 1..4_usize).prop_map(|(kind, events)| Step::WatchAndSend(kind, events)),
        1 => kind().prop_map(Step::List),
        10 => answer.prop_map(Step::Answer),
        1 => any::<bool>().prop_map(Step::Crash),
        4 => (0..4_000_u64).prop_map(Step::Wait),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let completion = select(vec!["Always", "Never"]);
    let failure = select(vec!["FailFast", "Continue", "Pause"]);
    let policy = select(vec!["Never", "OnFailure"]);
    let deadline = prop::option::weighted(0.2, 5..60_u64);
    (completion, failure, policy, 1..4_u32, deadline).prop_map(
        |(completion, failure, policy, parallelism, deadline)| {
            json!({
                "template": {"spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}},
                "parallelism": parallelism,
                "completionPolicy": {"type": completion, "activeDeadlineSeconds": deadline},
                "failurePolicy": {"type": failure},
            })
        },
    )
}

fn play(cluster: &mut Cluster, step: &Step) {
    match step {
        Step::AddNode(node) => cluster.add_node(node),
        Step::RemoveNode(node) => cluster.remove_node(node),
        Step::Cordon(node, on) => {
            cluster.patch(Kind::Node, node, &json!({"spec": {"unschedulable": on}}));
        }
        Step::Taint(node, effect) => cluster.taint(node, *effect),
        Step::Report(node, phase, restarts) => cluster.report(node, phase, *restarts),
        Step::DeletePod(node) => cluster.delete_pod(node),
        Step::Collect(node) => cluster.collect(node),
        Step::Pause(on) => cluster.edit_job(&json!({"paused": on})),
        Step::Parallelism(number) => cluster.edit_job(&json!({"parallelism": number})),
        Step::Watch(kind, events) => cluster.watch(*kind, *events),
        Step::WatchAndSend(kind, events) => {
            cluster.watch(*kind, *events);
            cluster.send();
        }
        Step::List(kind) => cluster.list(*kind),
        Step::Answer(answer) => cluster.answer(*answer),
        Step::Crash(carried_out) => cluster.crash(*carried_out),
        Step::Wait(millis) => cluster.wait(Duration::from_millis(*millis)),
    }
    cluster.turn();
}

/// Ends all faults, and lets each pod run to its end.
fn heal(cluster: &mut Cluster) {
    cluster.edit_job(&json!({"paused": true}));
    cluster.settle();
    cluster.wait(Duration::from_mins(6));
    cluster.settle();
    cluster.edit_job(&json!({"paused": false}));
    for node in NODES {
        cluster.patch(
            Kind::Node,
            node,
            &json!({"spec": {"unschedulable": null, "taints": null}}),
        );
    }
    for _ in 0..2 * NODES.len() {
        cluster.settle();
        for node in NODES {
            cluster.collect(node);
            cluster.report(node, "Succeeded", 0);
        }
    }
    cluster.settle();
}

fn check_end(cluster: &mut Cluster) {
    let (phase, [active, succeeded, failed, desired]) = cluster.status();
    let there: Vec<_> = NODES
        .into_iter()
        .filter(|node| cluster.get(Kind::Node, node).is_some())
        .collect();
    assert_eq!(active, 0, "{}", cluster.job());
    match &*phase {
        "failed" => {}
        "completed" => assert_eq!(desired, succeeded + failed, "{}", cluster.job()),
        _ => {
            let ends = cluster.job()["spec"]["completionPolicy"]["type"] == "Always";
            assert!(
                !ends || there.is_empty(),
                "it should have ended: {}",
                cluster.job()
            );
            assert_eq!(desired, succeeded + failed, "{}", cluster.job());
            for node in &there {
                let has_ended = cluster.pod_of(node).is_some() || cluster.is_known_as_done(node);
                assert!(has_ended, "{node} has had no pod");
            }
            assert!(usize::try_from(desired).unwrap() >= there.len());
        }
    }
    let writes = cluster.writes.clone();
    cluster.wait(Duration::from_mins(10));
    cluster.settle();
    assert_eq!(cluster.writes, writes, "written without need");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_end_does_not_depend_on_the_way(
        spec in spec(),
        nodes in 0..4_usize,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut cluster = Cluster::new();
        for node in &NODES[..nodes] {
            cluster.add_node(node);
        }
        cluster.create_job(spec);
        cluster.turn();
        for step in &steps {
            play(&mut cluster, step);
        }
        heal(&mut cluster);
        check_end(&mut cluster);
        prop_assert!(cluster.get(Kind::Job, JOB).is_some());
    }
}
