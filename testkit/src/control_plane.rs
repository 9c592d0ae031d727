//! A control plane alone: etcd and kube-apiserver on 127.0.0.1, no root needed.
//!
//! No controller manager runs, so nodes one makes up keep their conditions and taints, nothing
//! deletes pods, and no garbage is collected. Service accounts exist only where a test makes them.
//! RBAC is on. Several control planes live side by side; each costs about half a gigabyte.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::audit::{self, Mark};
use crate::pki::{Authority, Identity};
use crate::plan::audit_log;
use crate::progress::Progress;
use crate::raise::{Raised, logs_after_failure};
use crate::readiness;
use crate::request::{Bed, Kind, Options, Order, Request};
use crate::{leadsman, packages, programs};

const APISERVER: &str = "kube-apiserver";
const ETCD: &str = "etcd";

/// An API server with its store. Dropping it ends both and removes their folder, and so does the
/// owner's death, however it dies.
#[derive(Debug)]
pub struct ControlPlane {
    raised: Arc<Mutex<Raised>>,
    pub(crate) bed: Bed,
    administrator: PathBuf,
}

impl ControlPlane {
    /// Raises a control plane, compiling its programs first if the cache has none.
    pub async fn start(
        options: Options,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::start_blocking(options, progress, false)).await?
    }

    pub(crate) fn start_blocking(
        options: Options,
        mut progress: impl FnMut(Progress),
        detached: bool,
    ) -> Result<Self> {
        packages::ensure_tools(&["setpriv"])?;
        let request = Request {
            kind: Kind::ControlPlane,
            options,
            programs: programs::ensure(&mut progress)?,
            images: Vec::new(),
            logs_after_failure: logs_after_failure()?,
            detached,
        };
        Self::raise(&request, &mut progress)
    }

    pub(crate) fn raise(request: &Request, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let (raised, bed) = Raised::raise(request, progress)?;
        let administrator = bed.folder.join("pki/admin.kubeconfig");
        Ok(Self {
            raised: Arc::new(Mutex::new(raised)),
            bed,
            administrator,
        })
    }

    /// The URL of the API server.
    pub fn server(&self) -> &str {
        &self.bed.server
    }

    /// The bed's folder: certificates, logs, data. It goes with the bed.
    pub fn folder(&self) -> &Path {
        &self.bed.folder
    }

    /// The folder of the cluster's programs, `kubectl` and `helm` among them.
    pub fn programs(&self) -> Result<PathBuf> {
        programs::ensure(&mut crate::progress::silent())
    }

    /// A folder for somebody's PATH: `kubectl` with leadsman's plugin, and `helm`. It goes with the bed.
    pub fn tools(&self) -> Result<PathBuf> {
        let (programs, plugin) = (self.programs()?, leadsman::plugin()?);
        let folder = self.folder().join("tools");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        for (name, program) in [
            ("kubectl", programs.join("kubectl")),
            ("helm", programs.join("helm")),
            ("kubectl-leadsman", plugin.clone()),
            // By this name kubectl asks a plugin for completions (kubernetes/kubernetes#105867).
            ("kubectl_complete-leadsman", plugin),
        ] {
            match std::os::unix::fs::symlink(program, folder.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("linking {name}"));
                }
                _ => {}
            }
        }
        Ok(folder)
    }

    /// A kubeconfig of group `system:masters`.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.administrator
    }

    /// A kubeconfig as this one, of a client that reaches the API server at another URL, such as a proxy's. Beside it.
    pub fn kubeconfig_through(&self, kubeconfig: &Path, url: &str) -> Result<PathBuf> {
        let text = std::fs::read_to_string(kubeconfig)?;
        if !text.contains(self.server()) {
            bail!("{} does not name {}", kubeconfig.display(), self.server());
        }
        let path = kubeconfig.with_extension("through.kubeconfig");
        std::fs::write(&path, text.replace(self.server(), url))?;
        Ok(path)
    }

    /// `kubectl` as an administrator; its output, or its own message as the error.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, b"").await
    }

    /// [`ControlPlane::kubectl`] with this on its stdin.
    pub async fn kubectl_with(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        self.run_program("kubectl", arguments, input).await
    }

    /// `helm` as an administrator with this on its stdin; its output, or its own message as the error.
    pub async fn helm(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        self.run_program("helm", arguments, input).await
    }

    async fn run_program(&self, program: &str, arguments: &[&str], input: &[u8]) -> Result<String> {
        let mut child = Command::new(self.programs()?.join(program))
            .env("KUBECACHEDIR", self.folder().join("kubectl"))
            .env("HELM_CACHE_HOME", self.folder().join("helm/cache"))
            .env("HELM_CONFIG_HOME", self.folder().join("helm/config"))
            .env("HELM_DATA_HOME", self.folder().join("helm/data"))
            .arg("--kubeconfig")
            .arg(&self.administrator)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C on a terminal is for the bed's owner; a child that ends by it would be taken for a failure.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input).await?;
        }
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!(
                "`{program} {}`: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A kubeconfig with a client certificate of this user in these groups, at most two.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let file = format!("user-{}", user.replace(['/', ':'], "-"));
        self.authority()?
            .kubeconfig(&file, &self.bed.server, Identity { user, groups })
    }

    /// A client of group `system:masters`. Each call makes a new one, in the calling runtime.
    pub async fn client(&self) -> Result<Client> {
        readiness::client(&self.administrator).await
    }

    /// A client of this user in these groups, by certificate.
    pub async fn client_for(&self, user: &str, groups: &[&str]) -> Result<Client> {
        readiness::client(&self.kubeconfig_for(user, groups)?).await
    }

    /// A kubeconfig with a token of a service account, bound to a pod if one of its namespace is
    /// named, as the kubelet makes them for pods.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        bound_pod: Option<&str>,
    ) -> Result<PathBuf> {
        let client = self.client().await?;
        let bound_object_ref = match bound_pod {
            None => None,
            Some(pod) => {
                let found = Api::<Pod>::namespaced(client.clone(), namespace)
                    .get(pod)
                    .await?;
                Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.into()),
                    uid: found.metadata.uid,
                })
            }
        };
        let spec = TokenRequestSpec {
            bound_object_ref,
            expiration_seconds: Some(7200),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest {
            spec: Some(spec),
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(client, namespace);
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token);
        let token = token.context("the API server made no token")?;
        let file = format!(
            "account-{namespace}-{name}-{}",
            bound_pod.unwrap_or("unbound")
        );
        self.authority()?
            .token_kubeconfig(&file, self.server(), &token)
    }

    /// This moment in the audit log. The log is written just after an answer is sent, so a request
    /// whose answer has only just arrived may be a moment late.
    pub fn audit_mark(&self) -> Result<Mark> {
        audit::mark(&audit_log(&self.bed.folder))
    }

    /// All requests answered since `mark`, in the order of their answers.
    pub fn audit(&self, mark: Mark) -> Result<Vec<audit::Request>> {
        audit::since(&audit_log(&self.bed.folder), mark)
    }

    /// Kills the API server; its port refuses connections afterwards, its data stays.
    pub async fn stop_apiserver(&self) -> Result<()> {
        self.order(Order::Stop(APISERVER.into())).await
    }

    /// Starts the API server again, on the same port, and waits until it is ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        self.order(Order::Start(APISERVER.into())).await
    }

    /// Kills etcd, and the API server is left without its store; the data stays.
    pub async fn stop_etcd(&self) -> Result<()> {
        self.order(Order::Stop(ETCD.into())).await
    }

    /// Starts etcd again with its data, and waits until it is healthy.
    pub async fn start_etcd(&self) -> Result<()> {
        self.order(Order::Start(ETCD.into())).await
    }

    /// Ends the bed and waits until all is taken away, without blocking the runtime.
    pub async fn end(self) -> Result<()> {
        tokio::task::spawn_blocking(move || drop(self))
            .await
            .context("ending the bed")
    }

    pub(crate) async fn order(&self, order: Order) -> Result<()> {
        let raised = Arc::clone(&self.raised);
        let give = move || {
            raised
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .order(&order)
        };
        tokio::task::spawn_blocking(give).await?
    }

    pub(crate) fn authority(&self) -> Result<Authority> {
        Authority::open(&self.bed.folder.join("pki"))
    }

    /// Lets the bed live on without its owner.
    pub(crate) fn leave(self) -> Result<()> {
        let raised = Arc::into_inner(self.raised).context("the bed is in use")?;
        raised
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .leave()
    }
}
