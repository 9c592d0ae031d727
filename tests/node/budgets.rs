//! What agent and manager ask of the API server for real probes, counted: a fleet has an agent on every node.
//!
//! A step is over when every pod was probed a few times more and the manager has nothing left to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use leadsman_api::PodProbeMarker;
use leadsman_tests::budget::{self, Row, agent, manager};
use leadsman_tests::metrics::is_at_rest;
use leadsman_tests::scene::differs;
use leadsman_tests::{History, wait_for_answer};
use serde_json::{Value, json};
use tokio::time::Instant;

use leadsman_testkit::Cluster;
use leadsman_tests::room::probe;

use crate::Room;

const PODS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Probes of each pod, one a second, by which a step is over.
const ROUNDS: u64 = 3;

/// Answers to HTTP as they are switched.
fn healthy() -> Value {
    let mut healthy = probe(
        "healthy",
        json!({"httpGet": {"path": "/healthz", "port": "web"}}),
    );
    healthy["markerPolicy"] = json!([
        {"state": "Succeeded", "labels": {"healthy": "yes"}},
        {"state": "Failed", "labels": {"healthy": "no"}}]);
    healthy
}

fn is_healthy(yes: bool) -> Value {
    let (label, status) = if yes {
        ("yes", "True")
    } else {
        ("no", "False")
    };
    json!({"labels": {"healthy": label}, "conditions": {"t.io/healthy": status}})
}

/// Pods that are probed by HTTP and by exec and marked so, and nothing else on the node or for the manager to do.
/// A probe that does not time out because the machine is busy: no case here is about that.
fn patient(mut probe: Value) -> Value {
    probe["probe"]["timeoutSeconds"] = json!(10);
    probe
}

async fn at_rest(cluster: &Arc<Cluster>, name: &str) -> Result<Room> {
    let room = Room::new(cluster, name).await?;
    try_join_all(PODS.map(|pod| room.pod(pod, json!({})))).await?;
    let idle = patient(probe(
        "idle",
        json!({"exec": {"command": ["/home/game/idle.sh"]}}),
    ));
    room.scene
        .marker("m", json!([patient(healthy()), idle]))
        .await?;
    for pod in PODS {
        room.scene.wait_for_marks(pod, is_healthy(true)).await?;
        room.scene
            .wait_for_marks(pod, json!({"conditions": {"t.io/idle": "True"}}))
            .await?;
        wait_for_events(&room, pod, "KruiseProbeSucceeded", 2).await?;
    }
    room.wait_until_alone().await?;
    let markers: Api<PodProbeMarker> = Api::all(cluster.client.clone());
    wait_for_answer("no other case's marker", || async {
        let markers = markers.list(&ListParams::default()).await?.items;
        Ok((markers.len() == 1).then_some(()))
    })
    .await?;
    wait_until_idle(&room).await?;
    Ok(room)
}

async fn wait_until_idle(room: &Room) -> Result<()> {
    let before = probe_counts(room).await?;
    wait_for_answer("more probes", || async {
        let now = probe_counts(room).await?;
        Ok(before
            .iter()
            .all(|(pod, count)| now[pod] >= count + ROUNDS)
            .then_some(()))
    })
    .await?;
    wait_for_answer("a manager at rest", || async {
        let metrics = room
            .cluster
            .bed
            .get_from_inside("http://127.0.0.1:9101/metrics")
            .await?;
        Ok(is_at_rest(&metrics).then_some(()))
    })
    .await
}

/// How often each pod was probed by HTTP.
async fn probe_counts(room: &Room) -> Result<BTreeMap<&'static str, u64>> {
    let counts = PODS.map(|pod| async move {
        let counts: Value = serde_json::from_str(&room.get(pod, "/counts").await?)?;
        let count = counts["http"]["/healthz"].as_u64();
        anyhow::Ok((pod, count.context("the target counts no probes")?))
    });
    Ok(try_join_all(counts).await?.into_iter().collect())
}

/// Waits until events with this reason tell of so many verdicts of a pod.
async fn wait_for_events(room: &Room, pod: &str, reason: &str, count: i32) -> Result<()> {
    let events: Api<Event> = Api::namespaced(room.cluster.client.clone(), &room.scene.ns);
    let of_pod =
        ListParams::default().fields(&format!("involvedObject.name={pod},reason={reason}"));
    wait_for_answer(
        &format!("{count} verdicts {reason} of {pod} told"),
        || async {
            let events = events.list(&of_pod).await?.items;
            let told: i32 = events.iter().filter_map(|event| event.count).sum();
            Ok((told >= count).then_some(()))
        },
    )
    .await
}

/// Does a step, and holds what both ask in it to `rows`, the Lease, and watches, which end by themselves.
async fn step(
    room: &Room,
    what: &str,
    act: impl Future<Output = Result<()>>,
    mut rows: Vec<Row>,
) -> Result<()> {
    let (mark, begun) = (room.cluster.bed.audit_mark()?, Instant::now());
    act.await.context(what.to_owned())?;
    wait_until_idle(room).await.context(what.to_owned())?;
    rows.push(budget::lease());
    let requests = room.cluster.bed.audit(mark)?;
    budget::keep(&requests, begun.elapsed(), &rows).context(what.to_owned())
}

