//! The manager: wires features into the control loop, and decides which of several managers writes.
//!
//! The rules about markers, pods and probes are in `leadsman-core`; watching and writing objects, whatever the state of
//! the API server, is in `leadsman-control`.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `gates` | which features are on, here and in `OpenKruise` |
//! | `run` | the features, and leadership |
//! | `podprobe` | `PodProbeMarker` as a feature: kinds, requests, its webhook |
//! | `sidecarset` | `SidecarSet` as a feature: kinds, its webhooks |
//! | `systems` | the systems on the kernel, one row each |
//! | `leader` | which of several managers writes |
//! | `openkruise` | the guard against writing beside an `OpenKruise` manager |
//! | `preflight` | the checks before the first start |
//! | `webhook_rights` | what webhooks take, beside the rights of the features |
//! | `metrics` | the metrics of leadership |
#![doc(html_no_source)]

#[cfg(test)]
#[expect(dead_code, reason = "it is the one of the tests of `leadsman-control`")]
#[path = "../../control/tests/labels/api_server.rs"]
mod api_server;
mod args;
mod gates;
mod leader;
mod metrics;
pub mod openkruise;
mod podprobe;
pub mod preflight;
mod run;
mod sidecarset;
mod systems;
mod webhook_rights;

pub use args::{CompatibleWith, ManagerArgs, StandingRule};
pub use gates::{Gates, GatesError, openkruise_acts_on_markers};
pub use leader::{LEASE, LEASE_NAMESPACE, LEASE_RIGHTS};
pub use leadsman_admission::WebhookServing;
pub use leadsman_control::{FeatureRights, Right};
pub use run::{ManagerError, feature_rights, run_features, run_manager};
pub use systems::{ActiveSystems, SYSTEMS, System};
pub use webhook_rights::{leftover_rights, webhook_rights};
