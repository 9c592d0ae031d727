//! Accounts, roles and bindings: who may do what. The policies come with them (module `policies`).
//!
//! Each feature gate adds whole objects and changes none, so that the chart can take over what a gate adds as it is.

use std::collections::BTreeMap;
use std::iter;

use leadsman_api::GROUP;
use leadsman_manager::{
    FeatureRights, Gates, LEASE, LEASE_NAMESPACE, LEASE_RIGHTS, Right, System, feature_rights,
    leftover_rights, openkruise, preflight, webhook_rights,
};
use serde_json::{Value, json};

use super::{AGENT, MANAGER, object_labels, policies};

/// The role of people who may read sets of sidecars.
pub(super) const SET_VIEWER: &str = "leadsman-sidecarset-viewer";
/// The role of people who may write sets of sidecars.
pub(super) const SET_EDITOR: &str = "leadsman-sidecarset-editor";
/// The role of people who may read markers.
pub(super) const VIEWER: &str = "leadsman-podprobemarker-viewer";
/// The role of people who may write markers.
pub(super) const EDITOR: &str = "leadsman-podprobemarker-editor";
const PREFLIGHT: &str = "leadsman-preflight";

const LEASES: &str = "coordination.k8s.io";

/// Accounts and rights of manager, agents and people, and the agents' policy.
pub(super) fn access_objects(namespace: &str, gates: Gates, aggregate_to_edit: bool) -> Vec<Value> {
    let accounts = [
        service_account(namespace, MANAGER, "manager"),
        service_account(namespace, AGENT, "agent"),
    ];
    let mut grants = vec![agent_grant(), leader_grant(), openkruise_guard_grant()];
    let features = feature_rights(gates).into_iter();
    grants.extend(features.flat_map(|(name, rights)| feature_grants(name, rights, namespace)));
    grants.extend(webhook_grants(gates, namespace));
    let grants = grants.iter().flat_map(|grant| grant.to_objects(namespace));
    let mut objects: Vec<_> = accounts.into_iter().chain(grants).collect();
    objects.extend(roles_of_people(aggregate_to_edit));
    objects.extend(policies::own_node_policy(namespace));
    if gates.serve_webhooks() {
        objects.extend(policies::mutating_webhooks_policy(namespace));
        objects.extend(policies::secrets_policy(namespace));
    }
    if gates.sidecar_set {
        objects.extend(roles_on_sets());
        objects.extend(policies::pods_policy(policies::PODS, namespace));
        objects.extend(policies::sets_policy(namespace));
        objects.extend(policies::revisions_policy(policies::REVISIONS, namespace));
        objects.extend(policies::validating_webhooks_policy(namespace));
    }
    for system in gates.systems.iter() {
        objects.extend(roles_on_system(system));
        objects.extend(policies::children_policy(system, namespace));
        if system.patches_pods {
            let name = format!("{MANAGER}-{}-pods", system.name);
            objects.extend(policies::pods_policy(&name, namespace));
        }
        if system.children.contains(&policies::REVISION_RESOURCE) {
            let name = format!("{MANAGER}-{}-revisions", system.name);
            objects.extend(policies::revisions_policy(&name, namespace));
        }
    }
    objects
}

/// The account of `leadsman preflight --before-install`, and its rights.
pub(super) fn preflight_objects(namespace: &str) -> Vec<Value> {
    let grant = Grant {
        name: PREFLIGHT.to_owned(),
        account: PREFLIGHT,
        component: "preflight",
        scope: None,
        rights: preflight::before_install_rights(),
    };
    let mut objects = vec![service_account(namespace, PREFLIGHT, "preflight")];
    objects.extend(grant.to_objects(namespace));
    objects
}

fn service_account(namespace: &str, name: &str, component: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace, "labels": object_labels(Some(component))},
    })
}

/// Rights of an account: a role and its binding.
struct Grant {
    /// The name of both.
    name: String,
    account: &'static str,
    component: &'static str,
    /// The namespace in which the rights hold; all namespaces if none.
    scope: Option<String>,
    rights: Vec<Right>,
}

impl Grant {
    fn to_objects(&self, account_namespace: &str) -> [Value; 2] {
        let (role, binding) = match self.scope {
            Some(_) => ("Role", "RoleBinding"),
            None => ("ClusterRole", "ClusterRoleBinding"),
        };
        let mut metadata =
            json!({"name": self.name, "labels": object_labels(Some(self.component))});
        if let Some(namespace) = &self.scope {
            metadata["namespace"] = json!(namespace);
        }
        [
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": role,
                "metadata": metadata,
                "rules": policy_rules(&self.rights),
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": binding,
                "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": self.name},
                "subjects": [{"kind": "ServiceAccount", "name": self.account, "namespace": account_namespace}],
            }),
        ]
    }
}

fn manager_grant(name: &str, scope: Option<&str>, rights: Vec<Right>) -> Grant {
    Grant {
        name: name.to_owned(),
        account: MANAGER,
        component: "manager",
        scope: scope.map(str::to_owned),
        rights,
    }
}

/// The agent's table of rights.
fn agent_grant() -> Grant {
    let rights = leadsman_agent::RIGHTS
        .into_iter()
        .map(|(group, resource, verb)| Right::new(group, resource, "", verb));
    Grant {
        name: AGENT.to_owned(),
        account: AGENT,
        component: "agent",
        scope: None,
        rights: rights.collect(),
    }
}

/// The manager's rights on the Lease by which one of several leads: on this Lease alone, in its namespace, which does not
/// depend on the one that leadsman is installed in.
fn leader_grant() -> Grant {
    let rights = rights_by_name(LEASES, "leases", LEASE, &LEASE_RIGHTS);
    manager_grant(MANAGER, Some(LEASE_NAMESPACE), rights)
}

