//! Containers, pods, markers and our own processes come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Resource};
use leadsman_api::NodePodProbe;
use leadsman_tests::scene::differs;
use leadsman_tests::{History, sum_of_counters, wait_for_answer, wait_for_object};
use serde_json::{Value, json};
use tokio::time::Instant;

use leadsman_testkit::Cluster;
use leadsman_tests::room::{is_main, probe, role};

use crate::Room;

/// Whether the container is fresh: a restarted one is.
fn fresh() -> Value {
    let mut fresh = probe(
        "fresh",
        json!({"exec": {"command": ["test", "!", "-e", "/tmp/used"]}}),
    );
    fresh["markerPolicy"] = json!([{"state": "Succeeded", "labels": {"fresh": "yes"}}]);
    fresh
}

fn is_fresh(yes: bool) -> Value {
    if yes {
        json!({"labels": {"fresh": "yes"}, "conditions": {"t.io/fresh": "True"}})
    } else {
        json!({"labels": {"fresh": null}, "conditions": {"t.io/fresh": "False"}})
    }
}

fn shows(pod: &Pod, marks: &Value) -> bool {
    differs(pod, marks).is_ok()
}

// PRB-10
pub(crate) async fn a_restarted_container_is_unmarked_until_its_verdict(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "restarted").await?;
    room.pod("one", json!({})).await?;
    // Without a delay the next container has its verdict within one probe, and what lay between may be skipped.
    let mut delayed = fresh();
    delayed["probe"]["initialDelaySeconds"] = json!(3);
    room.scene.marker("m", json!([delayed])).await?;
    room.scene.wait_for_marks("one", is_fresh(true)).await?;
    let before = room.container_id("one", "main").await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    room.kill_container("one", "main").await?;
    wait_for_object(
        &room.scene.pods(),
        "one",
        "its next container, fresh",
        |pod| {
            let status = pod.status.clone().unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let id = containers.first().and_then(|c| c.container_id.as_ref());
            ensure!(
                id.is_some_and(|id| *id != before),
                "its container is {id:?}"
            );
            differs(pod, &is_fresh(true))
        },
    )
    .await?;
    // Failed while it was down or Unknown when only the next one was seen: either takes the label away.
    let off = json!({"labels": {"fresh": null}});
    history
        .wait_for_version("the label off", |pod| shows(pod, &off))
        .await?;
    history
        .never("a label without its condition", |pod| {
            shows(pod, &json!({"labels": {"fresh": "yes"}}))
                && !shows(pod, &json!({"conditions": {"t.io/fresh": "True"}}))
        })
        .await
}

// PRB-9, DEF-9
pub(crate) async fn an_ended_container_fails_with_its_exit_code(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "ended").await?;
    let mut second = leadsman_tests::room::target("second");
    second["args"] = json!([
        "serve", "--http", "8081", "--tcp", "9091", "--grpc", "50052"
    ]);
    room.pod("two", json!({"spec": {"restartPolicy": "Never", "containers": [leadsman_tests::room::target("main"), second]}}))
        .await?;
    room.scene.marker("m", json!([fresh()])).await?;
    room.scene.wait_for_marks("two", is_fresh(true)).await?;
    room.kill_container("two", "main").await?;
    // A command that was just running ended with its container.
    let reasons = [
        "container main is not running (exit code 137)",
        "the command exited with code 137",
    ];
    wait_for_object(&room.scene.pods(), "two", "why it failed", |pod| {
        differs(pod, &is_fresh(false))?;
        let conditions = pod.status.iter().flat_map(|status| &status.conditions);
        let mut conditions = conditions.flatten();
        let fresh = conditions.find(|condition| condition.type_ == "t.io/fresh");
        let message = fresh.and_then(|fresh| fresh.message.as_deref());
        let message = message.unwrap_or_default();
        // On a busy machine the runtime may be so slow to say it that the command times out first.
        let has_reason = reasons.iter().any(|reason| message.contains(reason));
        ensure!(has_reason, "{message}");
        Ok(())
    })
    .await
}

// PPM-9, DEF-4
pub(crate) async fn a_deleted_marker_takes_its_marks_along(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "deleted").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    room.scene.delete_marker("m").await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": null}, "conditions": {"t.io/role": null}}),
        )
        .await?;
    room.scene.wait_for_entries(&[]).await?;
    // The agent forgets it too.
    wait_for_object(
        &room.scene.probes(),
        &room.scene.node,
        "the verdict gone",
        |probe| {
            let status = probe.status.clone().unwrap_or_default();
            ensure!(
                !status
                    .pod_probe_statuses
                    .iter()
                    .any(|p| p.namespace == "deleted"),
                "{status:?}"
            );
            Ok(())
        },
    )
    .await
}

