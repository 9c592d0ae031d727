//! The control loop of a manager, for any number of features.
//!
//! A feature is a value of [`Rules`]: it observes kinds and says which requests are due. Here is everything that carries
//! this out against an API server that is slow, busy, half broken or away; which features there are is not known here.
//!
//! | module | holds |
//! |---|---|
//! | `rules` | what a feature is |
//! | `kind` | a kind that a feature observes |
//! | `resource` | resources by type and by name |
//! | `request` | a request that is due: how it is sent, what its reply shows |
//! | `control` | all features together |
//! | `feature` | the loop of one: events in, requests out, replies back in |
//! | `stage` | what keeps a feature from writing: leadership, lists |
//! | `relist` | what a new leader reads before it writes |
//! | `watch` | one watch a kind, fanned out to the features that observe it |
//! | `schema` | which optional fields the API server keeps |
//! | `queue` | which target is written next |
//! | `places` | fair shares of the requests in flight |
//! | `rights` | the rights that a feature needs |
//! | `permissions`, `metrics` | what operators see |
#![doc(html_no_source)]

mod control;
mod feature;
mod kind;
mod metrics;
mod permissions;
mod places;
mod queue;
mod relist;
mod request;
mod resource;
mod rights;
mod rules;
mod schema;
mod stage;
mod watch;

pub use control::{Control, ControlError};
pub use kind::{Kind, OptionalFields};
pub use request::{DecodeReply, Request, RequestKind};
pub use resource::{Resource, Watchable};
pub use rights::{Right, rights};
pub use rules::{After, Class, Effects, Observation, Observe, Rules, Target};
