//! One watch per kind, fanned out to the features that observe the kind.
//!
//! Features that observe a kind as the same type share one watch, in which each object is decoded once. Every feature has a bounded channel of its own, and an event is handed to all features
//! before the next one is read: a feature that falls behind slows down the watches of its kinds, also for the others,
//! but no feature ever misses an event, and nothing piles up. (Rules cost microseconds an event; a watch that is read
//! too slowly is ended by the API server and begun again.)

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use leadsman_api::{Guarded, INSTALL_CRDS};
use leadsman_lease::Leadership;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Disposition, RetryCause};
use leadsman_process::watcher::{WatchEvent, WatchFailure, WatchPhase, list_and_watch};
use leadsman_process::{ApiServer, RandomSource, Readiness, ReadinessCheck, clock};
use leadsman_reconcile::{ObjectName, ResourceVersion, Source};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::metrics::ControlMetrics;
use crate::resource::{GroupResource, Watchable};
use crate::rules::{Observation, Observe, Rules};
use crate::selection::Selection;

/// An event on its way to a feature.
pub(crate) struct Arrival<E> {
    /// The time at which it was received.
    pub(crate) at: Instant,
    /// The prerequisite of writes that it fulfils, if any.
    pub(crate) completes: Option<Prerequisite>,
    /// The event.
    pub(crate) event: E,
}

/// A prerequisite of the first write, about a kind by its index in [`Rules::KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Prerequisite {
    /// The kind's objects have been listed.
    Listed(usize),
    /// The schema of its CRD has been read.
    SchemaRead(usize),
}

/// The watches of all kinds, by the type in which their objects are decoded, and by which objects these are: a few.
#[derive(Default)]
pub(crate) struct WatchesByType(Vec<((TypeId, Selection), Box<dyn Spawn>)>);

/// The handles that all watches share.
#[derive(Clone)]
pub(crate) struct WatchContext {
    pub(crate) server: ApiServer,
    pub(crate) own_namespace: Arc<str>,
    pub(crate) leadership: leadsman_process::watch::Receiver<Leadership>,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: ControlMetrics,
    pub(crate) random: RandomSource,
}

trait Spawn: Any + Send {
    fn spawn_watch(self: Box<Self>, tasks: &mut JoinSet<()>, context: WatchContext);
}

impl WatchesByType {
    /// Subscribes a feature to a kind. The kind is listed in the smallest page size of its subscribers.
    pub(crate) fn subscribe<K: Watchable>(
        &mut self,
        (selection, page, is_reviewed_by): (Selection, u32, bool),
        is_optional: bool,
        subscriber: Box<dyn Subscribe<K>>,
    ) {
        let key = (TypeId::of::<K>(), selection);
        let place = self
            .0
            .iter()
            .position(|(known, _)| *known == key)
            .unwrap_or_else(|| {
                let watch = KindWatch::<K> {
                    selection,
                    page,
                    is_reviewed_by,
                    is_optional,
                    fan_out: FanOut::default(),
                };
                self.0.push((key, Box::new(watch)));
                self.0.len() - 1
            });
        let filed: &mut dyn Any = self.0[place].1.as_mut();
        let watch = filed
            .downcast_mut::<KindWatch<K>>()
            .expect("a watch is filed under its type");
        // A page is decoded in one piece for all subscribers, so the one that allows the least memory decides.
        watch.page = watch.page.min(page);
        watch.is_reviewed_by |= is_reviewed_by;
        watch.is_optional &= is_optional;
        watch.fan_out.0.push(subscriber);
    }

    /// Begins all of them, in the order in which they were asked for.
    pub(crate) fn spawn_all(self, tasks: &mut JoinSet<()>, context: &WatchContext) {
        for (_, watch) in self.0 {
            watch.spawn_watch(tasks, context.clone());
        }
    }
}

struct KindWatch<K> {
    selection: Selection,
    page: u32,
    is_reviewed_by: bool,
    is_optional: bool,
    fan_out: FanOut<K>,
}

impl<K: Watchable> Spawn for KindWatch<K> {
    fn spawn_watch(self: Box<Self>, tasks: &mut JoinSet<()>, context: WatchContext) {
        let own_namespace = &*context.own_namespace;
        let full_name = GroupResource::of::<K>().full_name();
        let resource = self.selection.describe_resource(full_name, own_namespace);
        let target = self
            .selection
            .list_target::<K>(own_namespace)
            .with_page_size(self.page);
        let readiness = &context.readiness;
        let waiting = "waiting for the first list";
        let check = if self.is_reviewed_by {
            readiness.add_check(resource.clone(), waiting)
        } else {
            readiness.add_own_check(resource.clone(), waiting)
        };
        let mut reception = Reception::new(&resource, check);
        reception.is_optional = self.is_optional;
        let follower = Follower::new(&resource, self.fan_out, &context.metrics);
        tasks.spawn(async move {
            let objects = context.watch_once_led(target).await;
            follow_watch(objects, reception, follower).await;
        });
    }
}

