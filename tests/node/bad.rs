//! Probes that go wrong in every way a user can make them: each says so, and none disturbs another.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use leadsman_api::NodePodProbe;
use leadsman_tests::{History, wait_for_object};
use serde_json::json;
use tokio::time::Instant;

use leadsman_testkit::Cluster;
use leadsman_tests::room::{is_main, probe, role};

use crate::Room;

// PRB-13, PRB-16
pub(crate) async fn bad_probes_disturb_no_other(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "bad").await?;
    room.pod("healthy", json!({})).await?;
    room.pod("one", json!({})).await?;
    for pod in ["healthy", "one"] {
        room.set(pod, "role=main").await?;
    }
    room.scene.marker("good", json!([role()])).await?;
    for pod in ["healthy", "one"] {
        room.scene.wait_for_marks(pod, is_main(true)).await?;
    }
    let history = History::of(&cluster.client, "bad").await?;
    let bad = json!([
        probe(
            "missing",
            json!({"exec": {"command": ["/no/such/command"]}})
        ),
        probe(
            "flood",
            json!({"exec": {"command": ["/target", "emit", "20000000"]}, "timeoutSeconds": 10,
            "periodSeconds": 30})
        ),
        probe(
            "garbled",
            json!({"exec": {"command": ["/target", "emit-invalid-utf8"]}})
        ),
        probe(
            "hanging",
            json!({"httpGet": {"path": "/hang", "port": 8080}})
        ),
        probe(
            "sleeping",
            json!({"exec": {"command": ["sleep", "60"]}, "periodSeconds": 5})
        ),
        probe("closed", json!({"tcpSocket": {"port": 9}})),
        probe("no-grpc", json!({"grpc": {"port": 8080}})),
    ]);
    let pod_label = json!({"metadata": {"labels": {"bad": "yes"}}});
    room.scene.edit("one", "kubectl", pod_label).await?;
    room.scene
        .marker_of("bad", json!({"matchLabels": {"bad": "yes"}}), bad)
        .await?;
    let failed = |name: &str| (format!("t.io/{name}"), json!("False"));
    let mut conditions: serde_json::Map<_, _> = [
        "missing", "flood", "hanging", "sleeping", "closed", "no-grpc",
    ]
    .into_iter()
    .map(failed)
    .collect();
    conditions.insert("t.io/garbled".into(), json!("True"));
    let pod = room
        .scene
        .wait_for_marks("one", json!({"conditions": conditions}))
        .await?;
    let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
    let message = |kind: &str| {
        let condition = conditions
            .iter()
            .find(|c| c.type_ == format!("t.io/{kind}"));
        condition
            .and_then(|c| c.message.clone())
            .context("no message")
    };
    // In the words of runc or of crun.
    ensure!(
        message("missing")?.to_lowercase().contains("no such file"),
        "{}",
        message("missing")?
    );
    ensure!(
        message("closed")?.contains("refused"),
        "{}",
        message("closed")?
    );
    for kind in ["flood", "hanging", "sleeping", "no-grpc"] {
        ensure!(
            !message(kind)?.is_empty() && message(kind)?.len() <= 1024,
            "{kind}: {}",
            message(kind)?
        );
    }
    ensure!(
        message("garbled")?.contains('\u{fffd}'),
        "{}",
        message("garbled")?
    );
    // The healthy ones never wavered, and still answer.
    for pod in ["healthy", "one"] {
        room.set(pod, "role=secondary").await?;
        room.scene.wait_for_marks(pod, is_main(false)).await?;
    }
    history
        .never("a healthy probe wavered", |pod| {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
            conditions
                .into_iter()
                .flatten()
                .any(|c| c.type_ == "t.io/role" && c.status == "Unknown")
        })
        .await
}

/// A shell whose child holds its output open; containerd ends the shell and waits for the child.
fn hung(name: &str, failure_threshold: u32) -> serde_json::Value {
    let command = ["sh", "-c", "sleep 60; true"];
    probe(
        name,
        json!({"exec": {"command": command}, "failureThreshold": failure_threshold}),
    )
}

// PRB-13, PRB-14, PRB-16
pub(crate) async fn a_hung_child_fails_and_delays_nobody(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "hung").await?;
    let beside = Room::new(&cluster, "beside").await?;
    for room in [&room, &beside] {
        room.pod("one", json!({})).await?;
    }
    let asked = Instant::now();
    room.scene.marker("m", json!([hung("hung", 3)])).await?;
    let pod = room
        .scene
        .wait_for_marks("one", json!({"conditions": {"t.io/hung": "False"}}))
        .await?;
    let took = asked.elapsed();
    let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
    let condition = conditions.iter().find(|c| c.type_ == "t.io/hung");
    let message = condition
        .and_then(|c| c.message.clone())
        .unwrap_or_default();
    ensure!(message.contains("timed out"), "{message}");
    // Three runs of a second, each told two seconds later, and a slot and a status write beside.
    ensure!(took < Duration::from_secs(15), "it took {took:?}");
    // More of them than there are places.
    let many: Vec<_> = (0..20).map(|n| hung(&format!("hung-{n}"), 3)).collect();
    room.scene.marker("many", json!(many)).await?;
    let used = probe(
        "used",
        json!({"exec": {"command": ["test", "-e", "/tmp/used"]}}),
    );
    beside.scene.marker("m", json!([used])).await?;
    let is_used = |used: &str| json!({"conditions": {"t.io/used": used}});
    beside.scene.wait_for_marks("one", is_used("False")).await?;
    let mut flips = Vec::new();
    for (command, shown) in [("touch", "True"), ("rm", "False"), ("touch", "True")] {
        beside.exec("one", "main", &[command, "/tmp/used"]).await?;
        let flipped = Instant::now();
        beside.scene.wait_for_marks("one", is_used(shown)).await?;
        flips.push(flipped.elapsed());
    }
    eprintln!("a hung child failed after {took:?}; flips beside 21 hung commands took {flips:?}");
    flips.sort();
    ensure!(flips[1] < Duration::from_secs(3), "flips took {flips:?}");
    Ok(())
}

