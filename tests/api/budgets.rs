//! What the manager asks of the API server, counted. The API server is shared by all of a cluster: a manager that
//! writes twice, or asks again for what it watches, is felt by everybody.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leadsman_testkit::audit::Request;
use leadsman_testkit::leadsman;
use leadsman_tests::budget::{self, Row, agent, manager};
use leadsman_tests::wait_for_object;
use serde_json::{Value, json};

use crate::Installation;
use crate::stage::{NODES, PODS, Stage};

/// A marker's status is written at most so often.
const STATUS: Duration = Duration::from_secs(2);

/// Makes a marker of all pods with two probes.
async fn mark_all(stage: &Stage, name: &str) -> Result<()> {
    stage.scene().marker(name, probes(name)).await?;
    Ok(())
}

/// Two probes, the first with labels `MARKER: "yes"` and `"no"` and a condition.
fn probes(marker: &str) -> Value {
    json!([
        {"name": "a", "containerName": "main", "podConditionType": format!("{marker}.io/a"),
         "probe": {"exec": {"command": ["true"]}}, "markerPolicy": [
            {"state": "Succeeded", "labels": {marker: "yes"}}, {"state": "Failed", "labels": {marker: "no"}}]},
        {"name": "b", "containerName": "main", "podConditionType": format!("{marker}.io/b"),
         "probe": {"tcpSocket": {"port": "web"}}}])
}

/// The label of a marker after this verdict of its first probe.
fn labelled(marker: &str, value: &str) -> Value {
    json!({"labels": {marker: value}})
}

/// As many writes of pods, none twice.
fn pods(count: usize) -> Row {
    manager("patch pods/status", count).once_each()
}

/// As many specs replaced, none twice.
fn specs(count: usize) -> Row {
    manager("update nodepodprobes", count).once_each()
}

/// Of hundreds of pods at once, more come than a manager on a busy machine takes at a time: then the API server ends its
/// watch, and it begins another where that one ended, with no list.
fn watched_on() -> Row {
    manager("watch pods", 0..=1)
}

fn statuses(count: usize) -> Row {
    manager("patch podprobemarkers/status", count).once_each()
}

/// The status of a marker whose counts go on changing.
fn paced_statuses() -> Row {
    manager("patch podprobemarkers/status", 1..=usize::MAX).each_every(STATUS)
}

/// Of what a manager does by the clock, renewing its Lease is the rarest: every 5 s.
const STEADY: Duration = Duration::from_secs(20);

// PPM-11, DEF-10
pub(crate) async fn a_start_reads_each_kind_once(_world: Arc<Installation>) -> Result<()> {
    let stage = Stage::raise().await?;
    mark_all(&stage, "first").await?;
    mark_all(&stage, "second").await?;
    let start = async {
        stage.installation.start_manager().await?;
        stage.wait_until_probing("first").await?;
        stage.wait_until_probing("second").await
    };
    let rows = vec![
        manager("create leases", 1),
        manager("create nodepodprobes", NODES).once_each(),
        // Where these creations take longer than statuses are apart, one says how far they have come.
        paced_statuses(),
    ];
    // A Lease that does not exist may have been deleted under a leader, so these are re-listed.
    let relisted = ["list podprobemarkers", "list nodepodprobes"];
    let reads = budget::and_again(stage.start_rows(), &relisted);
    stage
        .step(
            "a first start, without NodePodProbes",
            start,
            [reads, rows].concat(),
        )
        .await?;

    stage.installation.stop_manager().await?;
    let start = stage.installation.start_manager();
    stage
        .step(
            "a start where all NodePodProbes are right",
            start,
            stage.start_rows(),
        )
        .await?;

    stage.installation.stop_manager().await?;
    remove_revisions(&stage).await?;
    let start = async {
        stage.installation.start_manager().await?;
        wait_for_revisions(&stage).await
    };
    let rows = vec![specs(NODES)];
    stage
        .step(
            "a start where OpenKruise left its NodePodProbes",
            start,
            [stage.start_rows(), rows].concat(),
        )
        .await?;

    let steady = async {
        // What is to happen in it is nothing, which no condition tells.
        tokio::time::sleep(STEADY).await;
        Ok(())
    };
    stage
        .step("a steady third of a minute", steady, vec![])
        .await?;
    stage.installation.end().await;
    Ok(())
}