// PRB-10, DEF-12, DEF-13
pub(crate) async fn an_edited_marker_keeps_what_it_may(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "edited").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    let mut slow = role();
    slow["probe"]["periodSeconds"] = json!(10);
    room.scene.marker("m", json!([slow])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    // Period: the verdict stays, and the next flip is found at the new pace.
    let history = History::of(&cluster.client, "edited").await?;
    room.scene
        .edit_marker("m", json!({"spec": {"probes": [role()]}}))
        .await?;
    room.set("one", "role=secondary").await?;
    room.scene.wait_for_marks("one", is_main(false)).await?;
    history
        .never("a new period took the verdict away", |pod| {
            shows(pod, &json!({"conditions": {"t.io/role": "Unknown"}}))
        })
        .await?;
    room.set("one", "role=main").await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    // Handler: what was found by the old one does not hold any more.
    let mut other = role();
    other["probe"] = json!({"periodSeconds": 1, "failureThreshold": 1, "exec": {"command": ["test", "-e", "/tmp/a"]}});
    room.scene
        .edit_marker("m", json!({"spec": {"probes": [other]}}))
        .await?;
    room.scene.wait_for_marks("one", is_main(false)).await?;
    // Policy: no probe runs for it.
    other["markerPolicy"] = json!([{"state": "Failed", "labels": {"part": "extra"}}]);
    room.scene
        .edit_marker("m", json!({"spec": {"probes": [other]}}))
        .await?;
    room.scene
        .wait_for_marks("one", json!({"labels": {"role": null, "part": "extra"}}))
        .await?;
    Ok(())
}

// PPM-2, PPM-9, DEF-14
pub(crate) async fn a_pod_relabelled_out_and_in_loses_and_regains_its_marks(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "moved").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    room.scene
        .edit(
            "one",
            "kubectl",
            json!({"metadata": {"labels": {"app": "other"}}}),
        )
        .await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": null}, "conditions": {"t.io/role": null}}),
        )
        .await?;
    room.set("one", "role=secondary").await?;
    room.scene
        .edit(
            "one",
            "kubectl",
            json!({"metadata": {"labels": {"app": "moved"}}}),
        )
        .await?;
    room.scene.wait_for_marks("one", is_main(false)).await?;
    Ok(())
}

// PPM-12
pub(crate) async fn a_stateful_pod_recreated_under_its_name_gets_no_old_marks(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "stateful").await?;
    let template = room.manifest("unused", json!({}));
    let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 1, "serviceName": "db",
        "selector": {"matchLabels": {"app": "stateful"}},
        "template": {"metadata": {"labels": {"app": "stateful"}}, "spec": template["spec"]}}});
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), "stateful");
    sets.create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    room.scene.marker("m", json!([fresh()])).await?;
    let first = room.wait_until_running("db-0").await?;
    room.scene.wait_for_marks("db-0", is_fresh(true)).await?;
    room.exec("db-0", "main", &["touch", "/tmp/used"]).await?;
    room.scene.wait_for_marks("db-0", is_fresh(false)).await?;
    room.scene.delete_pod("db-0").await?;
    wait_for_object(&room.scene.pods(), "db-0", "its successor, fresh", |pod| {
        ensure!(pod.metadata.uid != first.metadata.uid, "still the first");
        differs(pod, &is_fresh(true))
    })
    .await
}

pub(crate) async fn a_marker_deleted_while_the_manager_is_down_takes_its_marks_along(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "down").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    cluster.stop_manager().await?;
    room.scene.delete_marker("m").await?;
    cluster.start_manager().await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"labels": {"role": null}, "conditions": {"t.io/role": null}}),
        )
        .await?;
    room.scene.wait_for_entries(&[]).await?;
    Ok(())
}

