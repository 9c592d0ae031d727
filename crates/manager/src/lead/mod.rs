//! Leadership: of all managers one writes, the one that holds the Lease.
//!
//! The rules are those of client-go's `leaderelection`, so the Lease looks as everywhere else. What writes asks for the
//! time that is left of the Lease, by its own clock, before each request.
//!
//! | module | holds |
//! |---|---|
//! | `record` | what a Lease says of its holder |
//! | `elector` | when to take, renew and give up the Lease; pure |
//! | `leadership` | what the rest of the manager hears of it |
//! | `candidate` | the loop that follows and writes the Lease |
//! | `sights` | the watch of a Lease |
//! | `shown` | what people see of it |

mod candidate;
mod elector;
mod leadership;
pub(crate) mod record;
mod shown;
mod sights;

pub(crate) use candidate::{Candidate, End, at};
pub(crate) use elector::Sight;
pub(crate) use leadership::Leadership;
pub(crate) use sights::{Sighting, sights, why_not};

/// The name of the Lease.
pub const LEASE: &str = "leadsman-manager";

/// The namespace of the Lease, wherever the manager is installed: two installs have one Lease, so that never two write. It
/// exists in every cluster (`SystemNamespaces` in `pkg/controlplane/controller/systemnamespaces`), and Kubernetes' own
/// managers keep their Leases there.
pub const LEASE_NAMESPACE: &str = "kube-system";

/// The rights on `leases.coordination.k8s.io` that it takes, and whether on the one named [`LEASE`] alone.
pub const LEASE_RIGHTS: [(&str, bool); 5] = [
    // A name that is not there yet cannot be granted.
    ("create", false),
    ("get", true),
    ("list", true),
    ("watch", true),
    ("update", true),
];
