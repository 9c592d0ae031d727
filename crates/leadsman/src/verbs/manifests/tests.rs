use std::collections::BTreeSet;

use clap::Parser;
use leadsman_admission::OWNER as WEBHOOKS;
use leadsman_api::GROUP;
use leadsman_manager::LEASE_NAMESPACE;

use super::access::{EDITOR, VIEWER};
use super::*;

const PODPROBE: &str = "leadsman-manager-podprobe";
const SERVERLESS: &str = "--feature-gates=EnablePodProbeMarkerOnServerless=true";
const OFF: &str = "--feature-gates=PodProbeMarkerGate=false,EnablePodProbeMarkerOnServerless=true";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ManifestsArgs,
}

/// What `leadsman manifests` prints with these flags.
fn objects(flags: &[&str]) -> Vec<Value> {
    let line = ["manifests"].iter().chain(flags);
    let text = manifests_text(&Line::parse_from(line).args).unwrap();
    let documents = text.split("---\n").filter(|document| !document.is_empty());
    documents
        .map(|document| serde_norway::from_str(document).unwrap())
        .collect()
}

fn kinds(flags: &[&str]) -> Vec<String> {
    let objects = objects(flags);
    let kinds = objects.iter().map(|object| object["kind"].as_str());
    kinds.map(|kind| kind.unwrap().to_owned()).collect()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

/// The rights of all roles, as role, group, resource and verb, sorted.
fn granted(flags: &[&str]) -> Vec<String> {
    let mut granted = Vec::new();
    for role in objects(flags)
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
        let mut seen = BTreeSet::new();
        let all = "--only=namespace,crds,access,workloads,preflight";
        for object in objects(&["--namespace", namespace, SERVERLESS, all]) {
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
    let kinds = kinds(&[SERVERLESS]);
    let first = |kind: &str| kinds.iter().position(|other| other == kind).unwrap();
    let last = |kind: &str| kinds.iter().rposition(|other| other == kind).unwrap();
    for (before, after) in [
        ("Namespace", "ServiceAccount"),
        ("CustomResourceDefinition", "Deployment"),
        ("ServiceAccount", "ClusterRoleBinding"),
        ("ServiceAccount", "Deployment"),
        ("ValidatingAdmissionPolicyBinding", "DaemonSet"),
        ("RoleBinding", "Deployment"),
    ] {
        assert!(last(before) < first(after), "{before} before {after}");
    }
    for (index, kind) in kinds.iter().enumerate() {
        if let Some(role) = kind.strip_suffix("Binding") {
            assert_eq!(
                kinds[index - 1],
                role,
                "each binding comes after its role or policy"
            );
        }
    }
}

#[test]
fn parts_add_up_to_the_whole() {
    assert_eq!(kinds(&["--only=crds"]), ["CustomResourceDefinition"; 2]);
    assert_eq!(kinds(&["--only=namespace"]), ["Namespace"]);
    let workloads = kinds(&["--only=workloads"]);
    assert!(workloads.contains(&"DaemonSet".to_owned()), "{workloads:?}");
    let parts = ["namespace", "crds", "access", "workloads"];
    let one_by_one: Vec<_> = parts
        .iter()
        .flat_map(|part| objects(&["--only", part]))
        .collect();
    assert_eq!(one_by_one, objects(&[]));
    assert_eq!(
        objects(&["--only=workloads,access,crds,namespace"]),
        objects(&[])
    );
}

// PPM-17
#[test]
fn flags_reach_the_workloads() {
    let objects = objects(&[SERVERLESS, "--namespace=games", "--image=r.example/l:1"]);
    let containers = |kind, name| {
        let object = find(&objects, kind, name).unwrap();
        assert_eq!(object["metadata"]["namespace"], "games");
        object["spec"]["template"]["spec"]["containers"].clone()
    };
    let manager = containers("Deployment", MANAGER);
    assert_eq!(manager[0]["image"], "r.example/l:1");
    let args = manager[0]["args"].as_array().unwrap();
    assert!(args.contains(&json!(SERVERLESS)), "{args:?}");
    let agent = containers("DaemonSet", AGENT);
    assert_eq!(agent[0]["image"], "r.example/l:1");
    assert!(
        !agent[0]["args"]
            .as_array()
            .unwrap()
            .contains(&json!(SERVERLESS))
    );
}

// PRB-25
#[test]
fn manager_agent_and_people_have_these_rights_and_no_others() {
    const LEASES: &str = "coordination.k8s.io";
    const CRDS: &str = "apiextensions.k8s.io";
    const WEBHOOK: &str = "mutatingwebhookconfigurations/leadsman";
    let table = [
        (MANAGER, LEASES, "leases", "create"),
        (
            MANAGER,
            LEASES,
            "leases/leadsman-manager",
            "get list watch update",
        ),
        (MANAGER, LEASES, "leases/kruise-manager", "get"),
        (
            MANAGER,
            "rbac.authorization.k8s.io",
            "clusterrolebindings/kruise-manager-rolebinding",
            "get",
        ),
        (
            MANAGER,
            "rbac.authorization.k8s.io",
            "clusterroles/kruise-manager-role",
            "get",
        ),
        (PODPROBE, "", "pods", "list watch"),
        (PODPROBE, "", "pods/status", "patch"),
        (PODPROBE, "", "nodes", "list watch"),
        (PODPROBE, GROUP, "podprobemarkers", "list watch patch"),
        (PODPROBE, GROUP, "podprobemarkers/status", "patch"),
        (
            PODPROBE,
            GROUP,
            "nodepodprobes",
            "list watch create update delete get",
        ),
        (
            PODPROBE,
            CRDS,
            "customresourcedefinitions/podprobemarkers.apps.kruise.io",
            "list watch",
        ),
        (
            PODPROBE,
            CRDS,
            "customresourcedefinitions/nodepodprobes.apps.kruise.io",
            "list watch",
        ),
        (
            PODPROBE,
            "admissionregistration.k8s.io",
            WEBHOOK,
            "get delete",
        ),
        (
            WEBHOOKS,
            "admissionregistration.k8s.io",
            WEBHOOK,
            "list watch create patch delete",
        ),
        (
            WEBHOOKS,
            "rbac.authorization.k8s.io",
            "clusterroles/leadsman-manager-webhooks",
            "get",
        ),
        (
            WEBHOOKS,
            "rbac.authorization.k8s.io",
            "roles/leadsman-manager-webhooks",
            "get",
        ),
        (WEBHOOKS, "", "secrets", "create"),
        (
            WEBHOOKS,
            "",
            "secrets/leadsman-webhook",
            "list watch update",
        ),
        (AGENT, GROUP, "nodepodprobes", "list watch"),
        (AGENT, GROUP, "nodepodprobes/status", "patch"),
        (AGENT, "", "events", "create patch"),
        (VIEWER, GROUP, "podprobemarkers", "get list watch"),
        (
            EDITOR,
            GROUP,
            "podprobemarkers",
            "create update patch delete deletecollection",
        ),
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
    assert_eq!(granted(&[SERVERLESS]), expected);
}

#[test]
fn who_may_edit_may_write_markers_only_if_that_is_asked_for() {
    let aggregated = |flags: &[&str], name: &str| {
        let objects = objects(flags);
        let role = find(&objects, "ClusterRole", name).unwrap();
        let labels = role["metadata"]["labels"].as_object().unwrap();
        let aggregated = labels.iter().filter(|(_, value)| *value == "true");
        let roles = aggregated.map(|(key, _)| key.rsplit('-').next().unwrap().to_owned());
        roles.collect::<Vec<_>>()
    };
    assert_eq!(aggregated(&[], VIEWER), ["view"]);
    assert_eq!(aggregated(&[], EDITOR), ["admin"]);
    assert_eq!(
        aggregated(&["--aggregate-to-edit"], EDITOR),
        ["admin", "edit"]
    );
}

// PPM-16, PPM-17, PRB-25
#[test]
fn without_its_gate_nothing_of_a_feature_is_granted() {
    let of_webhooks = |flags: &[&str]| {
        let rights = granted(flags).into_iter();
        let rights = rights.filter(|right| right.contains("webhook") || right.contains("secrets"));
        rights.collect::<Vec<_>>()
    };
    let leftover = "leadsman-manager-podprobe admissionregistration.k8s.io mutatingwebhookconfigurations/leadsman";
    let expected = ["delete", "get"].map(|verb| format!("{leftover} {verb}"));
    assert_eq!(of_webhooks(&[]), expected);
    assert!(kinds(&[]).iter().all(|kind| kind != "Service"));

    let of_sets = of_webhooks(&[SETS]);
    let judging = "leadsman-manager-validating-webhooks admissionregistration.k8s.io validatingwebhookconfigurations/leadsman";
    for verb in ["list", "watch", "create", "patch", "delete"] {
        assert!(
            of_sets.contains(&format!("{judging} {verb}")),
            "{of_sets:?}"
        );
    }
    let serverless = of_webhooks(&[SERVERLESS]);
    assert!(
        serverless.iter().all(|right| !right.contains("validating")),
        "{serverless:?}"
    );

    assert_eq!(of_webhooks(&[OFF]), [""; 0]);
    assert!(kinds(&[OFF]).iter().all(|kind| kind != "Service"));
    let of_manager = granted(&[OFF]).into_iter();
    let of_manager: Vec<_> = of_manager
        .filter(|right| right.starts_with(MANAGER))
        .collect();
    // Its Lease, and whether an OpenKruise acts.
    let of_leader =
        |right: &String| right.contains(" leases") || right.contains("/kruise-manager-role");
    assert!(of_manager.iter().all(of_leader), "{of_manager:?}");
}

const SETS: &str = "--feature-gates=SidecarSetGate=true";

// SCS-80
#[test]
fn the_right_to_patch_pods_comes_with_its_gate_and_with_the_policy_on_it() {
    let may_patch = |flags: &[&str]| {
        granted(flags)
            .iter()
            .any(|right| right.ends_with(" pods patch"))
    };
    let has_policy = |flags: &[&str]| {
        let objects = objects(flags);
        find(
            &objects,
            "ValidatingAdmissionPolicy",
            "leadsman-manager-pods",
        )
        .is_some()
    };
    assert!(may_patch(&[SETS]) && has_policy(&[SETS]));
    // And so do the other wide rights.
    let policies = [
        "leadsman-manager-sidecarsets",
        "leadsman-manager-revisions",
        "leadsman-manager-secrets",
        "leadsman-manager-webhooks",
        "leadsman-manager-validating-webhooks",
    ];
    let all = objects(&[SETS]);
    for policy in policies {
        for kind in [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ] {
            assert!(find(&all, kind, policy).is_some(), "{kind} {policy}");
        }
    }
    for without in [&[][..], &[SERVERLESS], &[OFF]] {
        assert!(!may_patch(without) && !has_policy(without), "{without:?}");
        assert!(
            granted(without)
                .iter()
                .all(|right| !right.contains("sidecarsets"))
        );
    }
    let crds = kinds(&["--only=crds", SETS]);
    assert_eq!(crds, ["CustomResourceDefinition"; 3]);
    let objects = objects(&[SETS]);
    let editor = find(&objects, "ClusterRole", "leadsman-sidecarset-editor").unwrap();
    let labels = editor["metadata"]["labels"].as_object().unwrap();
    assert!(
        labels.keys().all(|label| !label.contains("aggregate")),
        "{labels:?}"
    );
}

/// What the chart is told by the order of its files: `cargo xtask manifests`.
// PPM-17
#[test]
fn a_gate_adds_objects_and_changes_none() {
    let access = |gates| objects(&["--only=access", gates]);
    let smaller_first = [access(OFF), access("--feature-gates="), access(SERVERLESS)];
    for pair in smaller_first.windows(2) {
        assert!(pair[0].iter().all(|object| pair[1].contains(object)));
        assert!(pair[0].len() < pair[1].len());
    }
}

#[test]
fn the_preflight_account_may_only_read() {
    let rights = granted(&["--only=preflight"]);
    assert!(!rights.is_empty());
    for right in rights {
        let verb = right.rsplit(' ').next().unwrap();
        assert!(["get", "list", "watch"].contains(&verb), "{right}");
    }
}