/// Follows a watch until no feature is left.
async fn follow_watch<K: Watchable>(
    objects: impl Stream<Item = WatchEvent<Guarded<K>>>,
    mut reception: Reception,
    mut follower: Follower<K>,
) {
    let mut objects = pin!(objects);
    while let Some(event) = objects.next().await {
        reception.note_event(&event);
        let event = if reception.is_unserved(&event) {
            WatchEvent::ListComplete(String::new())
        } else {
            event
        };
        if !follower.fan_out_event(event).await {
            return;
        }
    }
}

impl WatchContext {
    /// Begins to watch when it is known who leads.
    async fn watch_once_led<K: Watchable>(
        mut self,
        target: ListTarget,
    ) -> impl Stream<Item = WatchEvent<Guarded<K>>> {
        // A list that begins when nobody leads any more contains what others wrote while they led.
        // After any other list, a new leader has to list once more.
        let is_known = |now: &Leadership| *now != Leadership::Unknown;
        // `Err`: the sender is gone, so leadership will never be known.
        let _ = self.leadership.wait_for(is_known).await;
        list_and_watch(self.server, target, Guarded::parse, self.random.fork_rng())
    }
}

/// A feature, as the watch of a kind sees it.
pub(crate) trait Subscribe<K>: Send {
    /// Hands over an observation when there is room. False if the feature has ended.
    fn deliver(&mut self, observation: Observation<K>, at: Instant) -> BoxFuture<'_, bool>;

    /// Logs the consequence of an object that cannot be decoded.
    fn warn_undecodable(&self, resource: &str, name: &ObjectName, error: &str);
}

/// A feature's channel, for one of its kinds.
pub(crate) struct Subscription<R: Rules> {
    /// The index of the kind in [`Rules::KINDS`].
    kind: usize,
    if_undecodable: &'static str,
    sender: Sender<Arrival<R::Event>>,
}

impl<R: Rules> Subscription<R> {
    pub(crate) fn new(
        kind: usize,
        if_undecodable: &'static str,
        sender: Sender<Arrival<R::Event>>,
    ) -> Self {
        Self {
            kind,
            if_undecodable,
            sender,
        }
    }
}

impl<K: Watchable, R: Observe<K>> Subscribe<K> for Subscription<R> {
    fn deliver(&mut self, observation: Observation<K>, at: Instant) -> BoxFuture<'_, bool> {
        let completes = matches!(observation, Observation::Listed(..));
        let arrival = Arrival {
            at,
            completes: completes.then_some(Prerequisite::Listed(self.kind)),
            event: R::event_from_observation(observation),
        };
        async { self.sender.send(arrival).await.is_ok() }.boxed()
    }

    fn warn_undecodable(&self, resource: &str, name: &ObjectName, error: &str) {
        tracing::warn!(
            feature = R::NAME,
            resource,
            namespace = name.namespace,
            name = name.name,
            error,
            "an object cannot be decoded: {}",
            self.if_undecodable
        );
    }
}

/// The features that observe a kind.
struct FanOut<K>(Vec<Box<dyn Subscribe<K>>>);

impl<K> Default for FanOut<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K> FanOut<K> {
    /// Hands an observation to every feature that has not ended. False if none is left.
    async fn deliver_to_all(&mut self, observation: Observation<K>) -> bool {
        let at = clock::monotonic();
        let mut left = self.0.len();
        let mut observation = Some(observation);
        let mut index = 0;
        while left > 0 {
            left -= 1;
            // The last one gets the observation itself, so that an object which only one feature observes is not
            // shared.
            let own = if left == 0 {
                observation.take()
            } else {
                observation.clone()
            };
            let Some(own) = own else { break };
            if self.0[index].deliver(own, at).await {
                index += 1;
            } else {
                // The last feature moves here, and has not got the observation yet.
                self.0.swap_remove(index);
            }
        }
        !self.0.is_empty()
    }
}

/// The report of a watch about itself. The check passes while changes are being received, and at no
/// other time.
struct Reception {
    resource: String,
    check: ReadinessCheck,
    is_receiving: bool,
    is_optional: bool,
}

impl Reception {
    fn new(resource: &str, check: ReadinessCheck) -> Self {
        Self {
            resource: resource.to_owned(),
            check,
            // Receiving is assumed at first, so that the first failure is logged at info.
            is_receiving: true,
            is_optional: false,
        }
    }

    /// Whether the kind is not served, and need not be: then it is listed, and there is nothing.
    fn is_unserved<K>(&self, event: &WatchEvent<K>) -> bool {
        let WatchEvent::Failed(failure) = event else {
            return false;
        };
        let cause = RetryCause::NoSuchKind;
        let is_unknown = matches!(&failure.disposition, Disposition::Retry { cause: found, .. } if *found == cause);
        // A watch that is refused is followed by a list.
        self.is_optional && is_unknown && failure.phase == WatchPhase::Listing
    }

