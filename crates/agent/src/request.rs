//! One request to the API server, with a deadline, judged as all others are.

use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use kube::core::request::Error as BuildError;
use leadsman_process::reply::{self, Disposition, Verb, judge, unanswered};

/// For one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends it. What became of it, and the body of the reply.
pub(crate) async fn send(
    client: &Client,
    request: Result<Request<Vec<u8>>, BuildError>,
) -> (Disposition, Vec<u8>) {
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            let reason = error.to_string();
            return (Disposition::Refused { reason }, Vec::new());
        }
    };
    let verb = if request.method() == Method::POST {
        Verb::Create
    } else {
        Verb::Update
    };
    let exchange = async {
        let response = client.send(request.map(Body::from)).await?;
        let (head, body) = response.into_parts();
        Ok::<_, kube::Error>((head, body.collect_bytes().await?))
    };
    match tokio::time::timeout(TIMEOUT, exchange).await {
        Ok(Ok((head, body))) => {
            let disposition = judge(verb, head.status, &head.headers, &body);
            (disposition, Vec::from(body))
        }
        Ok(Err(error)) => (unanswered(&error), Vec::new()),
        Err(_) => (reply::late(TIMEOUT), Vec::new()),
    }
}
