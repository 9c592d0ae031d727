//! `kubectl leadsman` as its users run it: the program against the API server, with a person's rights.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client, Resource};
use leadsman_testkit::{ControlPlane, leadsman};
use leadsman_tests::{Printed, Scene, Way, kubectl_leadsman, wait_for_answer};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Installation;
use crate::inject::wait_until_served;
use crate::marks::{idle, marked};
use crate::stage::{NODES, PLACES, PODS, Stage};

pub(crate) async fn run(plane: &ControlPlane, words: &[&str]) -> Result<Printed> {
    kubectl_leadsman(plane.admin_kubeconfig(), words, "").await
}

/// The standard output of a run that succeeds.
async fn answer(plane: &ControlPlane, words: &[&str]) -> Result<String> {
    let printed = run(plane, words).await?;
    ensure!(printed.success, "{words:?}: {}", printed.err);
    ensure!(
        !printed.out.contains('\u{1b}'),
        "colours without a terminal: {}",
        printed.out
    );
    eprintln!("$ kubectl leadsman {}\n{}", words.join(" "), printed.out);
    Ok(printed.out)
}

async fn explain_json(plane: &ControlPlane, namespace: &str, pod: &str) -> Result<Value> {
    let words = ["explain", pod, "-n", namespace, "-o", "json"];
    let printed = run(plane, &words).await?;
    ensure!(printed.success, "{words:?}: {}", printed.err);
    Ok(serde_json::from_str(&printed.out)?)
}

/// Waits until the first cause of a pod is this one; None is no cause at all.
async fn wait_for_cause(
    plane: &ControlPlane,
    namespace: &str,
    pod: &str,
    reason: Option<&str>,
) -> Result<Value> {
    let what = format!("cause {reason:?} of {pod}");
    let seen = Mutex::new(Value::Null);
    let told = wait_for_answer(&what, || async {
        let causes = explain_json(plane, namespace, pod).await?["causes"].take();
        let first = causes[0].clone();
        *seen.lock().expect("no holder panics") = causes;
        Ok((first["reason"].as_str() == reason).then_some(first))
    });
    let told = told.await;
    told.with_context(|| format!("its causes were {seen:?}"))
}

/// Waits until this is the first cause of a pod of the scene, with these words.
async fn expect_cause(plane: &ControlPlane, pod: &str, reason: &str, words: &str) -> Result<()> {
    let told = wait_for_cause(plane, "explained", pod, Some(reason)).await?;
    ensure!(told.to_string().contains(words), "{reason}: {told}");
    Ok(())
}

/// The same of one of the fifteen ways, which comes with what to do.
async fn expect_way(plane: &ControlPlane, pod: &str, way: Way, words: &str) -> Result<()> {
    let told = wait_for_cause(plane, "explained", pod, Some(way.reason())).await?;
    way.is_told(&told)?;
    ensure!(told.to_string().contains(words), "{way:?}: {told}");
    Ok(())
}