/// The manager's rights to tell whether an `OpenKruise` is at work. Cluster-wide, for this name: a Role would need
/// `OpenKruise`'s namespace, which may not exist.
fn openkruise_guard_grant() -> Grant {
    let rights = openkruise::GUARD_RIGHTS.into_iter();
    let rights =
        rights.map(|(group, resource, name, verb)| Right::new(group, resource, name, verb));
    manager_grant(MANAGER, None, rights.collect())
}

/// The manager's rights for a feature: in all namespaces, there also to delete the webhook configuration that the feature,
/// with another gate, may have left behind; and in its own namespace, if it needs any.
fn feature_grants(
    feature: &str,
    rights: FeatureRights,
    namespace: &str,
) -> impl Iterator<Item = Grant> + use<> {
    let FeatureRights {
        mut cluster,
        own_namespace: own,
    } = rights;
    cluster.extend(leftover_rights());
    let name = format!("{MANAGER}-{feature}");
    let own = (!own.is_empty()).then(|| manager_grant(&name, Some(namespace), own));
    iter::once(manager_grant(&name, None, cluster)).chain(own)
}

/// The manager's rights on the webhook configurations, and on the Secret with the webhooks' certificates. No role of these is
/// called [`MANAGER`]: in the namespace of the Lease it would replace that role.
fn webhook_grants(gates: Gates, namespace: &str) -> impl Iterator<Item = Grant> + use<> {
    let namespace = namespace.to_owned();
    let roles = webhook_rights(gates).into_iter();
    roles.flat_map(move |(name, rights)| {
        let own = rights.own_namespace;
        let grant = (!own.is_empty()).then(|| manager_grant(name, Some(&namespace), own));
        iter::once(manager_grant(name, None, rights.cluster)).chain(grant)
    })
}

/// Rights on one object. A verb whose requests do not carry its name, such as create, is granted without the name
/// (<https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources>).
fn rights_by_name(
    group: &'static str,
    resource: &'static str,
    name: &'static str,
    verbs: &[(&'static str, bool)],
) -> Vec<Right> {
    let rights = verbs.iter().map(|(verb, named)| {
        let name = if *named { name } else { "" };
        Right::new(group, resource, name, verb)
    });
    rights.collect()
}

/// The rules that grant these rights. A right that several of them name is granted once; names with the same verbs share a
/// rule.
fn policy_rules(rights: &[Right]) -> Vec<Value> {
    /// Group and resource, and whether on objects by their names.
    type On<'a> = (&'a str, &'a str, bool);
    let mut verbs: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
    for right in rights {
        let of = (&*right.group, &*right.resource, &*right.name);
        let verbs = verbs.entry(of).or_default();
        if !verbs.contains(&right.verb) {
            verbs.push(right.verb);
        }
    }
    let mut names: BTreeMap<(On<'_>, Vec<&str>), Vec<&str>> = BTreeMap::new();
    for ((group, resource, name), verbs) in verbs {
        let on = (group, resource, !name.is_empty());
        names.entry((on, verbs)).or_default().push(name);
    }
    let rules = names
        .into_iter()
        .map(|(((group, resource, named), verbs), names)| {
            let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
            if named {
                rule["resourceNames"] = json!(names);
            }
            rule
        });
    rules.collect()
}

/// The rights of people on markers, by aggregation to the roles that clusters have for people
/// (Kubernetes RBAC, "User-facing roles"; `plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go`).
///
/// `view` is part of `edit`, and `edit` of `admin`. Writing a marker is a right like `pods/exec`, which `edit` has by default,
/// but not where it was taken out of it; and what a marker runs is not in the API server's audit log, command by command. So
/// only `admin` has it by itself. `NodePodProbe`s are of the whole cluster, and nobody but leadsman needs them.
fn roles_of_people(aggregate_to_edit: bool) -> [Value; 2] {
    let writers: &[&str] = if aggregate_to_edit {
        &["admin", "edit"]
    } else {
        &["admin"]
    };
    [
        role_of_people(VIEWER, "podprobemarkers", &READ, &["view"]),
        role_of_people(EDITOR, "podprobemarkers", &WRITE, writers),
    ]
}

/// The rights of people on sets of sidecars. Who writes one puts containers into pods of all namespaces, which is worth as much
/// as the whole cluster: nobody has that right by aggregation.
fn roles_on_sets() -> [Value; 2] {
    [
        role_of_people(SET_VIEWER, "sidecarsets", &READ, &["view"]),
        role_of_people(SET_EDITOR, "sidecarsets", &WRITE, &[]),
    ]
}

/// The rights of people on the objects of a system, which make pods in their own namespace: those of the roles that may create
/// Jobs and pods there.
fn roles_on_system(system: &System) -> [Value; 2] {
    let name = |of: &str| format!("leadsman-{}-{of}", system.name);
    let resource = system.resource;
    [
        role_of_people(&name("viewer"), resource, &READ, &["view"]),
        role_of_people(&name("editor"), resource, &WRITE, &["admin", "edit"]),
    ]
}

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

fn role_of_people(
    name: &str,
    resource: &'static str,
    verbs: &[&'static str],
    aggregated_to: &[&str],
) -> Value {
    let mut labels = object_labels(None);
    for role in aggregated_to {
        labels[format!("rbac.authorization.k8s.io/aggregate-to-{role}")] = json!("true");
    }
    let rights: Vec<_> = verbs
        .iter()
        .map(|verb| Right::new(GROUP, resource, "", verb))
        .collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels},
        "rules": policy_rules(&rights),
    })
}
