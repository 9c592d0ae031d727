//! Each value of the chart changes what it says, and nothing else is a value.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::render::{Objects, program, root, run, template};

const MANAGER: &str = "Deployment/leadsman-manager";
const CERTIFICATE: &str = "Certificate/leadsman-webhook";
const SERVERLESS: &str = "EnablePodProbeMarkerOnServerless=true";

/// A line of `values.txt`, which says what the columns mean.
#[derive(Debug)]
struct Case {
    key: &'static str,
    value: &'static str,
    object: &'static str,
    place: String,
    expected: Value,
}

impl Case {
    fn read(line: &'static str) -> Self {
        let columns: Vec<_> = line.split(" | ").collect();
        let [key, value, object, place, expected] = columns[..] else {
            panic!("{line:?} has not five columns");
        };
        let place = place.replace("CONTAINER", "POD/containers/0");
        Self {
            key,
            value,
            object,
            place: place.replace("POD", "/spec/template/spec"),
            expected: serde_json::from_str(expected).unwrap(),
        }
    }

    fn is_seen(&self, objects: &Objects) -> bool {
        let object = objects.get(self.object);
        match object.and_then(|object| object.pointer(&self.place)) {
            None => self.expected.is_null(),
            Some(Value::Array(items)) if !self.expected.is_array() => {
                items.contains(&self.expected)
            }
            Some(seen) => *seen == self.expected,
        }
    }
}

/// The cases of a section.
fn cases(section: &str) -> Vec<Case> {
    let text = include_str!("values.txt");
    let (_, lines) = text.split_once(&format!("[{section}]\n")).unwrap();
    let lines = lines.lines().take_while(|line| !line.starts_with('['));
    lines
        .filter(|line| !line.is_empty())
        .map(Case::read)
        .collect()
}

fn rendered(cases: &[Case]) -> Objects {
    let settings = cases.iter();
    let settings = settings.map(|case| format!("--set-json={}={}", case.key, case.value));
    let settings: Vec<_> = settings.collect();
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    template("leadsman-system", &settings).unwrap()
}

#[test]
fn each_value_does_what_it_says() {
    let defaults = rendered(&[]);
    let together = cases("together");
    let all = rendered(&together);
    for case in &together {
        assert!(case.is_seen(&all), "{case:?} is not seen");
        assert!(!case.is_seen(&defaults), "{case:?} is there without it");
    }
    for case in cases("alone") {
        let alone = rendered(std::slice::from_ref(&case));
        assert!(case.is_seen(&alone), "{case:?} is not seen");
        assert!(!case.is_seen(&defaults), "{case:?} is there without it");
    }
}

fn keys(values: &Value, path: &str, into: &mut Vec<String>) {
    match values.as_object() {
        Some(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                keys(value, &format!("{path}{dot}{name}"), into);
            }
        }
        _ => into.push(path.to_owned()),
    }
}

#[test]
fn each_value_has_a_case() {
    let values = std::fs::read_to_string(root().join("charts/leadsman/values.yaml")).unwrap();
    let mut all = Vec::new();
    keys(&serde_norway::from_str(&values).unwrap(), "", &mut all);
    let all_cases = cases("together").into_iter().chain(cases("alone"));
    let cases: BTreeSet<_> = all_cases.map(|case| case.key).collect();
    let is_tried = |key: &str| {
        cases
            .iter()
            .any(|case| key == *case || key.starts_with(case) && key[case.len()..].starts_with('.'))
    };
    let untried: Vec<_> = all.iter().filter(|key| !is_tried(key)).collect();
    assert!(untried.is_empty(), "no case sets {untried:?}");
    let is_known = |case: &str| {
        all.iter()
            .any(|key| key == case || key.starts_with(case) && key[case.len()..].starts_with('.'))
    };
    let unknown: Vec<_> = cases.iter().filter(|case| !is_known(case)).collect();
    assert!(unknown.is_empty(), "values.yaml does not name {unknown:?}");
}

// PPM-16, PPM-17
#[test]
fn the_line_of_the_manual_works() {
    let line = r"--set=featureGates=PodProbeMarkerGate=true\,EnablePodProbeMarkerOnServerless=true";
    let objects = template("leadsman-system", &[line]).unwrap();
    let args = &objects[MANAGER]["spec"]["template"]["spec"]["containers"][0]["args"];
    let flag = "--feature-gates=PodProbeMarkerGate=true,EnablePodProbeMarkerOnServerless=true";
    assert!(args.as_array().unwrap().contains(&json!(flag)), "{args}");
    assert!(objects.contains_key("Service/leadsman-webhook"));
    assert!(objects.contains_key("Role/leadsman-system/leadsman-manager-webhooks"));
}

