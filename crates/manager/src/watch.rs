//! One watch: a kind's list and what follows it, as events for the index, and a readiness condition that says what
//! keeps it from standing.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::{Stream, StreamExt};
use kube::Resource;
use leadsman_api::Guarded;
use leadsman_core::cluster::{ObjectName, ResourceVersion, Source};
use leadsman_core::podprobe::event::{Event, Kind};
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Cause, Disposition, describe_missing_rights};
use leadsman_process::watch::{WatchEvent, WatchFailure, WatchPhase, watch};
use leadsman_process::{ApiServer, Condition, clock};
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use crate::kinds::{Watched, name_of, resource};
use crate::metrics::Metrics;

/// An event and when it arrived.
pub(crate) type Arrival = (Instant, Event);

/// Follows a kind until nobody listens any more. An object that cannot be decoded is reported as such, so that what was
/// known of it stays known, or what may be its own stays; or its kind has something to stand in for it.
pub(crate) async fn follow<K: Watched>(
    server: ApiServer,
    events: Sender<Arrival>,
    condition: Condition,
    metrics: Metrics,
) {
    // In pages, so that neither side ever holds a whole cluster as one text.
    let target = ListTarget::all::<K>().page(K::PAGE);
    let objects = watch::<Guarded<K>>(server, target, fastrand::Rng::new());
    follow_stream(objects, events, condition, metrics).await;
}

/// The condition holds while changes are being received, and at no other time.
async fn follow_stream<K: Watched>(
    objects: impl Stream<Item = WatchEvent<Guarded<K>>>,
    events: Sender<Arrival>,
    condition: Condition,
    metrics: Metrics,
) {
    let mut objects = pin!(objects);
    let mut names = Names::default();
    let mut follows = true;
    while let Some(event) = objects.next().await {
        match &event {
            WatchEvent::Following => {
                follows = true;
                condition.ready();
            }
            WatchEvent::Failed(failure) => {
                report::<K>(failure, follows, &condition);
                follows = false;
            }
            _ => {}
        }
        if let Some(event) = translate(event, &mut names, &metrics)
            && events.send((clock::monotonic(), event)).await.is_err()
        {
            return;
        }
    }
}

/// The names by which a watch is told.
#[derive(Default)]
struct Names {
    /// Those of a list under way.
    listing: BTreeSet<ObjectName>,
    /// The objects that do not decode, and what was said of each; no more than there are.
    undecodable: BTreeMap<ObjectName, String>,
}

/// The index's event for one of the watch's.
fn translate<K: Watched>(
    event: WatchEvent<Guarded<K>>,
    names: &mut Names,
    metrics: &Metrics,
) -> Option<Event> {
    match event {
        WatchEvent::ListStarted => {
            names.listing.clear();
            None
        }
        WatchEvent::ListItem(object) => {
            names.listing.insert(name_of(&object));
            Some(sight(object, Source::List, names, metrics))
        }
        WatchEvent::ListComplete(version) => {
            let listed = std::mem::take(&mut names.listing);
            names.undecodable.retain(|name, _| listed.contains(name));
            let version = ResourceVersion::parse(Some(&version));
            Some(Event::Listed(K::KIND, listed, version))
        }
        WatchEvent::Changed(object) => Some(sight(object, Source::Watch, names, metrics)),
        WatchEvent::Deleted(object) => {
            names.undecodable.remove(&name_of(&object));
            let version = ResourceVersion::parse(object.meta().resource_version.as_deref());
            Some(Event::Gone(K::KIND, name_of(&object), version))
        }
        WatchEvent::Following | WatchEvent::Failed(_) => None,
    }
}

/// The event that a sight of an object is. That it does not decode is said once for the same error.
fn sight<K: Watched>(
    object: Guarded<K>,
    source: Source,
    names: &mut Names,
    metrics: &Metrics,
) -> Event {
    let name = name_of(&object);
    let (metadata, error) = match object {
        Guarded::Decoded(object) => {
            names.undecodable.remove(&name);
            return object.seen(source);
        }
        Guarded::Undecodable { metadata, error } => (metadata, error),
    };
    metrics.undecodable(K::KIND);
    if names.undecodable.get(&name) != Some(&error) {
        tracing::warn!(
            resource = resource(K::KIND),
            namespace = name.namespace,
            name = name.name,
            error,
            "an object does not decode: {}",
            consequence(K::KIND)
        );
        names.undecodable.insert(name.clone(), error);
    }
    match K::stand_in(*metadata) {
        Some(object) => object.seen(source),
        None => Event::Undecodable(K::KIND, name),
    }
}

/// What follows from an object that does not decode, and what to do.
fn consequence(kind: Kind) -> &'static str {
    match kind {
        Kind::Marker => {
            "what was known of it stays in force, or else its probes, and the marks in its namespace that no other marker \
             names, stay as they are; mend or delete it"
        }
        Kind::Pod => {
            "what was known of it stays in force, or else its probes and marks stay as they are; mend or delete it"
        }
        Kind::Node => "what was known of it stays in force; mend or delete it",
        Kind::NodePodProbe => "its spec is written anew; there is nothing to do",
    }
}

/// Says why a kind is not followed; in the log once, until it is again.
fn report<K: Watched>(failure: &WatchFailure, first: bool, condition: &Condition) {
    let resource = resource(K::KIND);
    let reason = reason(resource, failure);
    let wait = failure.retry_in;
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
fn reason(resource: &str, failure: &WatchFailure) -> String {
    let words = failure.disposition.reason().unwrap_or_default();
    let cause = match failure.disposition {
        Disposition::Retry { cause, .. } => Some(cause),
        _ => None,
    };
    match cause {
        Some(Cause::NoSuchKind) => format!(
            "the API server does not serve {resource}: apply the output of `leadsman manifests` ({words})"
        ),
        Some(Cause::NoRight) => describe_missing_rights([words]),
        _ if failure.phase == WatchPhase::Listing => format!("cannot list {resource}: {words}"),
        _ => format!("cannot watch {resource}: {words}"),
    }
}

#[cfg(test)]
mod tests;
