//! A namespace on real nodes, with pods of the target server that a case can switch.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::Client;
use kube::api::{DeleteParams, PostParams};
use leadsman_testkit::node::is_in_vm;
use leadsman_testkit::{Cluster, Node, NodeBed, Release};
use serde_json::{Value, json};

use crate::scene::merge;
use crate::{Scene, wait_for_answer, wait_for_object};

/// What a suite on real nodes plays on.
pub trait OnNodes: Send + Sync + 'static {
    /// The nodes.
    fn bed(&self) -> &NodeBed;
    /// As admin.
    fn client(&self) -> &Client;
}

impl OnNodes for Cluster {
    fn bed(&self) -> &NodeBed {
        &self.bed
    }

    fn client(&self) -> &Client {
        &self.client
    }
}

impl OnNodes for Release {
    fn bed(&self) -> &NodeBed {
        &self.bed
    }

    fn client(&self) -> &Client {
        &self.client
    }
}

/// A case's own namespace. Markers and marks as in the api suite; pods are real.
pub struct Room<C> {
    /// The suite's fixture.
    pub cluster: Arc<C>,
    /// The namespace, and the first node.
    pub scene: Scene,
}

impl<C: OnNodes> Room<C> {
    /// Makes the namespace.
    ///
    /// # Errors
    /// The API server's.
    pub async fn new(cluster: &Arc<C>, name: &str) -> Result<Self> {
        let node = cluster.bed().node_name().to_owned();
        let scene = Scene {
            client: cluster.client().clone(),
            ns: name.to_owned(),
            node,
        };
        scene.namespace(name).await?;
        Ok(Self {
            cluster: Arc::clone(cluster),
            scene,
        })
    }

    /// Makes a pod of one target server, `main`, with `over` merged over its manifest, and waits until it runs.
    pub async fn pod(&self, name: &str, over: Value) -> Result<Pod> {
        let pod = self.manifest(name, over);
        self.scene
            .pods()
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        self.wait_until_running(name).await
    }

