//! Policies by which the API server itself restricts accounts of leadsman, for what a role cannot say
//! (`ValidatingAdmissionPolicy`, KEP-3488).

use std::collections::BTreeSet;

use leadsman_admission::{OWNER, SECRET, VALIDATING_OWNER};
use leadsman_api::{GROUP, VERSION, limits};
use leadsman_manager::{SYSTEMS, System};
use serde_json::{Value, json};

use super::{AGENT, MANAGER, object_labels};

const OWN_NODE: &str = "leadsman-agent-own-node";
/// The policy on pods that comes with `SidecarSet`.
pub(super) const PODS: &str = "leadsman-manager-pods";
const SETS: &str = "leadsman-manager-sidecarsets";
/// The policy on revisions that comes with `SidecarSet`.
pub(super) const REVISIONS: &str = "leadsman-manager-revisions";
/// Revisions of workloads: group and plural.
pub(super) const REVISION_RESOURCE: (&str, &str) = ("apps", "controllerrevisions");
const SECRETS: &str = "leadsman-manager-secrets";
/// Each is named as the role that grants the rights.
const WEBHOOKS: &str = OWNER;
const VALIDATING_WEBHOOKS: &str = VALIDATING_OWNER;

/// The policy by which an agent may write only the `NodePodProbe` of its own node, which the token of its pod names
/// (KEP-4193; by default in all supported versions of Kubernetes).
pub(super) fn own_node_policy(namespace: &str) -> [Value; 2] {
    // A token that is bound to no node has none, and then no name is equal.
    let node = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')";
    let policy = AdmissionPolicy {
        name: OWN_NODE.to_owned(),
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
    policy.to_objects(namespace)
}

/// The policy by which the manager, which may patch pods, changes of them what `SidecarSet`s ask for: images of injected
/// containers, and annotations that no other controller reads back.
///
/// An injected container is known by a variable of its environment, which nobody can change in a pod; annotations the manager
/// could write first. Of the rest of a pod's spec Kubernetes lets only what is named here be changed
/// (`ValidatePodUpdate`, `pkg/apis/core/validation/validation.go`); a pod whose gates still hold it back, more.
///
/// The deadline is changed of pods of `BroadcastJob`s, which are ended by it. Pods of `CloneSet`s are the manager's own: it gives
/// them other images and metadata, and releases those that leave a set. Each gate with such changes has this policy under a
/// name of its own, since what one of them allows the other must not refuse.
pub(super) fn pods_policy(name: &str, namespace: &str) -> [Value; 2] {
    const MAY: &str = "the manager of leadsman may change of a pod what SidecarSets ask for: ";
    let ends = format!(
        "object.spec.?activeDeadlineSeconds == oldObject.spec.?activeDeadlineSeconds || {}",
        is_controlled_by("BroadcastJob")
    );
    let of_clone_set = was_controlled_by("CloneSet");
    let or_of_clone_set = |condition: String| format!("{of_clone_set} || ({condition})");
    let policy = AdmissionPolicy {
        name: name.to_owned(),
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["pods"],
        }),
        // The whitelist of annotations is no part of this: it is JSON with expressions, which CEL cannot read.
        variables: changed_keys(
            "annotations",
            &format!("!({of_clone_set}) && {}", is_foreign()),
        ),
        validations: vec![
            forbid_unless(
                MAY,
                &or_of_clone_set(images_unchanged("containers")),
                "images of containers that no SidecarSet has injected stay as they are, but for pods of CloneSets",
            ),
            forbid_unless(
                MAY,
                &images_unchanged("initContainers"),
                "images of init containers that no SidecarSet has injected stay as they are",
            ),
            forbid_unless(
                MAY,
                &fields_unchanged("spec", SPEC),
                "nothing else of a pod's spec may be changed",
            ),
            forbid_unless(
                MAY,
                &ends,
                "nothing else of a pod's spec may be changed, and the deadline of a pod of a BroadcastJob alone",
            ),
            forbid_unless(
                MAY,
                &or_of_clone_set(fields_unchanged("metadata", METADATA)),
                "labels, owners and finalizers stay as they are, but for pods of CloneSets",
            ),
            forbid_foreign_changes(
                MAY,
                "annotations that belong to other controllers stay as they are",
            ),
        ],
    };
    policy.to_objects(namespace)
}

