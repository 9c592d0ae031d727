//! `kubectl leadsman` about the recent runs that agents keep, asked for in their pods.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_testkit::{Release, leadsman};
use leadsman_tests::room::probe;
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::install;
use crate::room::{Room, place_pods};

/// A namespace with a failing command in a pod on each node, and nothing else.
async fn failing_pods(release: &Arc<Release>, name: &str) -> Result<Room> {
    let room = Room::new(release, name).await?;
    place_pods(&room, json!({})).await?;
    let command = ["sh", "-c", "printf 'cannot\\nwork'; exit 3"];
    let mut broken = probe(
        "broken",
        json!({"exec": {"command": command}, "timeoutSeconds": 30}),
    );
    broken["probe"]["failureThreshold"] = json!(10_000);
    let open = probe(
        "open",
        json!({"tcpSocket": {"port": "raw"}, "timeoutSeconds": 30}),
    );
    room.scene.marker("m", json!([broken, open])).await?;
    Ok(room)
}

/// What `kubectl leadsman …` prints, or its error.
async fn asked(release: &Release, words: &[&str]) -> Result<Result<String, String>> {
    let output = Command::new(leadsman::plugin()?)
        .args(words)
        .env("KUBECONFIG", release.bed.admin_kubeconfig())
        .output()
        .await?;
    let (out, err) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    Ok(if output.status.success() {
        Ok(out)
    } else {
        Err(err)
    })
}

async fn answer(release: &Release, words: &[&str]) -> Result<String> {
    let answer = asked(release, words).await?.map_err(anyhow::Error::msg)?;
    eprintln!("$ kubectl leadsman {}\n{answer}", words.join(" "));
    Ok(answer)
}

async fn answer_json(release: &Release, words: &[&str]) -> Result<Value> {
    let words = [words, &["-o", "json"]].concat();
    Ok(serde_json::from_str(&answer(release, &words).await?)?)
}

/// The object of a list whose field has this value.
fn find<'a>(list: &'a Value, field: &str, value: &str) -> Result<&'a Value> {
    let mut objects = list.as_array().into_iter().flatten();
    let found = objects.find(|object| object[field] == value);
    found.with_context(|| format!("no {field} {value}: {list:#}"))
}

fn runs(probe: &Value) -> &[Value] {
    probe["runs"].as_array().map_or(&[], Vec::as_slice)
}

/// Waits until the agent has told of three runs of the failing probe, and returns what it tells of that probe.
async fn explained_runs(release: &Release, namespace: &str) -> Result<Value> {
    wait_for_answer("three runs of the failing probe", || async {
        let explained = answer_json(release, &["explain", "pod/first", "-n", namespace]).await?;
        let probes = &find(&explained["markers"], "name", "m")?["probes"];
        let broken = find(probes, "name", "broken")?;
        Ok((runs(broken).len() >= 3).then(|| broken.clone()))
    })
    .await
}

// PRB-12, PRB-26
pub(crate) async fn recent_runs_of_an_agent_in_its_pod_are_told(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let _room = failing_pods(&release, "runs").await?;
    let broken = explained_runs(&release, "runs").await?;
    ensure!(broken["verdict"].is_null(), "{broken:#}");
    let in_a_row = &broken["inARow"];
    ensure!(
        in_a_row["result"] == "Failed" && in_a_row["threshold"] == 10_000,
        "{broken:#}"
    );
    let is_told = |run: &Value| run["result"] == "Failed" && run["output"] == "cannot\nwork";
    ensure!(runs(&broken).iter().any(is_told), "{broken:#}");
    expect(
        &release,
        &["explain", "first", "-n", "runs"],
        "of 10000 failures in a row",
    )
    .await?;
    wait_for_answer("changes and runs in a history", || async {
        let words = ["history", "pod/first", "-n", "runs"];
        let history = answer_json(&release, &words).await?;
        let open = find(&history["transitions"], "probe", "m#open");
        let broken = find(&history["probes"], "probe", "m#broken")?;
        let is_told = open.is_ok_and(|open| open["state"] == "Succeeded");
        Ok((is_told && !runs(broken).is_empty()).then_some(()))
    })
    .await?;
    wait_for_answer("the runs of both nodes", || async {
        let top = answer_json(&release, &["top", "-n", "runs"]).await?;
        let usage = ["m#broken", "m#open"].map(|probe| find(&top["usage"], "probe", probe));
        let [Ok(broken), Ok(open)] = usage else {
            return Ok(None);
        };
        let is_told = top["nodes"] == 2 && broken["pods"] == 2 && open["pods"] == 2;
        Ok((is_told && broken["failed"] != 0 && open["runs"] != 0).then_some(()))
    })
    .await?;
    let too_many = asked(&release, &["top", "-A", "--max-nodes", "1"]).await?;
    let told = too_many.is_err_and(|error| error.contains("2 nodes"));
    ensure!(told, "two nodes are more than one");
    Ok(())
}

// PRB-26
pub(crate) async fn who_may_not_run_commands_in_agents_pods_is_told_which_right_is_missing(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let _room = failing_pods(&release, "team").await?;
    explained_runs(&release, "team").await?;
    release
        .bed
        .kubectl(&[
            "create",
            "rolebinding",
            "team",
            "--clusterrole=edit",
            "--user=team",
            "-n",
            "team",
        ])
        .await?;
    let explain = ["explain", "first", "-n", "team", "--as", "team"];
    expect(
        &release,
        &explain,
        "recent runs: missing right: list pods in namespace leadsman-system",
    )
    .await?;
    release
        .kubectl(&["create", "role", "team", "--verb=list", "--resource=pods"])
        .await?;
    release
        .kubectl(&[
            "create",
            "rolebinding",
            "team",
            "--role=team",
            "--user=team",
        ])
        .await?;
    let right = format!("missing right: get pods/exec in namespace {NAMESPACE}");
    expect(&release, &explain, &format!("recent runs: {right}")).await?;
    let without = [&explain[..], &["--no-runs"]].concat();
    let text = answer(&release, &without).await?;
    ensure!(!text.contains("recent runs"), "{text}");
    let top = asked(&release, &["top", "-n", "team", "--as", "team"]).await?;
    ensure!(top == Err(format!("error: {right}\n")), "{top:?}");
    for kind in ["rolebinding", "role"] {
        release.kubectl(&["delete", kind, "team"]).await?;
    }
    install(&release, json!({"agent": {"history": 0}})).await?;
    let explain = ["explain", "first", "-n", "team"];
    expect(
        &release,
        &explain,
        "it keeps recent runs if it runs with --history-socket",
    )
    .await
}

/// Waits until the answer has these words: a role is in force a moment after its creation.
async fn expect(release: &Release, words: &[&str], told: &str) -> Result<()> {
    wait_for_answer(told, || async {
        let answer = asked(release, words).await?.unwrap_or_default();
        Ok(answer.contains(told).then_some(()))
    })
    .await
}