    /// The manifest of such a pod, not created.
    pub fn manifest(&self, name: &str, over: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": self.scene.ns}},
            "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
                "containers": [target("main")]}
        });
        merge(&mut pod, over);
        pod
    }

    /// Waits until nothing of other cases is probed any more.
    pub async fn wait_until_alone(&self) -> Result<()> {
        wait_for_object(
            &self.scene.probes(),
            &self.scene.node,
            "others' entries gone",
            |probe| {
                let others = |ns: &String| *ns != self.scene.ns;
                let status = probe.status.clone().unwrap_or_default().pod_probe_statuses;
                let mut left = probe.spec.pod_probes.iter().map(|p| &p.namespace);
                ensure!(!left.any(others), "{:?}", probe.spec.pod_probes);
                ensure!(
                    !status.iter().map(|p| &p.namespace).any(others),
                    "{status:?}"
                );
                Ok(())
            },
        )
        .await
    }

    /// Waits until the containers of a pod run.
    pub async fn wait_until_running(&self, name: &str) -> Result<Pod> {
        wait_for_object(&self.scene.pods(), name, "it running", |pod| {
            let status = pod.status.clone().unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let up = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
                c.state.as_ref().is_some_and(|s| s.running.is_some())
            };
            ensure!(
                !containers.is_empty() && containers.iter().all(up),
                "{containers:?}"
            );
            ensure!(status.pod_ip.is_some(), "it has no address");
            Ok(pod.clone())
        })
        .await
    }

    /// Switches a pod's target server, through its own port: `role=main&tcp=closed`.
    pub async fn set(&self, pod: &str, query: &str) -> Result<()> {
        let url = self.url(pod, &format!("/set?{query}")).await?;
        let bed = self.cluster.bed();
        // A container runs before its program listens.
        wait_for_answer("the pod's server", || async {
            match bed.post_from_inside(&url).await {
                Err(error) if format!("{error:#}").contains("Connection refused") => Ok(None),
                answer => answer.map(Some),
            }
        })
        .await?;
        Ok(())
    }

    /// A GET of a pod's target server.
    pub async fn get(&self, pod: &str, path: &str) -> Result<String> {
        self.cluster
            .bed()
            .get_from_inside(&self.url(pod, path).await?)
            .await
    }

    /// Of a path of a pod's target server.
    pub async fn url(&self, pod: &str, path: &str) -> Result<String> {
        let pod = self.scene.pods().get(pod).await?;
        let ip = pod
            .status
            .and_then(|s| s.pod_ip)
            .context("the pod has no address")?;
        Ok(format!("http://{ip}:8080{path}"))
    }

    /// Runs a command in a pod's container.
    pub async fn exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String> {
        let mut arguments = vec!["exec", "-n", &self.scene.ns, pod, "-c", container, "--"];
        arguments.extend(command);
        self.cluster.bed().kubectl(&arguments).await
    }

    /// Kills the first process of a pod's container behind the kubelet's back.
    pub async fn kill_container(&self, pod: &str, container: &str) -> Result<()> {
        let id = self.container_id(pod, container).await?;
        self.node_of(pod).await?.stop_container(&id).await
    }

    /// The node on which a pod is.
    pub async fn node_of(&self, pod: &str) -> Result<&Node> {
        let spec = self.scene.pods().get(pod).await?.spec;
        let name = spec.and_then(|spec| spec.node_name);
        self.cluster
            .bed()
            .node(&name.context("the pod has no node yet")?)
    }

    /// The id of a pod's container, as its status has it.
    pub async fn container_id(&self, pod: &str, container: &str) -> Result<String> {
        let status = self.scene.pods().get(pod).await?.status.unwrap_or_default();
        let mut containers = status.container_statuses.unwrap_or_default();
        containers.extend(status.init_container_statuses.unwrap_or_default());
        let found = containers
            .into_iter()
            .find(|c| c.name == container)
            .and_then(|c| c.container_id);
        found.context("the container has no id yet")
    }
}

impl<C> Drop for Room<C> {
    /// What a case leaves would be probed until the end of the suite, beside cases that count.
    fn drop(&mut self) {
        let namespaces: Api<Namespace> = Api::all(self.scene.client.clone());
        let name = self.scene.ns.clone();
        tokio::spawn(async move { namespaces.delete(&name, &DeleteParams::default()).await });
    }
}

/// A container of the target server.
pub fn target(name: &str) -> Value {
    json!({"name": name, "image": "docker.io/local/target:1", "imagePullPolicy": "Never", "args": ["serve"],
        "ports": [{"name": "web", "containerPort": 8080}, {"name": "raw", "containerPort": 9090},
            {"name": "rpc", "containerPort": 50051}]})
}

/// A probe of `main` each second that turns at the first result, with condition `t.io/NAME`. In a virtual machine a command
/// takes a second alone.
pub fn probe(name: &str, handler: Value) -> Value {
    let (period, timeout) = if is_in_vm() { (5, 30) } else { (1, 1) };
    let mut probe =
        json!({"periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": 1});
    merge(&mut probe, handler);
    json!({"name": name, "containerName": "main", "podConditionType": format!("t.io/{name}"), "probe": probe})
}

/// The role probe: HTTP, labels `role: main` and `role: secondary`.
pub fn role() -> Value {
    let mut role = probe("role", json!({"httpGet": {"path": "/role", "port": "web"}}));
    role["markerPolicy"] = json!([
        {"state": "Succeeded", "labels": {"role": "main"}},
        {"state": "Failed", "labels": {"role": "secondary"}}]);
    role
}

/// The marks of [`role`].
pub fn is_main(main: bool) -> Value {
    let (label, status) = if main {
        ("main", "True")
    } else {
        ("secondary", "False")
    };
    json!({"labels": {"role": label}, "conditions": {"t.io/role": status}})
}
