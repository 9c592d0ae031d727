//! A watch of one Lease by its name, so that a right on this one is enough.

use std::future::ready;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_process::ApiServer;
use leadsman_process::list::Target;
use leadsman_process::reply::{Cause, Disposition};
use leadsman_process::watch::{Event, watch};

use super::elector::Sight;

/// What the watch of a Lease says.
pub(crate) enum Sighting {
    /// The Lease as it is.
    Seen(Sight),
    /// Changes are being received from now on.
    Follows,
    /// They are not, for this reason; something is tried again.
    Failed(Disposition),
}

/// Follows a Lease without an end.
pub(crate) fn sights(
    server: ApiServer,
    namespace: &str,
    name: &str,
) -> BoxStream<'static, Sighting> {
    let only = Target::in_namespace::<Lease>(namespace).fields(format!("metadata.name={name}"));
    // Nothing in a list is known only at its end.
    let mut listed = false;
    let sights = watch::<Lease>(server, only, fastrand::Rng::new()).filter_map(move |event| {
        let there = |lease| Some(Sighting::Seen(Sight::There(Box::new(lease))));
        ready(match event {
            Event::Lists => {
                listed = false;
                None
            }
            Event::Has(lease) => {
                listed = true;
                there(lease)
            }
            Event::Listed(_) => (!listed).then_some(Sighting::Seen(Sight::NotListed)),
            Event::Changed(lease) => there(lease),
            Event::Deleted(lease) => Some(Sighting::Seen(Sight::Deleted(Box::new(lease)))),
            Event::Follows => Some(Sighting::Follows),
            Event::Failed(failure) => Some(Sighting::Failed(failure.disposition)),
        })
    });
    sights.boxed()
}

/// Why something cannot be done with a Lease. What an operator can do about it comes first.
pub(crate) fn why_not(
    what: &str,
    namespace: &str,
    name: &str,
    disposition: &Disposition,
) -> String {
    let words = disposition.reason().unwrap_or_default();
    let cause = match disposition {
        Disposition::Retry { cause, .. } => Some(*cause),
        _ => None,
    };
    match cause {
        Some(Cause::NoSuchKind) => format!(
            "the API server does not serve Leases (coordination.k8s.io/v1), or there is no namespace {namespace} ({words})"
        ),
        Some(Cause::NoRight) => format!(
            "RBAC does not allow to {what} the Lease {namespace}/{name}: apply the output of `leadsman manifests` ({words})"
        ),
        _ => format!("cannot {what} the Lease {namespace}/{name}: {words}"),
    }
}
