//! `kubectl leadsman try` against the API server: what is wrong with a marker, which pods it would match, what would be in
//! the way, and that nothing is written. Its runs are in `tests/node`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, RoleBinding};
use kube::Api;
use kube::api::{ListParams, PostParams};
use leadsman_tests::{Printed, Scene, kubectl_leadsman, wait_for_answer};
use serde_json::{Value, json};

use crate::Installation;
use crate::marks::idle;

/// A marker as a file.
fn file(name: &str, app: &str, probes: &Value) -> String {
    json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": app}}, "probes": probes}})
    .to_string()
}

async fn try_file(
    installation: &Installation,
    namespace: &str,
    words: &[&str],
    file: &str,
) -> Result<Printed> {
    let kubeconfig = installation.plane.admin_kubeconfig();
    let words = [&["try", "-f", "-", "-n", namespace], words].concat();
    let printed = kubectl_leadsman(kubeconfig, &words, file).await?;
    eprintln!(
        "$ kubectl leadsman {}\n{}{}",
        words.join(" "),
        printed.out,
        printed.err
    );
    Ok(printed)
}

fn expect(printed: &Printed, success: bool, words: &[&str]) -> Result<()> {
    ensure!(printed.success == success, "{}{}", printed.out, printed.err);
    let all = format!("{}{}", printed.out, printed.err);
    for words in words {
        ensure!(all.contains(words), "{words}: {all}");
    }
    Ok(())
}

/// All errors at once, by the parser and by the API server; and nothing is stored.
pub(crate) async fn a_marker_is_checked_before_it_is_applied(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "tried").await?;
    let mut probes = idle();
    probes[0]["containername"] = json!("main");
    probes[0]["probe"]["httpGet"] = json!({"port": 80});
    let invalid = file("m", "tried", &probes);
    let printed = try_file(&installation, "tried", &[], &invalid).await?;
    let told = "spec.probes[0].containername: unknown field; did you mean containerName?";
    expect(
        &printed,
        false,
        &[
            "Marker tried/m: invalid, 2 errors",
            told,
            "spec.probes[0].probe",
        ],
    )?;
    // Two documents, the second of which the schema refuses before anybody can parse it.
    let several = format!(
        "{}\n---\n{}",
        file("good", "tried", &idle()),
        file("bad", "tried", &json!("none"))
    );
    let printed = try_file(&installation, "tried", &["--sample", "0"], &several).await?;
    let words = ["Marker tried/good: valid, new", "Marker tried/bad: invalid"];
    expect(&printed, false, &words)?;
    // The rule of the CRD about edits, which only the API server knows.
    scene.marker("known", idle()).await?;
    let moved = file("known", "elsewhere", &idle());
    let printed = try_file(&installation, "tried", &["--sample", "0"], &moved).await?;
    expect(
        &printed,
        false,
        &["Marker tried/known: invalid", "spec.selector"],
    )?;
    let markers = scene.markers().list(&ListParams::default()).await?;
    ensure!(markers.items.len() == 1, "{:?}", markers.items);
    Ok(())
}

