//! Features: the kinds that a feature watches, the writes that it sends, and the function between them.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::object::ResourceVersion;
use crate::plan::Plan;
use crate::store::{Change, Store, Stored};
use crate::time::Now;

/// A feature: a function from the objects that it watches to the writes that it wants.
///
/// The function runs for one key at a time. It has no clock, no client and no randomness; nothing that it decides follows
/// from the order in which events came.
pub trait Feature: Sized + Send + 'static {
    /// The feature's name in logs.
    const NAME: &'static str;
    /// The controller that its events name.
    const EVENTS_FROM: &'static str = Self::NAME;
    /// The writes that it sends: the rights that it needs, and the labels by which they are counted.
    const WRITES: &'static [WriteKind];
    /// The classes of its writes.
    const CLASSES: &'static [Class];

    /// The key that the function runs for.
    type Key: Key;
    /// The stores of the kinds that it watches.
    type World: Default + Send;
    /// State that no object shows, or that is kept because it follows from many objects ([`Watch::take_in`]). It is empty
    /// when this process begins to write, so nothing may depend on it for good, unless [`Feature::begin_term`] keeps it.
    type Memory: Default + Send;

    /// All keys: each runs when this process begins to write.
    fn keys(&self, world: &Self::World) -> Vec<Self::Key>;

    /// Whether nothing is written before each of them has run, but for those that run after others of their namespace: where what one
    /// of them wants follows from what others do.
    const RUNS_ALL_FIRST: bool = false;

    /// Prepares the memory when this process begins to write: another one may have written before.
    fn begin_term(&self, _world: &Self::World, memory: &mut Self::Memory, _now: Now) {
        *memory = Self::Memory::default();
    }

    /// Plans the writes of a key. They take the place of those that its last run planned.
    fn reconcile(
        &self,
        key: &Self::Key,
        world: &Self::World,
        memory: &mut Self::Memory,
        plan: &mut Plan<'_, Self>,
    );

    /// The gauge of its objects, if it has one.
    const GAUGE: Option<ReasonGauge> = None;

    /// How many objects have each of the reasons of [`Feature::GAUGE`], in their order. Asked for after each event.
    fn count_reasons(_world: &Self::World) -> &[usize] {
        &[]
    }

    /// Passes on what others in this process answer by, as the reviewers of a webhook do. Called after each event, also
    /// while this process does not write: the memory has what [`Watch::take_in`] has put there.
    fn publish(&mut self, _world: &mut Self::World, _memory: &mut Self::Memory) {}
}

/// The subject of a feature's function: a pod, a job, a node.
pub trait Key: Clone + Debug + Ord + Send + 'static {
    /// The namespace whose turn it takes; empty for what belongs to the whole cluster.
    fn namespace(&self) -> &str;

    /// Returns the keys that run before this one, if they have to run.
    fn runs_after(&self) -> Precedence {
        Precedence::None
    }
}

/// The keys that run before a key. What is written for many of them together is planned once then, and not after each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// No keys: this one runs as soon as its namespace has its turn.
    None,
    /// The keys of its namespace that themselves run after none.
    OfNamespace,
    /// All that themselves run after none, for so long at most: there may always be one.
    Of(Duration),
}

/// A kind `K` of the API server that a feature watches.
pub trait Watch<K>: Feature {
    /// The part of an object that the feature keeps.
    type Stored: Stored;

    /// The store of the kind.
    fn store(world: &mut Self::World) -> &mut Store<Self::Stored>;

    /// Reads what the feature keeps of an object.
    fn read(&self, object: &Arc<K>) -> Arc<Self::Stored>;

    /// Returns the stand-in for an object that cannot be decoded. `None` leaves the state before in force.
    fn read_undecodable(&self, _metadata: &ObjectMeta) -> Option<Arc<Self::Stored>> {
        None
    }

    /// Passes on the keys whose function reads what has changed. The world has the change already.
    fn find_affected(
        &self,
        change: &Change<Self::Stored>,
        world: &Self::World,
        affected: &mut dyn FnMut(Self::Key),
    );

