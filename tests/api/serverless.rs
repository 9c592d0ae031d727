//! Serverless pods: a webhook gives them their probes when they are created, the provider of a virtual node reports the
//! verdicts, and the manager marks the pods by them. The test plays the provider.

mod latency;
mod sandbox;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use leadsman_testkit::ports::free_addresses;
use leadsman_tests::budget::{Row, manager};
use leadsman_tests::scene::merge;
use leadsman_tests::{Scene, sum_of_counters, wait_for_answer, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

pub(crate) use self::latency::a_creation_waits_little_for_the_webhook;
pub(crate) use self::sandbox::a_sandbox_is_paused_when_it_says_that_it_is_idle;
use crate::Installation;
use crate::marks::{idle, marked};
use crate::stage::{PLACES, Stage};

/// The annotations of the protocol.
const PROBES: &str = "kruise.io/podprobe";
const MARKERS: &str = "kruise.io/podprobemarker-list";
/// What a marker is called whose finalizer somebody else holds.
const HOLD: &str = "tests.leadsman.io/hold";
/// What a pod may take to be created while nobody answers.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A control plane, and a manager that serves the webhook.
struct Serverless {
    installation: Installation,
    flags: [String; 5],
    _place: SemaphorePermit<'static>,
}

/// The flags of a manager that serves the webhook on a free port.
fn flags() -> Result<[String; 5]> {
    let [free] = free_addresses()?;
    Ok([
        "--feature-gates=EnablePodProbeMarkerOnServerless=true".to_owned(),
        "--webhook-bind-address".to_owned(),
        free.to_string(),
        "--webhook-url".to_owned(),
        format!("https://{free}"),
    ])
}

async fn start(installation: &Installation, flags: &[String; 5]) -> Result<()> {
    let flags = flags.each_ref().map(String::as_str);
    installation.start_manager_with(&flags).await
}

impl Serverless {
    async fn raise() -> Result<Self> {
        let place = PLACES.acquire().await?;
        let installation = Installation::raise_idle().await?;
        installation.grant_webhooks().await?;
        let flags = flags()?;
        start(&installation, &flags).await?;
        Ok(Self {
            installation,
            flags,
            _place: place,
        })
    }

    async fn scene(&self, name: &str) -> Result<Scene> {
        virtual_scene(&self.installation.client, name).await
    }

    /// How often the API server has called the webhook.
    async fn calls(&self) -> Result<u64> {
        let metrics = self.installation.get("/metrics").await?;
        sum_of_counters(&metrics, &["leadsman_webhook_requests_total{"])
    }

    fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.installation.client.clone())
    }
}

/// A namespace with a virtual node.
async fn virtual_scene(client: &Client, name: &str) -> Result<Scene> {
    let scene = Scene::new(client, name).await?;
    let node = format!("{name}-virtual");
    let labels = json!({"type": "virtual-kubelet"});
    scene.add_node(&node, labels).await?;
    Ok(Scene { node, ..scene })
}