// PPM-12, PRB-11
pub(crate) async fn after_an_agents_absence_no_stale_verdict_is_marked(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "stale").await?;
    for pod in ["edited", "restarted"] {
        room.pod(pod, json!({"metadata": {"labels": {"app": pod}}}))
            .await?;
        room.set(pod, "role=main").await?;
        let selector = json!({"matchLabels": {"app": pod}});
        room.scene.marker_of(pod, selector, json!([role()])).await?;
        room.scene.wait_for_marks(pod, is_main(true)).await?;
    }
    cluster.stop_agent().await?;
    let mut other = role();
    other["probe"] =
        json!({"periodSeconds": 1, "failureThreshold": 1, "exec": {"command": ["false"]}});
    room.scene
        .edit_marker("edited", json!({"spec": {"probes": [other]}}))
        .await?;
    room.scene.wait_for_reason("edited", "Probing").await?;
    let before = room.container_id("restarted", "main").await?;
    room.kill_container("restarted", "main").await?;
    wait_for_object(
        &room.scene.pods(),
        "restarted",
        "the new container",
        |pod| {
            let status = pod
                .status
                .clone()
                .unwrap_or_default()
                .container_statuses
                .unwrap_or_default();
            let id = status.first().and_then(|c| c.container_id.clone());
            ensure!(id.is_some() && id.as_ref() != Some(&before), "{id:?}");
            ensure!(
                status[0]
                    .state
                    .as_ref()
                    .is_some_and(|s| s.running.is_some()),
                "not running"
            );
            Ok(())
        },
    )
    .await?;
    // Its fresh container is a secondary by default or by this.
    room.set("restarted", "role=secondary").await?;
    let history = History::of(&cluster.client, "stale").await?;
    cluster.start_agent().await?;
    for pod in ["edited", "restarted"] {
        room.scene.wait_for_marks(pod, is_main(false)).await?;
    }
    // Once the mark of the stale verdict is off it never comes back.
    for name in ["edited", "restarted"] {
        let off = AtomicBool::new(false);
        history
            .never("a stale verdict was marked", |pod| {
                let main = shows(pod, &json!({"labels": {"role": "main"}}));
                if pod.metadata.name.as_deref() != Some(name) {
                    return false;
                }
                off.fetch_or(!main, Ordering::Relaxed);
                off.load(Ordering::Relaxed) && main
            })
            .await?;
        ensure!(
            off.load(Ordering::Relaxed),
            "the stale mark of {name} never went"
        );
    }
    Ok(())
}

/// What earlier agents named themselves: without a field manager the API server records the user agent up to its first
/// slash (`managerOrUserAgent` in `apiserver/pkg/endpoints/handlers/create.go`).
const EARLIER_AGENT: &str = "leadsman/0.0.0 (agent)";

/// An agent that names its field manager takes over a status that an earlier one wrote without: nothing of it stays, and
/// no field has two owners.
pub(crate) async fn a_status_of_an_agent_without_a_field_manager_is_taken_over(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "managers").await?;
    room.wait_until_alone().await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    owned_by(&room, "leadsman-agent").await?;
    cluster.stop_agent().await?;
    leave_status_of_earlier_agent(&room).await?;
    owned_by(&room, "leadsman").await?;
    let history = History::of(&cluster.client, "managers").await?;
    cluster.start_agent().await?;
    let node = &room.scene.node;
    wait_for_object(&room.scene.probes(), node, "the leftover gone", |probe| {
        let status = probe.status.clone().unwrap_or_default().pod_probe_statuses;
        let names: Vec<_> = status.iter().map(|pod| &*pod.name).collect();
        ensure!(names == ["one"], "{names:?}");
        Ok(())
    })
    .await?;
    owned_by(&room, "leadsman-agent").await?;
    let lost_mark = |pod: &Pod| !shows(pod, &is_main(true));
    history.never("the mark went", lost_mark).await
}

/// As its last write: the verdicts that are there, and one about a pod that is gone since.
async fn leave_status_of_earlier_agent(room: &Room) -> Result<()> {
    let probes = room.scene.probes();
    let status = probes.get(&room.scene.node).await?.status;
    let mut pods = serde_json::to_value(status.unwrap_or_default().pod_probe_statuses)?;
    let mut gone = pods[0].clone();
    gone["name"] = json!("gone");
    gone["uid"] = json!("gone");
    pods.as_array_mut().context("no list")?.push(gone);
    let body = Patch::Merge(json!({"status": {"podProbeStatuses": pods}}));
    let request = Request::new(NodePodProbe::url_path(&(), None));
    let mut request =
        request.patch_subresource("status", &room.scene.node, &PatchParams::default(), &body)?;
    let headers = request.headers_mut();
    headers.insert("user-agent", EARLIER_AGENT.parse()?);
    room.scene.client.request_text(request).await?;
    Ok(())
}

