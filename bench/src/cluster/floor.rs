//! The floor: a bare loop that does the exchanges of a manager with the same libraries and decides nothing.
//!
//! A process of its own, so that its CPU and memory compare. It lists and watches the four kinds as the manager does,
//! parsed no further than to names and labels, then sends requests that were prepared for it, as many at once as the
//! manager would, and goes on watching until it is ended.

use std::path::PathBuf;

use anyhow::Result;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use leadsman_api::{GROUP, VERSION};
use leadsman_process::Component;
use serde::{Deserialize, Serialize};

use super::api::{ApiRequest, NameAndLabels, Watched, send_at_once};
use crate::part::Questions;

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
    /// The file of the requests to send.
    pub(super) requests: PathBuf,
    /// Whether it lists everything first, watches it from then on, and sends at once. Else it sends when it is asked, and
    /// answers when all is sent.
    pub(super) lists: bool,
}

/// Does it until nobody asks any more.
pub(crate) async fn run(order: Order, questions: Questions) -> Result<()> {
    let requests: Vec<ApiRequest> = serde_json::from_slice(&std::fs::read(&order.requests)?)?;
    let client = leadsman_process::client::Args {
        kubeconfig: Some(order.kubeconfig),
        context: None,
    };
    let client = client.client(Component::Manager).await?;
    if order.lists {
        let watches = list(&client).await?;
        let watch = futures::future::try_join_all(watches.into_iter().map(follow));
        let send = send_at_once(&client, requests);
        tokio::try_join!(questions.answer(async || Ok(())), send, watch)?;
    } else {
        // A manager has its connection long since.
        client.apiserver_version().await?;
        let mut requests = Some(requests);
        let send = async || send_at_once(&client, requests.take().unwrap_or_default()).await;
        questions.answer(send).await?;
    }
    Ok(())
}

async fn list(client: &Client) -> Result<Vec<Watched<NameAndLabels>>> {
    let watches = KINDS.map(|(group, version, kind, plural, page)| {
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let api = Api::all_with(client.clone(), &resource);
        Watched::begin(api, Config::default().page_size(page))
    });
    let mut watches = futures::future::try_join_all(watches).await?;
    for watch in &mut watches {
        watch.listed = Vec::new();
    }
    Ok(watches)
}

async fn follow(mut watch: Watched<NameAndLabels>) -> Result<()> {
    loop {
        drop(watch.next().await?);
    }
}
