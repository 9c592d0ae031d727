//! `PodProbeMarker`: probe a container, write the outcome on its pod.
//!
//! | module | holds | used by |
//! |---|---|---|
//! | `probe`, `verdict` | what a probe is, what a run of it comes to, what is known about it | all |
//! | `wire` | a probe on its way through `NodePodProbe` | manager, agent |
//! | `marker`, `template`, `compatibility`, `reserved`, `url` | a marker, parsed; parsing is validation | manager, admission |
//! | `pod` | what is kept of a pod | manager |
//! | `plan`, `resolved` | a pod's entries in its node's `NodePodProbe` | manager |
//! | `marks`, `contest` | a pod's marks, and how long one waits that somebody keeps undoing | manager |
//! | `status` | a marker's status | manager |
//! | `serverless`, `injected` | pods on virtual nodes: what their provider is asked, and what it answers | manager, admission |
//! | `index`, `event` | what an event changes, and which writes are due | manager |
//! | `node` | when a probe runs, what its results add up to, what of it is written | agent |
//! | `samples` | markers with the verdict each must get | tests |

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
