//! How to reach the API server.
//!
//! The client never retries by itself: who sends a request knows whether it is still wanted.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::Component;

/// An unreachable API server is noticed within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than the API server leaves a watch open (we ask for at most 290 s), so only a dead connection meets it.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// Where the API server is.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "API server")]
pub struct Args {
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

/// Why there is no client. None of it heals by waiting.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file given with `--kubeconfig` cannot be used.
    #[error("cannot use kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KubeconfigError,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "no kubeconfig and no service account tell where the API server is (try --kubeconfig): {0}"
    )]
    Infer(#[from] InferConfigError),
    /// The configuration was read, but no client can be made from it.
    #[error("cannot set up a client for {url}: {source}")]
    Build {
        /// The API server.
        url: http::Uri,
        /// What is wrong.
        source: kube::Error,
    },
}

impl Args {
    /// A client as these arguments say. No request is sent.
    ///
    /// It names itself `leadsman/VERSION (COMPONENT)`, which is what the API server's audit log shows.
    pub async fn client(&self, component: Component) -> Result<Client, ClientError> {
        // An error means that a provider is installed already, which serves as well.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let mut config = self.config().await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // Else the time that a pooled connection lay idle would count.
        config.reset_reader_on_write = true;
        config.default_retry = false;
        config.headers.push((USER_AGENT, user_agent(component)));
        let url = config.cluster_url.clone();
        Client::try_from(config).map_err(|source| ClientError::Build { url, source })
    }

    async fn config(&self) -> Result<Config, ClientError> {
        let Some(path) = &self.kubeconfig else {
            return Ok(Config::infer().await?);
        };
        let named = |source| ClientError::Kubeconfig {
            path: path.clone(),
            source,
        };
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
        Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(named)
    }
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
    async fn a_missing_kubeconfig_is_named() {
        let args = Args {
            kubeconfig: Some("/nowhere/kubeconfig".into()),
            context: None,
        };
        let error = args.client(Component::Agent).await.err().unwrap();
        assert!(error.to_string().contains("/nowhere/kubeconfig"), "{error}");
    }
}