    /// Brings up to date what the world keeps beside its stores, which have the change already. Called on each change, also
    /// while this process does not write.
    fn note_change(&self, _change: &Change<Self::Stored>, _world: &mut Self::World) {}

    /// Brings up to date what the memory keeps of the kind, and passes on the keys whose function reads that. Called on each change,
    /// also while this process does not write.
    fn take_in(
        &self,
        _change: &Change<Self::Stored>,
        _world: &Self::World,
        _memory: &mut Self::Memory,
        _now: Now,
        _affected: &mut dyn FnMut(Self::Key),
    ) {
    }

    /// Takes in how far the watch of the kind has come, after each observation, also one that changes nothing.
    fn note_progress(
        &self,
        _progress: WatchAdvance,
        _world: &Self::World,
        _memory: &mut Self::Memory,
        _now: Now,
        _affected: &mut dyn FnMut(Self::Key),
    ) {
    }

    /// Records whether the API server keeps the optional fields of the kind.
    fn note_fields_kept(_world: &mut Self::World, _kept: bool) {}
}

/// How far the watch of a kind has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchAdvance {
    /// The watch has shown all up to this version.
    Shown(ResourceVersion),
    /// The watch begins again with a list of this version, which may be an earlier one.
    Listed(ResourceVersion),
    /// A list beside the watch is complete: the watch may be behind it.
    Relisted(ResourceVersion),
}

/// A write that a feature sends: of which resource, by which verb.
#[derive(Clone, Copy, Debug)]
pub struct WriteKind {
    /// The kind's name in metrics and logs: `pod_marks`, say.
    pub label: &'static str,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// `v1`, say.
    pub version: &'static str,
    /// The resource, with its subresource: `pods/status`, say.
    pub resource: &'static str,
    /// The write's action on its object.
    pub verb: WriteVerb,
    /// The scope of the right that the write needs.
    pub scope: RightScope,
    /// The write's class, an index into [`Feature::CLASSES`].
    pub class: usize,
}

/// The action of a write on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerb {
    /// Creates it (POST).
    Create,
    /// Changes it by a JSON merge patch (RFC 7396).
    MergePatch,
    /// Changes it by a strategic merge patch.
    StrategicPatch,
    /// Changes it by a server-side apply of this field manager, forced.
    Apply(&'static str),
    /// Replaces all of it (PUT), in the version that its body names.
    Replace,
    /// Asks what a creation would do (POST with `dryRun=All`), and creates nothing.
    DryRun,
    /// Deletes it.
    Delete,
}

impl WriteVerb {
    /// The verb of RBAC.
    pub fn right(self) -> &'static str {
        match self {
            Self::Create | Self::DryRun => "create",
            Self::MergePatch | Self::StrategicPatch | Self::Apply(_) => "patch",
            Self::Replace => "update",
            Self::Delete => "delete",
        }
    }
}

/// The scope of a right, which decides whether a role or a cluster role grants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RightScope {
    /// Objects of all namespaces, or objects that have none.
    #[default]
    Cluster,
    /// Objects in the namespace that the manager runs in.
    OwnNamespace,
}

/// A gauge of a feature's objects, by what their statuses say.
#[derive(Clone, Copy, Debug)]
pub struct ReasonGauge {
    /// The gauge's name.
    pub name: &'static str,
    /// The gauge's help.
    pub help: &'static str,
    /// The values of its label `reason`.
    pub reasons: &'static [&'static str],
}

/// How the targets of a class are written.
///
/// A class has its share of the requests in flight and its own pace: when the API server asks one request to slow down,
/// its class does, and no other.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// The class's name in metrics.
    pub name: &'static str,
    /// The time between two writes of a target.
    pub spacing: Duration,
    /// The class that it waits for.
    pub after: Option<After>,
    /// Whether a target whose object is large is written less often.
    pub is_paced_by_size: bool,
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
