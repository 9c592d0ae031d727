//! The floor: a bare loop that does the exchanges of a manager with the same libraries and decides nothing.
//!
//! A process of its own, so that its CPU and memory compare. It lists and watches the four kinds as the manager does,
//! parsed no further than to names and labels, then sends requests that were prepared for it, as many at once as the
//! manager would, and goes on watching until it is ended.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use leadsman_api::{GROUP, VERSION};
use leadsman_process::Component;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::exchange::{Exchange, send_at_once};
use super::stage::Stage;
use super::watched::{Scrap, Watched};
use crate::part::{Part, Question, Talk, converse};

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
    kubeconfig: PathBuf,
    /// The file of the requests to send.
    exchanges: PathBuf,
    /// Whether to list everything first, and to watch it from then on.
    lists: bool,
    /// Whether to send only when asked, and to answer when all is sent.
    waits: bool,
}

/// Starts one.
pub(super) async fn start(
    stage: &Stage,
    kubeconfig: &Path,
    exchanges: &[Exchange],
    (lists, waits): (bool, bool),
) -> Result<Talk> {
    let file = stage.plane.folder().join("floor.json");
    std::fs::write(&file, serde_json::to_string(exchanges)?)?;
    let kubeconfig = kubeconfig.to_owned();
    Talk::here(&Part::Manager(Order {
        kubeconfig,
        exchanges: file,
        lists,
        waits,
    }))
    .await
}

/// Does it until nobody asks any more.
pub(crate) async fn run(order: Order) -> Result<()> {
    let exchanges: Vec<Exchange> = serde_json::from_slice(&std::fs::read(&order.exchanges)?)?;
    let client = leadsman_process::client::Args {
        kubeconfig: Some(order.kubeconfig),
        context: None,
    };
    let client = client.client(Component::Manager).await?;
    let watches = if order.lists {
        list(&client).await?
    } else {
        // A manager has its connection long since.
        client.apiserver_version().await?;
        Vec::new()
    };
    let (ask, mut asked) = mpsc::channel::<Question<()>>(1);
    let send = async {
        let question = if order.waits {
            asked.recv().await
        } else {
            None
        };
        send_at_once(&client, exchanges).await?;
        question.map(|question| question.send(()));
        Ok(())
    };
    let watch = futures::future::try_join_all(watches.into_iter().map(follow));
    tokio::try_join!(converse(ask), send, watch)?;
    Ok(())
}

async fn list(client: &Client) -> Result<Vec<Watched<Scrap>>> {
    let watches = KINDS.map(|(group, version, kind, plural, page)| {
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let api = Api::all_with(client.clone(), &resource);
        Watched::begin(api, Config::default().page_size(page))
    });
    let mut watches = futures::future::try_join_all(watches).await?;
    for watch in &mut watches {
        watch.listed.clear();
    }
    Ok(watches)
}

async fn follow(mut watch: Watched<Scrap>) -> Result<()> {
    loop {
        drop(watch.next().await?);
    }
}
