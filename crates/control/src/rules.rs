//! A feature as the control loop sees it: a value of [`Rules`].

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_core::cluster::{Effects, Now, ObjectName, ResourceVersion, Source};

use crate::kind::Kind;
use crate::request::{Request, RequestKind};

/// The rules of a feature, and what they need from the API server.
///
/// An event changes the known state and returns targets that may have to be written. The request for a target is made
/// when there is room to send it, so a target costs one request however often it has changed meanwhile.
pub trait Rules: Sized + Send + 'static {
    /// The feature's name in logs.
    const NAME: &'static str;
    /// The kinds that it observes. Nothing is due before all of them have been listed.
    const KINDS: &'static [Kind<Self>];
    /// The requests that it sends: the rights that it needs, and the labels by which they are counted.
    const REQUESTS: &'static [RequestKind];
    /// The classes of its targets; [`Rules::class_index`] is an index into them.
    const CLASSES: &'static [Class];

    /// What is observed.
    type Event: Send + 'static;
    /// What a request is about.
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

    /// The class of a target.
    fn class_index(target: &Self::Target) -> usize;

    /// The namespace of a target's object; none if it belongs to the whole cluster. The targets of a class are taken in
    /// turn by namespace.
    fn namespace(target: &Self::Target) -> Option<&str>;
}

/// Rules that observe objects of a kind. Several features may observe one kind: it is watched and decoded once.
pub trait Observe<K>: Rules {
    /// The event that an observation is to these rules.
    fn event_from_observation(observation: Observation<K>) -> Self::Event;
}

/// What a target must provide: a name for the log, and a key for maps.
pub trait Target: Clone + Debug + Display + Hash + Ord + Send + 'static {}

impl<T: Clone + Debug + Display + Hash + Ord + Send + 'static> Target for T {}

/// What is observed of a kind.
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

/// How the targets of a class are written.
///
/// A class has its share of the requests in flight and its own pace: when the API server asks one request to slow down,
/// its class does, and no other.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    pub(crate) name: &'static str,
    pub(crate) spacing: Duration,
    pub(crate) after: Option<After>,
    pub(crate) is_paced_by_size: bool,
}

/// Precedence of another class.
#[derive(Clone, Copy, Debug)]
pub struct After {
    /// The class with precedence, by its index: while it has targets that are ready or in flight, the other class
    /// waits.
    pub class: usize,
    /// The longest wait, since the class with precedence may always have work.
    pub at_most: Duration,
}

impl Class {
    /// Targets that are written as soon as a request is due. The name is for metrics, and no other class of any feature has
    /// it.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            spacing: Duration::ZERO,
            after: None,
            is_paced_by_size: false,
        }
    }

    /// A target whose object is large is written less often: such objects are their author's, and the thread that reads the
    /// replies is everybody's.
    #[must_use]
    pub const fn paced_by_size(mut self) -> Self {
        self.is_paced_by_size = true;
        self
    }

    /// A target is written at most once in this time.
    #[must_use]
    pub const fn spacing(mut self, spacing: Duration) -> Self {
        self.spacing = spacing;
        self
    }

    /// Waits for another class.
    #[must_use]
    pub const fn after(mut self, after: After) -> Self {
        self.after = Some(after);
        self
    }
}
