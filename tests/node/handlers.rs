//! The four handlers on real pods, and what they reach.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use leadsman_tests::wait::patience;
use leadsman_tests::{History, wait_for_object};
use serde_json::json;

use leadsman_testkit::Cluster;
use leadsman_tests::room::{is_main, probe, role, target};

use crate::Room;

// PRB-16, PRB-17, PRB-19, PRB-20, PRB-21, PRB-22
pub(crate) async fn all_four_handlers_mark(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "four").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main&grpc=SERVING&tcp=open").await?;
    let probes = json!([
        probe("exec", json!({"exec": {"command": ["/home/game/idle.sh"]}})),
        probe("tcp", json!({"tcpSocket": {"port": "raw"}})),
        probe("http", json!({"httpGet": {"path": "/role", "port": "web"}})),
        probe("grpc", json!({"grpc": {"port": 50051}})),
    ]);
    room.scene.marker("m", probes).await?;
    let all = |status: &str| {
        json!({"conditions": {"t.io/exec": status, "t.io/tcp": status, "t.io/http": status,
        "t.io/grpc": status}})
    };
    room.scene.wait_for_marks("one", all("True")).await?;
    room.set("one", "role=secondary&grpc=NOT_SERVING&tcp=closed")
        .await?;
    room.exec("one", "main", &["touch", "/home/game/match"])
        .await?;
    let pod = room.scene.wait_for_marks("one", all("False")).await?;
    let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
    for (kind, words) in [
        ("t.io/exec", "in a match"),
        ("t.io/tcp", "refused"),
        ("t.io/http", "HTTP probe failed with statuscode: 503"),
        (
            "t.io/grpc",
            "service unhealthy (responded with \"NOT_SERVING\")",
        ),
    ] {
        let condition = conditions.iter().find(|c| c.type_ == kind).context(kind)?;
        let message = condition.message.clone().unwrap_or_default();
        ensure!(message.contains(words), "{kind} says {message:?}");
    }
    room.set("one", "role=main&grpc=SERVING&tcp=open").await?;
    room.exec("one", "main", &["rm", "/home/game/match"])
        .await?;
    room.scene.wait_for_marks("one", all("True")).await?;
    Ok(())
}

/// The period and what everything after the probe may take.
const BOUND: Duration = Duration::from_millis(1200);

pub(crate) async fn a_flip_is_marked_within_a_period(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "flip").await?;
    room.wait_until_alone().await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    let mut took = Vec::new();
    for main in [false, true, false, true, false, true, false] {
        let query = if main { "role=main" } else { "role=secondary" };
        let seen = room.scene.wait_for_marks("one", is_main(main));
        let flip = async {
            room.set("one", query).await?;
            anyhow::Ok(tokio::time::Instant::now())
        };
        // The watch stands before the switch; the clock starts when the target has answered.
        let (flipped, seen) = tokio::join!(flip, async {
            seen.await.map(|_| tokio::time::Instant::now())
        });
        took.push(seen?.saturating_duration_since(flipped?));
    }
    took.sort();
    // The machine runs a whole cluster on two cores: its median is the system's, its worst is the machine's.
    ensure!(
        took[took.len() / 2] <= BOUND,
        "flips took {took:?}, more than {BOUND:?}"
    );
    Ok(())
}

