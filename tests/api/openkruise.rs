//! Beside OpenKruise: who may write, and what `leadsman preflight` says of it.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use leadsman_testkit::leadsman;
use leadsman_testkit::leadsman::MANAGER as USER;
use leadsman_tests::document::expect_shown;
use leadsman_tests::neighbour::{remove_lease, uninstall};
use leadsman_tests::{Neighbour, Scene, wait_for_answer};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Installation;
use crate::lifecycle::install_openkruises_crds;
use crate::marks::{idle, marked};
use crate::stage::PLACES;

// PPM-19
pub(crate) async fn nothing_is_written_before_openkruise_has_stopped(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "beside").await?;
    installation.stop_manager().await?;
    let neighbour = Neighbour::start(&scene.client, "kruise-a", "CloneSetShortHash=true").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    let start = installation.plane.audit_mark()?;
    let log = installation.log_length();
    installation.start_manager().await?;
    let in_the_way = "featureGates='CloneSetShortHash=true,PodProbeMarkerGate=false'";
    installation.wait_for_log(log, in_the_way).await?;
    // It leads, knows all and writes nothing; and it is ready.
    installation.wait_for_log(log, "became leader").await?;
    for kind in ["podprobemarkers", "pods", "nodes", "nodepodprobes"] {
        let listed = || installation.plane.audit(start);
        wait_for_answer(kind, || async {
            let listed = listed()?.into_iter();
            let mut listed = listed.filter(|r| r.user == USER && r.verb == "watch");
            Ok(listed.any(|r| r.resource == kind).then_some(()))
        })
        .await?;
    }
    is_ready(&installation).await?;
    let metrics = installation.get("/metrics").await?;
    ensure!(
        metrics.contains("leadsman_openkruise_conflict 1"),
        "{metrics}"
    );
    ensure!(
        written(&installation, start)?.is_empty(),
        "{:?}",
        written(&installation, start)?
    );
    // A leader of its own that leaves markers alone.
    neighbour
        .hand_over("kruise-b", "PodProbeMarkerGate=false")
        .await?;
    scene.wait_for_entries(&["one/m#Idle"]).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    // And one that does not: who writes goes on writing.
    neighbour.hand_over("kruise-c", "").await?;
    scene.report_verdict("one", "m#Idle", "Failed").await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    // The next term begins when that one has stopped.
    installation.stop_manager().await?;
    let (start, log) = (installation.plane.audit_mark()?, installation.log_length());
    installation.start_manager().await?;
    installation.wait_for_log(log, "kruise-c_").await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    is_ready(&installation).await?;
    ensure!(
        written(&installation, start)?.is_empty(),
        "{:?}",
        written(&installation, start)?
    );
    drop(neighbour);
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    remove_lease(&scene.client).await?;
    uninstall(&scene.client).await
}

/// Waits until the manager is ready.
async fn is_ready(installation: &Installation) -> Result<()> {
    wait_for_answer("ready", || async {
        let readyz = installation.get("/readyz").await?;
        Ok(readyz.starts_with("HTTP/1.0 200").then_some(()))
    })
    .await
}

// PPM-19
/// Somebody who may make namespaces makes that of OpenKruise, with what a manager of it would have there.
pub(crate) async fn a_lease_that_a_tenant_makes_stops_nobody(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "no-kruise").await?;
    installation.stop_manager().await?;
    let neighbour = Neighbour::start(&scene.client, "kruise-f", "").await?;
    uninstall(&scene.client).await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    installation.start_manager().await?;
    scene.wait_for_entries(&["one/m#Idle"]).await?;
    let seen = in_the_way(&installation, &[]).await?;
    ensure!(seen.is_empty(), "{seen:?}");
    drop(neighbour);
    remove_lease(&scene.client).await
}

/// What the manager wrote since then, its Lease apart.
fn written(
    installation: &Installation,
    since: leadsman_testkit::audit::Mark,
) -> Result<Vec<String>> {
    let requests = installation.plane.audit(since)?.into_iter();
    let writes = requests.filter(|r| r.user == USER && r.resource != "leases" && r.is_write());
    Ok(writes
        .map(|r| format!("{} {} {}", r.verb, r.resource, r.name))
        .collect())
}

// PPM-17
pub(crate) async fn a_gate_that_is_off_leaves_everything_alone(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "gate-off").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    installation.stop_manager().await?;
    let (start, log) = (installation.plane.audit_mark()?, installation.log_length());
    installation
        .start_manager_with(&["--feature-gates", "PodProbeMarkerGate=false"])
        .await?;
    installation
        .wait_for_log(
            log,
            "PodProbeMarkerGate=false: no PodProbeMarker is acted on",
        )
        .await?;
    installation
        .wait_for_log(
            log,
            "ready check=\"all feature gates are off: idle by configuration\"",
        )
        .await?;
    scene.delete_marker("m").await?;
    installation.stop_manager().await?;
    let asked: Vec<_> = installation
        .plane
        .audit(start)?
        .into_iter()
        .filter(|r| r.user == USER)
        .collect();
    ensure!(asked.is_empty(), "it asked for {asked:?}");
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    installation.start_manager().await?;
    scene.wait_for_marks("one", marked("")).await?;
    Ok(())
}

