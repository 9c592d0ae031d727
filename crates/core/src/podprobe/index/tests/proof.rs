//! After any sequence of events the world is what the model says, and nothing more is written.

mod play;
mod step;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use leadsman_api::PodProbeMarker;
use proptest::prelude::*;
use serde_json::{Value, json};

use self::step::{Flaw, Report, ReportedId, Step, any_steps};
use super::cluster::name;
use super::driver::{WatchedKind, WriteTarget};
use super::model::Model;
use super::world::{World, any_run_cost};
use crate::cluster::ObjectName;
use crate::podprobe::index::{Config, FINALIZER};

pub(super) const KINDS: [WatchedKind; 4] = [
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

fn prove(config: Config, drops_extensions: bool, run_cost: Option<Duration>, steps: &[Step]) {
    let serverless = config.serverless;
    let mut world = World::new(config);
    world.run_cost = run_cost;
    world.restart(KINDS);
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
pub(super) fn histories() -> ProptestConfig {
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
        // So few that some are not acted on.
        few in proptest::option::weighted(0.3, 1..3_usize),
        run_cost in any_run_cost(),
        steps in any_steps(),
    ) {
        let usual = Config::default();
        let config = Config {
            node_bytes: if small == 0 { 900 } else { usual.node_bytes },
            markers_per_namespace: few.unwrap_or(usual.markers_per_namespace),
            serverless,
            ..usual
        };
        prove(config, drops == 0, run_cost, &steps);
    }
}

/// A pod whose entries have lost their room to another pod's is not marked after a restart by what its agent said before:
/// at first the pod is planned as if there were room, and again in a later turn.
#[test]
fn a_restart_marks_no_pod_that_waits_for_room() {
    let put_marker = |marker, selector, first| Step::PutMarker {
        marker,
        selector,
        first,
        second: None,
        flaw: Flaw::None,
        finalizers: 0,
    };
    let put_pod = Step::PutPod {
        pod: 2,
        app: 0,
        tier: false,
        node: 0,
        is_mirror: false,
    };
    let report = |revision| {
        Step::Report(Report {
            node: 0,
            entry: 0,
            state: "Succeeded",
            message: None,
            revision,
            container: ReportedId::Right,
            cannot: None,
        })
    };
    let steps = [
        put_marker(3, 0, 0),
        Step::DeletePod(0),
        Step::Drain,
        put_pod,
        put_marker(1, 2, 5),
        report(ReportedId::Right),
        report(ReportedId::Nothing),
        Step::LoseLead,
        Step::Drain,
    ];
    let config = Config {
        node_bytes: 900,
        ..Config::default()
    };
    prove(config, false, Some(Duration::from_millis(3)), &steps);
}
