//! Requests to the API server: each has a deadline and a disposition, and each outcome is recorded, so that the end of
//! an outage wakes those who wait for it.

use std::time::Duration;

use http::HeaderValue;
use http::header::DATE;
use http::request::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tokio::time::sleep;

use crate::clock;
use crate::metrics::ClientMetrics;
use crate::reach::Reachability;
use crate::reply::{self, Disposition, Verb};

/// The most bytes that are read of a reply: a namespace can have objects enough to make any page of a list larger than the
/// memory of this process. One object always fits. etcd stores no more than [`STORED`] of it, and JSON is at most six times as
/// long as what is stored as protobuf: Go writes `<`, `>`, `&` and control characters as `\u003c` (`appendString`,
/// `encoding/json/encode.go`), and the names of fields add less than that to the smallest of messages.
pub const LONGEST_BODY: usize = 16 << 20;
/// The default of etcd's `--max-request-bytes` (`DefaultMaxRequestBytes`, `server/embed/config.go`).
const STORED: usize = 3 << 19;

const _: () = assert!(
    LONGEST_BODY > 6 * STORED,
    "a page of one object must fit, or its list would never end"
);

/// A client of the API server. Clones share connections and the record of outages.
#[derive(Clone)]
pub struct ApiServer {
    /// A client for requests that need neither a deadline nor a judgement.
    pub client: Client,
    /// Outcomes of all requests.
    pub reachability: Reachability,
    /// Counts of all requests.
    pub metrics: ClientMetrics,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Reply {
    /// The meaning of the reply for the request.
    pub disposition: Disposition,
    /// The body; empty if none came, or one of more than [`LONGEST_BODY`].
    pub body: Vec<u8>,
    /// Whether the body was longer than [`LONGEST_BODY`]. The disposition follows from the status alone.
    pub is_too_long: bool,
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
            Ok::<_, kube::Error>((head, read_body(body).await?))
        };
        let (mut status, mut date, mut is_too_long) = (None, None, false);
        let (disposition, body) = tokio::select! {
            // The deadline is polled first: a process that was suspended for longer than its Lease must not send a
            // write that it had begun as the leader.
            biased;
            () = sleep(deadline) => (reply::timed_out(deadline), Vec::new()),
            exchanged = exchange => match exchanged {
                Ok((head, body)) => {
                    status = Some(head.status);
                    date = head.headers.get(DATE).cloned();
                    is_too_long = body.is_none();
                    let body = body.unwrap_or_default();
                    let disposition = reply::judge_reply(verb, head.status, &head.headers, &body);
                    (disposition, body)
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
            is_too_long,
            date,
        }
    }
}

/// Reads a body; None, as soon as that is known, if it is longer than [`LONGEST_BODY`].
pub(crate) async fn read_body(mut body: Body) -> kube::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if read.len() + data.len() > LONGEST_BODY {
            return Ok(None);
        }
        read.extend_from_slice(&data);
    }
    Ok(Some(read))
}

#[cfg(test)]
mod tests {
    use kube::Config;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::{Component, connect_client};
    use crate::reply::RetryCause;

    async fn cause_of_post(address: std::net::SocketAddr) -> RetryCause {
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let server = ApiServer::new(connect_client(config, Component::Manager).unwrap());
        let request = Request::post("/api/v1/lamps").body(Vec::new()).unwrap();
        let deadline = Duration::from_mins(1);
        let reply = server.send_request(Verb::Create, request, deadline).await;
        let Disposition::Retry { cause, .. } = reply.disposition else {
            panic!("{reply:?}");
        };
        cause
    }

    #[tokio::test]
    async fn a_request_counts_as_sent_once_there_is_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let hang_up = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.read_u8().await.unwrap();
        };
        let (cause, ()) = tokio::join!(cause_of_post(address), hang_up);
        assert_eq!(cause, RetryCause::NoAnswer);
        drop(listener);
        assert_eq!(cause_of_post(address).await, RetryCause::NotSent);
    }
}
