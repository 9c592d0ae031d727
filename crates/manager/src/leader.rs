//! The Lease that decides which of several managers writes, and the rights on it.

use leadsman_lease::{LeadershipObserver, LeaseCandidate, LeaseConfig};
use leadsman_process::Process;

use crate::metrics::LeadershipMetrics;

/// The name of the Lease by which managers lead.
pub const LEASE: &str = "leadsman-manager";

/// The namespace of the Lease, wherever the manager is installed: two installations share one Lease, so that only one
/// writes. It exists in every cluster (`SystemNamespaces` in `pkg/controlplane/controller/systemnamespaces`), and
/// Kubernetes' own managers keep their Leases there.
pub const LEASE_NAMESPACE: &str = "kube-system";

/// The rights on `leases.coordination.k8s.io` that leadership needs: the verb, and whether for the Lease [`LEASE`]
/// alone.
pub const LEASE_RIGHTS: [(&str, bool); 5] = [
    // RBAC cannot restrict `create` by name: the name is not known when it is authorized.
    ("create", false),
    ("get", true),
    ("list", true),
    ("watch", true),
    ("update", true),
];

/// Makes this manager's candidate. Its identity contains the namespace of the installation, which tells a second
/// installation from a second replica.
pub(crate) fn new_candidate(
    process: &Process,
    namespace: &str,
    duration_seconds: u16,
) -> LeaseCandidate<Observer> {
    // A restarted container has the host name of the process before it, whose Lease it must not take for its own
    // (`add a uniquifier`, `cmd/kube-controller-manager/app/controllermanager.go`).
    let unique = process.random.fork_rng().u64(..);
    let host_name = &process.host_name;
    let config = LeaseConfig {
        namespace: LEASE_NAMESPACE.to_owned(),
        name: LEASE.to_owned(),
        identity: format!("{namespace}/{host_name}_{unique:016x}"),
        duration_seconds,
        field_manager: LEASE.to_owned(),
    };
    let namespace = namespace.to_owned();
    let metrics = LeadershipMetrics::new(&process.metrics, LEASE);
    let check = process
        .readiness
        .add_own_check("leadership", "the Lease has not been read yet");
    let observer = Observer { namespace, metrics };
    let random = process.random.fork_rng();
    LeaseCandidate::new(process.server.clone(), config, check, observer, random)
}

/// Counts changes of leadership, and makes a standby of another installation's leader not ready.
pub(crate) struct Observer {
    namespace: String,
    metrics: LeadershipMetrics,
}

impl LeadershipObserver for Observer {
    fn set_leading(&self, set_leading: bool) {
        self.metrics.record_leadership(set_leading);
    }

    fn objection_to_holder(&self, holder: &str) -> Option<String> {
        objection_to_other_install(holder, &self.namespace)
    }
}

/// The namespace of the installation that a holder of the Lease belongs to: its identity is `NAMESPACE/HOST_RANDOM`. None for
/// one that is no manager of leadsman.
pub(crate) fn installation_of_holder(holder: &str) -> Option<&str> {
    holder.split_once('/').map(|(namespace, _)| namespace)
}

/// The objection to a leader of another installation.
fn objection_to_other_install(leader: &str, namespace: &str) -> Option<String> {
    let other = installation_of_holder(leader)?;
    (other != namespace).then(|| {
        format!(
            "another installation of leadsman leads: {leader}, in namespace {other}; this one, in namespace {namespace}, writes \
             nothing, since they would undo each other's marks. Remove one of the two"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_of_another_install_is_named_with_both_namespaces() {
        let objection = objection_to_other_install("games/host_1", "leadsman-system").unwrap();
        assert!(
            objection.contains("games/host_1") && objection.contains("namespace leadsman-system"),
            "{objection}"
        );
        assert_eq!(
            objection_to_other_install("games/host_1", "games"),
            None,
            "a replica"
        );
        assert_eq!(objection_to_other_install("by hand", "games"), None);
    }
}
