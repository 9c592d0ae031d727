//! `kubectl leadsman try` runs probes in real containers, through the API server.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use leadsman_testkit::Cluster;
use leadsman_tests::room::{probe, role, target};
use leadsman_tests::{document, kubectl_leadsman};
use serde_json::{Value, json};

use crate::Room;

/// What docs/kubectl.md shows of the README's marker.
pub(crate) async fn the_page_shows_what_a_trial_prints(cluster: Arc<Cluster>) -> Result<()> {
    // The page's namespace is another case's.
    let namespace = "tried-page";
    let room = Room::new(&cluster, namespace).await?;
    for (pod, app, container) in [
        ("game-0", "game-server", "game-server"),
        ("game-1", "game-server", "gameserver"),
        ("lobby-0", "lobby", "lobby"),
    ] {
        let over = json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [target(container)]}});
        room.pod(pod, over).await?;
    }
    let blocks = document::blocks()?;
    let marker = blocks
        .iter()
        .find(|block| block.page == "README.md" && block.text.contains("kind: PodProbeMarker"));
    let marker = marker.context("the README shows a marker")?;
    let marker = marker
        .text
        .replace("namespace: ns", &format!("namespace: {namespace}"));
    let words = ["try", "-f", "-", "-n", namespace];
    let kubeconfig = cluster.bed.admin_kubeconfig();
    let printed = kubectl_leadsman(kubeconfig, &words, &marker).await?;
    let command = "kubectl leadsman try -f marker.yaml";
    let out = printed.out.replace(&format!("{namespace}/"), "ns/");
    document::expect_shown("docs/kubectl.md", command, &out)?;
    ensure!(
        printed.err == "error: one thing is wrong\n",
        "{}",
        printed.err
    );
    Ok(())
}

async fn try_probes(room: &Room, probes: &Value, words: &[&str]) -> Result<(String, bool)> {
    let namespace = room.scene.ns.as_str();
    let marker = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker", "metadata": {"name": "m"},
        "spec": {"selector": {"matchLabels": {"app": namespace}}, "probes": probes}});
    let words = [&["try", "-f", "-", "-n", namespace], words].concat();
    let kubeconfig = room.cluster.bed.admin_kubeconfig();
    let printed = kubectl_leadsman(kubeconfig, &words, &marker.to_string()).await?;
    eprintln!(
        "$ kubectl leadsman {}\n{}{}",
        words.join(" "),
        printed.out,
        printed.err
    );
    Ok((printed.out, printed.success))
}

async fn try_json(room: &Room, probes: &Value) -> Result<(Value, bool)> {
    let (out, success) = try_probes(room, probes, &["-o", "json"]).await?;
    let told: Value = serde_json::from_str(&out)?;
    Ok((told["markers"][0].clone(), success))
}

/// Result and message of a probe in the only pod.
fn result<'a>(told: &'a Value, probe: &str) -> Result<(&'a str, &'a str)> {
    let runs = told["tried"][0]["runs"].as_array().context("no runs")?;
    let run = runs.iter().find(|run| run["probe"] == probe);
    let run = run.with_context(|| format!("{probe}: {told:#}"))?;
    let text = |field: &str| run[field].as_str().unwrap_or_default();
    Ok((text("result"), text("message")))
}

/// Ample time: a machine under load is slow, and the outcome does not depend on it.
fn patient(mut probe: Value) -> Value {
    probe["probe"]["timeoutSeconds"] = json!(5);
    probe
}

// PRB-16, PRB-19, PRB-20, PRB-21, PRB-22
pub(crate) async fn a_marker_runs_its_probes_before_it_is_applied(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "tried").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=main&grpc=SERVING&tcp=open").await?;
    let probes = json!([
        patient(probe(
            "exec",
            json!({"exec": {"command": ["/home/game/idle.sh"]}})
        )),
        patient(probe("tcp", json!({"tcpSocket": {"port": "raw"}}))),
        patient(role()),
        patient(probe("grpc", json!({"grpc": {"port": 50051}}))),
    ]);
    let (told, success) = try_json(&room, &probes).await?;
    for probe in ["exec", "tcp", "role", "grpc"] {
        let (result, message) = result(&told, probe)?;
        ensure!(result == "Succeeded", "{probe}: {result}: {message}");
    }
    ensure!(success, "{told:#}");
    let (text, _) = try_probes(&room, &probes, &["pod/one"]).await?;
    for words in [
        "+ label role=\"main\"",
        "+ condition t.io/exec: True",
        "port-forward",
    ] {
        ensure!(text.contains(words), "{words}: {text}");
    }
    let pod = room.scene.pods().get("one").await?;
    let labels = pod.metadata.labels.unwrap_or_default();
    ensure!(!labels.contains_key("role"), "{labels:?}");
    let markers = room.scene.markers().list(&ListParams::default()).await?;
    ensure!(markers.items.is_empty(), "{:?}", markers.items);
    Ok(())
}

// PRB-13, PRB-14, PRB-16, PRB-19, PRB-21, PRB-22
pub(crate) async fn a_run_that_fails_is_told_as_the_agent_tells_it(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "tried-failing").await?;
    room.pod("one", json!({})).await?;
    room.set("one", "role=secondary&grpc=NOT_SERVING&tcp=closed")
        .await?;
    room.exec("one", "main", &["touch", "/home/game/match"])
        .await?;
    let probes = json!([
        patient(probe(
            "exec",
            json!({"exec": {"command": ["/home/game/idle.sh"]}})
        )),
        patient(probe(
            "missing",
            json!({"exec": {"command": ["/no/such/command"]}})
        )),
        probe("hanging", json!({"exec": {"command": ["sleep", "5"]}})),
        patient(probe("tcp", json!({"tcpSocket": {"port": "raw"}}))),
        patient(role()),
        patient(probe("grpc", json!({"grpc": {"port": 50051}}))),
        patient(probe(
            "closed",
            json!({"httpGet": {"path": "/", "port": 9}})
        )),
    ]);
    let (told, success) = try_json(&room, &probes).await?;
    for (probe, words) in [
        ("exec", "in a match"),
        ("missing", "/no/such/command"),
        ("hanging", "command timed out: it did not end within 1s"),
        ("tcp", "Connection refused"),
        ("role", "HTTP probe failed with statuscode: 503"),
        ("grpc", "service unhealthy (responded with \"NOT_SERVING\")"),
        ("closed", ":9: Connection refused"),
    ] {
        let (result, message) = result(&told, probe)?;
        ensure!(
            result == "Failed" && message.contains(words),
            "{probe}: {result}: {message}"
        );
    }
    let causes = told["tried"][0]["causes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for reason in ["CommandNotFound", "TimedOut", "ConnectionRefused"] {
        let found = causes.iter().any(|cause| cause["reason"] == reason);
        ensure!(found, "{reason}: {causes:#?}");
    }
    ensure!(!success, "commands that do not exist are no success");
    let changes = told["tried"][0]["changes"]
        .as_array()
        .context("no changes")?;
    let role = changes.iter().find(|change| change["key"] == "role");
    let after = role.map(|role| role["after"].clone());
    ensure!(after == Some(json!("secondary")), "{changes:#?}");
    Ok(())
}