// PPM-17
#[test]
fn gates_are_read_as_the_manager_reads_them() {
    for (text, marker, webhooks, sets) in [
        ("", true, false, false),
        ("PodProbeMarkerGate=0", false, false, false),
        (
            "EnablePodProbeMarkerOnServerless=T,PodProbeMarkerGate=false",
            false,
            false,
            false,
        ),
        (
            "PodProbeMarkerGate=false, PodProbeMarkerGate=True,EnablePodProbeMarkerOnServerless = 1,",
            true,
            true,
            false,
        ),
        (
            "PodProbeMarkerGate=false,SidecarSetGate=1",
            false,
            true,
            true,
        ),
        (
            "SidecarSetPatchPodMetadataDefaultsAllowed=true",
            true,
            false,
            false,
        ),
    ] {
        let gates = format!("--set-json=featureGates={}", json!(text));
        let objects = template("leadsman-system", &[&gates]).unwrap();
        let has = |key: &str| objects.contains_key(key);
        assert_eq!(
            has("ClusterRole/leadsman-manager-podprobe"),
            marker,
            "{text:?}"
        );
        assert_eq!(
            has("ClusterRole/leadsman-manager-webhooks"),
            webhooks,
            "{text:?}"
        );
        assert_eq!(has("Service/leadsman-webhook"), webhooks, "{text:?}");
        for key in [
            "CustomResourceDefinition/sidecarsets.apps.kruise.io",
            "ClusterRole/leadsman-manager-sidecarset",
            "ValidatingAdmissionPolicy/leadsman-manager-pods",
        ] {
            assert_eq!(has(key), sets, "{key} with {text:?}");
        }
    }
}

// SDF-61
#[test]
fn the_preflight_is_told_the_standing_rule_that_the_manager_goes_by() {
    let sets = "--set=featureGates=SidecarSetGate=true";
    let openkruise = "--set=compatibility=openkruise";
    let rule = |rule: &str| format!("--set=sidecarSets.standingRule={rule}");
    for (settings, expected) in [
        (vec![sets], None),
        (vec![openkruise], None),
        (vec![sets, openkruise], Some("fail")),
        (vec![sets, openkruise, &rule("none")], None),
        (vec![sets, openkruise, &rule("ignore")], Some("ignore")),
        (vec![sets, &rule("fail")], Some("fail")),
    ] {
        let job = &template("games", &settings).unwrap()["Job/leadsman-preflight"];
        let args = &job["spec"]["template"]["spec"]["containers"][0]["args"];
        let args = args.as_array().unwrap().iter().filter_map(Value::as_str);
        let mut rules = args.filter_map(|arg| arg.strip_prefix("--sidecarset-standing-rule="));
        assert_eq!(rules.next(), expected, "{settings:?}");
    }
}

#[test]
fn certificates_of_cert_manager_take_no_right_on_secrets() {
    let gates = format!("--set=featureGates={SERVERLESS}");
    let own = template("games", &[&gates]).unwrap();
    assert!(own.contains_key("Role/games/leadsman-manager-webhooks"));
    let source = "--set=certificates.source=cert-manager";
    let theirs = template("games", &[&gates, source]).unwrap();
    assert!(!theirs.contains_key("Role/games/leadsman-manager-webhooks"));
    assert!(theirs.contains_key("ClusterRole/leadsman-manager-webhooks"));
    let issuer = &theirs[CERTIFICATE]["spec"]["issuerRef"];
    assert_eq!(
        issuer,
        &json!({"kind": "Issuer", "name": "leadsman-webhook-ca"})
    );
    assert!(theirs.contains_key("Issuer/leadsman-webhook-ca"));
    let unused = template("games", &[source]).unwrap();
    assert!(!unused.contains_key(CERTIFICATE), "nobody serves a webhook");
}

#[test]
fn an_agent_with_a_network_of_its_own_has_a_network_policy() {
    let values = "--set=agent.hostNetwork=false,networkPolicy.enabled=true";
    let objects = template("games", &[values]).unwrap();
    assert!(objects.contains_key("NetworkPolicy/leadsman-agent"));
}

