//! The floor: a bare loop that does the exchanges of a manager with the same libraries and decides nothing.
//!
//! A process of its own, so that its CPU and memory compare. It lists and watches the four kinds as the manager does,
//! parsed no further than to names and labels, then sends requests that were prepared for it, as many at once as the
//! manager would, and goes on watching until it is told to end.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use leadsman_api::{GROUP, VERSION};
use leadsman_process::Component;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};

use super::exchange::Exchange;
use super::sight::{Scrap, Sight};

/// As many as the manager has.
const AT_ONCE: usize = 32;
/// What the manager lists and watches: group, version, kind, plural, and how many come with one page.
const KINDS: [(&str, &str, &str, &str, u32); 4] = [
    ("", "v1", "Pod", "pods", 150),
    ("", "v1", "Node", "nodes", 100),
    (GROUP, VERSION, "PodProbeMarker", "podprobemarkers", 250),
    (GROUP, VERSION, "NodePodProbe", "nodepodprobes", 25),
];

/// What it is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Of the manager's account.
    pub(super) kubeconfig: PathBuf,
    /// The file of the requests to send, one JSON object a line.
    pub(super) exchanges: PathBuf,
    /// Whether to list everything first, and to watch it from then on.
    pub(super) list: bool,
    /// Where to say that all is ready, and to send only when told to.
    pub(super) gate: Option<SocketAddr>,
}

/// Does it until SIGTERM.
pub(crate) async fn run(order: Order) -> Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    tokio::select! {
        worked = work(order) => worked,
        _ = end.recv() => Ok(()),
    }
}

async fn work(order: Order) -> Result<()> {
    let text = std::fs::read_to_string(&order.exchanges)?;
    let exchanges = text.lines().map(serde_json::from_str::<Exchange>);
    let exchanges = exchanges.collect::<Result<Vec<_>, _>>()?;
    let client = leadsman_process::client::Args {
        kubeconfig: Some(order.kubeconfig),
        context: None,
    };
    let client = client.client(Component::Manager).await?;
    let sights = if order.list {
        list(&client).await?
    } else {
        // A manager has its connection long since.
        client.apiserver_version().await?;
        Vec::new()
    };
    if let Some(gate) = order.gate {
        wait_at(gate).await?;
    }
    tokio::try_join!(send(&client, exchanges), watch(sights))?;
    std::future::pending().await
}

async fn wait_at(gate: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect(gate)
        .await
        .with_context(|| gate.to_string())?;
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(b"ready\n").await?;
    stream.read_line(&mut String::new()).await?;
    Ok(())
}

async fn list(client: &Client) -> Result<Vec<Sight<Scrap>>> {
    let sights = KINDS.map(|(group, version, kind, plural, page)| {
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let api = Api::all_with(client.clone(), &resource);
        let pages = Config::default().page_size(page);
        async move { Ok::<_, anyhow::Error>(Sight::begin(api, pages).await?.0) }
    });
    futures::future::try_join_all(sights).await
}

async fn watch(sights: Vec<Sight<Scrap>>) -> Result<()> {
    futures::future::try_join_all(sights.into_iter().map(follow)).await?;
    Ok(())
}

async fn follow(mut sight: Sight<Scrap>) -> Result<()> {
    loop {
        sight.next().await?;
    }
}

async fn send(client: &Client, exchanges: Vec<Exchange>) -> Result<()> {
    let sent = futures::stream::iter(exchanges).map(|exchange| async move {
        exchange.send(client).await?;
        Ok::<(), anyhow::Error>(())
    });
    sent.buffer_unordered(AT_ONCE).try_collect().await
}
