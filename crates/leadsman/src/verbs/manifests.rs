//! `leadsman manifests`: the objects that a cluster needs before the first start.
//!
//! They are the namespace, the CRDs, an account for manager and agent each with only the rights that it uses, and the
//! policy that restricts an agent to its own node, in an order in which a single `kubectl apply` succeeds.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use leadsman_admission::{
    CONFIGURATION, CONFIGURATION_RIGHTS, LEFTOVER_RIGHTS, SECRET, SECRET_RIGHTS, SERVICE,
    WEBHOOK_PORT,
};
use leadsman_api::{GROUP, VERSION};
use leadsman_manager::{
    Gates, LEASE, LEASE_NAMESPACE, LEASE_RIGHTS, Right, feature_rights, openkruise,
};
use serde_json::{Value, json};

const MANAGER: &str = "leadsman-manager";
/// The role of what only the webhooks need. Not [`MANAGER`]: in the namespace of the Lease it would replace that role.
const WEBHOOKS: &str = "leadsman-manager-webhooks";
const AGENT: &str = "leadsman-agent";
const POLICY: &str = "leadsman-agent-own-node";

/// Print the objects that a cluster needs before the first start, as YAML
///
/// These are the namespace, the CRDs, accounts and rights of manager and agents, and the policy by which an agent may
/// report for its own node only. The same flags give the same output.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Namespace of manager and agents
    #[arg(long, value_name = "NAME", default_value = "leadsman-system")]
    namespace: String,
    /// The feature gates that the manager is started with, as NAME=true,NAME=false: without
    /// `EnablePodProbeMarkerOnServerless` what only it needs is left out
    #[arg(
        long,
        env = "LEADSMAN_FEATURE_GATES",
        value_name = "GATES",
        default_value = ""
    )]
    feature_gates: Gates,
}

/// Prints the objects to stdout.
pub(crate) fn run(args: &Args) -> ExitCode {
    let printed = text(&args.namespace, args.feature_gates).and_then(|text| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leadsman: cannot print the manifests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn text(namespace: &str, gates: Gates) -> io::Result<String> {
    let mut documents = vec![yaml(&namespace_object(namespace))?];
    documents.extend(leadsman_api::CRDS.map(str::to_owned));
    let objects = accounts(namespace, gates).into_iter();
    let objects = objects.chain(lease_rights(namespace));
    let webhooks = gates.serverless.then(|| webhooks(namespace));
    let objects = objects.chain(webhooks.into_iter().flatten());
    for object in objects.chain(policy(namespace)) {
        documents.push(yaml(&object)?);
    }
    let documents = documents.iter().map(|yaml| format!("---\n{yaml}"));
    Ok(documents.collect())
}

fn yaml(object: &Value) -> io::Result<String> {
    serde_norway::to_string(object).map_err(io::Error::other)
}

fn namespace_object(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace, "labels": labels(None)},
    })
}

/// The accounts of manager and agent, with their cluster roles and bindings.
fn accounts(namespace: &str, gates: Gates) -> Vec<Value> {
    let roles = [
        (MANAGER, "manager", manager_rules(gates)),
        (AGENT, "agent", agent_rules()),
    ];
    let account = |name, component| {
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace, "labels": labels(Some(component))},
        })
    };
    let role = |name, component, rules| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name, "labels": labels(Some(component))},
            "rules": rules,
        })
    };
    let binding = |name, component| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": labels(Some(component))},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        })
    };
    let mut objects = Vec::new();
    objects.extend(
        roles
            .iter()
            .map(|(name, component, _)| account(name, component)),
    );
    objects.extend(
        roles
            .iter()
            .map(|(name, component, rules)| role(name, component, rules)),
    );
    objects.extend(
        roles
            .iter()
            .map(|(name, component, _)| binding(name, component)),
    );
    objects
}

