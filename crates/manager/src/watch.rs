//! One watch: a kind's list and what follows it, as events for the index, and a readiness condition that says what
//! keeps it from standing.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use leadsman_api::Guarded;
use leadsman_core::podprobe::event::{Event, ObjectName, Source};
use leadsman_process::{Condition, clock};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout};

use crate::kinds::{Watched, name_of, resource};
use crate::metrics::Metrics;

/// Longer than kube's longest wait between two attempts and a connection attempt together: a watch that has been
/// silent for so long after an error stands again.
const SILENCE: Duration = Duration::from_secs(45);
/// A list that takes longer is spoken of.
const SLOW_LIST: Duration = Duration::from_secs(10);

/// An event and when it arrived.
pub(crate) type Arrival = (Instant, Event);

/// How a watch is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not listed yet.
    Waiting,
    /// Listed once, and failing since.
    Failing,
    /// Listed and following.
    Following,
}

/// Follows a kind until nobody listens any more. An object that cannot be decoded is reported and skipped, so that what
/// was known of it stays known; or its kind has something to stand in for it.
pub(crate) async fn follow<K: Watched>(
    client: Client,
    events: Sender<Arrival>,
    condition: Condition,
    metrics: Metrics,
) {
    // In pages, so that neither side ever holds a whole cluster as one text.
    let pages = watcher::Config::default().page_size(K::PAGE);
    let objects = watcher(Api::<Guarded<K>>::all(client), pages);
    follow_stream(objects.default_backoff(), events, condition, metrics).await;
}

async fn follow_stream<K: Watched>(
    objects: impl Stream<Item = watcher::Result<watcher::Event<Guarded<K>>>>,
    events: Sender<Arrival>,
    condition: Condition,
    metrics: Metrics,
) {
    let mut objects = pin!(objects);
    let mut listing = BTreeSet::new();
    let mut standing = Standing::Waiting;
    loop {
        let patience = match standing {
            Standing::Waiting => SLOW_LIST,
            Standing::Failing | Standing::Following => SILENCE,
        };
        let event = match timeout(patience, objects.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => {
                standing = failed::<K>(standing, &error, &condition);
                continue;
            }
            Ok(None) => return,
            Err(_silence) => {
                standing = silent::<K>(standing, &condition);
                continue;
            }
        };
        let listed = matches!(event, watcher::Event::InitDone);
        if let Some(event) = translate(event, &mut listing, &metrics)
            && events.send((clock::monotonic(), event)).await.is_err()
        {
            return;
        }
        if listed || standing == Standing::Failing {
            standing = Standing::Following;
            condition.ready();
        }
    }
}

/// The index's event for one of the watch's. `listing` holds the names of a list under way.
fn translate<K: Watched>(
    event: watcher::Event<Guarded<K>>,
    listing: &mut BTreeSet<ObjectName>,
    metrics: &Metrics,
) -> Option<Event> {
    match event {
        watcher::Event::Init => {
            listing.clear();
            None
        }
        watcher::Event::InitApply(object) => {
            listing.insert(name_of(&object));
            decoded(object, metrics).map(|object| object.seen(Source::List))
        }
        watcher::Event::InitDone => Some(Event::Listed(K::KIND, std::mem::take(listing))),
        watcher::Event::Apply(object) => {
            decoded(object, metrics).map(|object| object.seen(Source::Live))
        }
        watcher::Event::Delete(object) => Some(Event::Gone(K::KIND, name_of(&object))),
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

/// A list that fails leaves the kind unknown. A watch that fails begins again from where it was, and often does so
/// for no reason at all: it is told, but only a list that fails then takes readiness away.
fn failed<K: Watched>(
    standing: Standing,
    error: &watcher::Error,
    condition: &Condition,
) -> Standing {
    let resource = resource(K::KIND);
    let reason = reason(resource, error);
    if standing == Standing::Waiting || matches!(error, watcher::Error::InitialListFailed(_)) {
        condition.not_ready(reason);
    } else {
        tracing::info!(resource, reason, "the watch broke off, beginning again");
    }
    match standing {
        Standing::Waiting => Standing::Waiting,
        Standing::Failing | Standing::Following => Standing::Failing,
    }
}

fn silent<K: Watched>(standing: Standing, condition: &Condition) -> Standing {
    match standing {
        Standing::Waiting => {
            tracing::info!(
                resource = resource(K::KIND),
                "still waiting for the first list"
            );
            Standing::Waiting
        }
        Standing::Failing | Standing::Following => {
            condition.ready();
            Standing::Following
        }
    }
}

/// What an operator can do about it comes first.
fn reason(resource: &str, error: &watcher::Error) -> String {
    let (watcher::Error::InitialListFailed(cause)
    | watcher::Error::WatchStartFailed(cause)
    | watcher::Error::WatchFailed(cause)) = error
    else {
        return error.to_string();
    };
    let kube::Error::Api(status) = cause else {
        return format!("cannot list or watch {resource}: {cause}");
    };
    let words = &status.message;
    match status.code {
        404 => format!(
            "the API server does not know {resource}: apply the output of `leadsman manifests` ({words})"
        ),
        403 => format!("no right to list and watch {resource} in all namespaces: {words}"),
        401 => format!("the API server does not accept our credentials: {words}"),
        code => format!("cannot list or watch {resource}: {words} ({code})"),
    }
}

#[cfg(test)]
mod tests;
