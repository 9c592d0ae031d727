//! Beside OpenKruise: who may write, and what OpenKruise has left behind.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use leadsman_tests::budget::MANAGER as USER;
use leadsman_tests::{History, Scene, gone, openkruise, see, until};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::World;
use crate::marks::{idle, marked};

const NAMESPACE: &str = "kruise-system";
const LEASE: &str = "kruise-manager";
const PODS: [&str; 2] = ["idle", "busy"];

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
pub(crate) async fn nothing_is_written_while_it_acts(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "beside").await?;
    world.stop_manager().await?;
    let neighbour = Neighbour::start(&scene.client, "kruise-a", "CloneSetShortHash=true").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    let start = world.plane.audit_mark()?;
    let log = world.log_length();
    world.start_manager().await?;
    let in_the_way = "featureGates='CloneSetShortHash=true,PodProbeMarkerGate=false'";
    world.logs(log, in_the_way).await?;
    // It leads, knows all and writes nothing.
    world.logs(log, "leading from now on").await?;
    for kind in ["podprobemarkers", "pods", "nodes", "nodepodprobes"] {
        let listed = || world.plane.audit(start);
        until(kind, || async {
            let listed = listed()?.into_iter();
            let mut listed = listed.filter(|r| r.user == USER && r.verb == "watch");
            Ok(listed.any(|r| r.resource == kind).then_some(()))
        })
        .await?;
    }
    ensure!(
        written(&world, start)?.is_empty(),
        "{:?}",
        written(&world, start)?
    );
    // A leader of its own that leaves markers alone.
    neighbour
        .hand_over("kruise-b", "PodProbeMarkerGate=false")
        .await?;
    scene.entries(&["one/m#Idle"]).await?;
    scene.verdict("one", "m#Idle", "Succeeded", "").await?;
    scene.marks("one", marked("Succeeded")).await?;
    // And one that does not: it marks the pod from now on.
    let log = world.log_length();
    neighbour.hand_over("kruise-c", "").await?;
    world.logs(log, "kruise-c_").await?;
    let start = world.plane.audit_mark()?;
    scene.verdict("one", "m#Idle", "Failed", "").await?;
    scene
        .marker(
            "later",
            json!([{"name": "p", "containerName": "main", "podConditionType": "t.io/later",
        "probe": {"exec": {"command": ["true"]}}}]),
        )
        .await?;
    let early = written(&world, start)?;
    let early = early
        .iter()
        .any(|write| !write.ends_with("podprobemarkers m"));
    ensure!(!early, "{:?}", written(&world, start)?);
    let log = world.log_length();
    drop(neighbour);
    world.logs(log, "OpenKruise's manager has ended").await?;
    scene.entries(&["one/m#Idle", "one/later#p"]).await?;
    scene.marks("one", marked("Failed")).await?;
    // All of it after that end.
    let log = world.log_since(log)?;
    let first = log.find("writing from now on");
    ensure!(first > log.find("OpenKruise's manager has ended"), "{log}");
    ensure!(!written(&world, start)?.is_empty(), "nothing was written");
    clear(&scene.client).await
}

/// What the manager wrote since then, its Lease apart.
fn written(world: &World, since: leadsman_testkit::audit::Mark) -> Result<Vec<String>> {
    let requests = world.plane.audit(since)?.into_iter();
    let writes = requests.filter(|r| {
        r.user == USER
            && r.resource != "leases"
            && !["get", "list", "watch"].contains(&r.verb.as_str())
    });
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
pub(crate) async fn a_gate_that_is_off_leaves_everything_alone(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "gate-off").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.verdict("one", "m#Idle", "Succeeded", "").await?;
    scene.marks("one", marked("Succeeded")).await?;
    world.stop_manager().await?;
    let (start, log) = (world.plane.audit_mark()?, world.log_length());
    world
        .start_manager_with(&["--feature-gates", "PodProbeMarkerGate=false"])
        .await?;
    world
        .logs(
            log,
            "PodProbeMarkerGate=false: no PodProbeMarker is acted on",
        )
        .await?;
    world
        .logs(
            log,
            "ready condition=\"PodProbeMarkerGate=false, nothing is acted on\"",
        )
        .await?;
    scene
        .markers()
        .delete("m", &DeleteParams::default())
        .await?;
    world.stop_manager().await?;
    let asked: Vec<_> = world
        .plane
        .audit(start)?
        .into_iter()
        .filter(|r| r.user == USER)
        .collect();
    ensure!(asked.is_empty(), "it asked for {asked:?}");
    scene.marks("one", marked("Succeeded")).await?;
    world.start_manager().await?;
    scene.marks("one", marked("")).await?;
    Ok(())
}

