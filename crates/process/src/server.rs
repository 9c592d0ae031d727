//! The API server as the processes ask it: every request with a deadline, every reply judged, every success and loss
//! told to those who wait.

use std::time::Duration;

use http::request::Request;
use kube::Client;
use kube::client::Body;
use tokio::time::sleep;

use crate::clock;
use crate::reach::Reach;
use crate::reply::{self, Disposition, Verb};

/// How to ask the API server. Clones share connections and what was seen of it.
#[derive(Clone)]
pub struct ApiServer {
    /// For requests.
    pub client: Client,
    /// What all requests have seen.
    pub reach: Reach,
}

/// What came of a request.
#[derive(Debug)]
pub struct Reply {
    /// What it means.
    pub disposition: Disposition,
    /// The body; empty if none came.
    pub body: Vec<u8>,
}

impl ApiServer {
    /// An API server of which nothing has been seen.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            reach: Reach::default(),
        }
    }

    /// Sends a request and reads the whole reply, both within the deadline. Requests are built and replies read by hand
    /// rather than through `kube::Api`, which drops the headers of a reply: `Retry-After` is one of them.
    pub async fn ask(&self, verb: Verb, request: Request<Vec<u8>>, deadline: Duration) -> Reply {
        let began = clock::monotonic();
        let exchange = async {
            let response = self.client.send(request.map(Body::from)).await?;
            let (head, body) = response.into_parts();
            Ok::<_, kube::Error>((head, body.collect_bytes().await?))
        };
        let (disposition, body) = tokio::select! {
            // First: a process that was stopped for longer than it may write must not send what it had begun.
            biased;
            () = sleep(deadline) => (reply::late(deadline), Vec::new()),
            exchanged = exchange => match exchanged {
                Ok((head, body)) => {
                    let disposition = reply::judge(verb, head.status, &head.headers, &body);
                    (disposition, Vec::from(body))
                }
                Err(error) => (reply::unanswered(&error), Vec::new()),
            },
        };
        self.reach.note(&disposition, began, clock::monotonic());
        Reply { disposition, body }
    }
}
