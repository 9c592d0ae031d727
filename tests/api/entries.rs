//! Markers and pods in, entries of the node's probes out.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, Patch, PatchParams};
use leadsman_tests::{Scene, wait_for_deletion, wait_for_object};
use serde_json::json;

use crate::Installation;

/// A probe of `main` by TCP on its named port, with a condition.
fn tcp(name: &str, condition: &str) -> serde_json::Value {
    json!({"name": name, "containerName": "main", "podConditionType": condition,
           "probe": {"tcpSocket": {"port": "web"}}})
}

// PRB-1, PRB-4, DEF-20
pub(crate) async fn an_entry_has_a_resolved_port_and_defaults(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "resolved").await?;
    let pod = scene.pod("one").await?;
    scene
        .marker(
            "m",
            json!([{"name": "get", "containerName": "main", "podConditionType": "t.io/get",
            "probe": {"httpGet": {"port": "web"}}}]),
        )
        .await?;
    let entries = scene.wait_for_entries(&["one/m#get"]).await?;
    ensure!(
        entries[0].uid == pod.metadata.uid.unwrap_or_default(),
        "{entries:?}"
    );
    ensure!(entries[0].ip == "10.1.2.3", "{entries:?}");
    let probe = &entries[0].probes[0].probe;
    let get = probe.http_get.clone().unwrap_or_default();
    ensure!(get.port == IntOrString::Int(8080), "{get:?}");
    ensure!(
        get.path.as_deref() == Some("/") && get.scheme.as_deref() == Some("HTTP"),
        "{get:?}"
    );
    let filled = (
        probe.initial_delay_seconds,
        probe.timeout_seconds,
        probe.period_seconds,
        probe.success_threshold,
        probe.failure_threshold,
    );
    // An absent delay and one of 0 are the same on the wire.
    ensure!(filled.0.unwrap_or(0) == 0, "{filled:?}");
    ensure!(
        (filled.1, filled.2, filled.3, filled.4) == (Some(1), Some(10), Some(1), Some(3)),
        "{filled:?}"
    );
    Ok(())
}

pub(crate) async fn a_node_without_entries_has_its_object(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "empty-node").await?;
    scene.wait_for_entries(&[]).await?;
    // Taken away by somebody, it comes back; with its node it goes.
    scene.pod("one").await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene.wait_for_entries(&["one/m#p"]).await?;
    let before = scene.probes().get(&scene.node).await?.metadata.uid;
    scene
        .probes()
        .delete(&scene.node, &DeleteParams::default())
        .await?;
    wait_for_object(&scene.probes(), &scene.node, "a new object", |probe| {
        ensure!(probe.metadata.uid != before, "it is still the old one");
        Ok(())
    })
    .await?;
    scene.wait_for_entries(&["one/m#p"]).await?;
    scene.delete_pod("one").await?;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(scene.client.clone());
    nodes.delete(&scene.node, &DeleteParams::default()).await?;
    wait_for_deletion(&scene.probes(), &scene.node).await?;
    // Whatever the watch shows of it, the request is one.
    scene.add_node(&scene.node, json!({})).await?;
    scene.wait_for_entries(&[]).await?;
    let sent = installation.count_requests("delete", "nodepodprobes", &scene.node)?;
    ensure!(sent == 1, "{sent} requests to delete one object");
    Ok(())
}

// PPM-5
pub(crate) async fn a_virtual_node_has_no_object(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "virtual-beside").await?;
    scene
        .add_node("virtual", json!({"type": "virtual-kubelet"}))
        .await?;
    scene
        .pod_with("there", json!({"spec": {"nodeName": "virtual"}}))
        .await?;
    scene.pod("here").await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene.wait_for_entries(&["here/m#p"]).await?;
    ensure!(
        scene.probes().get_opt("virtual").await?.is_none(),
        "a virtual node got an object"
    );
    Ok(())
}

