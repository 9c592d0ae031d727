//! A watch of one Lease by its name, so that a right on this one is enough.

use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_process::ApiServer;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Disposition, RetryCause};
use leadsman_process::watcher::{ObjectEvent, ObjectState, watch_object};

/// What the watch of a Lease delivers.
pub type LeaseEvent = ObjectEvent<Lease>;
/// A Lease as the API server shows it.
pub type LeaseState = ObjectState<Lease>;

/// Watches a Lease through every outage. The stream never ends.
pub fn watch_lease(
    server: ApiServer,
    namespace: &str,
    name: &str,
) -> BoxStream<'static, LeaseEvent> {
    watch_object(server, ListTarget::in_namespace::<Lease>(namespace), name)
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
