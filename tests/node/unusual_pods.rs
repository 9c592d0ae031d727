//! Pods that the runtime and the API server do not name alike, or that have no network of their own.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use leadsman_tests::scene::differs;
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use leadsman_testkit::Cluster;
use leadsman_tests::room::{probe, target};

use crate::Room;

/// The manifest of a static pod, which ends when it is dropped.
struct StaticPod {
    file: PathBuf,
    /// As the API server calls its mirror.
    name: String,
}

impl StaticPod {
    fn new(room: &Room) -> Self {
        let bed = &room.cluster.bed;
        let (ns, node) = (&room.scene.ns, bed.node_name());
        Self {
            file: bed.static_pods().join(format!("{ns}.json")),
            name: format!("one-{node}"),
        }
    }

    /// Writes the manifest; another generation is another static pod of the same name.
    fn write(&self, room: &Room, generation: u32) -> Result<()> {
        let over = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": room.scene.ns,
            "annotations": {"generation": generation.to_string()}}});
        let manifest = room.manifest("one", over).to_string();
        // The kubelet reads a file that is being written; one that is renamed is whole.
        let draft = self.file.with_file_name(format!(".{}", room.scene.ns));
        std::fs::write(&draft, manifest)?;
        std::fs::rename(&draft, &self.file)?;
        Ok(())
    }
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.file) {
            eprintln!("{}: {error}", self.file.display());
        }
    }
}

fn container_id(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.container_id.as_deref()
}

/// Waits until the agent's verdicts on a mirror are about its present container, under the uid that the node knows.
async fn wait_for_current_verdicts(room: &Room, pod: &Pod) -> Result<()> {
    let annotations = pod
        .metadata
        .annotations
        .as_ref()
        .context("no annotations")?;
    let hash = &annotations["kubernetes.io/config.hash"];
    ensure!(pod.metadata.uid.as_ref() != Some(hash), "it is no mirror");
    let id = container_id(pod).unwrap_or_default();
    wait_for_object(
        &room.scene.probes(),
        &room.scene.node,
        "its verdicts",
        |object| {
            let status = object.status.clone().unwrap_or_default();
            let mut pods = status.pod_probe_statuses.iter();
            let own = pods.find(|own| own.namespace == room.scene.ns);
            let own = own.context("no verdicts")?;
            ensure!(own.uid == *hash, "{own:?} should be of {hash}");
            let of = own
                .probe_states
                .iter()
                .map(|state| state.container_id.as_deref());
            ensure!(
                of.clone()
                    .all(|own| own.is_some_and(|own| id.ends_with(own))),
                "{own:?}: {id}"
            );
            Ok(())
        },
    )
    .await
}

// PRB-10, PRB-24, PPM-12
/// A static pod has another uid in the runtime than its mirror in the API: it is probed, and the mirror marked; so is its
/// next container, and the next static pod of the same name.
pub(crate) async fn a_static_pod_is_probed_and_its_mirror_marked(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "static").await?;
    let one = StaticPod::new(&room);
    one.write(&room, 1)?;
    let mirror = room.wait_until_running(&one.name).await?;
    let fresh = json!({"exec": {"command": ["test", "!", "-e", "/tmp/used"]}});
    let http = json!({"httpGet": {"path": "/healthz", "port": "web"}});
    let probes = json!([probe("fresh", fresh), probe("http", http)]);
    room.scene.marker("m", probes).await?;
    let marks = |fresh: &str| json!({"conditions": {"t.io/fresh": fresh, "t.io/http": "True"}});
    room.scene.wait_for_marks(&one.name, marks("True")).await?;
    wait_for_current_verdicts(&room, &mirror).await?;
    room.exec(&one.name, "main", &["touch", "/tmp/used"])
        .await?;
    room.scene.wait_for_marks(&one.name, marks("False")).await?;

    room.kill_container(&one.name, "main").await?;
    let restarted = wait_for_next_container(&room, &one, &mirror, &marks("True")).await?;
    ensure!(
        restarted.metadata.uid == mirror.metadata.uid,
        "another mirror"
    );
    wait_for_current_verdicts(&room, &restarted).await?;

    one.write(&room, 2)?;
    let replaced = wait_for_next_container(&room, &one, &restarted, &marks("True")).await?;
    ensure!(
        replaced.metadata.uid != mirror.metadata.uid,
        "the same mirror"
    );
    wait_for_current_verdicts(&room, &replaced).await
}

