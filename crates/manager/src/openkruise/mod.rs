//! The guard against writing beside an `OpenKruise` manager that acts on the same objects: each would undo the other's
//! writes, on every pod.
//!
//! | module | holds |
//! |---|---|
//! | `manager` | the state of its manager, from its Lease and its gates; pure |
//! | `gates` | the `--feature-gates` of its pods |
//! | `guard` | the loop that watches both, and withholds leadership |

mod gates;
mod guard;
mod manager;

pub use gates::{GATES_FLAG, feature_gates_flag, read_gates, switch_off_command};
pub(crate) use guard::OpenKruiseGuard;
pub(crate) use manager::was_left_behind;
pub use manager::{GateState, OpenKruiseManager, OpenKruiseState};

/// The Lease of `OpenKruise`'s managers (`LeaderElectionID` in its `main.go`).
pub const LEASE: &str = "kruise-manager";
/// The namespace that its chart installs into (`installation.namespace`).
pub const NAMESPACE: &str = "kruise-system";
/// The label of its manager's pods and Deployment.
pub const PODS: &str = "control-plane=controller-manager";
/// The verbs on that one Lease that the guard needs. It reads pods too, by a right that the manager has anyway.
pub const LEASE_RIGHTS: [&str; 2] = ["list", "watch"];
