//! One watch: a kind's list and what follows it, as events for the index, and a readiness condition that says what
//! keeps it from standing.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::{Stream, StreamExt};
use kube::Resource;
use leadsman_api::Guarded;
use leadsman_core::podprobe::event::{Event, ObjectName, Source};
use leadsman_core::podprobe::pod::Version;
use leadsman_process::list::Target;
use leadsman_process::reply::{Cause, Disposition};
use leadsman_process::watch::{self, Failure, Step};
use leadsman_process::{ApiServer, Condition, clock};
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use crate::kinds::{Watched, name_of, resource};
use crate::metrics::Metrics;

/// An event and when it arrived.
pub(crate) type Arrival = (Instant, Event);

/// Follows a kind until nobody listens any more. An object that cannot be decoded is reported and skipped, so that what
/// was known of it stays known; or its kind has something to stand in for it.
pub(crate) async fn follow<K: Watched>(
    server: ApiServer,
    events: Sender<Arrival>,
    condition: Condition,
    metrics: Metrics,
) {
    // In pages, so that neither side ever holds a whole cluster as one text.
    let target = Target::all::<K>().page(K::PAGE);
    let objects = watch::watch::<Guarded<K>>(server, target, fastrand::Rng::new());
    follow_stream(objects, events, condition, metrics).await;
}

/// The condition holds while changes are being received, and at no other time.
async fn follow_stream<K: Watched>(
    objects: impl Stream<Item = watch::Event<Guarded<K>>>,
    events: Sender<Arrival>,
    condition: Condition,
    metrics: Metrics,
) {
    let mut objects = pin!(objects);
    let mut listing = BTreeSet::new();
    let mut follows = true;
    while let Some(event) = objects.next().await {
        match &event {
            watch::Event::Follows => {
                follows = true;
                condition.ready();
            }
            watch::Event::Failed(failure) => {
                report::<K>(failure, follows, &condition);
                follows = false;
            }
            _ => {}
        }
        if let Some(event) = translate(event, &mut listing, &metrics)
            && events.send((clock::monotonic(), event)).await.is_err()
        {
            return;
        }
    }
}

/// The index's event for one of the watch's. `listing` holds the names of a list under way.
fn translate<K: Watched>(
    event: watch::Event<Guarded<K>>,
    listing: &mut BTreeSet<ObjectName>,
    metrics: &Metrics,
) -> Option<Event> {
    match event {
        watch::Event::Lists => {
            listing.clear();
            None
        }
        watch::Event::Has(object) => {
            listing.insert(name_of(&object));
            decoded(object, metrics).map(|object| object.seen(Source::List))
        }
        watch::Event::Listed(version) => Some(Event::Listed(
            K::KIND,
            std::mem::take(listing),
            Version::parse(Some(&version)),
        )),
        watch::Event::Changed(object) => {
            decoded(object, metrics).map(|object| object.seen(Source::Live))
        }
        watch::Event::Deleted(object) => {
            let version = Version::parse(object.meta().resource_version.as_deref());
            Some(Event::Gone(K::KIND, name_of(&object), version))
        }
        watch::Event::Follows | watch::Event::Failed(_) => None,
    }
}

fn decoded<K: Watched>(object: Guarded<K>, metrics: &Metrics) -> Option<Box<K>> {
    match object {
        Guarded::Decoded(object) => Some(object),
        Guarded::Undecodable { metadata, error } => {
            metrics.skipped(K::KIND);
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            let name = metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(
                resource = resource(K::KIND),
                namespace,
                name,
                error,
                "an object does not decode"
            );
            K::stand_in(*metadata)
        }
    }
}

/// Says why a kind is not followed; in the log once, until it is again.
fn report<K: Watched>(failure: &Failure, first: bool, condition: &Condition) {
    let resource = resource(K::KIND);
    let reason = reason(resource, failure);
    let wait = failure.wait;
    if matches!(failure.disposition, Disposition::Expired { .. }) {
        tracing::info!(resource, reason, "the watch is too old, listing again");
    } else if first {
        tracing::info!(resource, reason, ?wait, "watch failed, retrying");
    } else {
        tracing::debug!(resource, reason, ?wait, "watch still fails, retrying");
    }
    condition.not_ready(reason);
}

/// What an operator can do about it comes first.
fn reason(resource: &str, failure: &Failure) -> String {
    let words = failure.disposition.reason().unwrap_or_default();
    let cause = match failure.disposition {
        Disposition::Retry { cause, .. } => Some(cause),
        _ => None,
    };
    match cause {
        Some(Cause::NoSuchKind) => format!(
            "the API server does not know {resource}: apply the output of `leadsman manifests` ({words})"
        ),
        Some(Cause::NoRight) => format!(
            "no right to list and watch {resource} in all namespaces: apply the output of `leadsman manifests` \
             ({words})"
        ),
        _ if failure.step == Step::List => format!("cannot list {resource}: {words}"),
        _ => format!("cannot watch {resource}: {words}"),
    }
}

#[cfg(test)]
mod tests;
