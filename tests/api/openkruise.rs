//! Beside OpenKruise: who may write, and what `leadsman preflight` says of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use leadsman_testkit::leadsman;
use leadsman_testkit::leadsman::MANAGER as USER;
use leadsman_tests::{Scene, wait_for_answer};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Installation;
use crate::marks::{idle, marked};

const NAMESPACE: &str = "kruise-system";
const LEASE: &str = "kruise-manager";

/// OpenKruise's manager, as far as others see it: it keeps its Lease, and is a pod with arguments.
struct Neighbour {
    client: Client,
    holder: watch::Sender<String>,
    renewing: JoinHandle<()>,
}

impl Neighbour {
    /// Leads from now on, with these feature gates.
    async fn start(client: &Client, pod: &str, gates: &str) -> Result<Self> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {"control-plane": "controller-manager"}}});
        match namespaces
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other?),
        }
        let (holder, holds) = watch::channel(String::new());
        let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
        let neighbour = Self {
            client: client.clone(),
            holder,
            renewing: tokio::spawn(renew(leases, holds)),
        };
        neighbour.hand_over(pod, gates).await?;
        Ok(neighbour)
    }

    /// Another pod leads.
    async fn hand_over(&self, pod: &str, gates: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let manifest = json!({
            "metadata": {"name": pod, "labels": {"control-plane": "controller-manager"}},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "manager", "image": "none",
                "command": ["/manager"],
                "args": ["--enable-leader-election", "--v=4", format!("--feature-gates={gates}")]}]},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(manifest)?)
            .await?;
        self.holder
            .send_replace(format!("{pod}_6a1e3f0e-6d0c-4a52-9a3e-0d8f3f6d2a11"));
        Ok(())
    }
}

impl Drop for Neighbour {
    /// It is gone without giving its Lease back.
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// As client-go does, in less time.
async fn renew(leases: Api<Lease>, mut holder: watch::Receiver<String>) {
    let params = PostParams {
        field_manager: Some("kruise-manager".into()),
        ..PostParams::default()
    };
    loop {
        let name = holder.borrow_and_update().clone();
        if !name.is_empty() {
            let now = MicroTime(leadsman_tests::now());
            let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 3, "renewTime": now,
                "acquireTime": now, "leaseTransitions": 0});
            let there = leases.get_opt(LEASE).await;
            let mut lease =
                json!({"metadata": {"name": LEASE, "namespace": NAMESPACE}, "spec": spec});
            // What goes wrong once, the next round puts right.
            if let Ok(Some(seen)) = &there {
                lease["metadata"]["resourceVersion"] = json!(seen.metadata.resource_version);
            }
            if let Ok(lease) = serde_json::from_value(lease) {
                let _written = match there {
                    Ok(Some(_)) => leases.replace(LEASE, &params, &lease).await,
                    _ => leases.create(&params, &lease).await,
                };
            }
        }
        let pause = tokio::time::sleep(Duration::from_millis(500));
        tokio::select! {
            () = pause => {}
            changed = holder.changed() => if changed.is_err() { return },
        }
    }
}

// PPM-19
pub(crate) async fn nothing_is_written_while_openkruise_acts(
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
    // It leads, knows all and writes nothing.
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
    scene
        .report_verdict("one", "m#Idle", "Succeeded", "")
        .await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    // And one that does not: it marks the pod from now on.
    let log = installation.log_length();
    neighbour.hand_over("kruise-c", "").await?;
    installation.wait_for_log(log, "kruise-c_").await?;
    let start = installation.plane.audit_mark()?;
    scene.report_verdict("one", "m#Idle", "Failed", "").await?;
    scene
        .marker(
            "later",
            json!([{"name": "p", "containerName": "main", "podConditionType": "t.io/later",
        "probe": {"exec": {"command": ["true"]}}}]),
        )
        .await?;
    let early = written(&installation, start)?;
    let early = early
        .iter()
        .any(|write| !write.ends_with("podprobemarkers m"));
    ensure!(!early, "{:?}", written(&installation, start)?);
    let log = installation.log_length();
    drop(neighbour);
    installation
        .wait_for_log(log, "OpenKruise's manager has stopped")
        .await?;
    scene
        .wait_for_entries(&["one/m#Idle", "one/later#p"])
        .await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    // All of it after that end.
    let log = installation.log_since(log)?;
    let first = log.find("leader and in sync, writes begin");
    ensure!(
        first > log.find("OpenKruise's manager has stopped"),
        "{log}"
    );
    ensure!(
        !written(&installation, start)?.is_empty(),
        "nothing was written"
    );
    clear(&scene.client).await
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

/// Other cases' managers need not wait for it.
async fn clear(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    leases.delete(LEASE, &DeleteParams::default()).await?;
    Ok(())
}

// PPM-17
pub(crate) async fn a_gate_that_is_off_leaves_everything_alone(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "gate-off").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene
        .report_verdict("one", "m#Idle", "Succeeded", "")
        .await?;
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
            "ready check=\"PodProbeMarkerGate=false: idle by configuration\"",
        )
        .await?;
    scene
        .markers()
        .delete("m", &DeleteParams::default())
        .await?;
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
    scene
        .report_verdict("one", "m#Idle", "Succeeded", "")
        .await?;
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
    ensure!(clean.is_empty(), "before an install: {clean:?}");
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
    clear(&scene.client).await?;
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
    ensure!(refused == acts, "before an install: {refused:?}");
    let (aside, admitted) = (aside?, admitted?);
    ensure!(aside.is_empty(), "{aside:?}");
    ensure!(admitted.is_empty(), "before an install: {admitted:?}");
    Ok(())
}

/// What is to be done, by check, with what to type; as an administrator, unless `args` have a kubeconfig. Markers are other
/// cases' too, and some of them bad on purpose.
async fn in_the_way(installation: &Installation, args: &[&str]) -> Result<Vec<(String, String)>> {
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
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().into_iter().flatten();
    let todo = checks.filter(|check| check["result"] == "todo" && check["check"] != "markers");
    Ok(todo
        .map(|check| (text(&check["check"]), text(&check["do"][0])))
        .collect())
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