// PPM-2, DEF-6
pub(crate) async fn a_node_that_comes_late_gets_its_entries(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "late-beside").await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene
        .pod_with("early", json!({"spec": {"nodeName": "late"}}))
        .await?;
    scene.add_node("late", json!({})).await?;
    let scene = Scene {
        node: "late".into(),
        ..scene
    };
    scene.wait_for_entries(&["early/m#p"]).await?;
    Ok(())
}

// PPM-3, DEF-1
pub(crate) async fn names_that_contain_one_another_are_told_apart(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "way").await?;
    scene.pod("one").await?;
    scene.marker("way", json!([tcp("p", "t.io/way")])).await?;
    scene
        .marker("gateway", json!([tcp("p", "t.io/gateway")]))
        .await?;
    let other = Scene {
        ns: "way-2".into(),
        node: scene.node.clone(),
        client: scene.client.clone(),
    };
    other.namespace("way-2").await?;
    other.pod("one").await?;
    other.marker("way", json!([tcp("p", "t.io/way")])).await?;
    let mine = scene
        .wait_for_entries(&["one/gateway#p", "one/way#p"])
        .await?;
    let theirs = other.wait_for_entries(&["one/way#p"]).await?;
    scene.delete_marker("way").await?;
    let left = scene.wait_for_entries(&["one/gateway#p"]).await?;
    let kept = mine[0].probes.iter().find(|e| e.name == "gateway#p");
    ensure!(
        left[0].probes.first() == kept,
        "the entry of gateway changed: {left:?}"
    );
    ensure!(
        other.wait_for_entries(&["one/way#p"]).await? == theirs,
        "the namesake's entry changed"
    );
    Ok(())
}

// PPM-2, PPM-9, DEF-4, DEF-14
pub(crate) async fn a_pod_relabelled_in_and_out_gains_and_loses_its_entries(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "relabelled").await?;
    scene
        .pod_with("one", json!({"metadata": {"labels": {"app": "other"}}}))
        .await?;
    scene
        .pod_with("bare", json!({"metadata": {"labels": null}}))
        .await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene.wait_for_reason("m", "Probing").await?;
    scene.wait_for_entries(&[]).await?;
    scene
        .edit(
            "one",
            "kubectl",
            json!({"metadata": {"labels": {"app": scene.ns}}}),
        )
        .await?;
    scene.wait_for_entries(&["one/m#p"]).await?;
    scene.report_verdict("one", "m#p", "Succeeded").await?;
    scene
        .wait_for_marks("one", json!({"conditions": {"t.io/p": "True"}}))
        .await?;
    scene
        .edit(
            "one",
            "kubectl",
            json!({"metadata": {"labels": {"app": "other"}}}),
        )
        .await?;
    scene.wait_for_entries(&[]).await?;
    scene
        .wait_for_marks("one", json!({"conditions": {"t.io/p": null}}))
        .await?;
    Ok(())
}

// PPM-1
pub(crate) async fn match_expressions_select_pods(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "expressions").await?;
    let labels = |labels| json!({"metadata": {"labels": labels}});
    scene
        .pod_with("a", labels(json!({"tier": "front"})))
        .await?;
    scene
        .pod_with("b", labels(json!({"tier": "back", "skip": "1"})))
        .await?;
    scene.pod_with("c", labels(json!({"tier": "none"}))).await?;
    scene.pod_with("d", labels(json!({"tier": "back"}))).await?;
    let selector = json!({"matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["front", "back"]},
        {"key": "skip", "operator": "DoesNotExist"},
        {"key": "app", "operator": "Exists"},
        {"key": "lane", "operator": "NotIn", "values": ["slow"]}]});
    scene
        .marker_of("m", selector, json!([tcp("p", "t.io/p")]))
        .await?;
    scene.wait_for_entries(&["a/m#p", "d/m#p"]).await?;
    Ok(())
}

