//! The kernel of a controller: what every feature needs between the objects that it watches and the writes that it sends.
//!
//! A [`Feature`] is a function. It reads a world of objects and plans the writes that are wanted for one key: a pod, a
//! job, a node. This crate decides when that function runs, keeps the world, and remembers what has become of the writes.
//! It has no clock, no client and no task, and knows no feature.
//!
//! | module | holds |
//! |---|---|
//! | `feature` | what a feature is, and which kinds it watches |
//! | `store` | the objects of a kind: versions, deletions, lists, look-ups, and what was asked of the API server |
//! | `plan` | the writes that a feature wants for a key |
//! | `writes` | what became of the writes of an object: under way, refused, undone |
//! | `keys` | the keys that have to run: in turn by namespace, after those that they run after, each at its own pace |
//! | `notices` | what is told about objects: events of the API server |
//! | `reconciler` | the machine that joins these |
//! | `watches` | how far a watch has come, and which objects were deleted |
//! | `object`, `time`, `timers`, `refusal`, `effects`, `round_robin` | their vocabulary |
//!
//! # What always holds
//!
//! - A key that has to run sends nothing until it has run. What is planned follows from the world as it was then, never
//!   from the order of events.
//! - At most one write of an identity is under way, and of those of an object that have an effect ([`Write::assuming`]) one of
//!   all kinds: what is assumed of the object is the effect of one write, and ends with the answer to it.
//! - A write whose fate is unknown keeps its effect in the world ([`Store::assumed`]) until an event shows what became of
//!   it, or for five minutes.
//! - A write that the API server refuses rests for five minutes, or until another one is wanted in its place. One that was
//!   carried out and is wanted again was undone by somebody: it comes again after 0, 1, 2, 4 … 60 seconds.
//!   Of a write that has parts, each part rests by itself.
//! - A creation that is on its way is known ([`Store::find_coming_in`]) until it is answered, or for five minutes without an
//!   answer.
//! - An observation that shows nothing new makes no key run.
//!
//! # Creations
//!
//! Patches and deletions name the uid of their object, and do nothing to the next one of its name. A creation is carried out
//! whenever its name is free. So what is seen of an object tells nothing about a request to create it that has no answer: the object may
//! be that of an earlier attempt, or of the last leader, and once it is gone, the request makes another one. Each attempt
//! therefore counts by itself, for five minutes: no request takes longer than one, and no watch is four minutes late. A term that
//! ends keeps the count of what it has sent. Nobody else repeats a request: the client does
//! not, and a connection only what has never left it. What the last leader has sent and not heard of is not known here; that
//! names are computed makes it meet what this one creates.
//!
//! # Writes without an effect
//!
//! They may be under way beside others of the object. Nothing is assumed by them, so no answer is mistaken for another one's.
//! The API server applies each patch to the object as it is then, whichever comes first, and the feature has each field written by
//! one kind alone. No roll-out waits for its conditions, and none of its pods for another one.
//!
//! # Example
//!
//! A pod that names a `ConfigMap` by an annotation gets that `ConfigMap`'s colour as a label. This is the whole feature:
//!
//! ```
//! # mod copy_labels {
#![doc = include_str!("../tests/copy_labels/mod.rs")]
//! # }
//! ```
#![doc(html_no_source)]

mod effects;
mod feature;
mod keys;
mod notices;
mod object;
mod plan;
mod reconciler;
mod refusal;
mod round_robin;
mod store;
mod time;
mod timers;
mod watches;
mod writes;

pub use effects::Effects;
pub use feature::{
    After, Class, Feature, Key, Precedence, ReasonGauge, RightScope, Watch, WatchAdvance,
    WriteKind, WriteVerb,
};
pub use notices::{Notice, Regarding};
pub use object::{ObjectName, ResourceVersion, Source};
pub use plan::{Plan, Purpose, Write, WriteId, WritePart};
pub use reconciler::Reconciler;
pub use refusal::Refusal;
pub use round_robin::{RoundRobin, TurnQueue};
pub use store::{Assumption, Change, ObjectChange, Store, Stored};
pub use time::{Now, whole_seconds};
pub use timers::Timers;
pub use watches::{CompleteList, WatchProgress};
pub use writes::{Fate, PartRest, QUIET, Rest, rest_after_undone};
