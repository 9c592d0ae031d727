//! The rights that webhooks take, beside those of the features that have them.

use leadsman_admission::{
    CONFIGURATION, CONFIGURATION_RIGHTS, LEFTOVER_RIGHTS, OWNER, OWNER_RIGHTS, SECRET,
    SECRET_RIGHTS, VALIDATING_OWNER,
};
use leadsman_control::{FeatureRights, Right};

use crate::gates::Gates;

const ADMISSION: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The roles of what webhooks take with these gates, each with its rights: on the configurations, and on the Secret with the
/// certificates. A role is the owner of what it grants the rights on, and may therefore be read.
pub fn webhook_rights(gates: Gates) -> Vec<(&'static str, FeatureRights)> {
    let mut roles = Vec::new();
    if gates.serve_webhooks() {
        let secret = SECRET_RIGHTS.map(|(verb, is_named)| {
            let name = if is_named { SECRET } else { "" };
            Right::new("", "secrets", name, verb)
        });
        let rights = FeatureRights {
            cluster: configuration_and_owner_rights(MUTATING, OWNER),
            own_namespace: [&secret[..], &owner_rights("roles", OWNER)].concat(),
        };
        roles.push((OWNER, rights));
    }
    if gates.sidecar_set {
        let rights = FeatureRights {
            cluster: configuration_and_owner_rights(VALIDATING, VALIDATING_OWNER),
            own_namespace: Vec::new(),
        };
        roles.push((VALIDATING_OWNER, rights));
    }
    roles
}

/// The rights to delete the configuration that a manager with other gates may have left behind.
pub fn leftover_rights() -> [Right; 2] {
    LEFTOVER_RIGHTS.map(|verb| Right::new(ADMISSION, MUTATING, CONFIGURATION, verb))
}

fn configuration_and_owner_rights(configuration: &'static str, name: &'static str) -> Vec<Right> {
    let configuration =
        CONFIGURATION_RIGHTS.map(|verb| Right::new(ADMISSION, configuration, CONFIGURATION, verb));
    [&configuration[..], &owner_rights("clusterroles", name)].concat()
}

fn owner_rights(kind: &'static str, name: &'static str) -> [Right; 1] {
    OWNER_RIGHTS.map(|verb| Right::new(RBAC, kind, name, verb))
}