/// The policy by which the manager changes of `SidecarSet`s their two hashes, and nothing that says what pods get. Their status
/// is a resource of its own.
pub(super) fn sets_policy(namespace: &str) -> [Value; 2] {
    const MAY: &str =
        "the manager of leadsman may change of a SidecarSet the annotations with its hashes: ";
    let policy = AdmissionPolicy {
        name: SETS.to_owned(),
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": [GROUP],
            // Sets are served in two versions, and an OpenKruise may serve others.
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["sidecarsets"],
        }),
        variables: changed_keys(
            "annotations",
            "!(k in ['kruise.io/sidecarset-hash', 'kruise.io/sidecarset-hash-without-image'])",
        ),
        validations: vec![
            forbid_unless(
                MAY,
                "request.operation == 'UPDATE'",
                "it neither creates nor deletes any",
            ),
            forbid_unless(
                MAY,
                "request.operation != 'UPDATE' || object.spec == oldObject.spec",
                "its spec stays as it is",
            ),
            forbid_unless(
                MAY,
                &if_update(&fields_unchanged("metadata", METADATA)),
                "labels, owners and finalizers stay as they are",
            ),
            forbid_foreign_changes(MAY, "other annotations stay as they are"),
        ],
    };
    policy.to_objects(namespace)
}

/// The policy by which the manager writes `ControllerRevision`s of `SidecarSet`s and `CloneSet`s alone: its right, in its own namespace, would
/// reach those of `DaemonSet`s and `StatefulSet`s too, by which Kubernetes rolls back.
///
/// Each gate has it under a name of its own, since what one of them allows the other must not refuse. One without a controller,
/// which a deleted `CloneSet` has left, becomes that of a new one.
pub(super) fn revisions_policy(name: &str, namespace: &str) -> [Value; 2] {
    const MAY: &str =
        "the manager of leadsman may write ControllerRevisions of SidecarSets and CloneSets: ";
    let adopted = format!(
        "(request.operation == 'UPDATE' && oldObject.metadata.?ownerReferences.orValue([]).size() == 0 && {})",
        controlled("object", "CloneSet")
    );
    let of_a_set = format!(
        "{} || {} || {adopted}",
        is_controlled_by("SidecarSet"),
        is_controlled_by("CloneSet")
    );
    let policy = AdmissionPolicy {
        name: name.to_owned(),
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": ["apps"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["controllerrevisions"],
        }),
        variables: changed_keys("labels", "k != 'apps.kruise.io/sidecarset-custom-version'"),
        validations: vec![
            forbid_unless(MAY, &of_a_set, "this one is of something else"),
            forbid_unless(
                MAY,
                &if_update(&fields_unchanged(
                    "metadata",
                    &["annotations", "finalizers"],
                )),
                "annotations, owners and finalizers stay as they are",
            ),
            forbid_unless(
                MAY,
                &if_update(&format!(
                    "{} || {adopted}",
                    fields_unchanged("metadata", &["ownerReferences"])
                )),
                "annotations, owners and finalizers stay as they are",
            ),
            forbid_foreign_changes(MAY, "labels stay as they are, but for the custom version"),
        ],
    };
    policy.to_objects(namespace)
}

