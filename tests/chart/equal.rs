//! One install, three ways to it.

use serde_json::{Value, json};

use crate::render::{Objects, manifests, objects, program, run, template};

/// What only Helm adds to an object.
const HELM_LABELS: [&str; 4] = [
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
];

/// The chart's objects without hooks and without what only Helm adds.
fn chart(namespace: &str, values: &[&str]) -> Objects {
    let rendered = template(namespace, values).unwrap();
    let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let objects = rendered.into_iter().filter(|(_, object)| !is_hook(object));
    objects
        .map(|(key, mut object)| {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("annotations");
            let labels = metadata["labels"].as_object_mut().unwrap();
            for label in HELM_LABELS {
                assert!(labels.remove(label).is_some(), "{key} has no label {label}");
            }
            (key, object)
        })
        .collect()
}

/// What `leadsman manifests` prints, without what the chart leaves to Helm: the namespace, and the label of CRDs.
fn printed(arguments: &[&str]) -> Objects {
    let mut printed = manifests(arguments);
    printed.retain(|key, _| !key.starts_with("Namespace/"));
    for (key, crd) in &mut printed {
        if key.starts_with("CustomResourceDefinition/") {
            crd["metadata"]["labels"] = json!({"app.kubernetes.io/name": "leadsman"});
        }
    }
    printed
}

#[track_caller]
fn assert_equal(left: &Objects, right: &Objects, what: &str) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "{what}");
    for (key, object) in left {
        assert_eq!(object, &right[key], "{what}: {key}");
    }
}

// PPM-17
#[test]
fn chart_and_manifests_are_equal() {
    let serverless = "EnablePodProbeMarkerOnServerless=true";
    let off = "PodProbeMarkerGate=false";
    let sets = "SidecarSetGate=true";
    let sets_alone = (
        "PodProbeMarkerGate=false\\,SidecarSetGate=true",
        "PodProbeMarkerGate=false,SidecarSetGate=true",
    );
    let both = (
        "EnablePodProbeMarkerOnServerless=true\\,SidecarSetGate=true",
        "EnablePodProbeMarkerOnServerless=true,SidecarSetGate=true",
    );
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("leadsman-system", &[], &[]),
        ("games", &[], &[]),
        (
            "games",
            &["--set", &format!("featureGates={serverless}")],
            &["--feature-gates", serverless],
        ),
        (
            "leadsman-system",
            &["--set", &format!("featureGates={off}")],
            &["--feature-gates", off],
        ),
        (
            "games",
            &["--set", &format!("featureGates={sets}")],
            &["--feature-gates", sets],
        ),
        (
            "games",
            &["--set", &format!("featureGates={}", sets_alone.0)],
            &["--feature-gates", sets_alone.1],
        ),
        (
            "games",
            &["--set", &format!("featureGates={}", both.0)],
            &["--feature-gates", both.1],
        ),
        (
            "kube-system",
            &[
                "--set=image.repository=r.example/l,image.tag=v2",
                "--set=rbac.aggregateToEdit=true",
            ],
            &["--image=r.example/l:v2", "--aggregate-to-edit"],
        ),
    ];
    for (namespace, values, flags) in cases {
        let mut arguments = vec!["--namespace", namespace];
        arguments.extend(flags);
        let what = format!("helm template {values:?} beside leadsman manifests {arguments:?}");
        assert_equal(&chart(namespace, values), &printed(&arguments), &what);
    }
}

#[test]
fn the_kustomize_base_and_manifests_are_equal() {
    let kustomize = run(program("kubectl").args(["kustomize", "kustomize"])).unwrap();
    assert_equal(&objects(&kustomize), &manifests(&[]), "kubectl kustomize");
    // With sets.
    let gate = "--feature-gates=SidecarSetGate=true";
    let kustomize = run(program("kubectl").args(["kustomize", "kustomize/sidecarset"])).unwrap();
    assert_equal(
        &objects(&kustomize),
        &manifests(&[gate]),
        "kubectl kustomize",
    );
}

#[test]
fn what_an_administrator_applies_is_what_the_chart_leaves_out() {
    let without = "--set=rbac.create=false,crds.install=false,manager.serviceAccount.create=false,agent.serviceAccount.create=false";
    let gates = "EnablePodProbeMarkerOnServerless=true";
    let mut both = chart("games", &[without, &format!("--set=featureGates={gates}")]);
    let flags = ["--namespace=games", "--feature-gates", gates];
    both.extend(printed(&[&flags[..], &["--only=crds,access"]].concat()));
    assert_equal(&both, &printed(&flags), "both together");
}

#[test]
fn the_preflight_hook_has_the_account_that_manifests_prints() {
    let rendered = template("games", &[]).unwrap();
    for (key, object) in manifests(&["--namespace=games", "--only=preflight"]) {
        for field in ["rules", "roleRef", "subjects"] {
            assert_eq!(rendered[&key][field], object[field], "{key}");
        }
    }
}

/// Another install that leads is in the way, and it is known by its namespace.
#[test]
fn the_preflight_hook_knows_the_namespace_that_is_installed_into() {
    let job = &template("games", &[]).unwrap()["Job/leadsman-preflight"];
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let field = json!({"fieldRef": {"fieldPath": "metadata.namespace"}});
    assert_eq!(
        container["env"],
        json!([{"name": "LEADSMAN_NAMESPACE", "valueFrom": field}])
    );
    assert_eq!(container["args"], json!(["preflight", "--before-install"]));
}

/// Beside an OpenKruise, sets are in the way of each other whatever its gates.
// SCS-80
#[test]
fn the_preflight_hook_knows_the_gates_that_are_installed_with() {
    let gates = "--set=featureGates=SidecarSetGate=true";
    let job = &template("games", &[gates]).unwrap()["Job/leadsman-preflight"];
    let args = &job["spec"]["template"]["spec"]["containers"][0]["args"];
    let expected = [
        "preflight",
        "--before-install",
        "--feature-gates=SidecarSetGate=true",
    ];
    assert_eq!(*args, json!(expected));
}