/// Creates a pod, or has the API server only try it, and returns it as answered: what it has then, the webhook gave it.
async fn create(scene: &Scene, name: &str, over: Value, dry_run: bool) -> Result<Pod> {
    let mut manifest = json!({
        "metadata": {"name": name, "labels": {"app": scene.ns}},
        "spec": {
            "nodeName": scene.node,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none", "ports": [{"name": "web", "containerPort": 8080}]}]
        }
    });
    merge(&mut manifest, over);
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    let pod = serde_json::from_value(manifest)?;
    Ok(scene.pods().create(&params, &pod).await?)
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// The probes that a pod asks its provider to run, by their names.
fn probes(pod: &Pod) -> Result<Vec<Value>> {
    let text = annotation(pod, PROBES).context("no probes")?;
    let mut probes: Vec<Value> = serde_json::from_str(text)?;
    probes.sort_by_key(|probe| probe["name"].to_string());
    Ok(probes)
}

/// Waits until pods like this one are created with probes of these markers.
async fn wait_for_injection(scene: &Scene, over: &Value, markers: &str) -> Result<Pod> {
    wait_for_answer(&format!("probes of {markers}"), || async {
        let pod = create(scene, "trial", over.clone(), true).await?;
        Ok((annotation(&pod, MARKERS) == Some(markers)).then_some(pod))
    })
    .await
}

/// As a provider does: reads which probes it is to run, and reports this of all of them.
async fn provide(scene: &Scene, pod: &str, status: &str) -> Result<()> {
    let probes = probes(&scene.pods().get(pod).await?)?;
    let conditions = probes.iter().map(|probe| {
        json!({"type": probe["podConditionType"], "status": status, "message": "the provider's words"})
    });
    let conditions: Vec<_> = conditions.collect();
    scene
        .report_pod_status(pod, json!({"conditions": conditions}))
        .await?;
    Ok(())
}

/// Waits until a pod's provider is asked for probes of these markers, and returns these.
async fn wait_for_annotations(scene: &Scene, pod: &str, markers: &str) -> Result<Vec<Value>> {
    wait_for_object(&scene.pods(), pod, &format!("probes of {markers}"), |pod| {
        let list = annotation(pod, MARKERS);
        ensure!(list == Some(markers), "its markers are {list:?}");
        probes(pod)
    })
    .await
}

/// Waits until the provider of a pod is asked for its only probe with this period.
async fn wait_for_period(scene: &Scene, pod: &str, seconds: u64) -> Result<()> {
    let what = format!("a period of {seconds} s");
    wait_for_object(&scene.pods(), pod, &what, |pod| {
        let probes = probes(pod)?;
        ensure!(probes[0]["probe"]["periodSeconds"] == seconds, "{probes:?}");
        Ok(())
    })
    .await
}

/// A probe of a container's port `web`.
fn tcp(name: &str, container: &str, condition: &str) -> Value {
    json!({"name": name, "containerName": container, "podConditionType": condition,
        "probe": {"tcpSocket": {"port": "web"}, "periodSeconds": 5},
        "markerPolicy": [{"state": "Succeeded", "labels": {name: "yes"}}]})
}

// PPM-16
pub(crate) async fn a_pod_is_created_with_its_probes(_: Arc<Installation>) -> Result<()> {
    let bed = Serverless::raise().await?;
    let scene = bed.scene("made").await?;
    let elsewhere = bed.scene("elsewhere").await?;
    scene.marker("idle", idle()).await?;
    let side = json!([
        tcp("Side", "side", "t.io/side"),
        tcp("none", "absent", "t.io/absent")
    ]);
    scene.marker("a-side", side).await?;

    let with_sidecar = json!({"spec": {"initContainers": [{"name": "side", "image": "none", "restartPolicy": "Always",
        "ports": [{"name": "web", "containerPort": 8081}]}]}});
    let pod = wait_for_injection(&scene, &with_sidecar, "a-side,idle").await?;
    let expected = json!([
        {"name": "Idle", "containerName": "main", "podConditionType": "game.io/idle",
         "probe": {"exec": {"command": ["/home/game/idle.sh"]}, "initialDelaySeconds": 0, "periodSeconds": 10,
            "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}},
        {"name": "Side", "containerName": "side", "podConditionType": "t.io/side",
         "probe": {"tcpSocket": {"port": 8081}, "initialDelaySeconds": 0, "periodSeconds": 5,
            "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}}]);
    ensure!(json!(probes(&pod)?) == expected, "{:?}", pod.metadata);

    // Without the sidecar its marker asks for nothing.
    wait_for_injection(&scene, &json!({}), "idle").await?;
    stale_annotations(&scene).await?;

    // A marker that is being deleted asks for nothing any more, whoever holds it.
    let hold = json!({"metadata": {"finalizers": [HOLD]}});
    scene.edit_marker("idle", hold).await?;
    scene
        .marker("later", json!([tcp("Later", "main", "t.io/later")]))
        .await?;
    wait_for_injection(&scene, &json!({}), "idle,later").await?;
    let markers = scene.markers();
    markers.delete("idle", &DeleteParams::default()).await?;
    wait_for_injection(&scene, &json!({}), "later").await?;

    let before = bed.calls().await?;
    let another = json!({"metadata": {"labels": {"app": "another"}}});
    for _ in 0..20 {
        create(&elsewhere, "trial", json!({}), true).await?;
        create(&scene, "trial", another.clone(), true).await?;
    }
    let unwanted = bed.calls().await?;
    ensure!(
        unwanted == before,
        "{} calls for pods that no marker matches",
        unwanted - before
    );
    create(&scene, "trial", json!({}), true).await?;
    let wanted = bed.calls().await?;
    ensure!(
        wanted == before + 1,
        "{} calls for one pod",
        wanted - before
    );

    // The last marker takes the webhook along.
    for marker in ["a-side", "later"] {
        markers.delete(marker, &DeleteParams::default()).await?;
    }
    wait_for_deletion(&bed.configurations(), "leadsman").await?;
    let release = json!({"metadata": {"finalizers": null}});
    scene.edit_marker("idle", release).await?;
    bed.installation.end().await;
    Ok(())
}

/// Annotations that came with a copied template are replaced, or go where no marker matches.
async fn stale_annotations(scene: &Scene) -> Result<()> {
    let mut copied =
        json!({"metadata": {"annotations": {PROBES: "[]", MARKERS: "former", "theirs": "stays"}}});
    let pod = wait_for_injection(scene, &copied, "idle").await?;
    ensure!(probes(&pod)?.len() == 1, "{:?}", pod.metadata);
    copied["metadata"]["labels"] = json!({"app": "another"});
    wait_for_answer("a copy without the annotations", || async {
        let pod = create(scene, "trial", copied.clone(), true).await?;
        let found = [PROBES, MARKERS, "theirs"].map(|key| annotation(&pod, key));
        Ok((found == [None, None, Some("stays")]).then_some(()))
    })
    .await?;
    Ok(())
}

// PPM-16, DEF-24
pub(crate) async fn without_a_manager_pods_are_created_at_once(_: Arc<Installation>) -> Result<()> {
    let bed = Serverless::raise().await?;
    let scene = bed.scene("down").await?;
    scene.marker("idle", idle()).await?;
    wait_for_injection(&scene, &json!({}), "idle").await?;
    bed.installation.stop_manager().await?;
    let mut longest = Duration::ZERO;
    for number in 0..20 {
        let began = Instant::now();
        let pod = create(&scene, &format!("p-{number}"), json!({}), false).await?;
        longest = longest.max(began.elapsed());
        let probes = annotation(&pod, PROBES);
        ensure!(probes.is_none(), "nobody could say {probes:?}");
    }
    eprintln!("without a manager the slowest of 20 pods was created within {longest:?}");
    ensure!(longest < AT_ONCE, "a pod took {longest:?}");
    bed.configurations().get("leadsman").await?;

    scene.report_running("p-0", "10.1.2.3").await?;
    start(&bed.installation, &bed.flags).await?;
    wait_for_annotations(&scene, "p-0", "idle").await?;
    provide(&scene, "p-0", "True").await?;
    scene.wait_for_marks("p-0", marked("Succeeded")).await?;
    bed.installation.end().await;
    Ok(())
}

/// One write of a pod, and what a change of markers may bring beside it.
fn one_write() -> Vec<Row> {
    vec![
        manager("patch pods/status", 1),
        manager("patch podprobemarkers/status", 0..=4),
        // The marker that shows the end of the step comes and goes.
        manager("patch mutatingwebhookconfigurations", 0..=4),
        manager("get clusterroles", 0..=4),
        // With the last marker.
        manager("delete mutatingwebhookconfigurations", 0..=2),
    ]
}

/// Each change is one apply of the pod, whoever makes it: the provider, or who edits and deletes markers.
// PPM-11, PPM-16, DEF-18
pub(crate) async fn marks_follow_the_provider_and_the_markers(_: Arc<Installation>) -> Result<()> {
    let stage = Stage::raise().await?;
    stage.installation.grant_webhooks().await?;
    start(&stage.installation, &flags()?).await?;
    let scene = virtual_scene(&stage.installation.client, "followed").await?;
    scene.marker("idle", idle()).await?;
    wait_for_injection(&scene, &json!({}), "idle").await?;
    create(&scene, "p", json!({}), false).await?;
    scene.report_running("p", "10.1.2.3").await?;
    stage.wait_until_idle().await?;

    for (status, state) in [("True", "Succeeded"), ("False", "Failed")] {
        let report = async {
            provide(&scene, "p", status).await?;
            scene.wait_for_marks("p", marked(state)).await?;
            Ok(())
        };
        let what = format!("the provider reports {status}");
        stage.step(&what, report, one_write()).await?;
    }

    let mut probes = idle();
    probes[0]["probe"]["periodSeconds"] = json!(7);
    let probe = async {
        scene
            .edit_marker("idle", json!({"spec": {"probes": probes}}))
            .await?;
        wait_for_period(&scene, "p", 7).await
    };
    stage.step("an edited probe", probe, one_write()).await?;

    probes[0]["markerPolicy"][1]["labels"] = json!({"gameserver-idle": "not"});
    let policy = async {
        scene
            .edit_marker("idle", json!({"spec": {"probes": probes}}))
            .await?;
        scene
            .wait_for_marks("p", json!({"labels": {"gameserver-idle": "not"}}))
            .await?;
        Ok(())
    };
    stage.step("an edited policy", policy, one_write()).await?;

    let second = async {
        let probes = json!([tcp("two", "main", "t.io/two")]);
        scene.marker("second", probes).await?;
        wait_for_annotations(&scene, "p", "idle,second").await?;
        Ok(())
    };
    stage.step("a second marker", second, one_write()).await?;

    let both = async {
        provide(&scene, "p", "True").await?;
        let labels = json!({"labels": {"gameserver-idle": "true", "two": "yes"}});
        scene.wait_for_marks("p", labels).await?;
        Ok(())
    };
    stage.step("a report of both", both, one_write()).await?;

    for (marker, left) in [("idle", "second"), ("second", "")] {
        let deleted = async {
            let markers = scene.markers();
            markers.delete(marker, &DeleteParams::default()).await?;
            if left.is_empty() {
                let none =
                    json!({"labels": {"two": null}, "annotations": {PROBES: null, MARKERS: null}});
                scene.wait_for_marks("p", none).await?;
            } else {
                wait_for_annotations(&scene, "p", left).await?;
                scene
                    .wait_for_marks(
                        "p",
                        json!({"labels": {"gameserver-idle": null, "two": "yes"}}),
                    )
                    .await?;
            }
            Ok(())
        };
        let what = format!("marker {marker} deleted");
        stage.step(&what, Box::pin(deleted), one_write()).await?;
    }
    // They are the provider's, who sees from the annotations that nobody asks for them any more.
    let conditions = json!({"conditions": {"game.io/idle": "True", "t.io/two": "True"}});
    scene.wait_for_marks("p", conditions).await?;
    stage.installation.end().await;
    Ok(())
}

/// Nobody owns what a webhook adds to a new object: the API server records owners before it calls webhooks (`createHandler` in
/// `k8s.io/apiserver/pkg/endpoints/handlers/create.go`). So after a rewrite both annotations are ours alone, and one apply gives
/// them up; before, one patch removes them.
// PPM-9, PPM-11, PPM-16
pub(crate) async fn a_deleted_marker_takes_its_annotations_along(
    _: Arc<Installation>,
) -> Result<()> {
    let stage = Stage::raise().await?;
    stage.installation.grant_webhooks().await?;
    start(&stage.installation, &flags()?).await?;
    let scene = virtual_scene(&stage.installation.client, "deleted").await?;
    for is_edited in [false, true] {
        scene.marker("idle", idle()).await?;
        wait_for_injection(&scene, &json!({}), "idle").await?;
        let pod = format!("p-{is_edited}");
        create(&scene, &pod, json!({}), false).await?;
        scene.report_running(&pod, "10.1.2.3").await?;
        stage.wait_until_idle().await?;
        if is_edited {
            let mut probes = idle();
            probes[0]["probe"]["periodSeconds"] = json!(7);
            scene
                .edit_marker("idle", json!({"spec": {"probes": probes}}))
                .await?;
            wait_for_period(&scene, &pod, 7).await?;
            stage.wait_until_idle().await?;
        }
        let deleted = async {
            let markers = scene.markers();
            markers.delete("idle", &DeleteParams::default()).await?;
            scene
                .wait_for_marks(&pod, json!({"annotations": {PROBES: null, MARKERS: null}}))
                .await?;
            Ok(())
        };
        let what = format!("a marker deleted, edited before: {is_edited}");
        stage.step(&what, Box::pin(deleted), one_write()).await?;
        scene.delete_pod(&pod).await?;
    }
    stage.installation.end().await;
    Ok(())
}

// PPM-11, PPM-16
pub(crate) async fn a_start_with_the_webhook_reads_each_kind_once(
    _: Arc<Installation>,
) -> Result<()> {
    let stage = Stage::raise().await?;
    stage.installation.grant_webhooks().await?;
    stage.scene().marker("m", idle()).await?;
    let flags = flags()?;
    start(&stage.installation, &flags).await?;
    stage.wait_until_probing("m").await?;
    stage.wait_until_idle().await?;
    stage.installation.stop_manager().await?;
    let again = start(&stage.installation, &flags);
    let rows = vec![
        manager("list secrets", 1),
        manager("watch secrets", 1),
        manager("list mutatingwebhookconfigurations", 1),
        manager("watch mutatingwebhookconfigurations", 1),
        // The marker that shows the end of the step comes and goes.
        manager("patch mutatingwebhookconfigurations", 0..=2),
        // The owner that it is applied with.
        manager("get clusterroles", 1..=3),
    ];
    let what = "a start that serves the webhook as before";
    stage
        .step(what, again, [stage.read_rows(), rows].concat())
        .await?;
    stage.installation.end().await;
    Ok(())
}
