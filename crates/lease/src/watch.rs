//! A watch of one Lease by its name, so that a right on this one is enough.

use std::future::ready;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_process::ApiServer;
use leadsman_process::list::Target;
use leadsman_process::reply::{Cause, Disposition};
use leadsman_process::watch::{Event, watch};

/// What the watch of a Lease delivers.
#[derive(Debug)]
pub enum LeaseEvent {
    /// The Lease as it is now.
    Observed(LeaseState),
    /// A watch is established: changes are delivered from now on.
    Following,
    /// A list or a watch failed for this reason; it is tried again.
    Failed(Disposition),
}

/// A Lease as the API server shows it.
#[derive(Clone, Debug)]
pub enum LeaseState {
    /// It exists.
    Present(Box<Lease>),
    /// It was deleted; the last state that it had.
    Deleted(Box<Lease>),
    /// A complete list does not contain it.
    Absent,
}

/// Watches a Lease through every outage. The stream never ends.
pub fn watch_lease(
    server: ApiServer,
    namespace: &str,
    name: &str,
) -> BoxStream<'static, LeaseEvent> {
    let target = Target::in_namespace::<Lease>(namespace).fields(format!("metadata.name={name}"));
    // That a list does not contain the Lease is known only at its end.
    let mut listed = false;
    let events = watch::<Lease>(server, target, fastrand::Rng::new()).filter_map(move |event| {
        let present = |lease| Some(LeaseEvent::Observed(LeaseState::Present(Box::new(lease))));
        ready(match event {
            Event::Lists => {
                listed = false;
                None
            }
            Event::Has(lease) => {
                listed = true;
                present(lease)
            }
            Event::Listed(_) => (!listed).then_some(LeaseEvent::Observed(LeaseState::Absent)),
            Event::Changed(lease) => present(lease),
            Event::Deleted(lease) => {
                let deleted = LeaseState::Deleted(Box::new(lease));
                Some(LeaseEvent::Observed(deleted))
            }
            Event::Follows => Some(LeaseEvent::Following),
            Event::Failed(failure) => Some(LeaseEvent::Failed(failure.disposition)),
        })
    });
    events.boxed()
}

/// Why a request on a Lease failed, with what an operator can do about it. `action` is what was tried, such as "take or
/// renew".
pub fn describe_lease_failure(
    action: &str,
    namespace: &str,
    name: &str,
    disposition: &Disposition,
) -> String {
    let message = disposition.reason().unwrap_or_default();
    let cause = match disposition {
        Disposition::Retry { cause, .. } => Some(*cause),
        _ => None,
    };
    match cause {
        Some(Cause::NoSuchKind) => format!(
            "the API server does not serve Leases (coordination.k8s.io/v1), or there is no namespace {namespace} ({message})"
        ),
        Some(Cause::NoRight) => format!(
            "RBAC does not allow to {action} the Lease {namespace}/{name}: apply the output of `leadsman manifests` ({message})"
        ),
        _ => format!("cannot {action} the Lease {namespace}/{name}: {message}"),
    }
}
