//! The guard against writing beside an `OpenKruise` manager that acts on the same objects: each would undo the other's
//! writes, on every pod.
//!
//! | module | holds |
//! |---|---|
//! | `manager` | the state of its manager, from its Lease and its gates; pure |
//! | `gates` | the `--feature-gates` of its pods |
//! | `look` | a look at both |
//! | `guard` | the loop that looks before the first write of a term, and later to say what it sees |

mod gates;
mod guard;
mod look;
mod manager;

pub use gates::{GATES_FLAG, feature_gates_flag, switch_off_command};
pub(crate) use guard::OpenKruiseGuard;
pub(crate) use look::{find_namespace, look_for_openkruise};
pub(crate) use manager::OpenKruiseManager;
pub(crate) use manager::was_left_behind;
pub use manager::{GateState, OpenKruiseState};

/// The Lease of `OpenKruise`'s managers (`LeaderElectionID` in its `main.go`).
pub const LEASE: &str = "kruise-manager";
/// The namespace that its chart installs into unless told another (`installation.namespace`).
pub const NAMESPACE: &str = "kruise-system";
/// The label of its manager's pods and Deployment.
pub const PODS: &str = "control-plane=controller-manager";
/// A `ClusterRole` of its chart (`templates/rbac_role.yaml`). Its Lease counts only beside it: a tenant may be able to make a
/// namespace and a Lease of these names, but nothing that is the cluster's.
pub const ROLE: &str = "kruise-manager-role";
/// The binding of that role, which names the namespace of its manager.
pub const BINDING: &str = "kruise-manager-rolebinding";
/// The rights that a look needs: group, resource, name, verb. It lists pods too, by a right that the manager has anyway.
pub const GUARD_RIGHTS: [(&str, &str, &str, &str); 3] = [
    ("coordination.k8s.io", "leases", LEASE, "get"),
    (RBAC, "clusterroles", ROLE, "get"),
    (RBAC, "clusterrolebindings", BINDING, "get"),
];
const RBAC: &str = "rbac.authorization.k8s.io";
