//! A namespace and a node of a test's own, with pods that no kubelet runs.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_api::node_pod_probe::PodProbe;
use leadsman_api::{NodePodProbe, PodProbeMarker};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use leadsman_testkit::leadsman;

use crate::{report, wait_for_object};

/// A test's own corner of the cluster.
pub struct Scene {
    /// As admin.
    pub client: Client,
    /// The namespace, made for this test.
    pub ns: String,
    /// The node, of the same name.
    pub node: String,
}

impl Scene {
    /// Makes namespace and node.
    ///
    /// # Errors
    /// The API server's.
    pub async fn new(client: &Client, name: &str) -> Result<Self> {
        let scene = Self {
            client: client.clone(),
            ns: name.to_owned(),
            node: name.to_owned(),
        };
        scene.namespace(name).await?;
        scene.add_node(name, json!({})).await?;
        Ok(scene)
    }

    /// Makes a namespace.
    ///
    /// # Errors
    /// The API server's.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        create::<Namespace>(
            &Api::all(self.client.clone()),
            json!({"metadata": {"name": name}}),
        )
        .await?;
        Ok(())
    }

    /// Makes a node.
    ///
    /// # Errors
    /// The API server's.
    pub async fn add_node(&self, name: &str, labels: Value) -> Result<()> {
        create::<Node>(
            &Api::all(self.client.clone()),
            json!({"metadata": {"name": name, "labels": labels}}),
        )
        .await?;
        Ok(())
    }

    /// The pods of the namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.ns)
    }

    /// The markers of the namespace.
    pub fn markers(&self) -> Api<PodProbeMarker> {
        Api::namespaced(self.client.clone(), &self.ns)
    }

    /// All nodes' probes.
    pub fn probes(&self) -> Api<NodePodProbe> {
        Api::all(self.client.clone())
    }

    /// A pod of one container `main` (port `web` 8080) with `app: NAME-of-the-namespace`, running on the node.
    ///
    /// # Errors
    /// The API server's.
    pub async fn pod(&self, name: &str) -> Result<Pod> {
        self.pod_with(name, json!({})).await
    }

    /// The same with `over` merged over its manifest (JSON merge patch).
    ///
    /// # Errors
    /// The API server's.
    pub async fn pod_with(&self, name: &str, over: Value) -> Result<Pod> {
        let mut manifest = json!({
            "metadata": {"name": name, "labels": {"app": self.ns}},
            "spec": {
                "nodeName": self.node,
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "none",
                    "ports": [{"name": "web", "containerPort": 8080}]
                }]
            }
        });
        merge(&mut manifest, over);
        let pod = create::<Pod>(&self.pods(), manifest).await?;
        self.report_running_pod(pod, "10.1.2.3").await
    }

    /// Reports the pod as a kubelet would: running, initialised, with this address and its containers started.
    ///
    /// # Errors
    /// The API server's.
    pub async fn report_running(&self, name: &str, ip: &str) -> Result<Pod> {
        self.report_running_pod(self.pods().get(name).await?, ip)
            .await
    }

    async fn report_running_pod(&self, pod: Pod, ip: &str) -> Result<Pod> {
        let name = pod.metadata.name.context("a pod has a name")?;
        let name = name.as_str();
        let statuses = |prefix: &str, names: Vec<String>| -> Vec<Value> {
            names
                .into_iter()
                .map(|c| {
                    json!({"name": c, "ready": true, "started": true, "restartCount": 0, "image": "none",
                        "imageID": "", "containerID": format!("containerd://{prefix}{name}-{c}-1"),
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
                })
                .collect()
        };
        let spec = pod.spec.context("a pod has a spec")?;
        let main = spec.containers.into_iter().map(|c| c.name).collect();
        let init = spec
            .init_containers
            .unwrap_or_default()
            .into_iter()
            .map(|c| c.name)
            .collect();
        self.report_pod_status(
            name,
            json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
                "containerStatuses": statuses("", main), "initContainerStatuses": statuses("i-", init)}),
        )
        .await
    }

    /// Makes a pod of an agent on the node, Ready, as leadsman's namespace has them. Where one pod of an agent exists, a node
    /// without one has no agent: so whoever asks about pods on a control plane that is shared has one of its own.
    ///
    /// # Errors
    /// The API server's.
    pub async fn add_agent(&self) -> Result<()> {
        let labels = json!({"metadata": {"labels": leadsman::agent_labels()}});
        let agents = self.beside_agents();
        agents.pod_with(&self.agent(), labels).await?;
        Ok(())
    }

    /// Removes that pod.
    ///
    /// # Errors
    /// The API server's.
    pub async fn remove_agent(&self) -> Result<()> {
        self.beside_agents().delete_pod(&self.agent()).await
    }

    /// Merges into the status of that pod.
    ///
    /// # Errors
    /// The API server's.
    pub async fn report_agent_status(&self, status: Value) -> Result<Pod> {
        let agents = self.beside_agents();
        agents.report_pod_status(&self.agent(), status).await
    }

    /// The name of that pod.
    pub fn agent(&self) -> String {
        format!("agent-{}", self.ns)
    }

    /// The same node, in leadsman's namespace.
    fn beside_agents(&self) -> Self {
        Self {
            client: self.client.clone(),
            ns: leadsman::NAMESPACE.to_owned(),
            node: self.node.clone(),
        }
    }

    /// Merges into a pod's status, as the kubelet's field manager.
    ///
    /// # Errors
    /// The API server's.
    pub async fn report_pod_status(&self, name: &str, status: Value) -> Result<Pod> {
        let params = PatchParams {
            field_manager: Some("kubelet".into()),
            ..PatchParams::default()
        };
        Ok(self
            .pods()
            .patch_status(name, &params, &Patch::Strategic(json!({"status": status})))
            .await?)
    }

    /// Gives a pod another address.
    ///
    /// # Errors
    /// The API server's.
    pub async fn report_address(&self, name: &str, ip: &str) -> Result<Pod> {
        let addresses = json!([{"$patch": "replace"}, {"ip": ip}]);
        self.report_pod_status(name, json!({"podIP": ip, "podIPs": addresses}))
            .await
    }

    /// A merge patch on a pod, as this field manager.
    ///
    /// # Errors
    /// The API server's.
    pub async fn edit(&self, name: &str, manager: &str, patch: Value) -> Result<Pod> {
        let params = PatchParams {
            field_manager: Some(manager.into()),
            ..PatchParams::default()
        };
        Ok(self
            .pods()
            .patch(name, &params, &Patch::Merge(patch))
            .await?)
    }

    /// A marker with these probes on the pods labelled as [`Scene::pod`] does.
    ///
    /// # Errors
    /// The API server's.
    pub async fn marker(&self, name: &str, probes: Value) -> Result<PodProbeMarker> {
        self.marker_of(name, json!({"matchLabels": {"app": self.ns}}), probes)
            .await
    }

    /// A marker with these probes and this selector.
    ///
    /// # Errors
    /// The API server's.
    pub async fn marker_of(
        &self,
        name: &str,
        selector: Value,
        probes: Value,
    ) -> Result<PodProbeMarker> {
        create(
            &self.markers(),
            json!({"metadata": {"name": name}, "spec": {"selector": selector, "probes": probes}}),
        )
        .await
    }

    /// A merge patch on a marker.
    ///
    /// # Errors
    /// The API server's.
    pub async fn edit_marker(&self, name: &str, patch: Value) -> Result<PodProbeMarker> {
        Ok(self
            .markers()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    /// Deletes a marker.
    ///
    /// # Errors
    /// The API server's.
    pub async fn delete_marker(&self, name: &str) -> Result<()> {
        let markers = self.markers();
        markers.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until a condition of a pod has this message.
    ///
    /// # Errors
    /// After the deadline, with the messages that were there.
    pub async fn wait_for_message(&self, pod: &str, words: &str) -> Result<()> {
        wait_for_object(&self.pods(), pod, words, |pod| {
            let conditions = pod.status.iter().flat_map(|status| &status.conditions);
            let conditions = conditions.flatten();
            let messages: Vec<_> = conditions.filter_map(|c| c.message.as_deref()).collect();
            ensure!(messages.contains(&words), "{messages:?}");
            Ok(())
        })
        .await
    }

    /// Deletes a pod at once.
    ///
    /// # Errors
    /// The API server's.
    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        self.pods()
            .delete(name, &DeleteParams::default().grace_period(0))
            .await?;
        Ok(())
    }

    /// Waits until the node's spec has exactly these entries of this namespace, as `pod/marker#probe`, and returns
    /// the namespace's pods of it.
    ///
    /// # Errors
    /// After the deadline, with the entries that were there.
    pub async fn wait_for_entries(&self, expected: &[&str]) -> Result<Vec<PodProbe>> {
        let mut expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
        expected.sort();
        wait_for_object(
            &self.probes(),
            &self.node,
            &format!("entries {expected:?}"),
            |probe| {
                let pods: Vec<_> = probe
                    .spec
                    .pod_probes
                    .iter()
                    .filter(|pod| pod.namespace == self.ns)
                    .cloned()
                    .collect();
                let mut found: Vec<_> = pods
                    .iter()
                    .flat_map(|pod| {
                        pod.probes
                            .iter()
                            .map(move |entry| format!("{}/{}", pod.name, entry.name))
                    })
                    .collect();
                found.sort();
                ensure!(found == expected, "the entries are {found:?}");
                Ok(pods)
            },
        )
        .await
    }

    /// Reports a verdict for `marker#probe` of a pod as the node's agent would, once the entry is there.
    ///
    /// # Errors
    /// The API server's, or when the entry does not appear.
    pub async fn report_verdict(&self, pod: &str, entry: &str, state: &str) -> Result<()> {
        self.report_verdict_with(pod, entry, state, "").await
    }

    /// The same with a message.
    ///
    /// # Errors
    /// The same.
    pub async fn report_verdict_with(
        &self,
        pod: &str,
        entry: &str,
        state: &str,
        message: &str,
    ) -> Result<()> {
        report(
            &self.client,
            &self.node,
            (&self.ns, pod),
            entry,
            state,
            message,
        )
        .await
    }

    /// Waits until the marks of a pod are these: labels, annotations (`null`: absent) and conditions by type.
    ///
    /// # Errors
    /// After the deadline, with what differed.
    pub async fn wait_for_marks(&self, pod: &str, expected: Value) -> Result<Pod> {
        wait_for_object(&self.pods(), pod, &format!("marks {expected}"), |pod| {
            differs(pod, &expected)?;
            Ok(pod.clone())
        })
        .await
    }

    /// Waits until the marker's `Ready` condition has this reason and its status reports the newest generation.
    ///
    /// # Errors
    /// After the deadline, with the status that was there.
    pub async fn wait_for_reason(&self, marker: &str, reason: &str) -> Result<PodProbeMarker> {
        wait_for_object(
            &self.markers(),
            marker,
            &format!("reason {reason}"),
            |marker| {
                let status = marker.status.clone().unwrap_or_default();
                let generation = marker.metadata.generation.unwrap_or_default();
                let found = status
                    .conditions
                    .iter()
                    .any(|c| c.type_ == "Ready" && c.reason == reason);
                ensure!(
                    found && status.observed_generation == generation,
                    "its status is {status:?}"
                );
                Ok(marker.clone())
            },
        )
        .await
    }
}

/// Fails with what differs between a pod's marks and `{labels, annotations, conditions}`.
///
/// # Errors
/// The first difference.
pub fn differs(pod: &Pod, expected: &Value) -> Result<()> {
    let none = BTreeMap::new();
    for (field, map) in [
        ("labels", pod.metadata.labels.as_ref().unwrap_or(&none)),
        (
            "annotations",
            pod.metadata.annotations.as_ref().unwrap_or(&none),
        ),
    ] {
        for (key, value) in expected[field].as_object().into_iter().flatten() {
            ensure!(
                map.get(key).map(String::as_str) == value.as_str(),
                "{field} are {map:?}, wanted {key}: {value}"
            );
        }
    }
    let conditions = pod
        .status
        .as_ref()
        .and_then(|s| s.conditions.clone())
        .unwrap_or_default();
    for (kind, value) in expected["conditions"].as_object().into_iter().flatten() {
        let found = conditions.iter().find(|c| c.type_ == *kind);
        ensure!(
            found.map(|c| c.status.as_str()) == value.as_str(),
            "condition {kind} is {:?}, wanted {value}",
            found.map(|c| (&c.status, &c.message))
        );
    }
    Ok(())
}

async fn create<K>(api: &Api<K>, manifest: Value) -> Result<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(manifest)?;
    match api.create(&PostParams::default(), &object).await {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) => bail!("{}", status.message),
        Err(error) => Err(error.into()),
    }
}

/// JSON merge patch (RFC 7386).
pub fn merge(into: &mut Value, over: Value) {
    match over {
        Value::Object(over) => {
            if !into.is_object() {
                *into = json!({});
            }
            let map = into.as_object_mut().expect("made one above");
            for (key, value) in over {
                if value.is_null() {
                    map.remove(&key);
                } else {
                    merge(map.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        other => *into = other,
    }
}