/// The ways in which a marker can fail that a control plane can show; the others are in `tests/node`, and all of them, on
/// objects, in `leadsman_core`. On a control plane of its own: markers of other cases would select these pods too.
pub(crate) async fn causes_are_named_on_a_live_cluster(_world: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise().await?;
    let plane = &installation.plane;
    let scene = Scene::new(&installation.client, "explained").await?;
    scene.namespace("explained-elsewhere").await?;
    scene.pod("one").await?;
    expect_cause(plane, "one", "NoMarker", "create one").await?;
    scene.marker("m", idle()).await?;
    expect_way(plane, "one", Way::Threshold, "3 failures in a row").await?;
    scene
        .report_verdict_with("one", "m#Idle", "Succeeded", "it is idle")
        .await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    wait_for_cause(plane, "explained", "one", None).await?;
    let text = answer(plane, &["explain", "pod/one", "-n", "explained"]).await?;
    for words in [
        "marked as its verdicts say",
        "m  matches",
        "exec /home/game/idle.sh, every 10 s",
        "it is idle",
        "leadsman-podprobe (Apply/status",
    ] {
        ensure!(text.contains(words), "{words}: {text}");
    }
    scene
        .pod_with("typo", json!({"metadata": {"labels": {"app": "explaind"}}}))
        .await?;
    expect_way(
        plane,
        "typo",
        Way::WrongLabel,
        "app=explained (the pod has app=explaind)",
    )
    .await?;
    answer(plane, &["explain", "typo", "-n", "explained"]).await?;
    let elsewhere = Scene {
        client: scene.client.clone(),
        ns: "explained-elsewhere".to_owned(),
        node: scene.node.clone(),
    };
    elsewhere
        .pod_with(
            "lost",
            json!({"metadata": {"labels": {"app": "explained"}}}),
        )
        .await?;
    let way = Way::WrongNamespace;
    let told = wait_for_cause(plane, "explained-elsewhere", "lost", Some(way.reason())).await?;
    way.is_told(&told)?;
    ensure!(told.to_string().contains("explained/m"), "{told}");
    broken_probes(plane, &scene).await?;
    broken_pods(plane, &scene).await?;
    let second = idle();
    scene.marker("second", second).await?;
    expect_way(plane, "one", Way::Conflict, "is set by m#Idle").await?;
    contested_key(plane, &scene.client).await?;
    Box::pin(workloads(plane, &scene)).await?;
    let printed = run(plane, &["explain", "one", "-n", "explaind"]).await?;
    let told = "error: no namespace explaind; did you mean explained?\n";
    ensure!(!printed.success && printed.err == told, "{}", printed.err);
    installation.end().await;
    Ok(())
}

/// The pods of workloads that have no selector of their own, or are of OpenKruise. No controller runs here: their pods are
/// made as the controllers make them.
async fn workloads(plane: &ControlPlane, scene: &Scene) -> Result<()> {
    let template = json!({"spec": {"restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none"}]}});
    let jobs = Api::<Job>::namespaced(scene.client.clone(), &scene.ns);
    let create_job = async |name: &str, owner: Value| -> Result<()> {
        let job = json!({"metadata": {"name": name, "ownerReferences": owner},
            "spec": {"suspend": true, "template": template}});
        let job: Job = serde_json::from_value(job)?;
        let job = jobs.create(&PostParams::default(), &job).await?;
        let labels = job.spec.and_then(|spec| spec.template.metadata);
        let labels = labels.context("a Job's pods have labels")?.labels;
        let pod = json!({"metadata": {"labels": labels}});
        scene.pod_with(&format!("{name}-pod"), pod).await?;
        Ok(())
    };
    create_job("once", json!([])).await?;
    expect_pods(plane, scene, "job/once", &["once-pod"]).await?;

    let cron_job = json!({"metadata": {"name": "nightly"}, "spec": {"schedule": "0 0 * * *",
        "suspend": true, "jobTemplate": {"spec": {"template": template}}}});
    let cron_jobs = Api::<CronJob>::namespaced(scene.client.clone(), &scene.ns);
    let cron_job = cron_jobs
        .create(&PostParams::default(), &serde_json::from_value(cron_job)?)
        .await?;
    let printed = run(plane, &["explain", "cj/nightly", "-n", &scene.ns]).await?;
    let told = "error: no pod of cronjob nightly in namespace explained: it has no Job now";
    ensure!(printed.err.starts_with(told), "{}", printed.err);
    let owner = json!([cron_job.controller_owner_ref(&())]);
    for name in ["nightly-1", "nightly-2"] {
        create_job(name, owner.clone()).await?;
    }
    let pods = ["nightly-1-pod", "nightly-2-pod"];
    expect_pods(plane, scene, "cronjob/nightly", &pods).await?;

    let clone_sets = serve_clone_sets(&scene.client).await?;
    let clone_sets =
        Api::<DynamicObject>::namespaced_with(scene.client.clone(), &scene.ns, &clone_sets);
    let clone_set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
        "metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "cloned"}}}});
    clone_sets
        .create(&PostParams::default(), &serde_json::from_value(clone_set)?)
        .await?;
    let labels = json!({"metadata": {"labels": {"app": "cloned"}}});
    scene.pod_with("web-x", labels).await?;
    expect_pods(plane, scene, "clone/web", &["web-x"]).await
}

