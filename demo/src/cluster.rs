//! The cluster with leadsman on it: manager and agent as ordinary processes inside the bed, each with a token of its
//! own service account and so with the rights of `leadsman manifests`, no more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::Client;
use leadsman_testkit::node::Inside;
use leadsman_testkit::{NodeBed, Options, cache, progress};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::tell::Tell;

const SYSTEM: &str = "leadsman-system";
/// How long a process gets to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);

/// A cluster of one real node, a manager and an agent.
pub(crate) struct Cluster {
    pub(crate) bed: NodeBed,
    pub(crate) client: Client,
    /// Where manager and agent write their logs. It outlives the cluster.
    pub(crate) logs: PathBuf,
    kubectl: PathBuf,
}

/// Manager and agent.
pub(crate) struct Processes(Vec<(&'static str, Inside)>);

impl Cluster {
    /// Raises the bed and starts leadsman on it.
    pub(crate) async fn raise() -> Result<(Self, Processes)> {
        let leadsman = PathBuf::from(
            std::env::var_os("LEADSMAN_BIN")
                .context("LEADSMAN_BIN names no leadsman; start this by `cargo xtask demo`")?,
        );
        let bed = NodeBed::start(Options::default(), progress::to_stderr()).await?;
        let logs = cache::folder()?.join("demo-logs");
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        cache::hand_over(&logs)?;
        let client = bed.client().await?;
        let kubectl = bed.programs()?.join("kubectl");
        let cluster = Self {
            bed,
            client,
            logs,
            kubectl,
        };
        Tell::title(
            "leadsman on it: `leadsman manifests | kubectl apply --server-side -f -`, then manager and agent",
        );
        let manifests = Command::new(&leadsman)
            .arg("manifests")
            .stderr(Stdio::inherit())
            .output()
            .await?;
        if !manifests.status.success() {
            bail!("`leadsman manifests` ended with {}", manifests.status);
        }
        cluster
            .kubectl_with(&["apply", "--server-side", "-f", "-"], &manifests.stdout)
            .await?;
        let manager = cluster.start_manager(&leadsman).await?;
        let agent = cluster.start_agent(&leadsman).await?;
        Ok((
            cluster,
            Processes(vec![("manager", manager), ("agent", agent)]),
        ))
    }

    async fn start_manager(&self, leadsman: &Path) -> Result<Inside> {
        let kubeconfig = self
            .bed
            .service_account_kubeconfig(SYSTEM, "leadsman-manager", None)
            .await?;
        let kubeconfig = kubeconfig.display().to_string();
        self.start(
            "manager",
            leadsman,
            &[
                "manager",
                "--kubeconfig",
                &kubeconfig,
                "--metrics-bind-address",
                "127.0.0.1:9101",
            ],
        )
        .await
    }

    async fn start_agent(&self, leadsman: &Path) -> Result<Inside> {
        // An agent may write only the NodePodProbe of the node its token names, and a token names a node through a pod:
        // this one, in the place of the DaemonSet's.
        let place = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "leadsman-agent", "namespace": SYSTEM, "labels":
                {"app.kubernetes.io/name": "leadsman", "app.kubernetes.io/component": "agent"}},
            "spec": {
                "serviceAccountName": "leadsman-agent", "nodeName": self.bed.node_name(), "hostNetwork": true,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "agent", "image": "docker.io/local/target:1", "imagePullPolicy": "Never", "args": ["pause"]}],
            },
        });
        self.kubectl_with(&["apply", "-f", "-"], place.to_string().as_bytes())
            .await?;
        let kubeconfig = self
            .bed
            .service_account_kubeconfig(SYSTEM, "leadsman-agent", Some("leadsman-agent"))
            .await?;
        let (kubeconfig, node) = (
            kubeconfig.display().to_string(),
            self.bed.node_name().to_owned(),
        );
        let endpoint = self.bed.runtime_endpoint();
        let arguments = [
            "agent",
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            &node,
            "--runtime-endpoint",
            &endpoint,
            "--metrics-bind-address",
            "127.0.0.1:9102",
        ];
        self.start("agent", leadsman, &arguments).await
    }

    async fn start(&self, name: &str, leadsman: &Path, arguments: &[&str]) -> Result<Inside> {
        let log = fs::File::create(self.log(name))?;
        cache::hand_over(&self.log(name))?;
        let mut command = self.bed.command_inside(leadsman);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = self.bed.spawn_inside(command).await;
        process
            .with_context(|| format!("starting the {name}; its log: {}", self.log(name).display()))
    }

    /// The log file of `manager` or `agent`.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// `kubectl` as an administrator; its words are the error.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, b"").await
    }

    async fn kubectl_with(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        let mut kubectl = Command::new(&self.kubectl)
            .env("KUBECACHEDIR", self.bed.folder().join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.bed.admin_kubeconfig())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C on a terminal is for the demo; a kubectl that ends by it would be taken for a failure.
            .process_group(0)
            .spawn()
            .context("starting kubectl")?;
        if let Some(mut stdin) = kubectl.stdin.take() {
            stdin.write_all(input).await?;
        }
        let output = kubectl.wait_with_output().await?;
        if !output.status.success() {
            bail!(
                "`kubectl {}`: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies files of `demo/manifests`.
    pub(crate) async fn apply(&self, files: &[&str]) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
        let paths: Vec<String> = files
            .iter()
            .map(|file| folder.join(file).display().to_string())
            .collect();
        let mut arguments = vec!["apply"];
        arguments.extend(paths.iter().flat_map(|path| ["-f", path]));
        self.kubectl(&arguments).await.map(drop)
    }

    /// For `--keep`.
    pub(crate) fn say_how_to_use_it(&self) {
        let kubeconfig = self.bed.admin_kubeconfig().display();
        let folder = self.kubectl.parent().unwrap_or(Path::new("/")).display();
        println!(
            "
== The cluster stays up. In another terminal:

  export KUBECONFIG={kubeconfig} PATH=\"{folder}:$PATH\"

  kubectl -n ns get podprobemarkers                      # one line a marker: matched, succeeded, failed
  kubectl -n ns describe podprobemarker game-server-probe
  kubectl -n ns get pods -L gameserver-idle,role         # the marks
  kubectl -n ns get pods --watch -L gameserver-idle,role # and how they change
  kubectl -n ns exec deploy/game-server -- touch /home/game/match
  kubectl -n ns exec deploy/game-server -- rm /home/game/match
  kubectl -n ns exec cache -- /target post 'http://127.0.0.1:8080/set?tcp=closed'
  kubectl -n ns get pod cache -o wide                    # its readiness gate
  kubectl get nodepodprobe -o yaml                       # what the agent is asked, and what it found
  kubectl -n ns get events --field-selector=reportingComponent=kruise-daemon-podprobe
  kubectl -n ns delete podprobemarker game-server-probe  # and its marks are gone

  tail -f {}/*.log                                       # manager and agent

Ctrl-C here ends the cluster and takes everything away.",
            self.logs.display()
        );
    }

    /// Ends the bed and waits until nothing of it is left.
    pub(crate) async fn end(self) -> Result<()> {
        self.bed.end().await
    }
}

impl Processes {
    /// Waits until one of them has ended, which none should.
    pub(crate) async fn first_to_end(&mut self) -> anyhow::Error {
        let ends = self.0.iter_mut().map(|(name, process)| {
            Box::pin(async move {
                match process.wait().await {
                    Ok(status) => anyhow::anyhow!("the {name} ended, with {status}"),
                    Err(error) => error.context(format!("waiting for the {name}")),
                }
            })
        });
        futures::future::select_all(ends).await.0
    }

    /// Ends both as Kubernetes would.
    pub(crate) async fn end(mut self) -> Result<()> {
        for (name, process) in &mut self.0 {
            process.signal(Signal::SIGTERM)?;
            let status = tokio::time::timeout(GRACE, process.wait()).await;
            match status
                .with_context(|| format!("the {name} did not end in {GRACE:?} after SIGTERM"))??
            {
                status if status.success() => {}
                status => bail!("after SIGTERM the {name} ended with {status}"),
            }
        }
        Ok(())
    }
}