#[test]
fn what_is_no_value_is_refused() {
    for (setting, message) in [
        ("colour=red", "'colour' not allowed"),
        ("image.colour=red", "'colour' not allowed"),
        ("manager.colour=red", "'colour' not allowed"),
        ("agent.runtime.colour=red", "'colour' not allowed"),
        (
            r"agent.podLabels.app\.kubernetes\.io/component=x",
            "'not' failed",
        ),
        (
            "agent.runtime.socket=/containerd.sock",
            "does not match pattern",
        ),
        ("agent.runtime.preset=docker", "must be one of 'containerd'"),
        ("agent.port=70000", "maximum"),
        ("agent.port=80", "minimum"),
        ("agent.port=10272", "are the same port"),
        ("manager.extraArgs={--log=debug}", "'not' failed"),
        (
            "manager.extraArgs={--feature-gates=PodProbeMarkerGate=true}",
            "'not' failed",
        ),
        ("agent.extraArgs={--runtime-endpoint}", "'not' failed"),
        (
            "manager.port=9443,featureGates=EnablePodProbeMarkerOnServerless=true",
            "9443 is the port of the webhook",
        ),
        (
            "manager.port=9443,featureGates=SidecarSetGate=true",
            "9443 is the port of the webhook",
        ),
        ("featureGates=PodProbeMarkerGate", "does not match pattern"),
        (
            "featureGates=PodProbeMarkerGate=yes",
            "does not match pattern",
        ),
        (
            "featureGates=Colour=true",
            "unknown feature gate \"Colour\"; the gates are",
        ),
        ("compatibility=docker", "must be one of 'kubernetes'"),
    ] {
        let refusal = template("games", &["--set", setting]).unwrap_err();
        assert!(refusal.contains(message), "{setting}: {refusal}");
    }
    template("games", &["--set=global.colour=red"]).unwrap();
    template("games", &["--set=manager.port=9443"]).unwrap();
}

/// Values without which the templates render a whole object: a null is how Helm deletes a default.
const MAY_BE_NULL: [&str; 21] = [
    "tag",
    "digest",
    "pullSecrets",
    "resources",
    "issuerRef",
    "annotations",
    "topologySpreadConstraints",
    "priorityClassName",
    "nodeSelector",
    "tolerations",
    "affinity",
    "podAnnotations",
    "podLabels",
    "extraArgs",
    "extraEnv",
    "socket",
    "rollingUpdate",
    "seLinuxOptions",
    "labels",
    "metricsFrom",
    "webhookFrom",
];

/// Sets each value and each group of values to null.
fn try_nulls(values: &Value, path: &str) {
    for (name, value) in values.as_object().into_iter().flatten() {
        let key = format!("{path}{name}");
        let outcome = template("games", &["--set", &format!("{key}=null")]);
        if MAY_BE_NULL.contains(&name.as_str()) {
            assert!(outcome.is_ok(), "{key}=null: {outcome:?}");
            continue;
        }
        let refusal = outcome.expect_err(&format!("{key}=null is rendered"));
        assert!(refusal.contains("missing propert"), "{key}: {refusal}");
        try_nulls(value, &format!("{key}."));
    }
}

#[test]
fn a_null_is_refused_where_half_an_object_would_be_rendered() {
    let values = std::fs::read_to_string(root().join("charts/leadsman/values.yaml")).unwrap();
    try_nulls(&serde_norway::from_str(&values).unwrap(), "");
}

#[test]
fn a_parent_chart_may_switch_it_by_a_condition() {
    let enabled = template("games", &["--set=enabled=true"]).unwrap();
    assert!(enabled.contains_key(MANAGER));
}

#[test]
fn labels_of_the_pod_monitor_replace_those_of_the_chart() {
    let settings = [
        "--set=metrics.podMonitor.enabled=true",
        r"--set=metrics.podMonitor.labels.app\.kubernetes\.io/instance=x",
    ];
    let objects = template("games", &settings).unwrap();
    let labels = &objects["PodMonitor/leadsman"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/instance"], "x");
    assert_eq!(labels["app.kubernetes.io/name"], "leadsman");
}

#[test]
fn helm_lint_has_nothing_to_say() {
    run(program("helm").args(["lint", "--strict", "charts/leadsman"])).unwrap();
}
