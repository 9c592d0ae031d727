//! A cluster of one real node with leadsman on it: manager and agent as ordinary processes inside the bed, each with a
//! token of its own service account and so with the rights of `leadsman manifests`, no more.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::sync::Mutex;

use crate::leadsman::{self, NAMESPACE};
use crate::node::{Inside, Node};
use crate::{NodeBed, cache};

/// Where the manager serves `/metrics`, inside the bed.
pub const MANAGER_METRICS: &str = "127.0.0.1:9101";
/// Where the manager serves its webhooks, if a gate needs them, inside the bed.
const MANAGER_WEBHOOKS: &str = "127.0.0.1:9443";
/// Where the agent serves `/metrics`, inside the bed.
pub const AGENT_METRICS: &str = "127.0.0.1:9102";

/// The name of the pod that stands where the agents' DaemonSet would have one.
const AGENT_POD: &str = "agent";
/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);
/// How long the agent's pod may take to run or to go.
const PATIENCE: Duration = Duration::from_mins(1);

/// The bed, and what of leadsman runs in it. Ends with the bed.
pub struct Cluster {
    /// The cluster itself.
    pub bed: NodeBed,
    /// Of group `system:masters`.
    pub client: Client,
    /// The agent's kubeconfig, with a token bound to its pod on the node.
    pub agent_kubeconfig: PathBuf,
    manager_kubeconfig: PathBuf,
    gates: &'static str,
    logs: PathBuf,
    log_filter: &'static str,
    manager: Mutex<Option<Inside>>,
    agent: Mutex<Option<Inside>>,
}

impl Cluster {
    /// Installs leadsman with these feature gates and makes the agent's pod; neither manager nor agent runs yet. Their logs,
    /// of what `log_filter` lets through (`LEADSMAN_LOG`), are files `leadsman-manager.log` and `leadsman-agent.log` in
    /// the folder `logs`.
    pub async fn install(
        bed: NodeBed,
        gates: &'static str,
        logs: PathBuf,
        log_filter: &'static str,
    ) -> Result<Self> {
        std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        cache::hand_over(&logs)?;
        leadsman::install_with(&bed, gates).await?;
        let client = bed.client().await?;
        create_agent_pod(&client, bed.node_name()).await?;
        let agent_kubeconfig = agent_kubeconfig(&bed).await?;
        let manager_kubeconfig = bed
            .service_account_kubeconfig(NAMESPACE, "leadsman-manager", None)
            .await?;
        Ok(Self {
            bed,
            client,
            agent_kubeconfig,
            manager_kubeconfig,
            gates,
            logs,
            log_filter,
            manager: Mutex::default(),
            agent: Mutex::default(),
        })
    }

    /// Starts the manager.
    pub async fn start_manager(&self) -> Result<()> {
        let kubeconfig = self.manager_kubeconfig.display().to_string();
        let webhooks = format!("https://{MANAGER_WEBHOOKS}");
        let arguments = [
            "manager",
            "--metrics-bind-address",
            MANAGER_METRICS,
            "--kubeconfig",
            &kubeconfig,
            "--feature-gates",
            self.gates,
            "--webhook-bind-address",
            MANAGER_WEBHOOKS,
            "--webhook-url",
            &webhooks,
        ];
        *self.manager.lock().await = Some(
            self.start(
                self.bed.control(),
                "manager",
                &leadsman::program()?,
                &arguments,
            )
            .await?,
        );
        Ok(())
    }

    /// Starts the agent at the node's runtime.
    pub async fn start_agent(&self) -> Result<()> {
        self.start_agent_at(&self.bed.runtime_endpoint()).await
    }

    /// Starts the agent at this endpoint of a runtime.
    pub async fn start_agent_at(&self, runtime_endpoint: &str) -> Result<()> {
        let kubeconfig = self.agent_kubeconfig.display().to_string();
        let history_socket = self.history_socket().display().to_string();
        let pod_folders = self.bed.pod_folders().display().to_string();
        let arguments = [
            "--metrics-bind-address",
            AGENT_METRICS,
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            self.bed.node_name(),
            "--runtime-endpoint",
            runtime_endpoint,
            "--history-socket",
            &history_socket,
            "--file-probes",
            &pod_folders,
        ];
        *self.agent.lock().await = Some(
            self.start(&self.bed, "agent", &leadsman::agent_program()?, &arguments)
                .await?,
        );
        Ok(())
    }