/// Waits until the mirror shows another container than before, with these marks.
async fn wait_for_next_container(
    room: &Room,
    one: &StaticPod,
    before: &Pod,
    marks: &Value,
) -> Result<Pod> {
    wait_for_object(&room.scene.pods(), &one.name, "its next container", |pod| {
        let id = container_id(pod);
        ensure!(
            id.is_some() && id != container_id(before),
            "its container is {id:?}"
        );
        differs(pod, marks)?;
        Ok(pod.clone())
    })
    .await
}

// PRB-24
/// The agent has no `--node-ip`: it finds out which address is the node's own.
pub(crate) async fn a_host_network_pod_is_probed_at_the_nodes_address(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "host-network").await?;
    let mut main = target("main");
    main["args"] = json!([
        "serve", "--http", "18080", "--tcp", "19090", "--grpc", "15051"
    ]);
    main["ports"] =
        json!([{"name": "web", "containerPort": 18080}, {"name": "raw", "containerPort": 19090}]);
    let pod = room
        .pod(
            "one",
            json!({"spec": {"hostNetwork": true, "containers": [main]}}),
        )
        .await?;
    let address = pod.status.and_then(|status| status.pod_ip);
    let own = cluster.bed.node_address().to_string();
    ensure!(address == Some(own), "its address is {address:?}");
    let probes = json!([
        probe(
            "http",
            json!({"httpGet": {"path": "/healthz", "port": "web"}})
        ),
        probe("tcp", json!({"tcpSocket": {"port": "raw"}})),
        probe("closed", json!({"tcpSocket": {"port": 19091}})),
    ]);
    room.scene.marker("m", probes).await?;
    let marks = json!({"t.io/http": "True", "t.io/tcp": "True", "t.io/closed": "False"});
    room.scene
        .wait_for_marks("one", json!({"conditions": marks}))
        .await?;
    Ok(())
}

/// Pods that may be made before it is noticed that there is no end to them: three, the one that is left, and one that
/// is made meanwhile.
const MOST_PODS: usize = 5;

// PPM-13
/// The marker changes a label by which a ReplicaSet knows its pods, which makes another one each time.
pub(crate) async fn a_marker_that_sets_a_workloads_label_is_stopped(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "endless").await?;
    let labels = json!({"app": "endless", "side": "left"});
    let spec = room.manifest("pod", json!({}))["spec"].clone();
    let set = json!({"metadata": {"name": "set"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec}}});
    let sets: Api<ReplicaSet> = Api::namespaced(cluster.client.clone(), "endless");
    sets.create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    let mut turns = probe("turns", json!({"exec": {"command": ["true"]}}));
    turns["markerPolicy"] = json!([{"state": "Succeeded", "labels": {"side": "right"}}]);
    room.scene.marker("m", json!([turns])).await?;
    let stopped = room.scene.wait_for_reason("m", "Cycle").await?;
    let conditions = stopped.status.unwrap_or_default().conditions;
    let message = conditions.first().map_or("", |ready| &ready.message);
    ensure!(
        message.contains("label side") && message.contains("set-"),
        "{message}"
    );

    wait_for_answer("one pod of the ReplicaSet, and no mark", || async {
        let pods = room.scene.pods().list(&ListParams::default()).await?.items;
        ensure!(pods.len() <= MOST_PODS, "{} pods", pods.len());
        let is_owned = |pod: &&Pod| pod.metadata.owner_references.is_some();
        let owned = pods.iter().filter(is_owned).count();
        let side = |pod: &Pod| pod.metadata.labels.as_ref()?.get("side").cloned();
        let marked = pods.iter().any(|pod| side(pod).as_deref() == Some("right"));
        Ok((owned == 1 && !marked).then_some(()))
    })
    .await?;
    // What was under way has ended by then.
    wait_for_object(&sets, "set", "its one pod ready", |set| {
        let ready = set.status.as_ref().and_then(|status| status.ready_replicas);
        ensure!(ready == Some(1), "{:?}", set.status);
        Ok(())
    })
    .await?;
    let pods = room.scene.pods().list(&ListParams::default()).await?.items;
    ensure!(pods.len() <= MOST_PODS, "{} pods", pods.len());
    Ok(())
}