/// The manager's rights on the Lease by which one of several leads: on this Lease alone, in its namespace, which does not
/// depend on the one that leadsman is installed in.
fn lease_rights(namespace: &str) -> [Value; 2] {
    let rules = rules_by_name("coordination.k8s.io", "leases", LEASE, &LEASE_RIGHTS);
    manager_role(MANAGER, LEASE_NAMESPACE, namespace, &rules)
}

/// The manager's rights on the Secret with the certificates of its admission webhooks, and the Service by which the API
/// server calls them.
fn webhooks(namespace: &str) -> Vec<Value> {
    let rules = rules_by_name("", "secrets", SECRET, &SECRET_RIGHTS);
    let role = manager_role(WEBHOOKS, namespace, namespace, &rules);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": namespace, "labels": labels(Some("manager"))},
        "spec": {
            "selector": labels(Some("manager")),
            "ports": [{"name": "webhooks", "port": 443, "targetPort": WEBHOOK_PORT}],
        },
    });
    role.into_iter().chain([service]).collect()
}

/// Rules for one object. A verb whose requests do not carry its name, such as create, gets a rule without the name
/// (<https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources>).
fn rules_by_name(group: &str, resource: &str, name: &str, rights: &[(&str, bool)]) -> [Value; 2] {
    [false, true].map(|by_name| {
        let verbs = rights.iter().filter(|(_, only)| *only == by_name);
        let verbs: Vec<_> = verbs.map(|(verb, _)| *verb).collect();
        let mut rule = rule(group, resource, &verbs);
        if by_name {
            rule["resourceNames"] = json!([name]);
        }
        rule
    })
}

/// A role in a namespace for the manager, whose account may be in another one.
fn manager_role(
    name: &str,
    namespace: &str,
    account_namespace: &str,
    rules: &[Value],
) -> [Value; 2] {
    let metadata = json!({"name": name, "namespace": namespace, "labels": labels(Some("manager"))});
    let account =
        json!({"kind": "ServiceAccount", "name": MANAGER, "namespace": account_namespace});
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [account],
        }),
    ]
}

/// The rules for the requests in the manager's tables of rights.
fn manager_rules(gates: Gates) -> Vec<Value> {
    let rights = feature_rights(gates);
    let (named, unnamed): (Vec<_>, Vec<_>) =
        rights.iter().partition(|right| !right.name.is_empty());
    let mut verbs: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for right in unnamed {
        let resource = (&*right.group, &*right.resource);
        verbs.entry(resource).or_default().push(right.verb);
    }
    let verbs = verbs.iter();
    let mut rules: Vec<_> = verbs
        .map(|((group, resource), verbs)| rule(group, resource, verbs))
        .collect();
    // Cluster-wide, for this name: a Role would need OpenKruise's namespace, which may not exist.
    let mut lease = rule("coordination.k8s.io", "leases", &openkruise::LEASE_RIGHTS);
    lease["resourceNames"] = json!([openkruise::LEASE]);
    rules.push(lease);
    rules.extend(named_rules(&named));
    let verbs = if gates.serverless {
        &CONFIGURATION_RIGHTS[..]
    } else {
        &LEFTOVER_RIGHTS
    };
    let resource = "mutatingwebhookconfigurations";
    let mut webhooks = rule("admissionregistration.k8s.io", resource, verbs);
    webhooks["resourceNames"] = json!([CONFIGURATION]);
    rules.push(webhooks);
    rules
}

/// The rules for rights on objects by their names, one for each resource.
fn named_rules(rights: &[&Right]) -> Vec<Value> {
    /// Verbs and names.
    type Granted<'a> = (Vec<&'a str>, Vec<&'a str>);
    let mut resources: BTreeMap<(&str, &str), Granted<'_>> = BTreeMap::new();
    for right in rights {
        let resource = (&*right.group, &*right.resource);
        let (verbs, names) = resources.entry(resource).or_default();
        if !verbs.contains(&right.verb) {
            verbs.push(right.verb);
        }
        if !names.contains(&&*right.name) {
            names.push(&right.name);
        }
    }
    let resources = resources.into_iter();
    let rules = resources.map(|((group, resource), (verbs, names))| {
        let mut rule = rule(group, resource, &verbs);
        rule["resourceNames"] = json!(names);
        rule
    });
    rules.collect()
}

