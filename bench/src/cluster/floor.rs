//! The floor: a bare loop that does the exchanges of a manager with the same libraries and decides nothing.
//!
//! A process of its own, so that its CPU and memory compare. It lists and watches the four kinds as the manager does,
//! parsed no further than to names and labels, then sends requests that were prepared for it, as many at once as the
//! manager would, and goes on watching until it is ended.

use std::path::PathBuf;

use anyhow::Result;
use futures::future::{join_all, try_join_all};
use leadsman_process::Component;
use leadsman_tests::ObjectWatch;
use serde::{Deserialize, Serialize};

use super::api::{
    ApiRequest, NODE_POD_PROBES, NODES, NameAndLabels, POD_PROBE_MARKERS, PODS, send_at_once,
};
use crate::part::Questions;

/// What the manager lists and watches, and how many come with one page.
const KINDS: [(&str, u32); 4] = [
    (PODS, 150),
    (NODES, 100),
    (POD_PROBE_MARKERS, 250),
    (NODE_POD_PROBES, 25),
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
    let client = leadsman_process::client::ClientArgs {
        kubeconfig: Some(order.kubeconfig),
        context: None,
    };
    let client = client.build_client(Component::Manager).await?;
    if order.lists {
        let watches = KINDS.map(|(path, page)| ObjectWatch::begin(&client, path, page));
        let watches: Vec<ObjectWatch<NameAndLabels>> = try_join_all(watches).await?;
        let watch =
            async { anyhow::Ok(join_all(watches.into_iter().map(ObjectWatch::follow)).await) };
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