// PPM-8, PPM-11, DEF-8
/// A cluster as OpenKruise left it: nothing that anybody can see changes while leadsman takes over, and all of it goes with
/// the markers.
pub(crate) async fn what_it_left_is_taken_over(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "taken-over").await?;
    world.stop_manager().await?;
    for pod in PODS {
        scene.pod_with(pod, openkruise::annotations()).await?;
    }
    openkruise::leave_behind(&scene).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    world.start_manager().await?;
    // Its agents run probes that are OpenKruise's, and come to the same.
    let entries = ["idle#idle", "web#port", "web#page"];
    let expected = PODS.map(|pod| entries.map(|entry| format!("{pod}/{entry}")));
    let expected: Vec<_> = expected.iter().flatten().map(String::as_str).collect();
    see(
        &scene.probes(),
        &scene.node,
        "entries of leadsman's",
        |probe| {
            let pods = &probe.spec.pod_probes;
            let mut entries = pods.iter().flat_map(|pod| &pod.probes);
            ensure!(entries.all(|entry| entry.revision.is_some()), "{pods:?}");
            Ok(())
        },
    )
    .await?;
    scene.entries(&expected).await?;
    for pod in PODS {
        owned(&scene, pod).await?;
    }
    for marker in ["idle", "web"] {
        scene.reason(marker, "Probing").await?;
    }
    openkruise::nothing_flapped(&history, &PODS).await?;
    for (pod, states) in [
        ("idle", ["Succeeded", "Succeeded", "Succeeded"]),
        ("busy", ["Failed", "Succeeded", "Failed"]),
    ] {
        for (entry, state) in entries.iter().zip(states) {
            scene.verdict(pod, entry, state, "").await?;
        }
    }
    let fence = scene.pod("fence").await?;
    drop(fence);
    for entry in entries {
        scene.verdict("fence", entry, "Succeeded", "").await?;
    }
    scene
        .marks("fence", json!({"labels": {"gameserver-idle": "true"}}))
        .await?;
    openkruise::nothing_flapped(&history, &PODS).await?;
    nothing_stays(&scene).await
}

/// All marks of a pod that OpenKruise wrote are in our entry too.
async fn owned(scene: &Scene, pod: &str) -> Result<()> {
    see(&scene.pods(), pod, "our entry", |pod| {
        let entries = pod.metadata.managed_fields.iter().flatten();
        let fields = |manager: &str| {
            let mut entries = entries.clone();
            let entry = entries.find(|entry| entry.manager.as_deref() == Some(manager));
            entry
                .and_then(|entry| entry.fields_v1.clone())
                .unwrap_or_default()
                .0
        };
        let keys = |fields: Value| -> Vec<String> {
            let places = [
                "/f:metadata/f:labels",
                "/f:metadata/f:annotations",
                "/f:status/f:conditions",
            ];
            let maps = places
                .iter()
                .filter_map(|place| fields.pointer(place)?.as_object());
            maps.flat_map(|map| map.keys().cloned()).collect()
        };
        let (ours, theirs) = (
            keys(fields("leadsman-podprobe")),
            keys(fields("kruise-manager")),
        );
        ensure!(
            !theirs.is_empty() && ours == theirs,
            "ours {ours:?}, theirs {theirs:?}"
        );
        Ok(())
    })
    .await
}

/// The markers are deleted: they go, and everything that they and OpenKruise made of them. The annotations of OpenKruise's pod
/// webhook stay: it never takes them away itself.
async fn nothing_stays(scene: &Scene) -> Result<()> {
    for marker in ["idle", "web"] {
        scene
            .markers()
            .delete(marker, &DeleteParams::default())
            .await?;
        gone(&scene.markers(), marker).await?;
    }
    scene.entries(&[]).await?;
    for pod in PODS {
        let none = json!({
            "labels": {"gameserver-idle": null, "page": null, "app": scene.ns},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": null,
                "kruise.io/podprobemarker-list": "idle,web"},
            "conditions": {"game.io/idle": null, "game.io/port": null, "Initialized": "True"}});
        scene.marks(pod, none).await?;
    }
    Ok(())
}