// PPM-19
/// `leadsman preflight` as somebody types it: what it says, and its exit status.
pub(crate) async fn preflight_says_what_is_in_the_way(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "preflight").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    ensure!(
        in_the_way(&installation, &[]).await?.is_empty(),
        "something is in the way"
    );
    // With the manager's own rights, some of what is looked at cannot be seen; what it does is allowed.
    let account = installation.kubeconfig.display().to_string();
    let seen = in_the_way(&installation, &["--kubeconfig", &account]).await?;
    ensure!(!seen.iter().any(|(check, _)| check == "rights"), "{seen:?}");
    let hook = installation.preflight_account().await?;
    let before_install = ["--before-install", "--kubeconfig", &hook];
    let clean = in_the_way(&installation, &before_install).await?;
    ensure!(clean.is_empty(), "before an installation: {clean:?}");
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(installation.client.clone());
    hooks
        .create(&PostParams::default(), &serde_json::from_value(webhooks())?)
        .await?;
    let nobody = in_the_way(&installation, &[]).await;
    let neighbour = Neighbour::start(&scene.client, "kruise-d", "CloneSetShortHash=true").await?;
    let acts = in_the_way(&installation, &[]).await;
    let refused = in_the_way(&installation, &before_install).await;
    neighbour
        .hand_over("kruise-e", "PodProbeMarkerGate=false")
        .await?;
    let aside = in_the_way(&installation, &[]).await;
    let admitted = in_the_way(&installation, &before_install).await;
    drop(neighbour);
    hooks.delete(WEBHOOKS, &DeleteParams::default()).await?;
    remove_lease(&scene.client).await?;
    uninstall(&scene.client).await?;
    let delete = format!("kubectl delete validatingwebhookconfiguration {WEBHOOKS}");
    let expected = [("openkruise-webhooks".to_owned(), delete)];
    ensure!(nobody.as_ref().ok() == Some(&expected.into()), "{nobody:?}");
    let acts = acts?;
    let gates = "featureGates='CloneSetShortHash=true,PodProbeMarkerGate=false'";
    ensure!(
        acts.len() == 1 && acts[0].0 == "openkruise" && acts[0].1.ends_with(gates),
        "{acts:?}"
    );
    let refused = refused?;
    ensure!(refused == acts, "before an installation: {refused:?}");
    let (aside, admitted) = (aside?, admitted?);
    ensure!(aside.is_empty(), "{aside:?}");
    ensure!(admitted.is_empty(), "before an installation: {admitted:?}");
    Ok(())
}

/// The page is read by those who have OpenKruise: its CRDs, its manager and its daemon, with the gate on.
pub(crate) async fn preflight_prints_what_the_page_on_migration_shows(
    _: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise_idle().await?;
    let printed = preflight_beside_openkruise(&installation).await;
    installation.end().await;
    expect_shown("docs/migrate.md", "leadsman preflight", &printed?)
}

async fn preflight_beside_openkruise(installation: &Installation) -> Result<String> {
    const MANAGER: &str = "kruise-controller-manager-5b8f7c9d4c-q9z8w";
    let client = &installation.client;
    install_openkruises_crds(&Api::all(client.clone())).await?;
    let _neighbour = Neighbour::start(client, MANAGER, "CloneSetShortHash=true").await?;
    let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), "kruise-system");
    let labels = json!({"control-plane": "daemon"});
    let daemon = json!({"metadata": {"name": "kruise-daemon"}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "daemon", "image": "none",
            "args": ["--feature-gates=CloneSetShortHash=true"]}]}}}});
    let daemon = serde_json::from_value(daemon)?;
    daemons.create(&PostParams::default(), &daemon).await?;
    let sees_all = "it sees manager and daemon";
    wait_for_answer(sees_all, || async {
        let output = Command::new(leadsman::program()?)
            .args(["preflight", "--kubeconfig"])
            .arg(installation.plane.admin_kubeconfig())
            .kill_on_drop(true)
            .output()
            .await?;
        let printed = String::from_utf8(output.stdout)?;
        Ok(printed.contains("not ready: 2 things").then_some(printed))
    })
    .await
}

/// What is to be done, by check, with what to type. Markers are other cases' too, and some of them bad on purpose.
async fn in_the_way(installation: &Installation, args: &[&str]) -> Result<Vec<(String, String)>> {
    let report = preflight(installation, args).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().into_iter().flatten();
    let todo = checks.filter(|check| check["result"] == "todo" && check["check"] != "markers");
    Ok(todo
        .map(|check| (text(&check["check"]), text(&check["do"][0])))
        .collect())
}

/// What `leadsman preflight` finds; as an administrator, unless `args` have a kubeconfig.
pub(crate) async fn preflight(installation: &Installation, args: &[&str]) -> Result<Value> {
    let mut command = Command::new(leadsman::program()?);
    command.args(["preflight", "-o", "json"]).args(args);
    if !args.contains(&"--kubeconfig") {
        command
            .arg("--kubeconfig")
            .arg(installation.plane.admin_kubeconfig());
    }
    let output = command.kill_on_drop(true).output().await?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    ensure!(report["ready"] == output.status.success(), "{report}");
    Ok(report)
}

const WEBHOOKS: &str = "kruise-validating-webhook-configuration";

/// What is left of OpenKruise's when only its manager was removed, but about objects that nobody makes here.
fn webhooks() -> Value {
    json!({"metadata": {"name": WEBHOOKS}, "webhooks": [{
        "name": "vpodprobemarker.kb.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Fail", "clientConfig": {"url": "https://127.0.0.1:1/validate", "caBundle": "Cg=="},
        "namespaceSelector": {"matchLabels": {"no-such": "namespace"}},
        "rules": [{"apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["podprobemarkers"], "scope": "*"}]}]})
}