/// The policy by which the manager creates and deletes, of the resources that a system writes, only what an object of a system
/// controls: its rights on pods or Jobs would reach those of everybody. Objects of a system's own kind it deletes as the system
/// says, and changes of them one annotation.
pub(super) fn children_policy(system: &System, namespace: &str) -> [Value; 2] {
    let may = format!(
        "the manager of leadsman may write {}: ",
        system
            .children_and_own()
            .map(|(_, resource)| resource)
            .collect::<Vec<_>>()
            .join(" and ")
    );
    let written: BTreeSet<_> = system.children_and_own().collect();
    let is_of = |resource: (&str, &str), condition: &str| {
        let is_written = written.contains(&resource);
        let resource = resource.1;
        is_written.then(|| format!("(request.resource.resource == '{resource}' && {condition})"))
    };
    // A resource may be that of two systems: cron jobs create what other jobs are.
    let of_children = SYSTEMS.iter().flat_map(|other| {
        let is_a_child = is_controlled_by(other.kind);
        let resources = other.children.iter();
        resources.filter_map(move |resource| is_of(*resource, &is_a_child))
    });
    let of_own = SYSTEMS.iter().filter_map(|other| {
        let condition = format!("request.operation == 'DELETE' && {}", other.own_deletion?);
        is_of((GROUP, other.resource), &condition)
    });
    let mut operations = vec!["CREATE", "DELETE"];
    let mut variables = Vec::new();
    let mut of_updates = Vec::new();
    if !system.own_annotations.is_empty() {
        // Another policy says what may be changed of pods.
        let is_own = format!("request.resource.resource == '{}'", system.resource);
        let keys = system.own_annotations.join("', '");
        operations.push("UPDATE");
        variables = changed_keys("annotations", &format!("{is_own} && !(k in ['{keys}'])"));
        let unchanged = format!(
            "object.spec == oldObject.spec && {}",
            fields_unchanged("metadata", METADATA)
        );
        of_updates = vec![
            forbid_unless(
                &may,
                &if_update(&format!("!({is_own}) || {unchanged}")),
                "spec, labels, owners and finalizers stay as they are",
            ),
            forbid_foreign_changes(&may, "annotations of others stay as they are"),
        ];
    }
    // Revisions of sets of sidecars are written by a feature that is no system.
    let of_sidecar_sets = is_of(REVISION_RESOURCE, &is_controlled_by("SidecarSet"));
    let all_updates = std::iter::once("request.operation == 'UPDATE'".to_owned());
    let is_permitted: Vec<_> = all_updates
        .chain(of_children)
        .chain(of_own)
        .chain(of_sidecar_sets)
        .collect();
    let groups: BTreeSet<_> = written.iter().map(|(group, _)| group).collect();
    let resources: BTreeSet<_> = written.iter().map(|(_, resource)| resource).collect();
    let policy = AdmissionPolicy {
        name: format!("{MANAGER}-{}", system.name),
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": groups,
            "apiVersions": ["*"],
            "operations": operations,
            "resources": resources,
        }),
        variables,
        validations: std::iter::once(forbid_unless(
            &may,
            &is_permitted.join(" || "),
            "this one is of something else",
        ))
        .chain(of_updates)
        .collect(),
    };
    policy.to_objects(namespace)
}

/// The policy by which the manager writes the Secret with the certificates of its webhooks alone: RBAC cannot restrict `create`
/// to a name. Of another type it could be a token: the API server writes that of any account of the namespace into a Secret of
/// type `kubernetes.io/service-account-token` (`TokensController`, `pkg/controller/serviceaccount/tokens_controller.go`). And an
/// owner that does not exist would have the garbage collector delete the one that is there, which makes room for such a one.
pub(super) fn secrets_policy(namespace: &str) -> [Value; 2] {
    const MAY: &str =
        "the manager of leadsman may write the Secret with the certificates of its webhooks: ";
    let owners = format!(
        "(oldObject != null && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences) || \
         object.metadata.?ownerReferences.orValue([]).all(r, \
         r.apiVersion.startsWith('rbac.authorization.k8s.io/') && r.kind == 'Role' && r.name == '{OWNER}')"
    );
    let name = format!(
        "request.namespace == '{namespace}' && object.metadata.?name.orValue('') == '{SECRET}'"
    );
    let policy = AdmissionPolicy {
        name: SECRETS.to_owned(),
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["secrets"],
        }),
        variables: Vec::new(),
        validations: vec![
            forbid_unless(MAY, &name, "this one has another name"),
            forbid_unless(
                MAY,
                "object.?type.orValue('Opaque') in ['Opaque', 'kubernetes.io/tls']",
                "its type is kubernetes.io/tls or Opaque",
            ),
            forbid_unless(MAY, &owners, &format!("its only owner is the Role {OWNER}")),
        ],
    };
    policy.to_objects(namespace)
}