/// Fails unless these are the pods of a workload.
async fn expect_pods(
    plane: &ControlPlane,
    scene: &Scene,
    workload: &str,
    expected: &[&str],
) -> Result<()> {
    let text = answer(plane, &["explain", workload, "-n", &scene.ns, "-o", "json"]).await?;
    let told: Value = serde_json::from_str(&text)?;
    let pods = told["pods"].as_array().into_iter().flatten();
    let pods: Vec<_> = pods.filter_map(|pod| pod["name"].as_str()).collect();
    ensure!(pods == expected, "{workload}: {text}");
    Ok(())
}

/// The kind of OpenKruise's, without its schema.
async fn serve_clone_sets(client: &Client) -> Result<ApiResource> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let name = "clonesets.apps.kruise.io";
    let crd = json!({"metadata": {"name": name}, "spec": {
        "group": "apps.kruise.io", "scope": "Namespaced",
        "names": {"kind": "CloneSet", "plural": "clonesets", "singular": "cloneset"},
        "versions": [{"name": "v1alpha1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": schema}}]}});
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    crds.create(&PostParams::default(), &serde_json::from_value(crd)?)
        .await?;
    wait_until_served(&crds, name).await?;
    let kind = GroupVersionKind::gvk("apps.kruise.io", "v1alpha1", "CloneSet");
    Ok(ApiResource::from_gvk(&kind))
}

/// Markers whose probes name what pods lack.
async fn broken_probes(plane: &ControlPlane, scene: &Scene) -> Result<()> {
    let labelled = |name: &str| json!({"metadata": {"labels": {"app": name}}});
    let selector = |name: &str| json!({"matchLabels": {"app": name}});
    let probe = |container: &str, probe: Value| json!([{"name": "p", "containerName": container, "podConditionType": "t.io/p", "probe": probe}]);
    scene.pod_with("container", labelled("container")).await?;
    let exec = json!({"exec": {"command": ["true"]}});
    scene
        .marker_of("container", selector("container"), probe("mian", exec))
        .await?;
    expect_way(plane, "container", Way::WrongContainer, "mian").await?;
    scene.pod_with("port", labelled("port")).await?;
    let port = json!({"tcpSocket": {"port": "wbe"}});
    scene
        .marker_of("port", selector("port"), probe("main", port))
        .await?;
    expect_way(plane, "port", Way::UnknownPort, "wbe").await
}

