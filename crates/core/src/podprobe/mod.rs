//! `PodProbeMarker`: probes of containers, and the marks that their verdicts put on pods.
//!
//! | module | holds | used by |
//! |---|---|---|
//! | `probe`, `verdict` | a probe, the outcome of one run, and the verdict of many | all |
//! | `wire` | the form of a probe in `NodePodProbe` | manager, agent |
//! | `marker`, `template`, `compatibility`, `url` | a marker, parsed; parsing is validation | manager, admission |
//! | `output` | what the output of a probe has to be, and the values in it | manager, agent |
//! | `pod` | the fields of a pod that the index keeps | manager |
//! | `plan`, `resolved` | a pod's entries in its node's `NodePodProbe` | manager |
//! | `marks` | a pod's marks | manager |
//! | `status`, `totals` | a marker's status, and the sums over those of all markers | manager |
//! | `serverless`, `injected` | pods on virtual nodes: annotations for their provider, and the verdicts that it reports | manager, admission |
//! | `index`, `writes` | the feature: what is known, its keys and writes | manager, `kubectl leadsman` |
//! | `exclusive` | who has a value that only one pod has | manager |
//! | `explain` | why a pod is marked as it is, for people | `kubectl leadsman` |
//! | `history` | the recent runs of a node's probes, as an agent answers whoever asks | agent, `kubectl leadsman` |
//! | `node` | schedule of a node's probes, their verdicts, and the status that is written | agent |
//! | `samples` | valid and invalid markers, with what the parser and the CRD must say | tests |

mod compatibility;
pub mod exclusive;
pub mod explain;
pub mod history;
pub mod index;
mod injected;
pub mod marker;
pub mod marks;
pub mod node;
pub mod output;
pub mod plan;
pub mod pod;
pub mod probe;
mod resolved;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod serverless;
pub mod status;
mod template;
pub mod totals;
mod url;
pub mod verdict;
pub mod wire;
mod writes;

pub use compatibility::Compatibility;
pub use index::{Config, Machines, PodProbes, ProbeWorld};
pub use marker::Marker;
pub use probe::{
    CannotProbe, Handler, HandlerKind, HttpGet, Outcome, Probe, ProbeId, Scheme, State, VolumeFile,
};
pub use verdict::Verdict;
