//! The manager: watches in, the rules of `leadsman-core` decide, writes out.
//!
//! No rule about markers, pods or probes lives here; this room knows how to follow and write objects on a cluster
//! that is slow, busy, half broken or away.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `gates` | which features are on, here and in `OpenKruise` |
//! | `kinds` | the four watched kinds |
//! | `watch` | one watch, as events for the index |
//! | `schemas` | what the API server keeps of our fields |
//! | `leader` | which of several managers writes |
//! | `openkruise` | that nothing is written beside an `OpenKruise` manager |
//! | `preflight` | what is to be done before the first start |
//! | `control` | the loop that owns the index |
//! | `slots` | who is written next |
//! | `request` | a write as HTTP requests |
//! | `metrics` | what is counted |
#![doc(html_no_source)]

mod args;
mod control;
mod gates;
mod kinds;
mod leader;
mod metrics;
pub mod openkruise;
pub mod preflight;
mod request;
mod run;
pub mod schemas;
mod slots;
mod watch;

pub use args::{Args, CompatibleWith};
pub use gates::{Gates, GatesError, openkruise_probes};
pub use leader::{LEASE, LEASE_NAMESPACE, LEASE_RIGHTS};
pub use request::RIGHTS as WRITE_RIGHTS;
pub use run::{ManagerError, WATCH_RIGHTS, run};
