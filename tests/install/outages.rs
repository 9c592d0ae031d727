//! Something that leadsman or its users rely on does not answer for a while: the webhook, the API server, etcd. Afterwards
//! all is as if it had answered.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use leadsman_testkit::Release;
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman::MANAGER;
use leadsman_testkit::release::Component;
use leadsman_tests::room::{is_main, role};
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::json;
use tokio::time::Instant;

use crate::room::{PODS, flip, roles_were};
use crate::shown::identities;
use crate::{Room, install, marked_pods};

/// What creating a pod may take while nobody answers the webhook, on a busy machine. A call that is not given up after a
/// second would take 10.
const AT_ONCE: Duration = Duration::from_secs(5);
/// From the return of API server or etcd to the mark of what has happened meanwhile. Agent and manager try again at the
/// latest after 5 s each; the rest is for a busy machine.
const RIGHT_WITHIN: Duration = Duration::from_secs(30);
/// Those that are being deleted still serve.
const MANAGERS: &str = "app.kubernetes.io/component=manager";
/// The annotation that tells the provider of a virtual node a pod's probes.
const INJECTED: &str = "kruise.io/podprobe";
/// The API server's counter of calls that failed and were passed over.
const FAILED_OPEN: &str = "apiserver_admission_webhook_fail_open_count";

// PPM-16
pub(crate) async fn without_a_webhook_pods_are_created_at_once_and_probed_later(
    release: Arc<Release>,
) -> Result<()> {
    let gates = "EnablePodProbeMarkerOnServerless=true";
    install(&release, json!({"featureGates": gates})).await?;
    let room = Room::new(&release, "webhook").await?;
    let is_virtual = json!({"type": "virtual-kubelet"});
    room.scene.add_node("virtual", is_virtual).await?;
    let outcome = without_a_webhook(&release, &room).await;
    let nodes: Api<Node> = Api::all(release.client.clone());
    nodes.delete("virtual", &DeleteParams::default()).await?;
    outcome
}

async fn without_a_webhook(release: &Release, room: &Room) -> Result<()> {
    room.scene.marker("m", json!([role()])).await?;
    wait_for_injection(room).await?;
    let managers = Component::Manager.workload();
    release
        .kubectl(&["scale", managers, "--replicas=0"])
        .await?;
    let managers_pods = ListParams::default().labels(MANAGERS);
    wait_for_answer("the end of all managers", || async {
        let pods = release.pods_api().list(&managers_pods).await?.items;
        Ok(pods.is_empty().then_some(()))
    })
    .await?;
    let failed_before = failed_calls(release).await?;
    let began = Instant::now();
    let injected = create(room, "one", false).await?;
    let took = began.elapsed();
    eprintln!("without a manager a pod was created within {took:?}");
    ensure!(!injected, "nobody could know its probes");
    ensure!(took < AT_ONCE, "it took {took:?}");
    let failed = failed_calls(release).await?;
    ensure!(failed > failed_before, "{FAILED_OPEN} is still {failed}");

    release
        .kubectl(&["scale", managers, "--replicas=2"])
        .await?;
    release.wait_for_rollout().await?;
    room.scene.report_running("one", "10.1.2.3").await?;
    wait_for_object(&room.scene.pods(), "one", "its probes", |pod| {
        ensure!(is_injected(pod), "{:?}", pod.metadata.annotations);
        Ok(())
    })
    .await?;
    wait_for_injection(room).await
}

/// Waits until pods are created with their probes.
async fn wait_for_injection(room: &Room) -> Result<()> {
    wait_for_answer("a pod that is created with its probes", || async {
        let injected = create(room, "trial", true).await?;
        Ok(injected.then_some(()))
    })
    .await
}

/// Creates a pod on the virtual node, or has the API server only try it. Whether it has probes at once, which it can have
/// only from the webhook.
async fn create(room: &Room, name: &str, dry_run: bool) -> Result<bool> {
    let over = json!({"spec": {"nodeName": "virtual", "tolerations": [{"operator": "Exists"}]}});
    let pod = serde_json::from_value(room.manifest(name, over))?;
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    Ok(is_injected(&room.scene.pods().create(&params, &pod).await?))
}

fn is_injected(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(INJECTED))
}

/// How many calls of leadsman's webhook have failed, as the API server counts.
async fn failed_calls(release: &Release) -> Result<u64> {
    let metrics = release.kubectl(&["get", "--raw", "/metrics"]).await?;
    let lines = metrics.lines().filter(|line| {
        line.starts_with(FAILED_OPEN) && line.contains("name=\"podprobe.leadsman.io\"")
    });
    let counts = lines.filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| Ok(count.parse::<u64>()?)).sum()
}

pub(crate) async fn a_restarted_api_server_loses_and_repeats_no_write(
    release: Arc<Release>,
) -> Result<()> {
    let bed = &release.bed;
    restarted(
        &release,
        "apiserver",
        bed.stop_apiserver(),
        bed.start_apiserver(),
    )
    .await
}

pub(crate) async fn a_restarted_etcd_loses_and_repeats_no_write(
    release: Arc<Release>,
) -> Result<()> {
    let bed = &release.bed;
    restarted(&release, "etcd", bed.stop_etcd(), bed.start_etcd()).await
}

/// Both pods change their role while the API server or its store is away.
async fn restarted(
    release: &Arc<Release>,
    what: &str,
    stop: impl Future<Output = Result<()>>,
    start: impl Future<Output = Result<()>>,
) -> Result<()> {
    install(release, json!({})).await?;
    let (room, history) = marked_pods(release, what).await?;
    let before = identities(release).await?;
    let mut switches = Vec::new();
    for pod in PODS {
        switches.push(room.url(pod, "/set?role=secondary").await?);
    }
    let mark = release.bed.audit_mark()?;
    stop.await?;
    for switch in switches {
        release.bed.post_from_inside(&switch).await?;
    }
    start.await?;
    let back = Instant::now();
    for pod in PODS {
        room.scene.wait_for_marks(pod, is_main(false)).await?;
    }
    let took = back.elapsed();
    eprintln!("marks were right {took:?} after {what} was back");
    ensure!(took < RIGHT_WITHIN, "it took {took:?}");
    flip(&room, "first", true).await?;
    release.wait_for_rollout().await?;
    ensure!(identities(release).await? == before, "pods were restarted");
    for (pod, writes) in PODS.into_iter().zip([2, 1]) {
        marks_were_written(release, mark, what, pod, writes).await?;
    }
    let expected: [&[&str]; 2] = [&["main", "secondary", "main"], &["main", "secondary"]];
    roles_were(&history, expected).await
}

/// Holds the manager to so many writes of a pod's marks. The audit log has a request a moment after its answer.
async fn marks_were_written(
    release: &Release,
    since: Mark,
    namespace: &str,
    pod: &str,
    times: usize,
) -> Result<()> {
    let written = || {
        let requests = release.bed.audit(since)?.into_iter();
        let writes = requests.filter(|request| {
            let object = (request.namespace.as_str(), request.name.as_str());
            let is_write = request.verb == "patch" && request.resource == "pods";
            request.user == MANAGER && is_write && object == (namespace, pod) && request.code < 400
        });
        anyhow::Ok(writes.count())
    };
    wait_for_answer("all writes in the audit log", || async {
        Ok((written()? >= times).then_some(()))
    })
    .await?;
    let count = written()?;
    ensure!(
        count == times,
        "{pod} was written {count} times, not {times}"
    );
    Ok(())
}
