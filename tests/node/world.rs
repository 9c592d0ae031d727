//! The bed with leadsman in it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use leadsman_testkit::node::Inside;
use leadsman_testkit::{NodeBed, Options};
use leadsman_tests::{process, see, until};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::sync::Mutex;

const SYSTEM: &str = "leadsman-system";
/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);

/// A cluster of one real node, its manager and its agent.
pub(crate) struct World {
    pub(crate) bed: NodeBed,
    pub(crate) client: Client,
    /// The agent's, with a token bound to its pod on the node.
    pub(crate) agent_kubeconfig: PathBuf,
    manager_kubeconfig: PathBuf,
    manager: Mutex<Option<Inside>>,
    agent: Mutex<Option<Inside>>,
}

impl World {
    pub(crate) async fn raise() -> Result<Self> {
        let bed =
            NodeBed::start(Options::default(), leadsman_testkit::progress::to_stderr()).await?;
        let client = bed.client().await?;
        leadsman_tests::install(&bed, &client).await?;
        stand_in_for_the_agent(&client, bed.node_name()).await?;
        let agent_kubeconfig = bed
            .service_account_kubeconfig(SYSTEM, "leadsman-agent", Some("agent"))
            .await?;
        let manager_kubeconfig = bed
            .service_account_kubeconfig(SYSTEM, "leadsman-manager", None)
            .await?;
        let (manager, agent) = (Mutex::new(None), Mutex::new(None));
        let world = Self {
            bed,
            client,
            agent_kubeconfig,
            manager_kubeconfig,
            manager,
            agent,
        };
        world.start_manager().await?;
        world.start_agent().await?;
        Ok(world)
    }

    pub(crate) async fn start_manager(&self) -> Result<()> {
        let kubeconfig = self.manager_kubeconfig.display().to_string();
        let arguments = [
            "manager",
            "--metrics-bind-address",
            "127.0.0.1:9101",
            "--kubeconfig",
            &kubeconfig,
        ];
        *self.manager.lock().await = Some(self.start("leadsman-manager", &arguments).await?);
        Ok(())
    }

    pub(crate) async fn start_agent(&self) -> Result<()> {
        let kubeconfig = self.agent_kubeconfig.display().to_string();
        let endpoint = self.bed.runtime_endpoint();
        let node_name = self.bed.node_name();
        let arguments = [
            "agent",
            "--metrics-bind-address",
            "127.0.0.1:9102",
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            node_name,
            "--runtime-endpoint",
            &endpoint,
        ];
        *self.agent.lock().await = Some(self.start("leadsman-agent", &arguments).await?);
        Ok(())
    }

    async fn start(&self, name: &str, arguments: &[&str]) -> Result<Inside> {
        let log = self.bed.folder().join(format!("logs/{name}.log"));
        let out = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)?;
        let mut command = self.bed.command_inside(process::binary()?);
        command
            .args(arguments)
            .env("LEADSMAN_LOG", "info,leadsman=debug");
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        self.bed
            .spawn_inside(command)
            .await
            .with_context(|| format!("start {name}, log {}", log.display()))
    }

    pub(crate) async fn stop_manager(&self) -> Result<()> {
        terminate(
            self.manager
                .lock()
                .await
                .take()
                .context("no manager runs")?,
        )
        .await
    }

    pub(crate) async fn stop_agent(&self) -> Result<()> {
        terminate(self.agent.lock().await.take().context("no agent runs")?).await
    }

    /// SIGKILL: no last write, no farewell.
    pub(crate) async fn kill_agent(&self) -> Result<()> {
        self.agent
            .lock()
            .await
            .take()
            .context("no agent runs")?
            .kill()
            .await?;
        Ok(())
    }

    /// The agent as a rolling update of its DaemonSet replaces it: process and pod go, others take their place.
    pub(crate) async fn replace_agent(&self) -> Result<()> {
        self.stop_agent().await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        let uid = pods.get("agent").await?.metadata.uid;
        pods.delete("agent", &DeleteParams::default()).await?;
        until("the agent's pod gone", || async {
            let there = pods.get_opt("agent").await?;
            Ok(there
                .is_none_or(|pod| pod.metadata.uid != uid)
                .then_some(()))
        })
        .await?;
        stand_in_for_the_agent(&self.client, self.bed.node_name()).await?;
        // The old pod's token has ended with it; the file keeps its name.
        self.bed
            .service_account_kubeconfig(SYSTEM, "leadsman-agent", Some("agent"))
            .await?;
        self.start_agent().await
    }

    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = tokio::process::Command::new(self.bed.programs()?.join("kubectl"))
            .env("KUBECACHEDIR", self.bed.folder().join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.bed.admin_kubeconfig())
            .args(arguments)
            .kill_on_drop(true)
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) async fn end(self) {
        for (name, process) in [("manager", self.manager), ("agent", self.agent)] {
            if let Some(process) = process.into_inner()
                && let Err(error) = terminate(process).await
            {
                eprintln!("the {name} did not end well: {error:#}");
            }
        }
        if let Err(error) = self.bed.end().await {
            eprintln!("the bed did not end well: {error:#}");
        }
    }
}

/// The agent runs as a process; this pod stands where its DaemonSet's would, and its token is bound to it.
async fn stand_in_for_the_agent(client: &Client, node: &str) -> Result<()> {
    let pod = json!({"metadata": {"name": "agent", "labels":
            {"app.kubernetes.io/name": "leadsman", "app.kubernetes.io/component": "agent"}},
        "spec": {"serviceAccountName": "leadsman-agent", "nodeName": node, "hostNetwork": true,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "agent", "image": "docker.io/local/target:1", "imagePullPolicy": "Never",
                "args": ["pause"]}]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    see(&pods, "agent", "the agent's pod running", |pod| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        ensure!(phase == Some("Running"), "{:?}", pod.status);
        Ok(())
    })
    .await
}

async fn terminate(mut process: Inside) -> Result<()> {
    process.signal(Signal::SIGTERM)?;
    let status = tokio::time::timeout(GRACE, process.wait())
        .await
        .context("it did not end after SIGTERM")??;
    if !status.success() {
        bail!("it ended with {status} after SIGTERM");
    }
    Ok(())
}
