//! A kind that a feature observes.

use std::borrow::Cow;

use futures::stream::BoxStream;
use leadsman_process::ApiServer;
use leadsman_process::list::ListTarget;
use tokio::sync::mpsc::Sender;

use crate::reconciled;
use crate::relist;
use crate::request::DecodeReply;
use crate::resource::{GroupResource, Watchable};
use crate::rules::{Observation, Observe, Rules};
use crate::selection::Selection;
use crate::watch::{Arrival, Subscription, WatchesByType};

/// Fields of a kind that an older CRD or that of another product may lack. An API server silently drops fields that the
/// schema does not name (structural schemas are pruned: `k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning`).
#[derive(Clone, Copy, Debug)]
pub struct OptionalFields {
    /// `status.conditions[].type`; `[]` leads to the items of a list. They count as kept only if all of them are.
    pub paths: &'static [&'static str],
    /// The content that is missing where they are dropped, for the log.
    pub content: &'static str,
    /// Fields that came later, each with what does without it: a CRD that lacks one is only told of in the log.
    pub later: &'static [(&'static str, &'static str)],
}

/// A kind that the rules `R` observe.
pub struct Kind<R: Rules> {
    pub(crate) resource: fn() -> GroupResource,
    pub(crate) version: fn() -> Cow<'static, str>,
    pub(crate) selection: Selection,
    pub(crate) page: u32,
    pub(crate) if_undecodable: &'static str,
    pub(crate) is_reviewed_by: bool,
    /// Whether the API server may not serve it.
    pub(crate) is_optional: bool,
    pub(crate) optional_fields: Option<OptionalFields>,
    pub(crate) fields_kept: fn(bool) -> R::Event,
    pub(crate) subscribe: SubscribeKind<R>,
    /// Reads an object of the kind in the reply to a write.
    pub(crate) decode_reply: DecodeReply<R::Event>,
    pub(crate) relist: Option<Relist<R::Event>>,
    relist_pages: Relist<R::Event>,
    list_target: fn(Selection, &str) -> ListTarget,
}

/// Subscribes the feature behind a channel to a kind, given by its index in [`Rules::KINDS`].
pub(crate) type SubscribeKind<R> =
    fn(&mut WatchesByType, &Kind<R>, usize, &Sender<Arrival<<R as Rules>::Event>>);

/// Lists a kind once more.
pub(crate) type Relist<E> =
    fn(ApiServer, ListTarget, bool, fastrand::Rng) -> BoxStream<'static, Vec<E>>;

impl<R: Rules> Kind<R> {
    /// A kind, listed and re-listed in pages of so many objects, of fewer where they are large, and of more where they are very
    /// many. A page is in memory twice, as text and decoded, so its size determines the peak of memory at a start.
    pub const fn new<K: Watchable>(page: u32) -> Self
    where
        R: Observe<K>,
    {
        Self {
            resource: GroupResource::of::<K>,
            version: || K::version(&()),
            selection: Selection::All,
            page,
            if_undecodable: "the last object that could be decoded counts. Correct the object or delete it",
            is_reviewed_by: false,
            is_optional: false,
            optional_fields: None,
            fields_kept: |kept| R::event_from_observation(Observation::FieldsKept(kept)),
            subscribe: |watches, kind, index, sender| {
                let subscription =
                    Subscription::<R>::new(index, kind.if_undecodable, sender.clone());
                let on = (kind.selection, kind.page, kind.is_reviewed_by);
                watches.subscribe::<K>(on, kind.is_optional, Box::new(subscription));
            },
            decode_reply: reconciled::decode_object::<K, R>,
            relist: None,
            relist_pages: relist::relist_pages::<K, R>,
            list_target: Selection::list_target::<K>,
        }
    }

    /// Observes only objects of the manager's own namespace that have a label of this key.
    #[must_use]
    pub const fn only_labelled(mut self, key: &'static str) -> Self {
        self.selection = Selection::Labelled(key);
        self
    }

    /// Observes only the object of this name in the manager's own namespace.
    #[must_use]
    pub const fn only_named(mut self, name: &'static str) -> Self {
        self.selection = Selection::Named(name);
        self
    }

    /// Re-lists the kind before the first write when this process takes over from another one that wrote.
    #[must_use]
    pub const fn relisted_on_takeover(mut self) -> Self {
        self.relist = Some(self.relist_pages);
        self
    }

    /// The consequence of an object that cannot be decoded, and what to do about it, for the log.
    #[must_use]
    pub const fn if_undecodable(mut self, consequence: &'static str) -> Self {
        self.if_undecodable = consequence;
        self
    }

    /// The feature's webhooks answer by this kind: a replica that does not receive its changes is not to be called.
    #[must_use]
    pub const fn reviewed_by(mut self) -> Self {
        self.is_reviewed_by = true;
        self
    }

    /// The CRD of the kind belongs to another feature, and may not be there: then there are no objects.
    #[must_use]
    pub const fn if_served(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Delays the first write until the schema of the CRD has been read, which tells whether these fields are kept.
    #[must_use]
    pub const fn with_optional_fields(mut self, fields: OptionalFields) -> Self {
        self.optional_fields = Some(fields);
        self
    }

    /// The list and watch of a manager of this namespace.
    pub(crate) fn list_target(&self, own_namespace: &str) -> ListTarget {
        (self.list_target)(self.selection, own_namespace).with_page_size(self.page)
    }

    /// The resource, which the feature needs the rights to list and watch.
    pub fn resource(&self) -> GroupResource {
        (self.resource)()
    }

    /// The name of the CRD whose schema is read, if one is.
    pub fn crd_name(&self) -> Option<String> {
        self.optional_fields.map(|_| self.resource().full_name())
    }
}
