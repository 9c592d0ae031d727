//! Looking whether a part is ready. One look, with a short deadline; who looks again is the
//! supervisor.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, Config};

use crate::plan::Ready;

const ONE_LOOK: Duration = Duration::from_secs(3);

/// Looks at readiness signs, as the bed's administrator where the API server is asked.
pub(crate) struct Readiness {
    folder: PathBuf,
    administrator: RefCell<Option<Client>>,
}

impl Readiness {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            administrator: RefCell::default(),
        }
    }

    /// Looks once. The error says what is not ready yet.
    pub(crate) async fn look(&self, ready: &Ready) -> Result<()> {
        tokio::time::timeout(ONE_LOOK, self.ask(ready))
            .await
            .context("no answer")?
    }

    async fn ask(&self, ready: &Ready) -> Result<()> {
        match ready {
            Ready::Answers { server, path } => {
                let mut config = Config::new(server.parse()?);
                config.accept_invalid_certs = true;
                get(&Client::try_from(config)?, path).await
            }
            Ready::Api { path } => get(&self.administrator().await?, path).await,
            Ready::Registered { node } => {
                let node = Api::<Node>::all(self.administrator().await?)
                    .get(node)
                    .await?;
                let conditions = node
                    .status
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                let ready = conditions
                    .iter()
                    .find(|condition| condition.type_ == "Ready");
                match ready {
                    Some(condition) if condition.status == "True" => Ok(()),
                    Some(condition) => bail!(
                        "{}",
                        condition.message.as_deref().unwrap_or("Ready is not true")
                    ),
                    None => bail!("the node has no condition Ready yet"),
                }
            }
            Ready::Listens { socket } => {
                tokio::net::UnixStream::connect(socket).await?;
                Ok(())
            }
            Ready::Interface { name } => {
                // Not /sys: that one shows the network of whoever mounted it.
                let interfaces = std::fs::read_to_string("/proc/net/dev")?;
                if interfaces
                    .lines()
                    .any(|line| line.trim_start().starts_with(&format!("{name}:")))
                {
                    return Ok(());
                }
                bail!("there is no interface {name} yet")
            }
        }
    }

    async fn administrator(&self) -> Result<Client> {
        if let Some(client) = self.administrator.borrow().clone() {
            return Ok(client);
        }
        let client = client(&self.folder.join("pki/admin.kubeconfig")).await?;
        self.administrator.replace(Some(client.clone()));
        Ok(client)
    }
}

async fn get(client: &Client, path: &str) -> Result<()> {
    client
        .request_text(http::Request::get(path).body(Vec::new())?)
        .await?;
    Ok(())
}

/// A client from a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
            .await?;
    Ok(Client::try_from(config)?)
}
