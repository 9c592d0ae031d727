//! A feature as the control loop sees it: a value of [`Rules`].

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_reconcile::{
    Class, Effects, Now, ObjectName, ReasonGauge, ResourceVersion, Source, WriteKind,
};

use crate::kind::Kind;
use crate::request::Request;

/// The rules of a feature, and what they need from the API server.
///
/// An event changes the known state and returns targets that may have to be written. The request for a target is made
/// when there is room to send it, so a target costs one request however often it has changed meanwhile.
pub trait Rules: Sized + Send + 'static {
    /// The feature's name in logs.
    const NAME: &'static str;
    /// The kinds that it observes. Nothing is due before all of them have been listed.
    const KINDS: &'static [Kind<Self>];
    /// The writes that it sends: the rights that it needs, and the labels by which they are counted.
    const WRITES: &'static [WriteKind];
    /// The classes of its targets; [`Rules::class_index`] is an index into them.
    const CLASSES: &'static [Class];
    /// The gauge of its objects, if it has one.
    const GAUGE: Option<ReasonGauge> = None;

    /// An event that the rules observe.
    type Event: Send + 'static;
    /// The object that a request is about.
    type Target: Target;

    /// Takes in an event.
    fn observe_event(&mut self, event: Self::Event, now: Now) -> Effects<Self::Target>;

    /// Every kind has been listed, and this process writes from now on. Called again after each time in which another
    /// process may have written. Returns all targets that may have to be written, since none from before was kept.
    fn synced(&mut self, now: Now) -> Effects<Self::Target>;

    /// The deadline of the last [`Effects`] has passed. Rules that have more to do than events should wait for return a
    /// deadline that has passed already, and go on here.
    fn deadline_passed(&mut self, now: Now) -> Effects<Self::Target>;

    /// The request that is due for a target, if any is. It will be sent.
    fn due_request(&mut self, target: &Self::Target, now: Now) -> Option<Request<Self::Event>>;

    /// The last request of a target was not carried out, and not refused for good either. None if that is nothing to these
    /// rules.
    fn observe_unwritten(
        &mut self,
        _target: &Self::Target,
        _unwritten: Unwritten,
        _now: Now,
    ) -> Option<Effects<Self::Target>> {
        None
    }

    /// The class of a target.
    fn class_index(target: &Self::Target) -> usize;

    /// How many objects have each of the reasons of [`Rules::GAUGE`], in their order.
    fn count_reasons(&self) -> &[usize] {
        &[]
    }

    /// The namespace of a target's object; none if it belongs to the whole cluster. The targets of a class are taken in
    /// turn by namespace.
    fn namespace(target: &Self::Target) -> Option<&str>;
}

/// Rules that observe objects of a kind. Several features may observe one kind: it is watched and decoded once.
pub trait Observe<K>: Rules {
    /// The event that an observation is to these rules.
    fn event_from_observation(observation: Observation<K>) -> Self::Event;
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// The object is gone or was replaced.
    Gone,
    /// The API server has said that it was not.
    NotDone,
    /// The request may have been: no answer came, or none that says so.
    Unknown,
}

/// A target has a name for the log, and is a key of maps.
pub trait Target: Clone + Debug + Display + Hash + Ord + Send + 'static {}

impl<T: Clone + Debug + Display + Hash + Ord + Send + 'static> Target for T {}

/// An observation of a kind.
#[derive(Debug)]
pub enum Observation<K> {
    /// An object as a list, the watch or a reply shows it.
    Object(Arc<K>, Source),
    /// An object exists and cannot be decoded.
    Undecodable(Arc<ObjectMeta>, Source),
    /// The watch shows that an object was deleted, with the version of its deletion. (A 404 does not: another object
    /// may have the name by then, and the watch shows both in order.)
    Deleted(ObjectName, ResourceVersion),
    /// A list is complete. Objects that it does not contain did not exist at its version.
    Listed(Arc<BTreeSet<ObjectName>>, ResourceVersion),
    /// A list beside the watch is complete, which a new leader reads. The watch may be ahead of it or behind it: what is
    /// not named here did not exist at the version of the list, and may have been created since.
    Relisted(Arc<BTreeSet<ObjectName>>, ResourceVersion),
    /// Whether the API server keeps the optional fields that were asked about ([`Kind::with_optional_fields`]).
    FieldsKept(bool),
}

impl<K> Clone for Observation<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Object(object, source) => Self::Object(Arc::clone(object), *source),
            Self::Undecodable(metadata, source) => Self::Undecodable(Arc::clone(metadata), *source),
            Self::Deleted(name, version) => Self::Deleted(name.clone(), *version),
            Self::Listed(names, version) => Self::Listed(Arc::clone(names), *version),
            Self::Relisted(names, version) => Self::Relisted(Arc::clone(names), *version),
            Self::FieldsKept(kept) => Self::FieldsKept(*kept),
        }
    }
}