/// Which pods it would match, and what would be in the way.
pub(crate) async fn a_marker_finds_its_pods_before_it_is_applied(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "matched").await?;
    scene.add_agent().await?;
    scene.pod("one").await?;
    scene.pod("two").await?;
    scene
        .pod_with("other", json!({"metadata": {"labels": {"app": "othr"}}}))
        .await?;
    let started = json!([{"name": "main", "started": true, "ready": true, "restartCount": 0,
        "image": "none", "imageID": "", "containerID": "containerd://x",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]);
    for pod in ["one", "two"] {
        let status = json!({"containerStatuses": started});
        scene.report_pod_status(pod, status).await?;
    }
    let versions = || async {
        let pods = scene.pods().list(&ListParams::default()).await?;
        let versions = pods
            .items
            .into_iter()
            .map(|pod| pod.metadata.resource_version);
        anyhow::Ok(versions.collect::<Vec<_>>())
    };
    let before = versions().await?;
    let quiet = ["--sample", "0"];
    let new = file("new", "matched", &idle());
    let printed = try_file(&installation, "matched", &quiet, &new).await?;
    let words = ["valid, new", "selects 2 of 3 pods"];
    expect(&printed, true, &words)?;
    let printed = try_file(
        &installation,
        "matched",
        &[&quiet[..], &["pod/one"]].concat(),
        &new,
    )
    .await?;
    ensure!(
        printed.out.contains("selects 1 of 1 pods"),
        "{}",
        printed.out
    );
    let printed = try_file(
        &installation,
        "matched",
        &quiet,
        &file("new", "othre", &idle()),
    )
    .await?;
    let words = [
        "selects none of 3 pods; other comes nearest",
        "app=othre   the pod has app=othr",
    ];
    expect(&printed, false, &words)?;
    let mut probes = idle();
    probes[0]["containerName"] = json!("mian");
    let printed = try_file(
        &installation,
        "matched",
        &quiet,
        &file("new", "matched", &probes),
    )
    .await?;
    let words = [
        "ContainerNotFound  new#Idle",
        "did you mean main?",
        "in one, two",
    ];
    expect(&printed, false, &words)?;
    scene.marker("older", idle()).await?;
    let printed = try_file(
        &installation,
        "matched",
        &[&quiet[..], &["-o", "json"]].concat(),
        &new,
    )
    .await?;
    let told: Value = serde_json::from_str(&printed.out)?;
    let causes = told["markers"][0]["selected"][0]["causes"]
        .as_array()
        .context("no causes")?;
    let conflicts = causes.iter().filter(|cause| cause["reason"] == "Conflict");
    ensure!(conflicts.count() == 3, "{told:#}");
    ensure!(!printed.success, "a conflict is no success");
    ensure!(versions().await? == before, "a pod was written");
    scene.remove_agent().await
}

/// A right that is missing is named; what can be said without it is said.
pub(crate) async fn who_may_not_run_probes_is_told_the_right(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "looker").await?;
    scene.pod("one").await?;
    let started = json!({"containerStatuses": [{"name": "main", "started": true, "ready": true, "restartCount": 0,
        "image": "none", "imageID": "", "containerID": "containerd://x",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]});
    scene.report_pod_status("one", started).await?;
    let roles: Api<ClusterRole> = Api::all(scene.client.clone());
    let reads = PolicyRule {
        api_groups: Some(vec![String::new(), "apps.kruise.io".to_owned()]),
        resources: Some(vec!["pods".to_owned(), "podprobemarkers".to_owned()]),
        verbs: vec!["get".to_owned(), "list".to_owned()],
        ..PolicyRule::default()
    };
    let role = json!({"metadata": {"name": "looker"}, "rules": [reads]});
    roles
        .create(&PostParams::default(), &serde_json::from_value(role)?)
        .await?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "looker"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "looker"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "looker"}]});
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), "looker");
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    let mut probes = idle();
    probes.as_array_mut().context("a list")?.push(json!({
        "name": "Open", "containerName": "main", "podConditionType": "game.io/open",
        "probe": {"tcpSocket": {"port": "web"}}}));
    let marker = file("m", "looker", &probes);
    // A role is in force a moment after its creation.
    let printed = wait_for_answer("the answer for looker", || async {
        let printed = try_file(&installation, "looker", &["--as", "looker"], &marker).await?;
        Ok((!printed.out.is_empty()).then_some(printed))
    })
    .await?;
    expect(
        &printed,
        false,
        &[
            "not checked by the API server: missing right: create podprobemarkers.apps.kruise.io in namespace looker",
            "selects 1 of 1 pods",
            "pods/exec in namespace looker",
            "pods/portforward in namespace looker",
        ],
    )
}
