//! A watch of one Lease by its name, so that a right on this one is enough.

use std::future::ready;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};

use super::elector::Sight;

/// The Lease as it is, or why it cannot be listed.
pub(crate) type Sighting = Result<Sight, kube::Error>;

/// Follows a Lease without an end. A watch that breaks off begins again, which is told only where listing fails too:
/// what cannot be watched any more, the next list tells, or the next request.
pub(crate) fn sights(leases: Api<Lease>, name: &str) -> BoxStream<'static, Sighting> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(leases, only).default_backoff();
    // Nothing in a list is known only at its end.
    let mut listed = false;
    let sights = events.filter_map(move |event| {
        ready(match event {
            Ok(watcher::Event::Init) => {
                listed = false;
                None
            }
            Ok(watcher::Event::InitApply(lease)) => {
                listed = true;
                Some(Ok(Sight::There(Box::new(lease))))
            }
            Ok(watcher::Event::InitDone) => (!listed).then_some(Ok(Sight::NotListed)),
            Ok(watcher::Event::Apply(lease)) => Some(Ok(Sight::There(Box::new(lease)))),
            Ok(watcher::Event::Delete(lease)) => Some(Ok(Sight::Deleted(Box::new(lease)))),
            Err(watcher::Error::InitialListFailed(error)) => Some(Err(error)),
            Err(error) => {
                tracing::debug!(%error, "the watch of a Lease broke off, beginning again");
                None
            }
        })
    });
    sights.boxed()
}

/// Why something cannot be done with a Lease. What an operator can do about it comes first.
pub(crate) fn why_not(what: &str, namespace: &str, name: &str, error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        return format!("cannot {what} the Lease {namespace}/{name}: {error}");
    };
    let words = &status.message;
    match status.code {
        404 => format!(
            "no namespace {namespace} for the Lease {name}: apply the output of `leadsman manifests`, or name the \
             namespace with --namespace ({words})"
        ),
        403 => format!(
            "no right to {what} the Lease {namespace}/{name}: apply the output of `leadsman manifests` ({words})"
        ),
        401 => format!("the API server does not accept our credentials: {words}"),
        code => format!("cannot {what} the Lease {namespace}/{name}: {words} ({code})"),
    }
}