/// The manager may only register webhooks for pod creation; those with `failurePolicy: Fail` must
/// exclude kube-system and its own namespace. The policy cannot restrict what the called server
/// answers.
pub(super) fn mutating_webhooks_policy(namespace: &str) -> [Value; 2] {
    let is_of_pods = "w.?rules.orValue([]).all(r, r.apiGroups == [''] && r.resources == ['pods'] && \
                      r.operations == ['CREATE'])";
    let leaves_out = |namespace: &str| {
        format!(
            "w.?namespaceSelector.?matchExpressions.orValue([]).exists(e, e.key == 'kubernetes.io/metadata.name' && \
             e.operator == 'NotIn' && '{namespace}' in e.?values.orValue([]))"
        )
    };
    let may_fail = [leaves_out("kube-system"), leaves_out(namespace)].join(" && ");
    webhooks_policy(
        (WEBHOOKS, "mutatingwebhookconfigurations"),
        namespace,
        &[
            (
                is_of_pods,
                "webhooks that change objects are called for the creation of pods alone",
            ),
            (
                &format!("w.?failurePolicy.orValue('Fail') == 'Ignore' || {may_fail}"),
                "a webhook whose failure refuses pods leaves out kube-system and leadsman's namespace",
            ),
        ],
    )
}

/// The policy by which the manager registers webhooks that judge `SidecarSet`s as they are created or updated, and whose failure
/// refuses none. Whoever is called may still refuse; but a set can be deleted.
pub(super) fn validating_webhooks_policy(namespace: &str) -> [Value; 2] {
    // Not for DELETE: whoever has the manager's token could keep every set from being deleted, since failurePolicy is
    // about a webhook that does not answer, and not about one that refuses.
    let is_of_sets = format!(
        "w.?rules.orValue([]).all(r, r.apiGroups == ['{GROUP}'] && r.resources == ['sidecarsets'] && \
         r.operations.all(o, o in ['CREATE', 'UPDATE']))"
    );
    webhooks_policy(
        (VALIDATING_WEBHOOKS, "validatingwebhookconfigurations"),
        namespace,
        &[
            (
                &is_of_sets,
                "webhooks that judge objects are called for the creation and the update of SidecarSets alone",
            ),
            (
                "w.?failurePolicy.orValue('Fail') == 'Ignore'",
                "a webhook that judges objects has failurePolicy Ignore",
            ),
        ],
    )
}