// PPM-2, DEF-7
pub(crate) async fn a_changed_address_is_written(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "address").await?;
    scene.pod("one").await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene.wait_for_entries(&["one/m#p"]).await?;
    scene.report_address("one", "10.9.9.9").await?;
    wait_for_object(&scene.probes(), &scene.node, "the new address", |probe| {
        ensure!(
            probe.spec.pod_probes[0].ip == "10.9.9.9",
            "the address is {}",
            probe.spec.pod_probes[0].ip
        );
        Ok(())
    })
    .await
}

// PRB-10, DEF-3
pub(crate) async fn an_edited_marker_changes_its_entries(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "edited").await?;
    scene.pod("one").await?;
    scene
        .marker("m", json!([tcp("p", "t.io/p"), tcp("q", "t.io/q")]))
        .await?;
    let before = scene.wait_for_entries(&["one/m#p", "one/m#q"]).await?;
    let revision =
        |entries: &[leadsman_api::node_pod_probe::PodProbe]| entries[0].probes[0].revision.clone();
    // Timing keeps the revision, a handler does not; a probe taken out of the marker goes.
    let mut p = tcp("p", "t.io/p");
    p["probe"]["periodSeconds"] = json!(3);
    scene
        .edit_marker("m", json!({"spec": {"probes": [p]}}))
        .await?;
    let timing = scene.wait_for_entries(&["one/m#p"]).await?;
    ensure!(
        timing[0].probes[0].probe.period_seconds == Some(3),
        "{timing:?}"
    );
    ensure!(
        revision(&timing) == revision(&before),
        "a new period made a new revision"
    );
    p["probe"] = json!({"exec": {"command": ["true"]}});
    scene
        .edit_marker("m", json!({"spec": {"probes": [p]}}))
        .await?;
    wait_for_object(&scene.probes(), &scene.node, "the new handler", |probe| {
        let entry = &probe.spec.pod_probes[0].probes[0];
        ensure!(
            entry.probe.exec.is_some() && entry.probe.tcp_socket.is_none(),
            "{entry:?}"
        );
        ensure!(
            entry.revision != revision(&before),
            "a new handler kept the revision"
        );
        Ok(())
    })
    .await?;
    scene.wait_for_reason("m", "Probing").await?;
    Ok(())
}

// PPM-4
pub(crate) async fn sidecars_are_targets_and_init_containers_are_not(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "sidecars").await?;
    scene
        .pod_with(
            "one",
            json!({"spec": {"initContainers": [
            {"name": "setup", "image": "none"},
            {"name": "proxy", "image": "none", "restartPolicy": "Always",
             "ports": [{"name": "admin", "containerPort": 9000}]}]}}),
        )
        .await?;
    let probe = |name: &str, container: &str| {
        json!({"name": name, "containerName": container, "podConditionType": format!("t.io/{name}"),
               "probe": {"exec": {"command": ["true"]}}})
    };
    scene
        .marker(
            "m",
            json!([
                probe("init", "setup"),
                probe("side", "proxy"),
                probe("app", "main")
            ]),
        )
        .await?;
    scene.wait_for_entries(&["one/m#app", "one/m#side"]).await?;
    scene.wait_for_reason("m", "ContainerNotFound").await?;
    Ok(())
}

