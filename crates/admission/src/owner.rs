//! The owner of what a manager makes for its webhooks: the `ClusterRole` that grants the rights on it.
//!
//! An install has that role, and an uninstall, or an upgrade that switches the feature's gate off, deletes it. The garbage
//! collector then deletes what names it as its owner, when no manager is left to do so
//! (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents>). A namespaced object may have
//! an owner of the whole cluster, but not the other way round, so it has to be a role of the cluster.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::GetParams;
use kube::core::Request;
use leadsman_process::ApiServer;
use leadsman_process::reply::{Cause, Disposition, Verb};
use serde_json::{Value, json};

use crate::pace::describe_failure;

/// The `ClusterRole` with the rights on the webhook configuration.
pub const OWNER: &str = "leadsman-manager-webhooks";

/// The owner that an object is to have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Owner {
    /// It has not been read yet, or may be another one by now.
    #[default]
    Unknown,
    /// There is no such role, or it may not be read: the object outlives an uninstall.
    None,
    Known(Box<OwnerReference>),
}

impl Owner {
    /// Adds it to an object.
    pub(crate) fn added_to(&self, mut object: Value) -> Value {
        if let Self::Known(owner) = self {
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        object
    }

    /// As the metadata of an object has it.
    pub(crate) fn reference(self) -> Option<OwnerReference> {
        match self {
            Self::Unknown | Self::None => None,
            Self::Known(owner) => Some(*owner),
        }
    }
}

/// Reads the owner; an error is worth another attempt. It is asked for just before an object is made or applied: a role
/// that is made anew has another uid, and what names the old one is deleted.
pub(crate) async fn read_owner(
    server: &ApiServer,
    deadline: Duration,
) -> Result<Owner, Disposition> {
    let get = Request::new(ClusterRole::url_path(&(), None)).get(OWNER, &GetParams::default());
    let request = get.map_err(|error| Disposition::Refused {
        reason: error.to_string(),
    })?;
    let reply = server.send(Verb::Get, request, deadline).await;
    match reply.disposition {
        Disposition::Done => Ok(owner(&reply.body)),
        ref absent @ (Disposition::Gone { .. }
        | Disposition::Retry {
            cause: Cause::NoRight,
            ..
        }) => {
            let reason = describe_failure("get", &format!("ClusterRole {OWNER}"), absent);
            tracing::warn!(
                reason,
                "what is made for the webhooks gets no owner, and stays after an uninstall"
            );
            Ok(Owner::None)
        }
        failed => Err(failed),
    }
}

fn owner(role: &[u8]) -> Owner {
    let uid = serde_json::from_slice::<ClusterRole>(role).ok();
    let uid = uid.and_then(|role| role.metadata.uid);
    uid.map_or(Owner::None, |uid| {
        Owner::Known(Box::new(OwnerReference {
            api_version: ClusterRole::api_version(&()).into_owned(),
            kind: ClusterRole::kind(&()).into_owned(),
            name: OWNER.to_owned(),
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
        let read = owner(br#"{"metadata": {"name": "n", "uid": "u"}, "rules": null}"#);
        let object = read.added_to(json!({"metadata": {"name": "o"}}));
        let expected = json!([{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "name": OWNER, "uid": "u"}]);
        assert_eq!(object["metadata"]["ownerReferences"], expected);
        let without = Owner::None.added_to(json!({"metadata": {"name": "o"}}));
        assert_eq!(without, json!({"metadata": {"name": "o"}}));
    }
}
