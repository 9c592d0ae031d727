//! The client of the API server, from a kubeconfig file or the service account of the pod.
//!
//! The client never retries by itself: only the sender of a request knows whether it is still wanted.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Deadline for a new connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline for the next bytes of a reply.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

const _: () = assert!(
    READ_TIMEOUT.as_secs() > crate::watcher::TIMEOUT_SECONDS.end as u64,
    "only a dead connection meets the deadline: the API server ends each watch before it"
);

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// `leadsman manager`, one or more in a cluster.
    Manager,
    /// `leadsman-agent`, one on each node.
    Agent,
    /// `leadsman preflight`, which checks a cluster and exits.
    Preflight,
    /// `kubectl leadsman`, which answers one question and exits.
    Kubectl,
}

impl Component {
    /// The name, as in the user agent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Agent => "agent",
            Self::Preflight => "preflight",
            Self::Kubectl => "kubectl",
        }
    }
}

/// Flags of the client.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "API server")]
pub struct ClientArgs {
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config, then the service account of the pod]
    #[arg(long, env = "LEADSMAN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file [default: its current one]
    #[arg(
        long,
        env = "LEADSMAN_CONTEXT",
        value_name = "NAME",
        requires = "kubeconfig"
    )]
    pub context: Option<String>,
}

/// Why no client could be made. A flag or a file has to be changed: waiting does not help.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file given with `--kubeconfig` cannot be used.
    #[error("cannot use kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The error of reading it.
        source: KubeconfigError,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "found neither a kubeconfig nor the service account of a pod to reach the API server with: give --kubeconfig ({0})"
    )]
    Infer(#[from] InferConfigError),
    /// The configuration was read, but no client can be made from it.
    #[error("cannot set up a client of the API server at {url}: {source}")]
    Build {
        /// The address of the API server.
        url: http::Uri,
        /// The error of the client.
        source: kube::Error,
    },
}

impl ClientArgs {
    /// A client by these flags. No request is sent.
    ///
    /// Its user agent is `leadsman/VERSION (COMPONENT)`, which the API server's audit log shows (`userAgent`).
    pub async fn build_client(&self, component: Component) -> Result<Client, ClientError> {
        connect_client(self.load_config().await?, component).map_err(|error| *error)
    }

    async fn load_config(&self) -> Result<Config, ClientError> {
        let Some(path) = &self.kubeconfig else {
            return Ok(Config::infer().await?);
        };
        let cannot_use = |source| ClientError::Kubeconfig {
            path: path.clone(),
            source,
        };
        // A file that was named is the only source: where it is unusable, the service account must not be tried
        // instead, which may belong to another cluster.
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let kubeconfig = Kubeconfig::read_from(path).map_err(cannot_use)?;
        Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(cannot_use)
    }
}

/// A client of the API server that a configuration names, with our deadlines and user agent. No request is sent.
pub fn connect_client(
    mut config: Config,
    component: Component,
) -> Result<Client, Box<ClientError>> {
    // An error means that a provider is installed already, and any one will do.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Otherwise the idle time of a pooled connection would count.
    config.reset_reader_on_write = true;
    // kube would repeat 429, 503 and 504 within the call: a write without another look at the Lease, and without the
    // queues' learning that the API server asks for a pause.
    config.default_retry = false;
    config.headers.push((USER_AGENT, user_agent(component)));
    let url = config.cluster_url.clone();
    Client::try_from(config).map_err(|source| Box::new(ClientError::Build { url, source }))
}

fn user_agent(component: Component) -> HeaderValue {
    let text = format!(
        "leadsman/{} ({})",
        env!("CARGO_PKG_VERSION"),
        component.as_str()
    );
    HeaderValue::try_from(text).expect("version and component are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_names_version_and_component() {
        let agent = user_agent(Component::Manager);
        let expected = concat!("leadsman/", env!("CARGO_PKG_VERSION"), " (manager)");
        assert_eq!(agent, expected);
    }

    #[tokio::test]
    async fn the_error_names_a_missing_kubeconfig() {
        let args = ClientArgs {
            kubeconfig: Some("/nowhere/kubeconfig".into()),
            context: None,
        };
        let error = args.build_client(Component::Agent).await.err().unwrap();
        assert!(error.to_string().contains("/nowhere/kubeconfig"), "{error}");
    }
}