/// A policy on a configuration: each webhook, as `w`, is as these conditions say, or is as it was, since others may add some.
fn webhooks_policy(
    (name, resource): (&'static str, &str),
    namespace: &str,
    conditions: &[(&str, &str)],
) -> [Value; 2] {
    const MAY: &str = "the manager of leadsman may register its own webhooks: ";
    let as_before = "(oldObject != null && oldObject.?webhooks.orValue([]).exists(o, o == w))";
    let each = conditions.iter().map(|(condition, message)| {
        let expression = format!("object.?webhooks.orValue([]).all(w, {as_before} || {condition})");
        forbid_unless(MAY, &expression, message)
    });
    let policy = AdmissionPolicy {
        name: name.to_owned(),
        account: MANAGER,
        component: "manager",
        rule: json!({
            "apiGroups": ["admissionregistration.k8s.io"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [resource],
        }),
        variables: Vec::new(),
        validations: each.collect(),
    };
    policy.to_objects(namespace)
}

/// The fields of a pod's spec that Kubernetes lets be changed beside images and the deadline, and those of one with
/// scheduling gates.
const SPEC: &[&str] = &[
    "affinity",
    "nodeSelector",
    "schedulingGates",
    "terminationGracePeriodSeconds",
    "tolerations",
];
const METADATA: &[&str] = &["finalizers", "labels", "ownerReferences"];

/// CEL: the object, before and after, is controlled by an object of this kind of ours.
fn is_controlled_by(kind: &str) -> String {
    let controlled = controlled("o", kind);
    format!("[object, oldObject].all(o, o == null || {controlled})")
}

/// CEL: the object was controlled by an object of this kind of ours before this update.
fn was_controlled_by(kind: &str) -> String {
    controlled("oldObject", kind)
}

fn controlled(object: &str, kind: &str) -> String {
    format!(
        "{object}.metadata.?ownerReferences.orValue([]).exists(r, \
         r.apiVersion.startsWith('{GROUP}/') && r.kind == '{kind}' && r.?controller.orValue(false))"
    )
}

fn forbid_unless(may: &str, expression: &str, message: &str) -> Value {
    // 403 instead of 422, the default: the object may be valid, and the account must not write it.
    json!({"expression": expression, "message": format!("{may}{message}"), "reason": "Forbidden"})
}

/// Refuses changes of keys that [`changed_keys`] calls foreign, by name.
fn forbid_foreign_changes(may: &str, message: &str) -> Value {
    json!({
        "expression": "variables.foreign.size() == 0",
        "messageExpression": format!("'{may}{message}: ' + variables.foreign.join(', ')"),
        "reason": "Forbidden",
    })
}

/// CEL variables: which keys of a map in the metadata an update adds, changes or removes, and which `k` of them are foreign.
fn changed_keys(map: &str, is_foreign: &str) -> Vec<Value> {
    let of =
        |object: &str| format!("{object} == null ? {{}} : {object}.metadata.?{map}.orValue({{}})");
    vec![
        json!({"name": "before", "expression": of("oldObject")}),
        json!({"name": "after", "expression": of("object")}),
        json!({"name": "changed", "expression":
            "request.operation != 'UPDATE' ? [] : \
             variables.after.map(k, !(k in variables.before) || variables.before[k] != variables.after[k], k) + \
             variables.before.map(k, !(k in variables.after), k)"}),
        json!({"name": "foreign", "expression": format!("variables.changed.filter(k, {is_foreign})")}),
    ]
}

/// CEL: this holds if the request is an update.
fn if_update(expression: &str) -> String {
    format!("request.operation != 'UPDATE' || ({expression})")
}

/// CEL: these fields are what they were.
fn fields_unchanged(parent: &str, fields: &[&str]) -> String {
    let same: Vec<_> = fields
        .iter()
        .map(|field| format!("object.{parent}.?{field} == oldObject.{parent}.?{field}"))
        .collect();
    same.join(" && ")
}

/// CEL: each container of a list that was not injected has the image that it had.
fn images_unchanged(list: &str) -> String {
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
struct AdmissionPolicy {
    name: String,
    account: &'static str,
    component: &'static str,
    /// The requests that it is about.
    rule: Value,
    variables: Vec<Value>,
    validations: Vec<Value>,
}

impl AdmissionPolicy {
    fn to_objects(&self, namespace: &str) -> [Value; 2] {
        let account = format!("system:serviceaccount:{namespace}:{}", self.account);
        let metadata = json!({"name": self.name, "labels": object_labels(Some(self.component))});
        [
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicy",
                "metadata": metadata,
                "spec": {
                    // An expression that cannot be evaluated must not let a stolen token through.
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