// PRB-8, DEF-26
pub(crate) async fn an_entry_waits_for_the_startup_probe(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "startup").await?;
    let probed = json!({"spec": {"containers": [{"name": "main", "image": "none",
        "startupProbe": {"exec": {"command": ["true"]}}}]}});
    scene.pod_with("one", probed).await?;
    let container = |id: &str, started: bool| {
        json!({"containerStatuses": [{"name": "main", "ready": started, "started": started, "restartCount": 0,
            "image": "none", "imageID": "", "containerID": format!("containerd://{id}"),
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]})
    };
    scene
        .report_pod_status("one", container("first", false))
        .await?;
    scene.pod("other").await?;
    let probe = json!({"name": "p", "containerName": "main", "podConditionType": "t.io/p",
        "probe": {"exec": {"command": ["true"]}}});
    scene.marker("m", json!([probe])).await?;
    scene.wait_for_entries(&["other/m#p"]).await?;
    scene
        .report_pod_status("one", container("first", true))
        .await?;
    let started = async |id: &str| {
        wait_for_object(
            &scene.probes(),
            &scene.node,
            &format!("{id} started"),
            |probe| {
                let pod = probe.spec.pod_probes.iter().find(|p| p.name == "one");
                let found = pod.and_then(|p| p.probes[0].started_container_id.clone());
                ensure!(
                    found.as_deref() == Some(id),
                    "startedContainerID is {found:?}"
                );
                Ok(())
            },
        )
        .await
    };
    started("first").await?;
    // A restarting kubelet reports false for a while; only another container that has started moves it.
    scene
        .report_pod_status("one", container("first", false))
        .await?;
    scene
        .report_pod_status("one", container("second", false))
        .await?;
    scene.report_address("other", "10.9.9.9").await?;
    wait_for_object(
        &scene.probes(),
        &scene.node,
        "the other pod's address",
        |probe| {
            ensure!(
                probe.spec.pod_probes.iter().any(|p| p.ip == "10.9.9.9"),
                "not yet"
            );
            Ok(())
        },
    )
    .await?;
    started("first").await?;
    scene
        .report_pod_status("one", container("second", true))
        .await?;
    started("second").await
}

// PPM-12
pub(crate) async fn ended_pods_are_left_alone(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "ended").await?;
    scene.pod("one").await?;
    scene.pod("two").await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene.wait_for_entries(&["one/m#p", "two/m#p"]).await?;
    scene.report_verdict("one", "m#p", "Succeeded").await?;
    scene
        .wait_for_marks("one", json!({"conditions": {"t.io/p": "True"}}))
        .await?;
    scene
        .report_pod_status("one", json!({"phase": "Succeeded"}))
        .await?;
    scene.wait_for_entries(&["two/m#p"]).await?;
    let ended = scene.pods().get("one").await?;
    // Terminating: no grace, but a finalizer keeps it in sight.
    let finalizers = json!({"metadata": {"finalizers": ["t.io/hold"]}});
    scene.edit("two", "test", finalizers).await?;
    scene.delete_pod("two").await?;
    scene.wait_for_entries(&[]).await?;
    scene.wait_for_reason("m", "Probing").await?;
    let after = scene.pods().get("one").await?;
    ensure!(
        after.metadata.resource_version == ended.metadata.resource_version,
        "a completed pod was written"
    );
    scene
        .pods()
        .patch(
            "two",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"finalizers": null}})),
        )
        .await?;
    Ok(())
}

// PPM-12
pub(crate) async fn a_pod_recreated_under_its_name_gets_no_old_marks(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "recreated").await?;
    let first = scene.pod("db-0").await?;
    scene.marker("m", json!([tcp("p", "t.io/p")])).await?;
    scene.report_verdict("db-0", "m#p", "Succeeded").await?;
    scene
        .wait_for_marks("db-0", json!({"conditions": {"t.io/p": "True"}}))
        .await?;
    scene.delete_pod("db-0").await?;
    wait_for_deletion(&scene.pods(), "db-0").await?;
    let second = scene.pod("db-0").await?;
    wait_for_object(&scene.probes(), &scene.node, "the new uid", |probe| {
        let pod = probe.spec.pod_probes.first();
        ensure!(
            pod.map(|p| &p.uid) == second.metadata.uid.as_ref(),
            "{pod:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(first.metadata.uid != second.metadata.uid, "the same pod");
    // The verdict of its predecessor is still in the node's status; it marks nothing.
    scene.wait_for_reason("m", "Probing").await?;
    scene
        .wait_for_marks("db-0", json!({"conditions": {"t.io/p": null}}))
        .await?;
    scene.report_verdict("db-0", "m#p", "Failed").await?;
    scene
        .wait_for_marks("db-0", json!({"conditions": {"t.io/p": "False"}}))
        .await?;
    Ok(())
}