// PPM-21
pub(crate) async fn the_output_of_a_command_is_a_label(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "output").await?;
    room.pod("one", json!({})).await?;
    let mut role = probe("role", json!({"exec": {"command": ["cat", "/tmp/role"]}}));
    role["output"] =
        json!({"matches": "^(?<role>primary|replica) (?<version>[0-9]+)$", "mismatch": "Unknown"});
    role["markerPolicy"] =
        json!([{"state": "Succeeded", "labels": {"role": "$(role)", "version": "$(version)"}}]);
    let print = async |output: &str| {
        let script = format!("echo '{output}' > /tmp/new && mv /tmp/new /tmp/role");
        room.exec("one", "main", &["sh", "-c", &script]).await
    };
    let marks = |role: Option<&str>, version: Option<&str>, status: &str| json!({"labels": {"role": role, "version": version}, "conditions": {"t.io/role": status}});
    print("primary 7").await?;
    room.scene.marker("m", json!([role])).await?;
    let primary = marks(Some("primary"), Some("7"), "True");
    room.scene.wait_for_marks("one", primary).await?;
    // The state stays Succeeded, so nothing but the values says that something has changed.
    for (role, version) in [
        ("replica", "7"),
        ("primary", "8"),
        ("primary", "9"),
        ("replica", "9"),
    ] {
        let marks = marks(Some(role), Some(version), "True");
        print(&format!("{role} {version}")).await?;
        room.scene.wait_for_marks("one", marks).await?;
    }
    print("demoted").await?;
    room.scene
        .wait_for_marks("one", marks(None, None, "Unknown"))
        .await?;
    Ok(())
}

// PRB-4
pub(crate) async fn two_containers_resolve_a_port_name_each_for_itself(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "two-containers").await?;
    let mut second = target("second");
    second["args"] = json!([
        "serve", "--http", "8081", "--tcp", "9091", "--grpc", "50052"
    ]);
    second["ports"] = json!([{"name": "web", "containerPort": 8081}]);
    // The same port name means another port in each container.
    room.pod(
        "one",
        json!({"spec": {"containers": [target("main"), second]}}),
    )
    .await?;
    let mut other = probe("b", json!({"exec": {"command": ["test", "-e", "/tmp/b"]}}));
    other["containerName"] = json!("second");
    let mut port = probe(
        "port",
        json!({"httpGet": {"path": "/healthz", "port": "web"}}),
    );
    port["containerName"] = json!("second");
    let first = probe("a", json!({"exec": {"command": ["test", "-e", "/tmp/a"]}}));
    room.scene.marker("m", json!([first, other, port])).await?;
    let marks =
        |a: &str, b: &str| json!({"conditions": {"t.io/a": a, "t.io/b": b, "t.io/port": "True"}});
    room.scene
        .wait_for_marks("one", marks("False", "False"))
        .await?;
    room.exec("one", "second", &["touch", "/tmp/b"]).await?;
    room.scene
        .wait_for_marks("one", marks("False", "True"))
        .await?;
    room.exec("one", "main", &["touch", "/tmp/a"]).await?;
    room.scene
        .wait_for_marks("one", marks("True", "True"))
        .await?;
    Ok(())
}

// DEF-2
pub(crate) async fn two_probes_on_one_container_report_each_for_itself(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "two-on-one").await?;
    room.pod("one", json!({})).await?;
    // Equal results of equal commands: each reports for itself.
    let exec = |name: &str| probe(name, json!({"exec": {"command": ["true"]}}));
    room.scene
        .marker("m", json!([exec("a"), exec("b")]))
        .await?;
    room.scene.marker("other", json!([exec("c")])).await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"conditions": {"t.io/a": "True", "t.io/b": "True", "t.io/c": "True"}}),
        )
        .await?;
    Ok(())
}

// PPM-4
pub(crate) async fn a_native_sidecar_is_probed(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "sidecar").await?;
    let mut side = target("side");
    side["restartPolicy"] = json!("Always");
    side["args"] = json!([
        "serve", "--http", "8081", "--tcp", "9091", "--grpc", "50052"
    ]);
    side["ports"] = json!([{"name": "admin", "containerPort": 9091}]);
    room.pod("one", json!({"spec": {"initContainers": [side]}}))
        .await?;
    let mut by_exec = probe(
        "exec",
        json!({"exec": {"command": ["test", "-e", "/tmp/ready"]}}),
    );
    by_exec["containerName"] = json!("side");
    let mut by_port = probe("port", json!({"tcpSocket": {"port": "admin"}}));
    by_port["containerName"] = json!("side");
    room.scene.marker("m", json!([by_exec, by_port])).await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"conditions": {"t.io/exec": "False", "t.io/port": "True"}}),
        )
        .await?;
    room.exec("one", "side", &["touch", "/tmp/ready"]).await?;
    room.scene
        .wait_for_marks("one", json!({"conditions": {"t.io/exec": "True"}}))
        .await?;
    Ok(())
}

