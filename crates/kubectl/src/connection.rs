//! kubectl's own flags: which cluster, as whom, in which namespaces.

use std::path::PathBuf;

use clap::builder::ValueHint;
use clap_complete::engine::ArgValueCompleter;
use kube::Config;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use leadsman_process::client::{ClientError, connect_client};
use leadsman_process::{ApiServer, Component};

use crate::reader::Reader;
use crate::{VerbError, completion};

/// The flags that choose a cluster and a user.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Flags of kubectl")]
pub(crate) struct ConnectionFlags {
    /// Namespace [default: the one of the context]
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completion::complete_namespaces))]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::complete_contexts))]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig [default: the one of the context]
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::complete_clusters))]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig [default: the one of the context]
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::complete_users))]
    pub(crate) user: Option<String>,
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
    /// No kubeconfig was found, and the process does not run in a pod.
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

impl ConnectionFlags {
    /// A reader of the cluster, and the namespace that is meant by default. No request is sent.
    pub(crate) async fn connect_reader(&self) -> Result<(Reader, String), VerbError> {
        let connected = self
            .connect_client()
            .await
            .map_err(|error| VerbError::Connection(Box::new(error)))?;
        let reader = Reader::new(connected.server);
        Ok((reader, connected.namespace))
    }

    /// Connects to the cluster. No request is sent.
    pub(crate) async fn connect_client(&self) -> Result<Connected, ConnectionError> {
        let mut config = self.load_config().await?;
        config.auth_info.impersonate.clone_from(&self.as_user);
        if !self.as_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.as_groups.clone());
        }
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = connect_client(config, Component::Kubectl)?;
        Ok(Connected {
            server: ApiServer::new(client),
            namespace,
        })
    }

    /// The context, cluster and user of a kubeconfig, as far as they are given.
    fn kubeconfig_options(&self) -> KubeConfigOptions {
        KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        }
    }

    async fn load_config(&self) -> Result<Config, ConnectionError> {
        let options = self.kubeconfig_options();
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        match read {
            Ok(kubeconfig) => Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?),
            // A pod's service account serves, as for kubectl where nothing of a kubeconfig is given (`ClientConfig` in
            // `k8s.io/client-go/tools/clientcmd/merged_client_builder.go`).
            Err(error) if !self.names_kubeconfig() => {
                Config::incluster().map_err(|other| ConnectionError::None(error, other))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a kubeconfig, or something of one, is asked for.
    fn names_kubeconfig(&self) -> bool {
        let named = [&self.context, &self.cluster, &self.user];
        self.kubeconfig.is_some() || named.iter().any(|name| name.is_some())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::CommandLine;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: here
clusters:
- {name: a, cluster: {server: 'http://a:1'}}
- {name: b, cluster: {server: 'http://b:1'}}
users:
- {name: reader, user: {username: reader, password: x}}
- {name: writer, user: {username: writer, password: x}}
contexts:
- {name: here, context: {cluster: a, user: reader, namespace: shop}}
- {name: there, context: {cluster: b, user: writer}}
";

    async fn config(words: &[&str]) -> (String, Option<String>, String) {
        let words = std::iter::once("verb").chain(words.iter().copied());
        let line = CommandLine::<ConnectionFlags>::try_parse_from(words).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(KUBECONFIG).unwrap();
        let options = line.args.kubeconfig_options();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let config = config.unwrap();
        let host = config.cluster_url.host().unwrap_or_default().to_owned();
        (host, config.auth_info.username, config.default_namespace)
    }

    #[tokio::test]
    async fn cluster_and_user_go_before_those_of_the_context() {
        let found = |host: &str, user: &str, namespace: &str| {
            let user = Some(user.to_owned());
            (host.to_owned(), user, namespace.to_owned())
        };
        assert_eq!(config(&[]).await, found("a", "reader", "shop"));
        let there = ["--context=there"];
        assert_eq!(config(&there).await, found("b", "writer", "default"));
        let mixed = ["--cluster", "b", "--user", "writer"];
        assert_eq!(config(&mixed).await, found("b", "writer", "shop"));
        let both = ["--context=there", "--user=reader"];
        assert_eq!(config(&both).await, found("b", "reader", "default"));
    }
}
