//! The control loop of a manager, for any number of features.
//!
//! A feature is one of the kernel, of which [`Reconciled`] makes [`Rules`]: they observe kinds and decide which requests are due. This crate carries that out
//! against an API server that may be slow, busy, failing or unreachable. It does not know which features there are.
//!
//! | module | holds |
//! |---|---|
//! | `rules` | what a feature is |
//! | `reconciled` | a feature on the kernel, as rules |
//! | `kind` | a kind that a feature observes |
//! | `resource` | resources by type and by name |
//! | `selection` | which objects of a kind are observed, and where rights are needed |
//! | `request` | a due request: how it is sent, and what its reply shows |
//! | `encode` | writes as HTTP requests |
//! | `control` | all features together |
//! | `feature` | the loop of one: events in, requests out, replies back in |
//! | `stage` | the stages before a feature writes: leadership, lists |
//! | `relist` | the lists that a new leader reads before it writes |
//! | `watch` | one watch per kind, fanned out to the features that observe it |
//! | `schema` | which optional fields the API server keeps |
//! | `queue` | the targets that have to be written, and their pace |
//! | `places` | fair shares of the requests in flight |
//! | `rights` | the rights that a feature needs |
//! | `permissions`, `metrics` | what operators see |
#![doc(html_no_source)]

mod control;
mod encode;
mod feature;
mod kind;
mod metrics;
mod permissions;
mod places;
mod queue;
mod reconciled;
mod relist;
mod request;
mod resource;
mod rights;
mod rules;
mod schema;
mod selection;
mod stage;
mod watch;

pub use control::{Control, ControlError};
pub use kind::{Kind, OptionalFields};
pub use leadsman_reconcile::{Class, Effects, WriteKind};
pub use reconciled::{Reconciled, ReconcilerEvent, WatchedKinds};
pub use request::{DecodeReply, Measured, Request};
pub use resource::{GroupResource, Watchable};
pub use rights::{FeatureRights, Right, rights_of_feature};
pub use rules::{Observation, Observe, Rules, Target, Unwritten};
