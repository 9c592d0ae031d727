//! What OpenKruise leaves behind, put onto an API server as OpenKruise itself writes it: the same requests under the
//! same field managers, so that each field has the owner that it has in the field.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::PostParams;
use kube::{Api, Resource};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::scene::merge;
use crate::{History, Scene, now};

const MANAGER: &str = "kruise-manager";
const DAEMON: &str = "kruise-daemon";
/// The finalizer that it puts on markers.
pub const FINALIZER: &str = "kruise.io/node-pod-probe-cleanup";

/// What OpenKruise's pod webhook adds to a pod that matches markers, where its serverless gate is on.
pub fn annotations() -> Value {
    json!({"metadata": {"annotations": {
        "kruise.io/podprobe": "[{\"name\":\"idle\",\"containerName\":\"main\",\"probe\":{\"exec\":{\"command\":[\"sh\"]}},\
            \"podConditionType\":\"game.io/idle\"}]",
        "kruise.io/podprobemarker-list": "idle,web"}}})
}

/// Makes both markers, the node's object and the marks on the running pods `idle` and `busy` of the scene.
///
/// # Errors
/// The API server's, or when a field ends up with another owner than OpenKruise's has.
pub async fn leave_behind(scene: &Scene) -> Result<()> {
    let fill = Fill::new(scene).await?;
    let markers: Vec<PodProbeMarker> =
        fill.read(include_str!("../fixtures/openkruise/markers.yaml"))?;
    for marker in markers {
        leave_marker(&scene.markers(), marker).await?;
    }
    let object: NodePodProbe =
        fill.read(include_str!("../fixtures/openkruise/node-pod-probe.yaml"))?;
    leave_node_pod_probe(&scene.probes(), object).await?;
    let pods: Vec<Value> = fill.read(include_str!("../fixtures/openkruise/pods.yaml"))?;
    for pod in pods {
        mark(&scene.pods(), pod).await?;
    }
    Ok(())
}

