//! kubectl's own flags: which cluster, as whom, in which namespaces.

use std::path::PathBuf;

use clap::builder::ValueHint;
use clap_complete::engine::ArgValueCompleter;
use kube::Config;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use leadsman_process::client::{ClientError, connect};
use leadsman_process::{ApiServer, Component};

use crate::reader::Reader;
use crate::{VerbError, completion};

/// Which cluster, as whom.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "As kubectl has them")]
pub(crate) struct Connection {
    /// Namespace [default: that of the context]
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completion::namespaces))]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::contexts))]
    pub(crate) context: Option<String>,
    /// User to impersonate
    #[arg(long = "as", value_name = "USER")]
    pub(crate) as_user: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", value_name = "GROUP", requires = "as_user")]
    pub(crate) as_groups: Vec<String>,
}

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// There is no kubeconfig, and this is no pod.
    #[error(
        "found no kubeconfig to reach a cluster with: give --kubeconfig or set KUBECONFIG ({0}; {1})"
    )]
    None(KubeconfigError, InClusterError),
    /// The configuration is not valid.
    #[error(transparent)]
    Client(#[from] Box<ClientError>),
}

/// A cluster, and the namespace that is meant by default.
pub(crate) struct Connected {
    pub(crate) server: ApiServer,
    pub(crate) namespace: String,
}

impl Connection {
    /// A reader of the cluster, and the namespace that is meant by default. No request is sent.
    pub(crate) async fn reader(&self) -> Result<(Reader, String), VerbError> {
        let connected = self.connect().await;
        let connected = connected.map_err(|error| VerbError::Connection(Box::new(error)))?;
        let reader = Reader::new(connected.server);
        Ok((reader, connected.namespace))
    }

    /// Connects to the cluster. No request is sent.
    pub(crate) async fn connect(&self) -> Result<Connected, ConnectionError> {
        let mut config = self.config().await?;
        config.auth_info.impersonate.clone_from(&self.as_user);
        if !self.as_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.as_groups.clone());
        }
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = connect(config, Component::Kubectl)?;
        Ok(Connected {
            server: ApiServer::new(client),
            namespace,
        })
    }

    async fn config(&self) -> Result<Config, ConnectionError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        match read {
            Ok(kubeconfig) => Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?),
            // In a pod, as kubectl does.
            Err(error) if self.kubeconfig.is_none() && self.context.is_none() => {
                Config::incluster().map_err(|other| ConnectionError::None(error, other))
            }
            Err(error) => Err(error.into()),
        }
    }
}
