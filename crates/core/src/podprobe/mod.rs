//! `PodProbeMarker`: probe a container, write the outcome on its pod.
//!
//! | module | holds | used by |
//! |---|---|---|
//! | `probe` | what a probe is, what a run of it can come to | all |
//! | `marker` | a marker, parsed; parsing is validation | manager, admission |
//! | `pod`, `plan`, `marks`, `status`, `contest` | a pod as it is kept; its entries; its marks; a marker's status; fights | manager |
//! | `serverless` | pods on virtual nodes: what their provider is asked, and what it answers | manager |
//! | `index`, `event` | what an event changes, what is due | manager |
//! | `schedule`, `verdict`, `worker` | when a probe runs and what its runs add up to | agent |

mod compatibility;
mod contest;
pub mod event;
pub mod index;
mod injected;
pub mod marker;
pub mod marks;
pub mod node;
pub mod plan;
pub mod pod;
pub mod probe;
mod reserved;
mod resolved;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod serverless;
pub mod status;
mod template;
mod url;
pub mod verdict;
pub mod wire;

pub use compatibility::Compatibility;
pub use index::{Config, Index};
pub use marker::Marker;
pub use probe::{CannotProbe, Handler, HttpGet, Outcome, Probe, ProbeId, Scheme, State};
pub use verdict::Verdict;
