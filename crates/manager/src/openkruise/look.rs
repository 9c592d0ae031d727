//! A look at `OpenKruise`'s manager.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, Client};
use leadsman_lease::record;

use super::gates::read_gates;
use super::manager::{GateState, Look};
use super::{LEASE, NAMESPACE, ROLE};

/// Looks whether `OpenKruise` is installed, who holds its Lease, and with which gates. One request where it is not installed.
pub(crate) async fn look_for_openkruise(client: &Client) -> kube::Result<Look> {
    if !is_installed(client).await? {
        return Ok(Look::NotInstalled);
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let Some(lease) = leases.get_opt(LEASE).await? else {
        return Ok(Look::NoLease);
    };
    let gate = match record::holder_of(&lease) {
        Some(holder) => read_gates(client, NAMESPACE, holder)
            .await
            .unwrap_or_else(|error| {
                tracing::info!(holder, %error, "reading the feature gates of OpenKruise's manager failed");
                GateState::Unread
            }),
        None => GateState::Unread,
    };
    Ok(Look::Lease(Box::new(lease), gate))
}

/// Whether `OpenKruise` is installed, by what a tenant cannot make.
pub(crate) async fn is_installed(client: &Client) -> kube::Result<bool> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    Ok(roles.get_metadata_opt(ROLE).await?.is_some())
}
