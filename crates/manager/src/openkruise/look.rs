//! A look at `OpenKruise`'s manager.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, Client};
use leadsman_lease::record;

use super::gates::read_gates;
use super::manager::{GateState, ManagerLook};
use super::{BINDING, LEASE, NAMESPACE, ROLE};

/// Looks whether `OpenKruise` is installed, who holds its Lease, and with which gates. One request where it is not installed.
pub(crate) async fn look_for_openkruise(client: &Client) -> kube::Result<ManagerLook> {
    let Some(namespace) = find_namespace(client).await? else {
        return Ok(ManagerLook::NotInstalled);
    };
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let Some(lease) = leases.get_opt(LEASE).await? else {
        return Ok(ManagerLook::NoLease);
    };
    let gate = match record::holder_of(&lease) {
        Some(holder) => read_gates(client, &namespace, holder)
            .await
            .unwrap_or_else(|error| {
                tracing::info!(holder, %error, "reading the feature gates of OpenKruise's manager failed");
                GateState::Unread
            }),
        None => GateState::Unread,
    };
    Ok(ManagerLook::Lease(Box::new(lease), gate))
}

/// The namespace of `OpenKruise`, if it is installed, by what a tenant cannot make.
pub(crate) async fn find_namespace(client: &Client) -> kube::Result<Option<String>> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    if roles.get_metadata_opt(ROLE).await?.is_none() {
        return Ok(None);
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let binding = bindings.get_opt(BINDING).await?;
    let subjects = binding.and_then(|binding| binding.subjects);
    let mut namespaces = subjects
        .into_iter()
        .flatten()
        .filter_map(|one| one.namespace);
    let namespace = namespaces.find(|name| !name.is_empty());
    Ok(Some(namespace.unwrap_or_else(|| NAMESPACE.to_owned())))
}
