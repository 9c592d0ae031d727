//! `SidecarSet`: containers that are injected into pods as they are created, and upgraded in place.
//!
//! The rules are listed in `docs/reference/sidecarset.md`.
//!
//! | module | holds |
//! |---|---|
//! | `fields` | the fields of a sidecar beside those of a container |
//! | `container`, `template` | what a pod gets from a set, parsed; its hashes, and the data of its revision |
//! | `host_ports` | the ports of the host that containers take |
//! | `set`, `strategy`, `selectors` | a set, parsed; parsing is validation |
//! | `annotations` | what a pod's annotations record about its sets |
//! | `selection` | which sets a pod gets as it is created, and in which revision |
//! | `snapshot`, `scope` | what the webhook injects by, and the pods for which the API server calls it |
//! | `resources` | resources of a sidecar that are computed from those of the pod |
//! | `render`, `overlap` | what it gets from them, and what two sets cannot both do to it |
//! | `pod`, `pair`, `rollout`, `upgrade` | what a pod and its containers that take turns are to a set, which pods are upgraded next, and the patch that does it |
//! | `revision` | the history of a set, and the revision that a new pod gets |
//! | `objection` | what keeps a valid set from doing what it says |
//! | `review` | what is wrong with a set that is being written, for the webhook that refuses it |
//! | `explain` | what sets do to a pod and why not, for people |
//! | `status`, `condition` | the counts of a set, and the condition of a pod that cannot be upgraded |
//! | `reconcile` | the feature on the kernel: what is known of the cluster, and the writes that follow from it |
//! | `metadata` | annotations that a set patches, and the administrator's whitelist |
//! | `samples` | valid and nearly valid sets, for tests of the parser and of the CRD |

pub mod annotations;
pub mod condition;
pub mod container;
pub mod explain;
mod fields;
pub mod host_ports;
pub mod metadata;
mod namespaces_tag;
pub mod objection;
pub mod overlap;
pub mod pair;
pub mod pod;
pub mod reconcile;
pub mod render;
pub mod resources;
pub mod review;
pub mod revision;
pub mod rollout;
pub mod scope;
pub mod selection;
mod selectors;
pub mod set;
pub mod snapshot;
pub mod status;
pub mod strategy;
pub mod template;
pub mod upgrade;

#[cfg(any(test, feature = "samples"))]
pub mod samples;
#[cfg(test)]
mod tests;