/// Pods that a matching marker cannot probe yet.
async fn broken_pods(plane: &ControlPlane, scene: &Scene) -> Result<()> {
    scene.pod("setup").await?;
    let waits = json!({"conditions": [{"type": "Initialized", "status": "False",
        "message": "containers with incomplete status: [setup]"}]});
    scene.report_pod_status("setup", waits).await?;
    expect_way(plane, "setup", Way::NotInitialized, "[setup]").await?;
    let startup = json!({"spec": {"containers": [{"name": "main", "image": "none", "startupProbe": {"tcpSocket": {"port": 1}}}]}});
    scene.pod_with("slow", startup).await?;
    let not_started = json!([{"name": "main", "started": false, "ready": false, "restartCount": 0,
        "image": "none", "imageID": "", "containerID": "containerd://slow",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]);
    scene
        .report_pod_status("slow", json!({"containerStatuses": not_started}))
        .await?;
    expect_way(plane, "slow", Way::StartupGate, "has not passed").await?;
    scene
        .add_node("explained-virtual", json!({"type": "virtual-kubelet"}))
        .await?;
    scene
        .pod_with(
            "virtual",
            json!({"spec": {"nodeName": "explained-virtual"}}),
        )
        .await?;
    expect_way(plane, "virtual", Way::VirtualNode, "virtual-kubelet").await?;
    node_without_agent(plane, scene).await?;
    scene
        .pod_with("astray", json!({"spec": {"nodeName": "explained-nowhere"}}))
        .await?;
    expect_cause(plane, "astray", "NoNode", "does not exist").await
}

/// Agents are pods, and none of them is on the node.
async fn node_without_agent(plane: &ControlPlane, scene: &Scene) -> Result<()> {
    scene.add_agent().await?;
    scene.add_node("explained-bare", json!({})).await?;
    let there = json!({"spec": {"nodeName": "explained-bare"}});
    scene.pod_with("unprobed", there).await?;
    expect_way(plane, "unprobed", Way::NoAgent, "on node explained-bare").await
}

/// Somebody else changes a label whenever it is as the verdict says. In a namespace of its own: a marker's status names one
/// trouble, and others come first.
async fn contested_key(plane: &ControlPlane, client: &kube::Client) -> Result<()> {
    let scene = Scene::new(client, "contested").await?;
    scene.add_agent().await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let theirs = json!({"metadata": {"labels": {"gameserver-idle": "maybe"}}});
    let what = "the marker to say that its label is contested";
    let told = wait_for_answer(what, || async {
        scene.edit("one", "operator", theirs.clone()).await?;
        let mut explained = explain_json(plane, "contested", "one").await?;
        let causes = explained["causes"].as_array_mut().map(std::mem::take);
        let mut causes = causes.unwrap_or_default().into_iter();
        Ok(causes.find(|cause| cause["reason"] == Way::ContestedKey.reason()))
    });
    let told = told.await?;
    Way::ContestedKey.is_told(&told)?;
    let who = "label gameserver-idle is written by operator";
    ensure!(told.to_string().contains(who), "{told}");
    Ok(())
}

/// Pods of a workload by cause, markers at a glance, and what was meant.
pub(crate) async fn answers_come_in_the_forms_of_kubectl(
    installation: Arc<Installation>,
) -> Result<()> {
    let plane = &installation.plane;
    let scene = Scene::new(&installation.client, "forms").await?;
    scene.add_agent().await?;
    for pod in ["web-1", "web-2", "web-3"] {
        scene.pod(pod).await?;
    }
    let deployments: Api<Deployment> = Api::namespaced(scene.client.clone(), "forms");
    let labels = json!({"app": "forms"});
    let web = json!({"metadata": {"name": "web"}, "spec": {"replicas": 0, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}}});
    deployments
        .create(&PostParams::default(), &serde_json::from_value(web)?)
        .await?;
    scene.marker("game-server", idle()).await?;
    scene
        .report_verdict("web-1", "game-server#Idle", "Succeeded")
        .await?;
    scene.wait_for_marks("web-1", marked("Succeeded")).await?;
    for target in [&["deploy/web"][..], &["-l", "app=forms"]] {
        let words = [&["explain"], target, &["-n", "forms"]].concat();
        let text = answer(plane, &words).await?;
        for words in [
            "3 pods, 1 of them marked",
            "2 pods: ThresholdNotReached\n  forms/web-2, forms/web-3",
        ] {
            ensure!(text.contains(words), "{words}: {text}");
        }
    }
    let names = answer(
        plane,
        &["explain", "-l", "app=forms", "-n", "forms", "-o", "name"],
    )
    .await?;
    ensure!(names == "pod/web-1\npod/web-2\npod/web-3\n", "{names}");
    scene.wait_for_reason("game-server", "Probing").await?;
    wait_for_answer("counts", || async {
        let text = answer(plane, &["status", "-n", "forms"]).await?;
        let mut lines = text.lines();
        let heading = lines.next().unwrap_or_default();
        ensure!(
            heading.starts_with("MARKER") && heading.ends_with("STATE"),
            "{text}"
        );
        let row: Vec<_> = lines
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let counts = ["game-server", "Idle", "3", "1", "0", "0", "2"];
        Ok((row.starts_with(&counts) && row.last() == Some(&"Probing")).then_some(()))
    })
    .await?;
    let all: Value = serde_json::from_str(&answer(plane, &["status", "-A", "-o", "json"]).await?)?;
    let markers = all["markers"].as_array().context("no markers")?;
    ensure!(
        markers.iter().any(|marker| marker["namespace"] == "forms"),
        "{all}"
    );
    what_was_meant_is_offered(plane).await?;
    scene.remove_agent().await
}

