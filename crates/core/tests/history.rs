//! What the recent runs of a node's probes take, as docs/scale.md says.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::alloc::System;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::NodePodProbe;
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::Outcome;
use leadsman_core::podprobe::history::HistoryQuery;
use leadsman_core::podprobe::node::{
    ContainerName, ExecLimits, HistoryLimits, NodeAction, NodeEvent, NodeProbes, PodIdentity,
    RuntimeContainer, RuntimeContainers, RuntimeState,
};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LIMITS: ExecLimits = ExecLimits {
    per_node: 16,
    per_pod: 4,
    per_slot: 4,
};
const SECOND: Duration = Duration::from_secs(1);

fn at(second: u32) -> Now {
    let start = Timestamp::from_second(1_000_000).unwrap();
    Now {
        monotonic: second * SECOND,
        wall: start + second * SECOND,
    }
}

/// So many pods with two probes each, which are due each second.
fn object(pods: usize) -> NodePodProbe {
    let probe = |name: &str| {
        json!({"name": format!("m#{name}"), "containerName": "main",
            "probe": {"tcpSocket": {"port": 80}, "periodSeconds": 1}})
    };
    let pod = |number: usize| {
        json!({"name": format!("p-{number}"), "namespace": "ns", "uid": format!("u-{number}"), "IP": "",
            "probes": [probe("a"), probe("b")]})
    };
    let pods: Vec<Value> = (0..pods).map(pod).collect();
    let object = json!({"metadata": {"name": "n"}, "spec": {"podProbes": pods}});
    serde_json::from_value(object).unwrap()
}

fn containers(pods: usize) -> RuntimeContainers {
    let container = |number: usize| {
        let pod = PodIdentity {
            namespace: "ns".into(),
            name: format!("p-{number}").into(),
            uid: format!("u-{number}").into(),
        };
        let name = "main".into();
        let id = format!("c-{number}").into();
        let started_at = Timestamp::UNIX_EPOCH;
        let state = RuntimeState::Running { started_at };
        (ContainerName { pod, name }, RuntimeContainer { id, state })
    };
    (0..pods).map(container).collect()
}

/// What a node takes after 20 seconds in which each run printed this text and its second, and what it tells.
fn played(pods: usize, history: HistoryLimits, output: impl Fn(u32) -> String) -> (usize, usize) {
    let object = object(pods);
    let region = Region::new(ALLOCATOR);
    let mut node = NodeProbes::new(LIMITS, history, at(0));
    node.apply_event(NodeEvent::Plan(Some(&object)), at(0));
    let listed = NodeEvent::ContainersListed {
        began: SECOND,
        containers: Some(containers(pods)),
    };
    let mut actions = node.apply_event(listed, at(1));
    for second in 2..22 {
        actions.extend(node.apply_event(NodeEvent::Tick, at(second)));
        for action in std::mem::take(&mut actions) {
            if let NodeAction::StartRun(run) = action {
                let ended = NodeEvent::RunFinished {
                    run: run.id,
                    result: Ok(Outcome::Succeeded(output(second))),
                    took: SECOND / 10,
                };
                actions.extend(node.apply_event(ended, at(second)));
            }
        }
    }
    drop(actions);
    let change = region.change();
    let taken = change.bytes_allocated - change.bytes_deallocated;
    let told = node.answer_history_query(&HistoryQuery::default());
    (taken, told.iter().map(|probe| probe.runs.len()).sum())
}

/// What the history of 100 pods takes beyond a node without one, and how many runs that is.
fn taken(history: HistoryLimits, output: impl Fn(u32) -> String + Copy) -> (usize, usize) {
    let (without, none) = played(100, HistoryLimits::NONE, output);
    assert_eq!(none, 0);
    let (with, runs) = played(100, history, output);
    (with.saturating_sub(without), runs)
}

/// The queues of runs differ a little from one time to the next: their order is that of a hash map.
const NOISE: usize = 2_000;

// PRB-26
#[test]
fn recent_runs_take_what_is_said_of_them_and_no_more_than_their_bound() {
    let same = |_| "idle    ".to_owned();
    let other = |second: u32| format!("{second:08}");
    let long = |second: u32| format!("{second:<2000}");
    // 100 pods with two probes each.
    let ten = HistoryLimits::with_runs_per_probe(10);
    let bounded = HistoryLimits {
        bytes: 1 << 20,
        ..HistoryLimits::with_runs_per_probe(20)
    };
    let expect = |(bytes, runs): (usize, usize), of_each: usize, runs_of_each: usize| {
        assert_eq!(runs, 200 * runs_of_each);
        let expected = 200 * of_each;
        assert!(
            bytes.abs_diff(expected) < NOISE,
            "{bytes} bytes, not {expected}"
        );
    };
    expect(taken(ten, same), 10 * 40 + 16 + 8, 10);
    expect(taken(ten, other), 10 * (40 + 16 + 8), 10);
    expect(taken(ten, long), 10 * (40 + 16 + 1_024), 10);
    // A share of 5,242 bytes has room for four such runs.
    expect(taken(bounded, long), 4 * 1_080, 4);
    expect(taken(HistoryLimits::NONE, long), 0, 0);
}
