//! `CloneSet`: pods of one template, which are counted, updated and deleted one by one.
//!
//! The feature is a function on the kernel ([`leadsman_reconcile`]); its keys are sets. A run looks at all pods of a set, counts
//! them, and works out a `Round`: what is created, deleted, changed in place or marked. Names of new pods follow from the set
//! and from the names that are taken, so that what is created twice meets itself. What has to outlive a process is in the pods
//! and in the set's status.
//!
//! | module | holds |
//! |---|---|
//! | `feature` | what a change affects, and the writes that are wanted for a set |
//! | `writes` | the kinds of writes |
//! | `set` | a set as the rules read it |
//! | `pod` | the pods of sets: what is read of one, and how one is changed |
//! | `template` | the data of a revision |
//! | `child` | the pod that is made of a revision |
//! | `names` | the names of new pods |
//! | `claim`, `claims` | the claims of pods: what one is made of, which a new pod gets, and which go |
//! | `history` | the revisions of a set |
//! | `scale` | how many pods are created, deleted and updated |
//! | `order` | which pods are deleted first, and which are updated first |
//! | `state` | the states of a pod |
//! | `lifecycle` | the hooks that a pod waits for |
//! | `service` | the readiness gate by which hooks keep pods out of service |
//! | `in_place` | whether a pod can be changed in place, and how |
//! | `member` | a pod as a round looks at it |
//! | `scene` | what a round is worked out from, and its actions |
//! | `round` | what is wanted of each pod |
//! | `steps` | the way of a pod to another revision |
//! | `actions` | the writes of what is wanted |
//! | `brake` | deletions that nobody has asked for |
//! | `status` | the status, and what is wrong |
//! | `progress` | how far a roll-out with a deadline is |
//! | `explain` | why pods are as they are |

mod actions;
mod brake;
mod child;
mod claim;
mod claims;
mod explain;
mod feature;
mod history;
mod in_place;
mod lifecycle;
mod member;
mod names;
mod order;
mod pod;
mod progress;
mod round;
mod scale;
mod scene;
mod service;
mod set;
mod state;
mod status;
mod steps;
mod template;
mod writes;

pub use brake::Memory;
pub use claim::SetClaim;
pub use explain::{CloneSetExplanation, explain_set};
pub use feature::{CloneSetKey, World};
pub use history::{CloneSetRevision, PastTemplate, past_templates};
pub use pod::ClonePod;
pub use set::PodSet;
pub use writes::CloneSets;

/// Writes on pods that a run plans, at most; with those on the set and its revisions they are 64 at most.
const MOST: usize = 60;

#[cfg(test)]
mod tests;