    fn note_event<K>(&mut self, event: &WatchEvent<K>) {
        match event {
            WatchEvent::Following => {
                self.is_receiving = true;
                self.check.set_ready();
            }
            WatchEvent::Failed(_) if self.is_unserved(event) => self.check.set_ready(),
            WatchEvent::Failed(failure) => self.report_failure(failure),
            _ => {}
        }
    }

    /// Reports why changes of a kind are not received; at info only once until they are again.
    fn report_failure(&mut self, failure: &WatchFailure) {
        let resource = &self.resource;
        let reason = failure.explain_failure(resource, INSTALL_CRDS);
        let retry_in = failure.retry_in;
        if matches!(failure.disposition, Disposition::Expired { .. }) {
            tracing::info!(
                resource,
                reason,
                "the resourceVersion is too old, listing again"
            );
        } else if self.is_receiving {
            tracing::info!(resource, reason, ?retry_in, "watch failed, retrying");
        } else {
            tracing::debug!(resource, reason, ?retry_in, "watch still fails, retrying");
        }
        self.is_receiving = false;
        self.check.set_not_ready(reason);
    }
}

/// Makes observations of the events of a watch, for the features that observe one type.
struct Follower<K> {
    resource: String,
    undecodable_count: Counter,
    fan_out: FanOut<K>,
    /// The version of the list under way.
    list: ResourceVersion,
    /// The names in it so far.
    listing: BTreeSet<ObjectName>,
    /// The errors of the objects that cannot be decoded. There are at most as many as objects.
    undecodable: BTreeMap<ObjectName, String>,
}

impl<K: Watchable> Follower<K> {
    fn new(resource: &str, fan_out: FanOut<K>, metrics: &ControlMetrics) -> Self {
        Self {
            resource: resource.to_owned(),
            undecodable_count: metrics.undecodable_counter(&K::kind(&())),
            fan_out,
            list: ResourceVersion::UNKNOWN,
            listing: BTreeSet::new(),
            undecodable: BTreeMap::new(),
        }
    }

    /// Hands an event to the features. False if none is left.
    async fn fan_out_event(&mut self, event: WatchEvent<Guarded<K>>) -> bool {
        match self.next_observation(event) {
            Some(observation) => self.fan_out.deliver_to_all(observation).await,
            None => true,
        }
    }

    fn next_observation(&mut self, event: WatchEvent<Guarded<K>>) -> Option<Observation<K>> {
        match event {
            // The objects of a list that broke off were delivered, as they were seen; that others are missing follows
            // from a complete one only.
            WatchEvent::ListStarted => {
                self.listing.clear();
                None
            }
            WatchEvent::ListPage(version) => {
                self.list = ResourceVersion::parse(Some(&version));
                None
            }
            WatchEvent::ListItem(object) => {
                self.listing.insert(ObjectName::of(object.meta()));
                Some(self.observe_object(object, Source::List(self.list)))
            }
            WatchEvent::ListComplete(version) => {
                let listed = std::mem::take(&mut self.listing);
                self.undecodable.retain(|name, _| listed.contains(name));
                let version = ResourceVersion::parse(Some(&version));
                Some(Observation::Listed(Arc::new(listed), version))
            }
            WatchEvent::Changed(object) => Some(self.observe_object(object, Source::Watch)),
            WatchEvent::Deleted(object) => {
                let name = ObjectName::of(object.meta());
                self.undecodable.remove(&name);
                let version = ResourceVersion::parse(object.meta().resource_version.as_deref());
                Some(Observation::Deleted(name, version))
            }
            WatchEvent::Following | WatchEvent::Failed(_) => None,
        }
    }

    fn observe_object(&mut self, object: Guarded<K>, source: Source) -> Observation<K> {
        match object {
            Guarded::Decoded(object) => {
                // Nearly always there is none, and then no name need be made of each object.
                if !self.undecodable.is_empty() {
                    self.undecodable.remove(&ObjectName::of(object.meta()));
                }
                Observation::Object(object.into(), source)
            }
            Guarded::Undecodable { metadata, error } => {
                self.note_undecodable(&metadata, error);
                Observation::Undecodable(metadata.into(), source)
            }
        }
    }

    /// Counts an object that cannot be decoded, and logs the same error once.
    fn note_undecodable(&mut self, metadata: &ObjectMeta, error: String) {
        self.undecodable_count.inc();
        let name = ObjectName::of(metadata);
        if self.undecodable.get(&name) != Some(&error) {
            for subscriber in &self.fan_out.0 {
                subscriber.warn_undecodable(&self.resource, &name, &error);
            }
            self.undecodable.insert(name, error);
        }
    }
}

#[cfg(test)]
mod tests;
