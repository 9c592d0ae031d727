//! Requests to the API server: each has a deadline and a disposition, and each outcome is recorded, so that the end of
//! an outage wakes those who wait for it.

use std::time::Duration;

use http::HeaderValue;
use http::header::DATE;
use http::request::Request;
use kube::Client;
use kube::client::Body;
use tokio::time::sleep;

use crate::clock;
use crate::metrics::ClientMetrics;
use crate::reach::Reachability;
use crate::reply::{self, Disposition, Verb};

/// A client of the API server. Clones share connections and the record of outages.
#[derive(Clone)]
pub struct ApiServer {
    /// For requests that need neither a deadline nor a judgement.
    pub client: Client,
    /// Outcomes of all requests.
    pub reachability: Reachability,
    /// Counts of all requests.
    pub metrics: ClientMetrics,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Reply {
    /// Its meaning for the request.
    pub disposition: Disposition,
    /// The body; empty if none came.
    pub body: Vec<u8>,
    /// The API server's time of day, in the header `Date` (RFC 9110, section 6.6.1).
    pub date: Option<HeaderValue>,
}

impl ApiServer {
    /// An API server without a recorded outcome.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            reachability: Reachability::default(),
            metrics: ClientMetrics::default(),
        }
    }

    /// Sends a request and reads the whole reply, both within the deadline. Not `kube::Api`, which drops the headers of
    /// a reply: `Retry-After` is one of them.
    pub async fn send_request(
        &self,
        verb: Verb,
        request: Request<Vec<u8>>,
        deadline: Duration,
    ) -> Reply {
        let began = clock::monotonic();
        let method = request.method().clone();
        let exchange = async {
            let response = self.client.send(request.map(Body::from)).await?;
            let (head, body) = response.into_parts();
            Ok::<_, kube::Error>((head, body.collect_bytes().await?))
        };
        let (mut status, mut date) = (None, None);
        let (disposition, body) = tokio::select! {
            // The deadline is polled first: a process that was suspended for longer than its Lease must not send a
            // write that it had begun as the leader.
            biased;
            () = sleep(deadline) => (reply::timed_out(deadline), Vec::new()),
            exchanged = exchange => match exchanged {
                Ok((head, body)) => {
                    status = Some(head.status);
                    date = head.headers.get(DATE).cloned();
                    let disposition = reply::judge_reply(verb, head.status, &head.headers, &body);
                    (disposition, Vec::from(body))
                }
                Err(error) => (reply::no_reply(&error), Vec::new()),
            },
        };
        let now = clock::monotonic();
        self.metrics.observe_request(&method, status, now - began);
        self.reachability.record_outcome(&disposition, began, now);
        Reply {
            disposition,
            body,
            date,
        }
    }
}
