//! Deletes the configuration that an earlier process has left, where no webhook of this one is in it.

use std::sync::Arc;
use std::time::Duration;

use kube::api::GetParams;
use kube::core::Request;
use kube::core::request::Error as BuildError;
use leadsman_lease::Leadership;
use leadsman_process::reply::{Disposition, RetryCause, Verb, not_leading};
use leadsman_process::watch;
use leadsman_process::{ApiServer, clock};
use tokio::sync::RwLock;

use super::repair::{DEADLINE, delete_request};
use super::{CONFIGURATION, WebhookConfiguration, is_ours};
use crate::pace::{Pace, describe_failure};

/// The interval of attempts without the right to: an installation without webhooks does not need it.
const WITHOUT_RIGHT: Duration = Duration::from_hours(1);

/// Deletes the configuration that an earlier process with a webhook has left. Done once in each term, since such a
/// process may have led between two terms.
pub(crate) async fn delete_leftover<C: WebhookConfiguration>(
    server: ApiServer,
    (mut leadership, writes): (watch::Receiver<Leadership>, Arc<RwLock<()>>),
    mut random: fastrand::Rng,
) {
    let (mut pace, mut done) = (Pace::default(), None);
    loop {
        let leads =
            leadership.wait_for(|now| now.term_number().is_some() && now.term_number() != done);
        let Ok(term) = leads.await.map(|leadership| leadership.term_number()) else {
            return;
        };
        let disposition = read_and_delete::<C>(&server, &leadership, &writes).await;
        let now = clock::monotonic();
        pace.record_write(&disposition, now, random.f64());
        let reason = || describe_failure("get or delete", &C::describe_object(), &disposition);
        let retry_at = match &disposition {
            Disposition::Done | Disposition::Gone { .. } => {
                done = term;
                continue;
            }
            Disposition::Retry {
                cause: RetryCause::NoRight,
                ..
            } => {
                tracing::info!(
                    reason = reason(),
                    "not checking for a leftover webhook configuration"
                );
                Some(now + WITHOUT_RIGHT)
            }
            _ => {
                tracing::warn!(
                    reason = reason(),
                    "checking for a leftover webhook configuration failed, retrying"
                );
                pace.held_until(now)
            }
        };
        clock::sleep_until(retry_at).await;
    }
}

async fn read_and_delete<C: WebhookConfiguration>(
    server: &ApiServer,
    leadership: &watch::Receiver<Leadership>,
    writes: &RwLock<()>,
) -> Disposition {
    let get = Request::new(C::url_path(&(), None)).get(CONFIGURATION, &GetParams::default());
    let (read, body) = send_as_leader(server, leadership, Verb::Get, get).await;
    if read != Disposition::Done {
        return read;
    }
    match serde_json::from_slice::<C>(&body) {
        Ok(observed) if is_ours(observed.meta()) => {
            let delete = delete_request(&observed);
            let _under_way = writes.read().await;
            let (deleted, _) = send_as_leader(server, leadership, Verb::Delete, delete).await;
            deleted
        }
        // A configuration of our name without a field of ours is somebody else's.
        Ok(_) => Disposition::Done,
        Err(error) => Disposition::Refused {
            reason: error.to_string(),
        },
    }
}

async fn send_as_leader(
    server: &ApiServer,
    leadership: &watch::Receiver<Leadership>,
    verb: Verb,
    request: Result<http::Request<Vec<u8>>, BuildError>,
) -> (Disposition, Vec<u8>) {
    let left = leadership.borrow().time_left(clock::monotonic());
    let disposition = match (left, request) {
        (Some(left), Ok(request)) => {
            let reply = server.send_request(verb, request, left.min(DEADLINE)).await;
            return (reply.disposition, reply.body);
        }
        (None, _) => not_leading(),
        (Some(_), Err(error)) => Disposition::Refused {
            reason: error.to_string(),
        },
    };
    (disposition, Vec::new())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::Method;
    use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;
    use crate::FIELD_MANAGER;

    #[tokio::test(start_paused = true)]
    async fn a_leftover_is_deleted_once_in_each_term_and_also_when_the_right_comes_late() {
        let methods: Arc<Mutex<Vec<Method>>> = Arc::default();
        let asked = Arc::clone(&methods);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let mut asked = asked.lock().unwrap();
            asked.push(request.method().clone());
            let (code, body) = if asked.len() == 1 {
                (403, json!({"message": "User \"me\" cannot get resource"}))
            } else {
                let fields = json!([{"manager": FIELD_MANAGER}]);
                let metadata = json!({"name": CONFIGURATION, "managedFields": fields});
                (200, json!({"metadata": metadata}))
            };
            let response = http::Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        let server = ApiServer::new(kube::Client::new(service, "default"));
        let leadership = watch::Sender::new(Leadership::Standby);
        let lead = |term| {
            leadership.send_replace(Leadership::Leads {
                term,
                after_others: false,
                until: clock::monotonic() + 10 * WITHOUT_RIGHT,
            })
        };
        lead(1);
        tokio::spawn(delete_leftover::<MutatingWebhookConfiguration>(
            server,
            (leadership.subscribe(), Arc::default()),
            fastrand::Rng::with_seed(7),
        ));
        sleep(Duration::from_mins(1)).await;
        let taken = || std::mem::take(&mut *methods.lock().unwrap());
        assert_eq!(methods.lock().unwrap().len(), 1, "no right");
        sleep(2 * WITHOUT_RIGHT).await;
        assert_eq!(taken(), [Method::GET, Method::GET, Method::DELETE]);
        lead(1);
        sleep(WITHOUT_RIGHT).await;
        assert!(taken().is_empty(), "the same term");
        leadership.send_replace(Leadership::Standby);
        lead(2);
        sleep(Duration::from_mins(1)).await;
        // Others led in between; the first answer is again a refusal, as the script counts anew.
        assert_eq!(taken(), [Method::GET]);
    }
}
