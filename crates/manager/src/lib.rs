//! The manager: wires features into the control loop, and decides which of several managers writes.
//!
//! No rule about markers, pods or probes lives here (`leadsman-core`), nor how objects are watched and written on a
//! cluster that is slow, busy, half broken or away (`leadsman-control`).
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `gates` | which features are on, here and in `OpenKruise` |
//! | `run` | the features, and leadership |
//! | `podprobe` | `PodProbeMarker` as a feature: kinds, requests, its webhook |
//! | `leader` | which of several managers writes |
//! | `openkruise` | that nothing is written beside an `OpenKruise` manager |
//! | `preflight` | what is to be done before the first start |
//! | `metrics` | what is counted of leadership |
#![doc(html_no_source)]

mod args;
mod gates;
mod leader;
mod metrics;
pub mod openkruise;
mod podprobe;
pub mod preflight;
mod run;

pub use args::{Args, CompatibleWith};
pub use gates::{Gates, GatesError, openkruise_probes};
pub use leader::{LEASE, LEASE_NAMESPACE, LEASE_RIGHTS};
pub use leadsman_control::Right;
pub use run::{ManagerError, feature_rights, run};