/// A verdict of one pod: a status, an event, the pod, the marker's counts.
fn flip(event: Row) -> Vec<Row> {
    vec![
        agent("patch nodepodprobes/status", 1),
        event,
        manager("patch pods/status", 1),
        manager("patch podprobemarkers/status", 1),
    ]
}

// PPM-11, PPM-14, DEF-11
pub(crate) async fn a_flip_costs_one_write_each(cluster: Arc<Cluster>) -> Result<()> {
    let room = at_rest(&cluster, "changes").await?;
    let turn = async |healthz: &str, healthy: bool, reason: &str, count: i32| {
        room.set("a", healthz).await?;
        room.scene.wait_for_marks("a", is_healthy(healthy)).await?;
        wait_for_events(&room, "a", reason, count).await
    };
    let fails = turn("healthz=503", false, "KruiseProbeFailed", 1);
    step(&room, "a flip", fails, flip(agent("create events", 1))).await?;

    // Told of before, so it is counted on.
    let succeeds = turn("healthz=200", true, "KruiseProbeSucceeded", 3);
    step(
        &room,
        "a flip back",
        succeeds,
        flip(agent("patch events", 1)),
    )
    .await?;

    let words = async {
        room.set("b", "body=other").await?;
        room.scene.wait_for_message("b", "other").await
    };
    let rows = vec![
        agent("patch nodepodprobes/status", 1),
        manager("patch pods/status", 1),
    ];
    step(&room, "other words", words, rows).await?;

    let steady = async { wait_until_idle(&room).await };
    step(&room, "a steady while", steady, vec![]).await
}

/// The schemas that are followed for a feature.
const SCHEMAS: [&str; 2] = [
    "list customresourcedefinitions",
    "watch customresourcedefinitions",
];

/// The revisions, which sets of pods read in all namespaces.
const REVISIONS: [&str; 2] = ["list controllerrevisions", "watch controllerrevisions"];

// PPM-11, PRB-11, DEF-8
pub(crate) async fn restarts_of_agent_and_manager_write_nothing(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = at_rest(&cluster, "restarts").await?;
    let history = History::of(&cluster.client, "restarts").await?;
    let agent_anew = async {
        cluster.kill_agent().await?;
        cluster.start_agent().await
    };
    step(
        &room,
        "an agent killed and started",
        agent_anew,
        budget::agent_starts(),
    )
    .await?;

    cluster.stop_manager().await?;
    let manager_anew = cluster.start_manager();
    step(
        &room,
        "a manager stopped and started",
        manager_anew,
        [
            // Those of SidecarSets and AdvancedCronJobs.
            budget::and_again(
                budget::and_again(budget::manager_reads(100, 1), &SCHEMAS),
                &SCHEMAS,
            ),
            budget::and_again(budget::sidecar_set_reads(), &REVISIONS),
            budget::job_reads(),
            budget::clone_set_reads(),
        ]
        .concat(),
    )
    .await?;

    history
        .never("a mark went away", |pod| {
            differs(pod, &is_healthy(true)).is_err()
        })
        .await?;
    let fails = async {
        room.set("a", "healthz=503").await?;
        room.scene.wait_for_marks("a", is_healthy(false)).await?;
        wait_for_events(&room, "a", "KruiseProbeFailed", 1).await
    };
    step(
        &room,
        "a flip after both",
        fails,
        flip(agent("create events", 1)),
    )
    .await
}

/// As many pods as a busy node has.
const CROWD: usize = 50;

// PPM-11, PRB-11, DEF-8
/// The agent's DaemonSet is updated under fifty probed pods: neither a mark nor a status moves.
pub(crate) async fn a_rolling_update_of_the_agent_writes_nothing(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = at_rest(&cluster, "rollout").await?;
    let names: Vec<String> = (PODS.len()..CROWD)
        .map(|pod| format!("more-{pod}"))
        .collect();
    try_join_all(names.iter().map(|pod| room.pod(pod, json!({})))).await?;
    for pod in &names {
        let marks = json!({"labels": {"healthy": "yes"}, "conditions": {"t.io/healthy": "True", "t.io/idle": "True"}});
        room.scene.wait_for_marks(pod, marks).await?;
        wait_for_events(&room, pod, "KruiseProbeSucceeded", 2).await?;
    }
    wait_until_idle(&room).await?;
    let history = History::of(&cluster.client, "rollout").await?;
    step(
        &room,
        "an agent replaced by another, pod and all",
        Box::pin(cluster.replace_agent()),
        budget::agent_starts(),
    )
    .await?;
    history
        .never("a mark went away", |pod| {
            differs(pod, &is_healthy(true)).is_err()
        })
        .await
}