/// What stands for the names in the fixtures.
struct Fill(BTreeMap<&'static str, String>);

impl Fill {
    async fn new(scene: &Scene) -> Result<Self> {
        // Kubernetes keeps whole seconds.
        let since = jiff::Timestamp::from_second(now().as_second())?.to_string();
        let mut names = BTreeMap::from([
            ("$NAMESPACE", scene.ns.clone()),
            ("$NODE", scene.node.clone()),
            ("$SINCE", format!("{since:?}")),
            ("$PROBED", format!("{since:?}")),
        ]);
        for (pod, uid, address) in [
            ("idle", "$IDLE_UID", "$IDLE_IP"),
            ("busy", "$BUSY_UID", "$BUSY_IP"),
        ] {
            let pod = scene.pods().get(pod).await?;
            names.insert(uid, pod.metadata.uid.unwrap_or_default());
            names.insert(
                address,
                pod.status.unwrap_or_default().pod_ip.unwrap_or_default(),
            );
        }
        Ok(Self(names))
    }

    fn read<T: DeserializeOwned>(&self, text: &str) -> Result<T> {
        let mut text = text.to_owned();
        // The longer name first: one may begin with another.
        for (name, value) in self.0.iter().rev() {
            text = text.replace(name, value);
        }
        Ok(serde_norway::from_str(&text)?)
    }
}

fn by(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

/// A user applies it, OpenKruise's manager PUTs finalizer and status.
async fn leave_marker(markers: &Api<PodProbeMarker>, whole: PodProbeMarker) -> Result<()> {
    let mut marker = whole.clone();
    marker.metadata.managed_fields = None;
    marker.metadata.finalizers = None;
    marker.status = None;
    let mut marker = markers
        .create(&by("kubectl-client-side-apply"), &marker)
        .await?;
    marker.metadata.managed_fields = None;
    marker.metadata.finalizers = whole.metadata.finalizers.clone();
    marker.status = whole.status.clone();
    let marker = write_marker(markers, marker).await?;
    same_owners(&whole, &marker)
}

/// OpenKruise's manager PUTs a marker, and then its status.
///
/// # Errors
/// The API server's.
pub async fn write_marker(
    markers: &Api<PodProbeMarker>,
    marker: PodProbeMarker,
) -> Result<PodProbeMarker> {
    let name = marker.metadata.name.clone().unwrap_or_default();
    let mut written = markers.replace(&name, &by(MANAGER), &marker).await?;
    written.status = marker.status;
    Ok(markers
        .replace_status(&name, &by(MANAGER), &written)
        .await?)
}

/// It PUTs a marker without its finalizer, which ends one that is being deleted.
///
/// # Errors
/// The API server's.
pub async fn let_go(markers: &Api<PodProbeMarker>, marker: PodProbeMarker) -> Result<()> {
    let name = marker.metadata.name.clone().unwrap_or_default();
    markers.replace(&name, &by(MANAGER), &marker).await?;
    Ok(())
}

/// Its manager PUTs a node's spec, its daemon the status.
///
/// # Errors
/// The API server's, or when the status is not kept.
pub async fn write_node_pod_probe(probes: &Api<NodePodProbe>, whole: NodePodProbe) -> Result<()> {
    let name = whole.metadata.name.clone().unwrap_or_default();
    let mut object = probes.replace(&name, &by(MANAGER), &whole).await?;
    object.status = whole.status.clone();
    let object = probes.replace_status(&name, &by(DAEMON), &object).await?;
    ensure!(object.status == whole.status, "kept: {:?}", object.status);
    Ok(())
}

async fn leave_node_pod_probe(probes: &Api<NodePodProbe>, whole: NodePodProbe) -> Result<()> {
    let name = whole.metadata.name.clone().unwrap_or_default();
    let mut known = match probes.get_opt(&name).await? {
        Some(known) => known,
        None => probes.create(&by(MANAGER), &whole).await?,
    };
    known.spec = whole.spec;
    known.status = whole.status;
    write_node_pod_probe(probes, known).await
}

/// Its manager PUTs a pod's status, labels and annotations with it. `marks` is what differs.
///
/// # Errors
/// The API server's, or when a field ends up with another owner than `marks` has.
pub async fn mark(pods: &Api<Pod>, marks: Value) -> Result<()> {
    let expected: Pod = serde_json::from_value(marks.clone())?;
    let name = expected.metadata.name.clone().context("a pod has a name")?;
    loop {
        let pod = pods.get(&name).await?;
        let mut value = serde_json::to_value(&pod)?;
        for field in ["labels", "annotations"] {
            merge(
                &mut value["metadata"][field],
                marks["metadata"][field].clone(),
            );
        }
        let conditions = value["status"]["conditions"].as_array_mut();
        let conditions = conditions.context("a running pod has conditions")?;
        let added = marks["status"]["conditions"].as_array();
        let added = added.map_or(&[][..], Vec::as_slice);
        conditions.retain(|known| added.iter().all(|added| added["type"] != known["type"]));
        conditions.splice(0..0, added.iter().cloned());
        let pod = serde_json::from_value(value)?;
        match pods.replace_status(&name, &by(MANAGER), &pod).await {
            Ok(pod) => return same_owners(&expected, &pod),
            // The kubelet was quicker.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Each entry of the fixture is on the object, field for field.
fn same_owners<K: Resource>(expected: &K, observed: &K) -> Result<()> {
    let owners = |object: &K| object.meta().managed_fields.clone().unwrap_or_default();
    let key = |entry: &ManagedFieldsEntry| (entry.manager.clone(), entry.subresource.clone());
    let observed = owners(observed);
    for entry in owners(expected) {
        let found = observed
            .iter()
            .find(|observed| key(observed) == key(&entry));
        ensure!(
            found.map(|found| &found.fields_v1) == Some(&entry.fields_v1),
            "{:?} owns {found:?}",
            entry.manager
        );
    }
    Ok(())
}

/// Fails if any mark of these pods changed since the record began: a label, an annotation, or a condition's status or time
/// of transition, Kubernetes' own included.
///
/// # Errors
/// With the versions that differ, or when the record does not reach the present.
pub async fn nothing_flapped(history: &History, pods: &[&str]) -> Result<()> {
    let all = history.versions().await?;
    for name in pods {
        let versions = all.get(*name).context("no such pod was recorded")?;
        let marks: Vec<_> = versions.iter().map(marks_of).collect();
        let changes = marks.windows(2).filter(|pair| pair[0] != pair[1]);
        let changes: Vec<_> = changes.collect();
        ensure!(
            changes.is_empty(),
            "{name} changed {} times: {changes:#?}",
            changes.len()
        );
    }
    Ok(())
}

fn marks_of(pod: &Pod) -> impl PartialEq + Debug + use<> {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let conditions = conditions.map(|condition| {
        let time = condition.last_transition_time.clone().map(|time| time.0);
        (condition.type_.clone(), (condition.status.clone(), time))
    });
    (
        pod.metadata.labels.clone(),
        pod.metadata.annotations.clone(),
        conditions.collect::<BTreeMap<_, _>>(),
    )
}
