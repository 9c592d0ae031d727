//! The simulation: managers and agents as they are shipped, against a model of the API server, on one thread, with a clock that
//! moves on when nobody has anything to do, from a seed. A seed tells one story, byte for byte.
//!
//! Nothing here is shipped.
//!
//! | module | holds |
//! |---|---|
//! | `plan` | what happens and when, made from a seed |
//! | `world` | the run of a plan, and what came of it |
//! | `process` | the managers and agents |
//! | `faults` | what happens to the requests of a process |
//! | `link` | the same, as the model of the API server asks for it |
//! | `webhooks` | the calls of webhooks |
//! | `ground` | what really runs on the nodes |
//! | `kubelet` | the kubelets |
//! | `tenants` | users, controllers of workloads, and other clients |
//! | `resources` | what the API server serves, and what is there at first |
//! | `rest` | the requests of all of these |
//! | `invariants` | what always holds |
//! | `oracle` | what all should look like in the end |
//! | `story` | what happened |
//! | `shrink` | the fewest steps that still fail |
//! | `seeds` | the runs of many seeds |

mod faults;
mod ground;
mod invariants;
mod kubelet;
mod link;
mod oracle;
mod plan;
mod process;
mod resources;
mod rest;
mod seeds;
mod shrink;
mod story;
mod tenants;
mod webhooks;
mod world;

pub use plan::{FaultClass, Plan};
pub use seeds::{FailedSeed, run_seeds};
pub use shrink::shrink;
pub use story::Violation;
pub use world::{ChurnHour, ChurnOutcome, SeedOutcome, churn, run};