/// All that the node's status says has one field manager, this. Who has made the status itself stays its owner, which
/// changes nothing about what it says.
async fn owned_by(room: &Room, manager: &str) -> Result<()> {
    let probe = room.scene.probes().get(&room.scene.node).await?;
    let entries = probe.metadata.managed_fields.unwrap_or_default();
    let of_pods = entries.iter().filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0["f:status"].get("f:podProbeStatuses").is_some())
    });
    let managers: Vec<_> = of_pods.filter_map(|it| it.manager.as_deref()).collect();
    ensure!(managers == [manager], "not {manager}: {entries:?}");
    Ok(())
}

pub(crate) async fn a_restarted_kubelet_changes_no_mark(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "kubelet").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    let history = History::of(&cluster.client, "kubelet").await?;
    cluster.bed.restart_kubelet().await?;
    room.pod("two", json!({})).await?;
    history
        .never("a mark went away", |pod| {
            pod.metadata.name.as_deref() == Some("one") && !shows(pod, &is_main(true))
        })
        .await?;
    room.set("one", "role=secondary").await?;
    room.scene.wait_for_marks("one", is_main(false)).await?;
    Ok(())
}

// PRB-13
pub(crate) async fn an_unreachable_runtime_changes_no_mark(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "runtime").await?;
    room.pod("one", json!({})).await?;
    room.scene.marker("m", json!([fresh()])).await?;
    room.scene.wait_for_marks("one", is_fresh(true)).await?;
    let history = History::of(&cluster.client, "runtime").await?;
    let before = failed_container_lists(&cluster).await?;
    cluster.bed.stop_runtime().await?;
    wait_for_answer("a look in vain", || async {
        Ok((failed_container_lists(&cluster).await? > before).then_some(()))
    })
    .await?;
    cluster.bed.start_runtime().await?;
    // Its socket listens again before it carries streams again, on which kubectl's exec relies and ours does not.
    wait_for_answer("kubectl exec", || async {
        let used = room.exec("one", "main", &["touch", "/tmp/used"]).await;
        Ok(used.ok())
    })
    .await?;
    room.scene.wait_for_marks("one", is_fresh(false)).await?;
    history
        .never("our trouble became the pod's", |pod| {
            shows(pod, &json!({"conditions": {"t.io/fresh": "Unknown"}}))
        })
        .await
}

/// Long enough that a status write takes as long.
const OUTAGE: Duration = Duration::from_secs(8);

// PRB-13
pub(crate) async fn a_stopped_api_server_silences_no_node(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "stopped").await?;
    room.wait_until_alone().await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    let url = room.url("one", "/set").await?;
    signal_api_server(&cluster, "STOP").await?;
    let flipped = cluster
        .bed
        .post_from_inside(&format!("{url}?role=secondary"))
        .await;
    // An outage is made of time.
    tokio::time::sleep(OUTAGE).await;
    signal_api_server(&cluster, "CONT").await?;
    flipped?;
    let back = Instant::now();
    room.scene.wait_for_marks("one", is_main(false)).await?;
    let during = back.elapsed();
    room.set("one", "role=main").await?;
    let flipped = Instant::now();
    room.scene.wait_for_marks("one", is_main(true)).await?;
    let after = flipped.elapsed();
    eprintln!("after {OUTAGE:?} of outage: the flip during it {during:?}, the next {after:?}");
    let bound = Duration::from_secs(7);
    ensure!(during < bound && after < bound, "{during:?}, {after:?}");
    Ok(())
}

/// By its name, which no other process of the bed has.
async fn signal_api_server(cluster: &Cluster, signal: &str) -> Result<()> {
    let script = format!(
        "for process in /proc/[0-9]*; do \
         if [ \"$(cat $process/comm 2>/dev/null)\" = kube-apiserver ]; then \
         kill -{signal} ${{process#/proc/}} && signalled=yes; fi; done; [ \"$signalled\" = yes ]"
    );
    cluster.bed.run_inside("sh", &["-c", &script]).await?;
    Ok(())
}

/// Container lists that failed, by the agent's own count.
async fn failed_container_lists(cluster: &Cluster) -> Result<u64> {
    let metrics = "http://127.0.0.1:9102/metrics";
    let metrics = cluster.bed.get_from_inside(metrics).await?;
    sum_of_counters(&metrics, &["container_lists_total", "failed"])
}
