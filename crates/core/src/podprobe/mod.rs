//! `PodProbeMarker`: probe a container, write the outcome on its pod.
//!
//! | module | holds | used by |
//! |---|---|---|
//! | `probe` | what a probe is, what a run of it can come to | all |
//! | `marker`, `selector` | a marker, parsed; parsing is validation | manager, admission |
//! | `pod`, `plan`, `marks`, `status`, `contest` | a pod as it is kept; its entries; its marks; a marker's status; fights | manager |
//! | `sorted`, `pool` | how what is kept of many objects is kept small | manager |
//! | `index`, `event` | what an event changes, what is due | manager |
//! | `schedule`, `verdict`, `worker` | when a probe runs and what its runs add up to | agent |

mod contest;
pub mod event;
pub mod index;
mod invalid;
pub mod marker;
pub mod marks;
mod names;
pub mod node;
pub mod plan;
pub mod pod;
mod pool;
pub mod probe;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod schemas;
pub mod selector;
mod sorted;
pub mod status;
mod template;
mod url;
pub mod wire;

pub use index::{Config, Index, Now};
pub use marker::{Compatibility, Invalid, Marker};
pub use probe::{CannotProbe, Handler, HttpGet, Outcome, Probe, ProbeId, Scheme, State};
