//! leadsman as its users install it: the chart `charts/leadsman` and its image, the manager as a Deployment, the agent as
//! a DaemonSet. For tests that start and end its processes themselves there is [`crate::Cluster`].

use std::path::Path;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::leadsman::{self, NAMESPACE};
use crate::{NodeBed, cache};

/// What the charts' users call a release.
const NAME: &str = "leadsman";
/// The chart's folder.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/leadsman");
/// A bed has no DNS, which the kubelet mentions for each pod.
const EVENTS: &str = "--field-selector=reason!=MissingClusterDNS";
/// The manager's Lease, and its namespace.
const LEASE: (&str, &str) = ("leadsman-manager", "kube-system");

/// One of leadsman's workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The Deployment of managers.
    Manager,
    /// The DaemonSet of agents.
    Agent,
}

impl Component {
    const ALL: [Self; 2] = [Self::Manager, Self::Agent];

    /// As `kubectl` takes it.
    pub fn workload(self) -> &'static str {
        match self {
            Self::Manager => "deployment/leadsman-manager",
            Self::Agent => "daemonset/leadsman-agent",
        }
    }

    /// The label by which its pods are found.
    fn label(self) -> &'static str {
        match self {
            Self::Manager => "app.kubernetes.io/component=manager",
            Self::Agent => "app.kubernetes.io/component=agent",
        }
    }
}

/// A bed and leadsman's release on it. Ends with the bed.
pub struct Release {
    /// The cluster itself.
    pub bed: NodeBed,
    /// Of group `system:masters`.
    pub client: Client,
}

impl Release {
    /// Gives all nodes the image, and that of an earlier commit where there is one. Nothing is installed yet.
    pub async fn prepare(bed: NodeBed) -> Result<Self> {
        let earlier = leadsman::earlier()?.map(|earlier| earlier.image);
        for archive in [Some(leadsman::image()?), earlier].iter().flatten() {
            try_join_all(bed.nodes().map(|node| node.import_image(archive))).await?;
        }
        let client = bed.client().await?;
        Ok(Self { bed, client })
    }

    /// `helm upgrade --install` with these values and the chart's own: afterwards no others are in force. Returns when the
    /// API server has all objects; see [`Release::wait_for_rollout`].
    pub async fn install(&self, values: &Value) -> Result<()> {
        self.install_from(Path::new(CHART), values, &[]).await
    }

    /// The same of another chart, and with these flags.
    pub async fn install_from(&self, chart: &Path, values: &Value, flags: &[&str]) -> Result<()> {
        let chart = chart.display().to_string();
        let arguments = [
            "upgrade",
            "--install",
            NAME,
            &chart,
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--reset-values",
            "--values=-",
        ];
        let arguments = [&arguments, flags].concat();
        self.bed
            .helm(&arguments, &serde_json::to_vec(values)?)
            .await?;
        Ok(())
    }

    /// `helm`, in the release's namespace; its output.
    pub async fn helm(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", NAMESPACE];
        all.extend(arguments);
        self.bed.helm(&all, b"").await
    }

    /// Waits until managers and agents of the present version are available, and no others are left. If they do not become
    /// so, the error says what `kubectl` shows of their pods.
    pub async fn wait_for_rollout(&self) -> Result<()> {
        for component in Component::ALL {
            self.wait_for_rollout_of(component).await?;
        }
        Ok(())
    }

    /// The same of one component.
    pub async fn wait_for_rollout_of(&self, component: Component) -> Result<()> {
        let workload = component.workload();
        let status = ["rollout", "status", workload, "--timeout=90s"];
        let Err(error) = self.kubectl(&status).await else {
            return Ok(());
        };
        let pods = self.kubectl(&["get", "pods", "-o", "wide"]).await?;
        let events = self.kubectl(&["get", "events", EVENTS]).await?;
        Err(error.context(format!("{pods}\n{events}")))
    }

    /// `kubectl`, in the release's namespace; its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", NAMESPACE];
        all.extend(arguments);
        self.bed.kubectl(&all).await
    }

    /// Its pods that are not being deleted.
    pub async fn pods(&self, component: Component) -> Result<Vec<Pod>> {
        let choice = ListParams::default().labels(component.label());
        let mut pods = self.pods_api().list(&choice).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// The pods of the release's namespace.
    pub fn pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Who leads, as the Lease has it; none after it was given back.
    pub async fn lease_holder(&self) -> Result<Option<String>> {
        let (name, namespace) = LEASE;
        let leases = Api::<Lease>::namespaced(self.client.clone(), namespace);
        let spec = leases.get_opt(name).await?.and_then(|lease| lease.spec);
        let holder = spec.and_then(|spec| spec.holder_identity);
        Ok(holder.filter(|holder| !holder.is_empty()))
    }

    /// The name of the manager's pod that leads.
    pub async fn leader(&self) -> Result<Option<String>> {
        // `NAMESPACE/HOST_RANDOM`, and a pod's host name is its own.
        let host = |holder: String| Some(holder.split_once('/')?.1.rsplit_once('_')?.0.to_owned());
        Ok(self.lease_holder().await?.and_then(host))
    }

    /// Puts what manager and agents have logged into a folder, a file for each container of each pod.
    pub async fn save_logs(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        for pod in self.pods_api().list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            let previous = [false, true];
            for (previous, suffix) in previous.into_iter().zip(["", ".previous"]) {
                let choice = LogParams {
                    previous,
                    ..LogParams::default()
                };
                // A container that was never restarted has no earlier log, one that waits has none at all.
                if let Ok(log) = self.pods_api().logs(&name, &choice).await {
                    std::fs::write(folder.join(format!("{name}{suffix}.log")), log)?;
                }
            }
        }
        cache::hand_over(folder)
    }

    /// Ends the bed and waits until nothing of it is left.
    pub async fn end(self) -> Result<()> {
        self.bed.end().await
    }
}