/// The rules for the requests in the agent's table of rights.
fn agent_rules() -> Vec<Value> {
    let mut rights: Vec<((&str, &str), Vec<&str>)> = Vec::new();
    for (group, resource, verb) in leadsman_agent::RIGHTS {
        match rights.iter_mut().find(|(key, _)| *key == (group, resource)) {
            Some((_, verbs)) => verbs.push(verb),
            None => rights.push(((group, resource), vec![verb])),
        }
    }
    let rules = rights.iter();
    rules
        .map(|((group, resource), verbs)| rule(group, resource, verbs))
        .collect()
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// The policy by which an agent may write only the `NodePodProbe` of its own node, which the token of its pod names
/// (KEP-4193; by default in all supported versions of Kubernetes).
fn policy(namespace: &str) -> Vec<Value> {
    let account = format!("system:serviceaccount:{namespace}:{AGENT}");
    let node = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')";
    vec![
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": POLICY, "labels": labels(Some("agent"))},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [GROUP],
                    "apiVersions": [VERSION],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                    "resources": ["nodepodprobes", "nodepodprobes/status"],
                }]},
                "matchConditions": [{
                    "name": "agent",
                    "expression": format!("request.userInfo.username == '{account}'"),
                }],
                "variables": [{"name": "node", "expression": node}],
                "validations": [{
                    "expression": "variables.node != '' && request.name == variables.node",
                    "messageExpression": "'an agent may write the NodePodProbe of its own node alone; its token is \
                        bound to node \"' + variables.node + '\"'",
                    "reason": "Forbidden",
                }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY, "labels": labels(Some("agent"))},
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
        }),
    ]
}