/// As OpenKruise writes entries.
async fn remove_revisions(stage: &Stage) -> Result<()> {
    let probes = stage.scene().probes();
    for node in &stage.crowd.nodes {
        let mut probe = probes.get(node).await?;
        let entries = probe
            .spec
            .pod_probes
            .iter_mut()
            .flat_map(|pod| &mut pod.probes);
        entries.for_each(|entry| entry.revision = None);
        probes.replace(node, &PostParams::default(), &probe).await?;
    }
    Ok(())
}

async fn wait_for_revisions(stage: &Stage) -> Result<()> {
    for node in &stage.crowd.nodes {
        wait_for_object(&stage.scene().probes(), node, "revisions", |probe| {
            let mut entries = probe.spec.pod_probes.iter().flat_map(|pod| &pod.probes);
            ensure!(
                entries.all(|entry| entry.revision.is_some()),
                "{:?}",
                probe.spec
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

// PPM-11, DEF-10
pub(crate) async fn a_verdict_costs_one_write_of_its_pod(_world: Arc<Installation>) -> Result<()> {
    let stage = Stage::raise().await?;
    let crowd = &stage.crowd;
    mark_all(&stage, "first").await?;
    mark_all(&stage, "second").await?;
    stage.installation.start_manager().await?;
    stage.wait_until_idle().await?;
    let turn = async |some: &[String], state: &str| {
        crowd.report_verdicts(some, &["first#a"], state).await?;
        let label = if state == "Succeeded" { "yes" } else { "no" };
        crowd.wait_for_marks(some, &labelled("first", label)).await
    };
    let all = &crowd.pods;
    let first = turn(all, "Succeeded");
    stage
        .step(
            "the first verdicts of all pods",
            first,
            vec![pods(PODS), watched_on(), paced_statuses()],
        )
        .await?;

    let one = turn(&all[..1], "Failed");
    stage
        .step("one flip", one, vec![pods(1), statuses(1)])
        .await?;

    let many = turn(&all[100..200], "Failed");
    stage
        .step(
            "100 flips at once",
            many,
            vec![pods(100), watched_on(), paced_statuses()],
        )
        .await?;

    let scene = stage.scene();
    let words = async {
        scene
            .report_verdict_with(&all[0], "first#a", "Failed", "other words")
            .await?;
        scene.wait_for_message(&all[0], "other words").await
    };
    stage.step("other words", words, vec![pods(1)]).await?;

    stage
        .step(
            "what changes nothing",
            make_changes_without_effect(&stage),
            vec![],
        )
        .await?;

    stage.installation.stop_manager().await?;
    let start = stage.installation.start_manager();
    stage
        .step("a restart with nothing to do", start, stage.start_rows())
        .await?;

    stage.installation.stop_manager().await?;
    crowd
        .report_verdicts(&all[..1], &["first#a"], "Succeeded")
        .await?;
    let start = async {
        stage.installation.start_manager().await?;
        crowd
            .wait_for_marks(&all[..1], &labelled("first", "yes"))
            .await
    };
    let rows = vec![pods(1), statuses(1)];
    stage
        .step(
            "a restart with one stale pod",
            start,
            [stage.start_rows(), rows].concat(),
        )
        .await?;

    stage.installation.end().await;
    Ok(())
}

/// The same verdict at a later time, a node's heartbeat and labels, what others do to a pod.
async fn make_changes_without_effect(stage: &Stage) -> Result<()> {
    let (crowd, scene) = (&stage.crowd, stage.scene());
    crowd
        .report_verdicts(&crowd.pods[100..200], &["first#a"], "Failed")
        .await?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let (node, patch) = (&crowd.nodes[0], PatchParams::default());
    let labels = json!({"metadata": {"labels": {"zone": "a"}}});
    nodes.patch(node, &patch, &Patch::Merge(labels)).await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
    nodes
        .patch_status(node, &patch, &Patch::Merge(ready))
        .await?;
    let theirs = json!({"metadata": {"labels": {"theirs": "1"}, "annotations": {"theirs": "1"}}});
    scene.edit(&crowd.pods[0], "kubectl", theirs).await?;
    let ready = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    scene.report_pod_status(&crowd.pods[0], ready).await?;
    Ok(())
}

// PPM-11
pub(crate) async fn an_edit_writes_only_what_it_changes(_world: Arc<Installation>) -> Result<()> {
    let stage = Stage::raise().await?;
    let crowd = &stage.crowd;
    let all = &crowd.pods;
    mark_all(&stage, "edited").await?;
    mark_all(&stage, "other").await?;
    stage.installation.start_manager().await?;
    crowd
        .report_verdicts(all, &["edited#a", "edited#b", "other#a"], "Succeeded")
        .await?;
    crowd
        .wait_for_marks(all, &labelled("edited", "yes"))
        .await?;
    stage.wait_until_idle().await?;
    let scene = stage.scene();
    let mut probes = probes("edited");
    let edit = async |probes: &Value| {
        let edit = json!({"spec": {"probes": probes}});
        scene.edit_marker("edited", edit).await?;
        stage.wait_until_probing("edited").await
    };

    probes[0]["probe"]["periodSeconds"] = json!(7);
    let rows = vec![specs(NODES), statuses(1)];
    stage.step("another period", edit(&probes), rows).await?;

    probes[0]["probe"]["exec"]["command"] = json!(["false"]);
    let handler = async {
        edit(&probes).await?;
        // The agents begin anew, with another verdict.
        crowd.report_verdicts(all, &["edited#a"], "Failed").await?;
        crowd.wait_for_marks(all, &labelled("edited", "no")).await
    };
    let rows = vec![specs(NODES), pods(PODS), watched_on(), paced_statuses()];
    stage
        .step("another handler, and its verdicts", handler, rows)
        .await?;

    probes[0]["markerPolicy"][1]["labels"] = json!({"edited": "not"});
    let policy = async {
        edit(&probes).await?;
        crowd.wait_for_marks(all, &labelled("edited", "not")).await
    };
    stage
        .step(
            "another policy",
            policy,
            vec![pods(PODS), watched_on(), statuses(1)],
        )
        .await?;

    let out = async {
        let away = json!({"metadata": {"labels": {"app": "another"}}});
        scene.edit(&all[0], "kubectl", away).await?;
        crowd
            .wait_for_marks(
                &all[..1],
                &json!({"labels": {"edited": null, "other": null}}),
            )
            .await
    };
    stage
        .step(
            "a pod relabelled",
            out,
            vec![specs(1), pods(1), statuses(2)],
        )
        .await?;

    let deleted = scene.delete_pod(&all[1]);
    stage
        .step("a pod deleted", deleted, vec![specs(1), statuses(2)])
        .await?;

    let deleted = async {
        scene.delete_marker("edited").await?;
        crowd
            .wait_for_marks(
                &all[2..],
                &json!({"labels": {"edited": null, "other": "yes"}}),
            )
            .await
    };
    stage
        .step(
            "a marker deleted",
            deleted,
            vec![specs(NODES), pods(PODS - 2), watched_on()],
        )
        .await?;
    stage.installation.end().await;
    Ok(())
}

/// The counting itself: each of these would go unseen if it were too kind.
pub(crate) async fn what_no_row_lists_is_too_many(_world: Arc<Installation>) -> Result<()> {
    let request = |user: &str, verb: &str, name: &str, code: u16| Request {
        user: user.to_owned(),
        verb: verb.to_owned(),
        resource: "pods".to_owned(),
        subresource: "status".to_owned(),
        name: name.to_owned(),
        code,
        uri: format!("/{name}"),
        ..Request::default()
    };
    let (mine, other) = (leadsman::MANAGER, "system:node:n");
    let two = [
        request(mine, "patch", "a", 200),
        request(mine, "patch", "b", 201),
    ];
    let mut three = two.to_vec();
    three.push(request(other, "patch", "c", 200));
    let with = |extra: Request| [&two[..], &[extra]].concat();
    let row = |times: usize| vec![manager("patch pods/status", times)];
    let second = Duration::from_secs(1);
    let paced = manager("patch pods/status", 0..=9);
    let kept = [
        ("others' are not counted", three, row(2), true),
        ("one too many", two.to_vec(), row(1), false),
        ("one too few", two.to_vec(), row(3), false),
        (
            "another verb",
            with(request(mine, "get", "a", 200)),
            row(2),
            false,
        ),
        (
            "another account",
            with(request(leadsman::AGENT, "patch", "a", 200)),
            row(2),
            false,
        ),
        (
            "an account of ours in two rows",
            with(request(leadsman::AGENT, "patch", "a", 200)),
            [row(2), vec![agent("patch pods/status", 1)]].concat(),
            true,
        ),
        (
            "a failed one",
            with(request(mine, "patch", "a", 409)),
            row(3),
            false,
        ),
        (
            "a failed one in a row",
            with(request(mine, "patch", "a", 409)),
            [row(2), vec![manager("patch pods/status 409", 1)]].concat(),
            true,
        ),
        (
            "each object once",
            two.to_vec(),
            vec![manager("patch pods/status", 2).once_each()],
            true,
        ),
        (
            "an object twice",
            with(request(mine, "patch", "a", 200)),
            vec![manager("patch pods/status", 3).once_each()],
            false,
        ),
        (
            "an object at its pace",
            with(request(mine, "patch", "a", 200)),
            vec![paced.clone().each_every(second)],
            true,
        ),
        (
            "an object too often",
            with(request(mine, "patch", "a", 200)),
            vec![paced.each_every(second * 2)],
            false,
        ),
    ];
    for (what, requests, rows, kept) in kept {
        let held = budget::keep(&requests, second, &rows);
        ensure!(held.is_ok() == kept, "{what}: {held:?}");
    }
    Ok(())
}

/// An API server ends each watch after some minutes, whatever happens meanwhile.
pub(crate) async fn a_watch_that_goes_on_costs_nothing(_world: Arc<Installation>) -> Result<()> {
    let pods = |verb: &str, selector: &str| Request {
        user: leadsman::MANAGER.to_owned(),
        verb: verb.to_owned(),
        resource: "pods".to_owned(),
        code: 200,
        uri: format!("/api/v1/pods?watch=true&fieldSelector={selector}&resourceVersion=7"),
        ..Request::default()
    };
    let [one, other, list] = [pods("watch", "a"), pods("watch", "b"), pods("list", "a")];
    let failed = Request {
        code: 410,
        ..one.clone()
    };
    let is_listed = || vec![manager("list pods", 1)];
    let kept = [
        ("one", vec![one.clone()], vec![], true),
        ("of two things", vec![one.clone(), other], vec![], true),
        ("twice", vec![one.clone(), one.clone()], vec![], false),
        ("a failed one", vec![failed], vec![], false),
        ("after a list", vec![list, one], is_listed(), false),
    ];
    for (what, requests, rows, kept) in kept {
        let held = budget::keep(&requests, Duration::from_secs(1), &rows);
        ensure!(held.is_ok() == kept, "{what}: {held:?}");
    }
    Ok(())
}