/// For names that are nearly right, and names that are begun.
async fn what_was_meant_is_offered(plane: &ControlPlane) -> Result<()> {
    for (words, told) in [
        (
            &["status", "game-servr"][..],
            "error: no marker game-servr in namespace forms; did you mean game-server?\n",
        ),
        (
            &["explain", "pod/web-4"],
            "error: no pod web-4 in namespace forms; did you mean web-1?\n",
        ),
        (
            &["explain", "deploy/wbe"],
            "error: no deployment wbe in namespace forms; did you mean web?\n",
        ),
        (
            &["explain", "-l", "app=none"],
            "error: no pod with labels app=none in namespace forms\n",
        ),
    ] {
        let printed = run(plane, &[words, &["-n", "forms"]].concat()).await?;
        ensure!(
            !printed.success && printed.err == told,
            "{words:?}: {}",
            printed.err
        );
    }
    let completed = Command::new(leadsman::plugin()?)
        .arg0("kubectl_complete-leadsman")
        .args(["status", "-n", "forms", ""])
        .env("KUBECONFIG", plane.admin_kubeconfig())
        .output()
        .await?;
    let completed = String::from_utf8(completed.stdout)?;
    ensure!(
        completed
            .lines()
            .any(|line| line.starts_with("game-server\t")),
        "{completed}"
    );
    ensure!(completed.ends_with(":4\n"), "{completed}");
    Ok(())
}

/// Somebody who may read pods and markers of one namespace, and nothing else.
pub(crate) async fn who_may_read_pods_and_markers_alone_gets_an_answer(
    installation: Arc<Installation>,
) -> Result<()> {
    let plane = &installation.plane;
    let scene = Scene::new(&installation.client, "developer").await?;
    let role = json!({"metadata": {"name": "reader"}, "rules": [
        {"apiGroups": ["", "apps.kruise.io"], "resources": ["pods", "podprobemarkers"], "verbs": ["get", "list"]}]});
    let roles: Api<Role> = Api::namespaced(scene.client.clone(), "developer");
    roles
        .create(&PostParams::default(), &serde_json::from_value(role)?)
        .await?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "dev"}]});
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), "developer");
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene
        .report_verdict_with("one", "m#Idle", "Succeeded", "it is idle")
        .await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let as_dev = ["-n", "developer", "--as", "dev"];
    let words = [&["explain", "one"], &as_dev[..]].concat();
    // A role is in force a moment after its creation.
    let text = wait_for_answer("the answer for dev", || async {
        let printed = run(plane, &words).await?;
        Ok(printed.success.then_some(printed.out))
    })
    .await?;
    for words in [
        "marked as its verdicts say",
        "by the pod's condition: it is idle",
        "missing right: get nodepodprobes.apps.kruise.io at the cluster scope",
        "missing right: get leases.coordination.k8s.io in namespace kube-system",
    ] {
        ensure!(text.contains(words), "{words}: {text}");
    }
    let text = answer(plane, &[&["status"], &as_dev[..]].concat()).await?;
    ensure!(
        text.contains("missing right: list nodepodprobes.apps.kruise.io"),
        "{text}"
    );
    let printed = run(plane, &["status", "-A", "--as", "dev"]).await?;
    let told = "error: missing right: list podprobemarkers.apps.kruise.io at the cluster scope\n";
    ensure!(!printed.success && printed.err == told, "{}", printed.err);
    Ok(())
}

