//! One request to the API server, with a deadline, judged as all others are.

use std::time::Duration;

use http::{Method, Request};
use kube::core::request::Error as BuildError;
use leadsman_process::ApiServer;
use leadsman_process::reply::{Disposition, Verb};

/// For one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Sends it. What became of it, and the body of the reply.
pub(crate) async fn send(
    server: &ApiServer,
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
    let reply = server.send(verb, request, DEADLINE).await;
    (reply.disposition, reply.body)
}
