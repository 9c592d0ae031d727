//! A watch of one Lease by its name, so that a right on this one is enough.

use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_process::ApiServer;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Disposition, RetryCause};
use leadsman_process::watcher::{ObjectEvent, ObjectState, watch_object};

/// An event of the watch of a Lease.
pub type LeaseEvent = ObjectEvent<Lease>;
/// A Lease as the API server shows it.
pub type LeaseState = ObjectState<Lease>;

/// Watches a Lease through every outage. The stream never ends.
pub fn watch_lease(
    server: ApiServer,
    namespace: &str,
    name: &str,
    random: fastrand::Rng,
) -> BoxStream<'static, LeaseEvent> {
    let leases = ListTarget::in_namespace::<Lease>(namespace);
    watch_object(server, leases, name, random)
}

/// Why a request on a Lease failed, and what an operator can do about it. `action` is what was tried, such as "take or
/// renew".
pub fn describe_lease_failure(
    action: &str,
    namespace: &str,
    name: &str,
    disposition: &Disposition,
) -> String {
    match disposition {
        Disposition::Retry {
            cause: RetryCause::NoSuchKind,
            reason,
            ..
        } => format!(
            "the API server does not serve Leases (coordination.k8s.io/v1), or there is no namespace {namespace} ({reason})"
        ),
        _ => format!(
            "cannot {action} the Lease {namespace}/{name}: {}",
            disposition.explain_reason()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_is_missing_or_whose_reply_it_is() {
        let table = [
            (
                RetryCause::NoSuchKind,
                "the API server does not serve Leases (coordination.k8s.io/v1), or there is no namespace ns (the reply)",
            ),
            (
                RetryCause::NotApiServer,
                "cannot list or watch the Lease ns/name: the reply is not the API server's: check the proxy or load balancer \
                 before it, and the address of the API server in the kubeconfig (the reply)",
            ),
        ];
        for (cause, expected) in table {
            let failed = Disposition::Retry {
                cause,
                after: None,
                reason: "the reply".to_owned(),
            };
            let said = describe_lease_failure("list or watch", "ns", "name", &failed);
            assert_eq!(said, expected);
        }
    }
}