fn labels(component: Option<&str>) -> Value {
    match component {
        Some(component) => json!({
            "app.kubernetes.io/name": "leadsman",
            "app.kubernetes.io/component": component,
        }),
        None => json!({"app.kubernetes.io/name": "leadsman"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(gates: &str) -> Vec<Value> {
        objects_in("leadsman-system", gates)
    }

    fn objects_in(namespace: &str, gates: &str) -> Vec<Value> {
        let text = text(namespace, gates.parse().unwrap()).unwrap();
        let documents = text.split("---\n").filter(|document| !document.is_empty());
        documents
            .map(|document| serde_norway::from_str(document).unwrap())
            .collect()
    }

    const SERVERLESS: &str = "EnablePodProbeMarkerOnServerless=true";

    /// The rights of all roles, as role, group, resource and verb, sorted.
    fn granted(gates: &str) -> Vec<String> {
        let mut granted = Vec::new();
        for role in objects(gates)
            .iter()
            .filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role")
        {
            for rule in role["rules"].as_array().unwrap() {
                let part = |part: &Value| part.as_str().unwrap().to_owned();
                let resource = part(&rule["resources"][0]);
                let names = rule["resourceNames"].as_array();
                let resources = names.map_or(vec![resource.clone()], |names| {
                    let only = names.iter().map(part);
                    only.map(|name| format!("{resource}/{name}")).collect()
                });
                for verb in rule["verbs"].as_array().unwrap() {
                    let name = part(&role["metadata"]["name"]);
                    let group = part(&rule["apiGroups"][0]);
                    granted.extend(resources.iter().map(|resource| {
                        [name.clone(), group.clone(), resource.clone(), part(verb)].join(" ")
                    }));
                }
            }
        }
        granted.sort();
        granted
    }

    #[test]
    fn no_object_replaces_another_in_any_namespace() {
        for namespace in ["leadsman-system", LEASE_NAMESPACE] {
            let mut seen = std::collections::BTreeSet::new();
            for object in objects_in(namespace, SERVERLESS) {
                let metadata = &object["metadata"];
                let identity = [&object["kind"], &metadata["namespace"], &metadata["name"]];
                let identity = identity.map(Value::to_string).join(" ");
                assert!(seen.insert(identity.clone()), "{identity} in {namespace}");
            }
        }
    }

    // DEF-24
    #[test]
    fn objects_come_before_those_that_refer_to_them() {
        let kinds: Vec<_> = objects(SERVERLESS)
            .iter()
            .map(|object| object["kind"].clone())
            .collect();
        let expected = [
            "Namespace",
            "CustomResourceDefinition",
            "CustomResourceDefinition",
            "ServiceAccount",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRole",
            "ClusterRoleBinding",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "Role",
            "RoleBinding",
            "Service",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn all_but_the_crds_is_as_reviewed() {
        let objects = objects(SERVERLESS);
        let reviewed = objects
            .iter()
            .filter(|object| object["kind"] != "CustomResourceDefinition")
            .map(|object| yaml(object).unwrap());
        insta::assert_snapshot!(reviewed.collect::<Vec<_>>().join("---\n"));
    }

    // PRB-25
    #[test]
    fn manager_and_agent_have_these_rights_and_no_others() {
        let table = [
            (MANAGER, "", "pods", "get list watch"),
            (MANAGER, "", "pods/status", "patch"),
            (MANAGER, "", "nodes", "get list watch"),
            (MANAGER, GROUP, "podprobemarkers", "get list watch patch"),
            (MANAGER, GROUP, "podprobemarkers/status", "patch"),
            (
                MANAGER,
                GROUP,
                "nodepodprobes",
                "get list watch create update delete",
            ),
            (MANAGER, "coordination.k8s.io", "leases", "create"),
            (
                MANAGER,
                "coordination.k8s.io",
                "leases/leadsman-manager",
                "get list watch update",
            ),
            (
                MANAGER,
                "coordination.k8s.io",
                "leases/kruise-manager",
                "get list watch",
            ),
            (
                MANAGER,
                "apiextensions.k8s.io",
                "customresourcedefinitions/podprobemarkers.apps.kruise.io",
                "get list watch",
            ),
            (
                MANAGER,
                "apiextensions.k8s.io",
                "customresourcedefinitions/nodepodprobes.apps.kruise.io",
                "get list watch",
            ),
            (
                MANAGER,
                "admissionregistration.k8s.io",
                "mutatingwebhookconfigurations/leadsman",
                "get list watch create patch delete",
            ),
            (WEBHOOKS, "", "secrets", "create"),
            (
                WEBHOOKS,
                "",
                "secrets/leadsman-webhook",
                "get list watch update",
            ),
            (AGENT, GROUP, "nodepodprobes", "get list watch"),
            (AGENT, GROUP, "nodepodprobes/status", "patch"),
            (AGENT, "", "events", "create patch"),
            (AGENT, "events.k8s.io", "events", "create patch"),
        ];
        let mut expected: Vec<_> = table
            .iter()
            .flat_map(|(role, group, resource, verbs)| {
                verbs
                    .split(' ')
                    .map(move |verb| [*role, *group, *resource, verb].join(" "))
            })
            .collect();
        expected.sort();
        assert_eq!(granted(SERVERLESS), expected);
    }

    // PPM-16, PPM-17, PRB-25
    #[test]
    fn without_the_gate_only_the_deletion_of_a_leftover_webhook_is_granted() {
        let without = granted("");
        let of_webhooks = without.iter().filter(|right| {
            right.contains("webhook") || right.contains("secrets") || right.contains("services")
        });
        let leftover =
            "leadsman-manager admissionregistration.k8s.io mutatingwebhookconfigurations/leadsman";
        let expected = ["delete", "get"].map(|verb| format!("{leftover} {verb}"));
        assert_eq!(of_webhooks.collect::<Vec<_>>(), expected.each_ref());
        assert!(objects("").iter().all(|object| object["kind"] != "Service"));
    }
}