/// Without a manager, nothing is written; alone, as it stops the manager of the others.
pub(crate) async fn a_manager_that_is_down_is_named(installation: Arc<Installation>) -> Result<()> {
    let plane = &installation.plane;
    let scene = Scene::new(&installation.client, "unmanaged").await?;
    scene.add_agent().await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    wait_for_cause(plane, "unmanaged", "one", None).await?;
    installation.stop_manager().await?;
    let way = Way::NoManager;
    let told = wait_for_cause(plane, "unmanaged", "one", Some(way.reason())).await;
    installation.start_manager().await?;
    let told = told?;
    way.is_told(&told)?;
    ensure!(
        told.to_string()
            .contains("nobody holds the Lease leadsman-manager")
    );
    wait_for_cause(plane, "unmanaged", "one", None).await?;
    scene.delete_marker("m").await?;
    scene.remove_agent().await
}

/// How many pods are asked about: `LEADSMAN_CROWD`, with one node for twenty of them, or the usual crowd.
fn crowd_size() -> Result<(usize, usize)> {
    let Some(pods) = std::env::var_os("LEADSMAN_CROWD") else {
        return Ok((NODES, PODS));
    };
    let pods = pods.to_str().context("LEADSMAN_CROWD is no number")?;
    let pods: usize = pods.parse().context("LEADSMAN_CROWD")?;
    Ok((pods.div_ceil(20), pods))
}

/// The requests for many pods do not grow with them, but for the pages of their lists.
pub(crate) async fn many_pods_cost_few_requests(_world: Arc<Installation>) -> Result<()> {
    let (nodes, pods) = crowd_size()?;
    let stage = Stage::raise_with(nodes, pods).await?;
    let (installation, all) = (&stage.installation, &stage.crowd.pods);
    stage.scene().marker("m", idle()).await?;
    installation.start_manager().await?;
    stage.wait_until_probing("m").await?;
    stage
        .crowd
        .report_verdicts(all, &["m#Idle"], "Succeeded")
        .await?;
    stage
        .crowd
        .wait_for_marks(all, &marked("Succeeded"))
        .await?;
    let (pages_of_pods, pages_of_nodes) = (pods.div_ceil(500), nodes.div_ceil(500));
    for (words, told, expected) in [
        (
            &["explain", "-l", "app=crowd", "-n", "crowd"][..],
            format!("{pods} pods, {pods} of them marked as they should be"),
            // Markers, SidecarSets, which are no kind here, the Lease, the manager's pods and the agents'; pods, nodes, their
            // objects.
            5 + pages_of_pods + pages_of_nodes + nodes.div_ceil(50),
        ),
        // Markers and SidecarSets, then the objects of nodes.
        (&["status", "-A"], pods.to_string(), 2 + nodes.div_ceil(50)),
    ] {
        let mark = installation.plane.audit_mark()?;
        let begun = tokio::time::Instant::now();
        let text = answer(&installation.plane, words).await?;
        let took = begun.elapsed();
        ensure!(text.contains(&told), "{text}");
        let requests = installation.plane.audit(mark)?;
        let own = requests
            .iter()
            .filter(|request| request.user_agent.ends_with("(kubectl)"));
        let own: Vec<_> = own.map(|request| (&request.verb, &request.uri)).collect();
        let count = own.len();
        eprintln!("{words:?}: {count} requests in {took:?} for {pods} pods on {nodes} nodes");
        ensure!(count == expected, "{count} requests: {own:#?}");
    }
    Ok(())
}
