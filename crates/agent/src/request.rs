//! A request to the API server, with a deadline, and the rights of all of them.

use std::time::Duration;

use http::{Method, Request};
use kube::core::request::Error as BuildError;
use leadsman_api::GROUP;
use leadsman_process::ApiServer;
use leadsman_process::reply::{Disposition, Verb};

/// API group, resource and verb: to read the plan, to write its status, and to send events. There is none on pods.
pub const RIGHTS: [(&str, &str, &str); 5] = [
    (GROUP, "nodepodprobes", "list"),
    (GROUP, "nodepodprobes", "watch"),
    (GROUP, "nodepodprobes/status", "patch"),
    ("", "events", "create"),
    ("", "events", "patch"),
];

/// The owner of the fields that the agent writes. Without it the API server records the user agent up to its first
/// slash (`managerOrUserAgent` in `apiserver/pkg/endpoints/handlers/create.go`), which was `leadsman`.
pub(crate) const FIELD_MANAGER: &str = "leadsman-agent";
/// The longest time from the begin of a request to the end of its reply.
const DEADLINE: Duration = Duration::from_secs(10);

/// Sends a request. Returns its disposition and the body of the reply, which is empty if none came.
pub(crate) async fn send_request(
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
    let reply = server.send_request(verb, request, DEADLINE).await;
    (reply.disposition, reply.body)
}
