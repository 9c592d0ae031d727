//! `BroadcastJob`: a pod that runs to its end on each node of a cluster.
//!
//! The feature is a function on the kernel ([`leadsman_reconcile`]); its keys are jobs. A pod's name follows from its job and
//! its node, so that no node gets two of a job, whoever creates them. Nothing is deleted for a node's sake: a pod that has
//! ended is never judged again, and one that runs on a node that is cordoned or tainted is left to Kubernetes, which evicts it
//! for a taint `NoExecute` (`pkg/controller/tainteviction`).
//!
//! | module | holds |
//! |---|---|
//! | `feature` | what a change affects, and the writes that are wanted for a job |
//! | `writes` | the kinds of writes |
//! | `job` | a job as the rules read it |
//! | `pod` | the pods of jobs: what is read of one, and what a new one is |
//! | `survey` | what there is of a job, each node counted once |
//! | `verdict` | what becomes of a job, and its status |
//! | `explain` | why nodes have no pod |
//! | `memory` | the nodes that have succeeded, and the failures that were acknowledged |

mod explain;
mod feature;
mod job;
mod memory;
mod pod;
mod survey;
mod verdict;
mod writes;

pub use explain::{JobExplanation, explain_job};
pub use feature::{JobKey, JobWorld};
pub use job::{ACKNOWLEDGED, End, Job, JobSpec, SUCCEEDED, node_hash};
pub use memory::JobMemories;
pub use pod::JobPod;
pub use survey::KnownNode;
pub use writes::BroadcastJobs;

#[cfg(test)]
mod tests;
