//! The guard against writing beside an `OpenKruise` manager that acts on the same objects: each would undo what the
//! other does, on every pod.
//!
//! | module | holds |
//! |---|---|
//! | `neighbour` | what its Lease and its gates say of it; pure |
//! | `gates` | the `--feature-gates` of its pods |
//! | `guard` | the loop that follows both, and holds our leadership back |

mod gates;
mod guard;
mod neighbour;

pub use gates::{GATES_FLAG, feature_gates, read_gates, switch_off};
pub(crate) use guard::Guard;
pub use neighbour::{Gate, Neighbour, Standing};

/// The Lease that `OpenKruise`'s managers lead by (`LeaderElectionID` in its `main.go`).
pub const LEASE: &str = "kruise-manager";
/// The namespace that its chart installs into (`installation.namespace`).
pub const NAMESPACE: &str = "kruise-system";
/// The label of its manager's pods and Deployment.
pub const PODS: &str = "control-plane=controller-manager";
/// The verbs on that one Lease that the guard needs; it reads pods by a right that the manager has anyway.
pub const LEASE_RIGHTS: [&str; 3] = ["get", "list", "watch"];