// PRB-8, DEF-26
pub(crate) async fn a_probe_waits_for_the_startup_probe(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "gated").await?;
    let mut main = target("main");
    main["startupProbe"] = json!({"exec": {"command": ["test", "-e", "/tmp/started"]},
        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 300});
    let history = History::of(&cluster.client, "gated").await?;
    room.scene
        .marker(
            "m",
            json!([probe(
                "p",
                json!({"exec": {"command": ["test", "-e", "/tmp/started"]}})
            )]),
        )
        .await?;
    room.pod("one", json!({"spec": {"containers": [main]}}))
        .await?;
    room.pod("free", json!({})).await?;
    room.scene
        .wait_for_marks("free", json!({"conditions": {"t.io/p": "False"}}))
        .await?;
    room.exec("one", "main", &["touch", "/tmp/started"]).await?;
    room.scene
        .wait_for_marks("one", json!({"conditions": {"t.io/p": "True"}}))
        .await?;
    // Had it run before the startup probe passed, it would have failed.
    history
        .never("the gate was open", |pod| {
            pod.metadata.name.as_deref() == Some("one")
                && leadsman_tests::scene::differs(pod, &json!({"conditions": {"t.io/p": "False"}}))
                    .is_ok()
        })
        .await
}

const SUCCEEDED: &str = "KruiseProbeSucceeded";
const FAILED: &str = "KruiseProbeFailed";

// PPM-14, DEF-11
pub(crate) async fn transitions_send_events(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "events").await?;
    let pod = room.pod("one", json!({})).await?;
    room.set("one", "role=main").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene.wait_for_marks("one", is_main(true)).await?;
    room.set("one", "role=secondary").await?;
    room.scene.wait_for_marks("one", is_main(false)).await?;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "events");
    let both = async {
        let mut seen =
            std::pin::pin!(watcher(events.clone(), watcher::Config::default()).applied_objects());
        let mut reasons = BTreeSet::new();
        while !reasons.is_superset(&BTreeSet::from([SUCCEEDED.to_owned(), FAILED.to_owned()])) {
            let event = seen.next().await.context("the watch ended")??;
            reasons.extend(event.reason);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(patience(), both)
        .await
        .context("both events")??;
    for (reason, kind) in [(SUCCEEDED, "Normal"), (FAILED, "Warning")] {
        let list = events.list(&ListParams::default()).await?.items;
        let of_reason = |e: &Event| e.reason.as_deref() == Some(reason);
        let found: Vec<_> = list.into_iter().filter(of_reason).collect();
        ensure!(found.len() == 1, "{} events {reason}", found.len());
        let event = &found[0];
        ensure!(event.type_.as_deref() == Some(kind), "{event:?}");
        ensure!(event.involved_object.uid == pod.metadata.uid, "{event:?}");
    }
    let told = cluster
        .bed
        .kubectl(&["describe", "pod", "one", "-n", "events"])
        .await?;
    ensure!(told.contains("kruise-daemon-podprobe"), "{told}");
    Ok(())
}

// PPM-18
pub(crate) async fn a_readiness_gate_follows_the_verdict(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "gate").await?;
    room.pod(
        "one",
        json!({"spec": {"readinessGates": [{"conditionType": "t.io/role"}]}}),
    )
    .await?;
    room.set("one", "role=secondary").await?;
    room.scene.marker("m", json!([role()])).await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"conditions": {"t.io/role": "False", "Ready": "False"}}),
        )
        .await?;
    room.set("one", "role=main").await?;
    room.scene
        .wait_for_marks(
            "one",
            json!({"conditions": {"t.io/role": "True", "Ready": "True"}}),
        )
        .await?;
    wait_for_object(&room.scene.markers(), "m", "the count", |marker| {
        let status = marker.status.clone().unwrap_or_default();
        let counts = status.probes.first().map(|p| (p.succeeded, p.silent));
        ensure!(counts == Some((1, 0)), "{status:?}");
        Ok(())
    })
    .await
}
