//! What a role cannot say: policies by which the API server itself restricts accounts of leadsman
//! (`ValidatingAdmissionPolicy`, KEP-3488).

use leadsman_api::{GROUP, VERSION, limits};
use serde_json::{Value, json};

use super::{AGENT, MANAGER, labels};

const OWN_NODE: &str = "leadsman-agent-own-node";
const PODS: &str = "leadsman-manager-pods";

/// The policy by which an agent may write only the `NodePodProbe` of its own node, which the token of its pod names
/// (KEP-4193; by default in all supported versions of Kubernetes).
pub(super) fn own_node(namespace: &str) -> [Value; 2] {
    let node = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')";
    let policy = Policy {
        name: OWN_NODE,
        account: AGENT,
        component: "agent",
        rule: json!({
            "apiGroups": [GROUP],
            "apiVersions": [VERSION],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["nodepodprobes", "nodepodprobes/status"],
        }),
        variables: vec![json!({"name": "node", "expression": node})],
        validations: vec![json!({
            "expression": "variables.node != '' && request.name == variables.node",
            "messageExpression": "'an agent may write the NodePodProbe of its own node alone; its token is \
                bound to node \"' + variables.node + '\"'",
            "reason": "Forbidden",
        })],
    };
    policy.objects(namespace)
}

/// The policy by which the manager, which may patch pods, changes of them what `SidecarSet`s ask for: images of injected
/// containers, and annotations that no other controller reads back.
///
/// An injected container is known by a variable of its environment, which nobody can change in a pod; annotations the manager
/// could write first. Of the rest of a pod's spec Kubernetes lets only what is named here be changed
/// (`ValidatePodUpdate`, `pkg/apis/core/validation/validation.go`); a pod whose gates still hold it back, more.
pub(super) fn pods(namespace: &str) -> [Value; 2] {
    let policy = Policy {
        name: PODS,
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["pods"],
        }),
        variables: vec![
            json!({"name": "before", "expression": "oldObject.metadata.?annotations.orValue({})"}),
            json!({"name": "after", "expression": "object.metadata.?annotations.orValue({})"}),
            json!({"name": "changed", "expression":
                "variables.after.map(k, !(k in variables.before) || variables.before[k] != variables.after[k], k) + \
                 variables.before.map(k, !(k in variables.after), k)"}),
            json!({"name": "foreign", "expression": format!("variables.changed.filter(k, {})", is_foreign())}),
        ],
        validations: vec![
            forbid(
                &images("containers"),
                "images of containers that no SidecarSet has injected stay as they are",
            ),
            forbid(
                &images("initContainers"),
                "images of init containers that no SidecarSet has injected stay as they are",
            ),
            forbid(
                &same("spec", SPEC),
                "nothing else of a pod's spec may be changed",
            ),
            forbid(
                &same("metadata", METADATA),
                "labels, owners and finalizers stay as they are",
            ),
            json!({
                "expression": "variables.foreign.size() == 0",
                "messageExpression": format!("'{MAY}annotations that belong to other controllers stay as they are: ' + \
                    variables.foreign.join(', ')"),
                "reason": "Forbidden",
            }),
        ],
    };
    policy.objects(namespace)
}

const MAY: &str = "the manager of leadsman may change of a pod what SidecarSets ask for: ";
/// What Kubernetes lets be changed of a pod's spec beside images, and of one with scheduling gates.
const SPEC: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "nodeSelector",
    "schedulingGates",
    "terminationGracePeriodSeconds",
    "tolerations",
];
const METADATA: &[&str] = &["finalizers", "labels", "ownerReferences"];

fn forbid(expression: &str, message: &str) -> Value {
    json!({"expression": expression, "message": format!("{MAY}{message}"), "reason": "Forbidden"})
}

/// CEL: these fields are what they were.
fn same(parent: &str, fields: &[&str]) -> String {
    let same = fields
        .iter()
        .map(|field| format!("object.{parent}.?{field} == oldObject.{parent}.?{field}"));
    let same: Vec<_> = same.collect();
    same.join(" && ")
}

/// CEL: each container of a list that was not injected has the image that it had.
fn images(list: &str) -> String {
    format!(
        "object.spec.?{list}.orValue([]).all(c, \
         oldObject.spec.?{list}.orValue([]).exists(o, o.name == c.name && (o.?image == c.?image || \
         o.?env.orValue([]).exists(e, e.name == 'IS_INJECTED' && e.?value.orValue('') == 'true'))))"
    )
}

/// CEL: the annotation `k` belongs to another controller. The keys are those that a set may not patch either.
fn is_foreign() -> String {
    const OURS: [&str; 3] = [
        "kruise.io/sidecarset-",
        "version.sidecarset.kruise.io/",
        "versionalt.sidecarset.kruise.io/",
    ];
    let begins_with = |prefixes: &mut dyn Iterator<Item = &&str>| {
        let prefixes = prefixes.map(|prefix| format!("k.startsWith('{prefix}')"));
        prefixes.collect::<Vec<_>>().join(" || ")
    };
    let reserved = begins_with(&mut limits::RESERVED_PREFIXES.iter());
    let ours = begins_with(&mut OURS.iter());
    let keys = limits::RESERVED_KEYS.join("', '");
    format!("!({ours}) && (k in ['{keys}'] || {reserved})")
}

/// A policy for what one account asks of some objects.
struct Policy {
    name: &'static str,
    account: &'static str,
    component: &'static str,
    /// The requests that it is about.
    rule: Value,
    variables: Vec<Value>,
    validations: Vec<Value>,
}

impl Policy {
    fn objects(&self, namespace: &str) -> [Value; 2] {
        let account = format!("system:serviceaccount:{namespace}:{}", self.account);
        let metadata = json!({"name": self.name, "labels": labels(Some(self.component))});
        [
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicy",
                "metadata": metadata,
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": {"resourceRules": [self.rule]},
                    "matchConditions": [{
                        "name": self.component,
                        "expression": format!("request.userInfo.username == '{account}'"),
                    }],
                    "variables": self.variables,
                    "validations": self.validations,
                },
            }),
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": metadata,
                "spec": {"policyName": self.name, "validationActions": ["Deny"]},
            }),
        ]
    }
}
