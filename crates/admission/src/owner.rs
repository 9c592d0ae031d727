//! The owner of what a manager makes for its webhooks: the role that grants the rights on it. It is a `ClusterRole` for the
//! webhook configuration, and a `Role` of the same name for the Secret.
//!
//! An install has that role, and an uninstall, or an upgrade that switches the feature's gate off, deletes it. The garbage
//! collector then deletes what names it as its owner, when no manager is left to do so
//! (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents>). A manager that is left cannot
//! make the object again, for the right has gone with its owner.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::GetParams;
use kube::core::Request;
use kube::{Resource, ResourceExt};
use leadsman_process::ApiServer;
use leadsman_process::reply::{Disposition, RetryCause, Verb};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::pace::describe_failure;

/// The `ClusterRole` with the rights on the configuration of webhooks that change objects, and the `Role` with those on the
/// Secret.
pub const OWNER: &str = "leadsman-manager-webhooks";
/// The `ClusterRole` with the rights on the configuration of webhooks that judge objects. A role of its own, since few
/// features need it.
pub const VALIDATING_OWNER: &str = "leadsman-manager-validating-webhooks";

/// The owner that an object is to have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum OwningRole {
    /// The role has not been read yet, or may be another one by now.
    #[default]
    Unknown,
    /// The role does not exist or may not be read: the object outlives an uninstall.
    None,
    Known(Box<OwnerReference>),
}

impl OwningRole {
    /// Adds it to an object.
    pub(crate) fn add_to_object(&self, mut object: Value) -> Value {
        if let Self::Known(owner) = self {
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        object
    }

    /// Converts the role into the form that an object's metadata has.
    pub(crate) fn into_reference(self) -> Option<OwnerReference> {
        match self {
            Self::Unknown | Self::None => None,
            Self::Known(owner) => Some(*owner),
        }
    }
}

/// Reads the `ClusterRole` of this name, which is to own a webhook configuration. It is asked for just before an object is made or
/// applied: a role that is made anew has another uid, and what names the old one is deleted. No failure keeps the
/// configuration from being applied: it gets its owner with a later apply.
pub(crate) async fn read_cluster_role(
    server: &ApiServer,
    name: &str,
    deadline: Duration,
) -> OwningRole {
    let read = read_owner::<ClusterRole>(server, None, name, deadline).await;
    read.unwrap_or_else(|failed| without_owner::<ClusterRole>(name, &failed))
}

/// Reads the `Role` that is to own the Secret of this namespace. An error is worth another attempt, for a Secret keeps what
/// it is made with.
pub(crate) async fn read_role(
    server: &ApiServer,
    namespace: &str,
    deadline: Duration,
) -> Result<OwningRole, Disposition> {
    match read_owner::<Role>(server, Some(namespace), OWNER, deadline).await {
        Err(failed) if may_pass(&failed) => Err(failed),
        read => Ok(read.unwrap_or_else(|failed| without_owner::<Role>(OWNER, &failed))),
    }
}

/// Whether a read that failed so may succeed without anybody's doing.
fn may_pass(failed: &Disposition) -> bool {
    match failed {
        Disposition::Retry { cause, .. } => {
            !matches!(cause, RetryCause::NoRight | RetryCause::NoSuchKind)
        }
        _ => false,
    }
}

fn without_owner<R: Resource<DynamicType = ()>>(name: &str, failed: &Disposition) -> OwningRole {
    let role = format!("{} {name}", R::kind(&()));
    let reason = describe_failure("get", &role, failed);
    tracing::warn!(
        reason,
        "what is made for the webhooks gets no owner, and stays after an uninstall; apply the {role} of this version, by the Helm chart or `leadsman manifests --only=access`, with the feature gates of this manager"
    );
    OwningRole::None
}

async fn read_owner<R>(
    server: &ApiServer,
    namespace: Option<&str>,
    name: &str,
    deadline: Duration,
) -> Result<OwningRole, Disposition>
where
    R: Resource<DynamicType = ()> + DeserializeOwned,
{
    let get = Request::new(R::url_path(&(), namespace)).get(name, &GetParams::default());
    let request = get.map_err(|error| Disposition::Refused {
        reason: error.to_string(),
    })?;
    let reply = server.send_request(Verb::Get, request, deadline).await;
    match reply.disposition {
        Disposition::Done => Ok(decode_owner::<R>(name, &reply.body)),
        failed => Err(failed),
    }
}

fn decode_owner<R: Resource<DynamicType = ()> + DeserializeOwned>(
    name: &str,
    role: &[u8],
) -> OwningRole {
    let decoded = serde_json::from_slice::<R>(role).ok();
    let uid = decoded.and_then(|role| role.uid());
    uid.map_or(OwningRole::None, |uid| {
        OwningRole::Known(Box::new(OwnerReference {
            api_version: R::api_version(&()).into_owned(),
            kind: R::kind(&()).into_owned(),
            name: name.to_owned(),
            uid,
            ..OwnerReference::default()
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_named_with_its_uid() {
        let read = decode_owner::<ClusterRole>(
            OWNER,
            br#"{"metadata": {"name": "n", "uid": "u"}, "rules": null}"#,
        );
        let object = read.add_to_object(json!({"metadata": {"name": "o"}}));
        let expected = json!([{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "name": OWNER, "uid": "u"}]);
        assert_eq!(object["metadata"]["ownerReferences"], expected);
        let without = OwningRole::None.add_to_object(json!({"metadata": {"name": "o"}}));
        assert_eq!(without, json!({"metadata": {"name": "o"}}));
    }
}