// PRB-13, PRB-27
pub(crate) async fn servers_that_hang_in_one_namespace_delay_nobody(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "hanging").await?;
    let beside = Room::new(&cluster, "beside-hanging").await?;
    for room in [&room, &beside] {
        room.pod("one", json!({})).await?;
    }
    room.pod("two", json!({})).await?;
    let flips = async |name: &str| {
        let get = json!({"path": "/healthz", "port": 8080});
        let up = probe(name, json!({"httpGet": get}));
        beside.scene.marker(name, json!([up])).await?;
        let is_up = |up: &str| json!({"conditions": {format!("t.io/{name}"): up}});
        beside.scene.wait_for_marks("one", is_up("True")).await?;
        let mut flips = Vec::new();
        for (status, shown) in [(503, "False"), (200, "True"), (503, "False"), (200, "True")] {
            beside.set("one", &format!("healthz={status}")).await?;
            let flipped = Instant::now();
            beside.scene.wait_for_marks("one", is_up(shown)).await?;
            flips.push(flipped.elapsed());
        }
        flips.sort();
        anyhow::Ok(flips)
    };
    let alone = flips("alone").await?;
    // 16 times 32 probes of two pods: four times as many runs as their namespace may have.
    for marker in 0..8 {
        let hanging = (0..32).map(|number| {
            let get = json!({"path": "/hang", "port": 8080});
            let name = format!("hanging-{marker}-{number}");
            probe(&name, json!({"httpGet": get, "timeoutSeconds": 600}))
        });
        let hanging: Vec<_> = hanging.collect();
        let name = format!("m{marker}");
        room.scene.marker(&name, json!(hanging)).await?;
    }
    let node = cluster.bed.node_name();
    wait_for_object(&room.scene.probes(), node, "all entries", |probes| {
        let pods = probes.spec.pod_probes.iter();
        let of_room = pods.filter(|pod| pod.namespace == "hanging");
        let entries: usize = of_room.map(|pod| pod.probes.len()).sum();
        ensure!(entries == 512, "{entries}");
        Ok(())
    })
    .await?;
    let flips = flips("up").await?;
    eprintln!("flips beside 512 probes of servers that hang took {flips:?}, alone {alone:?}");
    let history = History::of(&cluster.client, "beside-hanging").await?;
    // Messages are written every ten seconds, so this one comes after as many runs.
    beside.set("one", "body=later").await?;
    wait_for_object(&beside.scene.pods(), "one", "the new message", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let up = conditions.find(|c| c.type_ == "t.io/up").context("gone")?;
        ensure!(up.message.as_deref() == Some("later"), "{up:?}");
        Ok(())
    })
    .await?;
    history
        .never("the neighbour's probe wavered", |pod| {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|c| c.type_ == "t.io/up" && c.status != "True")
        })
        .await?;
    // Of servers that hang each run takes ten minutes, so a neighbour that waits for any of them waits longer by far. Where the machine
    // is busy with something else, flips take longer alone too, though it may be less busy then.
    let bound = Duration::from_secs(6).max(3 * alone[2]);
    ensure!(flips[2] < bound, "flips took {flips:?}, alone {alone:?}");
    Ok(())
}

// PRB-25
pub(crate) async fn an_agent_writes_for_its_own_node_only(cluster: Arc<Cluster>) -> Result<()> {
    // Another node's object; no manager drives it long, since no such node exists, so the write is a dry run.
    let config = Kubeconfig::read_from(&cluster.agent_kubeconfig)?;
    let config =
        kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let agent = Client::try_from(config)?;
    let room = Room::new(&cluster, "foreign").await?;
    room.scene.add_node("elsewhere", json!({})).await?;
    wait_for_object(&room.scene.probes(), "elsewhere", "its object", |_| Ok(())).await?;
    let probes: kube::Api<NodePodProbe> = kube::Api::all(agent);
    let status = Patch::Merge(json!({"status": {"podProbeStatuses": []}}));
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    probes
        .patch_status(cluster.bed.node_name(), &dry, &status)
        .await
        .context("its own node's")?;
    for refused in [
        probes.patch_status("elsewhere", &dry, &status).await.err(),
        probes
            .patch(
                cluster.bed.node_name(),
                &dry,
                &Patch::Merge(json!({"spec": {"podProbes": []}})),
            )
            .await
            .err(),
        probes
            .create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                &NodePodProbe::new("x", leadsman_api::NodePodProbeSpec::default()),
            )
            .await
            .err(),
    ] {
        match refused {
            Some(kube::Error::Api(status)) => ensure!(status.code == 403, "{status:?}"),
            other => anyhow::bail!("an agent may do more than it should: {other:?}"),
        }
    }
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(cluster.client.clone());
    nodes
        .delete("elsewhere", &kube::api::DeleteParams::default())
        .await?;
    Ok(())
}