    async fn start(
        &self,
        node: &Node,
        name: &str,
        program: &Path,
        arguments: &[&str],
    ) -> Result<Inside> {
        let path = self.log(name);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path)?;
        cache::hand_over(&path)?;
        let mut command = node.command_inside(program)?;
        command
            .args(arguments)
            .env("LEADSMAN_LOG", self.log_filter)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let started = node.spawn_inside(command).await;
        started.with_context(|| format!("starting the {name}; its log: {}", path.display()))
    }

    /// Ends the manager by SIGTERM and waits for its end.
    pub async fn stop_manager(&self) -> Result<()> {
        let manager = self.manager.lock().await.take();
        terminate(manager.context("no manager runs")?).await
    }

    /// SIGKILL: the manager ends no write, and keeps its Lease.
    pub async fn kill_manager(&self) -> Result<()> {
        let manager = self.manager.lock().await.take();
        manager.context("no manager runs")?.kill().await?;
        Ok(())
    }

    /// Ends the agent by SIGTERM and waits for its end.
    pub async fn stop_agent(&self) -> Result<()> {
        let agent = self.agent.lock().await.take();
        terminate(agent.context("no agent runs")?).await
    }

    /// SIGKILL: the agent writes no last status.
    pub async fn kill_agent(&self) -> Result<()> {
        let agent = self.agent.lock().await.take();
        agent.context("no agent runs")?.kill().await?;
        Ok(())
    }

    /// The agent as a rolling update of its DaemonSet replaces it: process and pod go, others take their place.
    pub async fn replace_agent(&self) -> Result<()> {
        self.stop_agent().await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let uid = pods.get(AGENT_POD).await?.metadata.uid.unwrap_or_default();
        pods.delete(AGENT_POD, &DeleteParams::default()).await?;
        let deleted = await_condition(pods, AGENT_POD, conditions::is_deleted(&uid));
        tokio::time::timeout(PATIENCE, deleted)
            .await
            .context("the agent's pod was not deleted in time")??;
        create_agent_pod(&self.client, self.bed.node_name()).await?;
        // The old pod's token has ended with it; the file keeps its name.
        agent_kubeconfig(&self.bed).await?;
        self.start_agent().await
    }

    /// The agent's process id as the host numbers it.
    pub fn agent_pid(&self) -> Result<u32> {
        pid_of("agent", &self.agent)
    }

    /// The manager's process id as the host numbers it.
    pub fn manager_pid(&self) -> Result<u32> {
        pid_of("manager", &self.manager)
    }

    /// The socket on which the agent answers `leadsman-agent history`.
    pub fn history_socket(&self) -> PathBuf {
        self.bed.folder().join("history.sock")
    }

    /// The log file of `manager` or `agent`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("leadsman-{name}.log"))
    }

    /// The folder of the log files.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Waits until manager or agent has ended, which neither should by itself.
    pub async fn first_to_end(&self) -> anyhow::Error {
        async fn end(name: &str, process: &Mutex<Option<Inside>>) -> anyhow::Error {
            match process.lock().await.as_mut() {
                Some(process) => match process.wait().await {
                    Ok(status) => anyhow!("the {name} ended, with {status}"),
                    Err(error) => error.context(format!("waiting for the {name}")),
                },
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            error = end("manager", &self.manager) => error,
            error = end("agent", &self.agent) => error,
        }
    }

    /// Ends manager and agent by SIGTERM, then the bed, and waits until nothing of it is left. Fails if one of the two did
    /// not end well; the bed is ended all the same.
    pub async fn end(self) -> Result<()> {
        let mut failures = Vec::new();
        for (name, process) in [("agent", self.agent), ("manager", self.manager)] {
            if let Some(process) = process.into_inner()
                && let Err(error) = terminate(process).await
            {
                failures.push(format!("the {name} did not end well: {error:#}"));
            }
        }
        self.bed.end().await?;
        if failures.is_empty() {
            Ok(())
        } else {
            bail!(failures.join("; "))
        }
    }
}

fn pid_of(name: &str, process: &Mutex<Option<Inside>>) -> Result<u32> {
    let process = process.try_lock();
    let process = process.with_context(|| format!("the {name} is being started or ended"))?;
    let process = process.as_ref();
    let process = process.with_context(|| format!("no {name} runs"))?;
    Ok(process.pid().as_raw().unsigned_abs())
}

async fn agent_kubeconfig(bed: &NodeBed) -> Result<PathBuf> {
    bed.service_account_kubeconfig(NAMESPACE, "leadsman-agent", Some(AGENT_POD))
        .await
}

/// The agent runs as a process. But it may write only the `NodePodProbe` of the node that its token names, and a token
/// names a node through a pod: this one, in the place of the DaemonSet's.
async fn create_agent_pod(client: &Client, node: &str) -> Result<()> {
    let pod = json!({"metadata": {"name": AGENT_POD, "labels": leadsman::agent_labels()},
        "spec": {"serviceAccountName": "leadsman-agent", "nodeName": node, "hostNetwork": true,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "agent", "image": "docker.io/local/target:1", "imagePullPolicy": "Never",
                "args": ["pause"]}]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    let running = await_condition(pods, AGENT_POD, conditions::is_pod_running());
    tokio::time::timeout(PATIENCE, running)
        .await
        .context("the agent's pod did not run in time")??;
    Ok(())
}

async fn terminate(mut process: Inside) -> Result<()> {
    process.signal(Signal::SIGTERM)?;
    let status = tokio::time::timeout(GRACE, process.wait())
        .await
        .with_context(|| format!("it did not end within {GRACE:?} of SIGTERM"))??;
    if !status.success() {
        bail!("it ended with {status} after SIGTERM");
    }
    Ok(())
}
