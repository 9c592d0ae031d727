//! Each value of the chart changes what it says, and nothing else is a value.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::render::{Objects, program, root, run, template};

const MANAGER: &str = "Deployment/leadsman-manager";
const AGENT: &str = "DaemonSet/leadsman-agent";
const JOB: &str = "Job/leadsman-preflight";
const DISRUPTION: &str = "PodDisruptionBudget/leadsman-manager";
const CERTIFICATE: &str = "Certificate/leadsman-webhook";
const CRD: &str = "CustomResourceDefinition/nodepodprobes.apps.kruise.io";
const EDITOR: &str = "ClusterRole/leadsman-podprobemarker-editor";
const SERVERLESS: &str = "EnablePodProbeMarkerOnServerless=true";

/// A value, and what it does to an object: at the place, below `POD` or `BOX` for a workload's pod or container, stands what
/// is expected. In a list it is one of the items; null means that it is not there.
type Case = (&'static str, Value, &'static str, &'static str, Value);

fn is_seen(objects: &Objects, (_, _, object, place, expected): &Case) -> bool {
    let place = place
        .replace("BOX", "POD/containers/0")
        .replace("POD", "/spec/template/spec");
    let seen = objects
        .get(*object)
        .and_then(|object| object.pointer(&place));
    match seen {
        None => expected.is_null(),
        Some(Value::Array(items)) if !expected.is_array() => items.contains(expected),
        Some(seen) => seen == expected,
    }
}

fn set(cases: &[Case]) -> Vec<String> {
    let settings = cases.iter();
    let settings = settings.map(|(key, value, ..)| format!("--set-json={key}={value}"));
    settings.collect()
}

fn rendered(cases: &[Case]) -> Objects {
    let settings = set(cases);
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    template("leadsman-system", &settings).unwrap()
}

/// Values that are set all at once.
fn together() -> Vec<Case> {
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = json!(format!("r.example/leadsman:9@{digest}"));
    let memory = json!({"limits": {"memory": "99Mi"}});
    let variable = json!({"name": "A", "value": "b"});
    let peers = json!([{"namespaceSelector": {}}]);
    let mut cases = vec![
        (
            "image.repository",
            json!("r.example/leadsman"),
            MANAGER,
            "BOX/image",
            image.clone(),
        ),
        ("image.tag", json!("9"), AGENT, "BOX/image", image.clone()),
        ("image.digest", json!(digest), JOB, "BOX/image", image),
        (
            "featureGates",
            json!(SERVERLESS),
            MANAGER,
            "BOX/args",
            json!(format!("--feature-gates={SERVERLESS}")),
        ),
        (
            "featureGates",
            json!(SERVERLESS),
            "Service/leadsman-webhook",
            "/spec/ports/0/targetPort",
            json!(9443),
        ),
        (
            "compatibility",
            json!("openkruise"),
            MANAGER,
            "BOX/args",
            json!("--compatibility=openkruise"),
        ),
        (
            "crds.keep",
            json!(false),
            CRD,
            "/metadata/annotations",
            json!(null),
        ),
        (
            "rbac.aggregateToEdit",
            json!(true),
            EDITOR,
            "/metadata/labels/rbac.authorization.k8s.io~1aggregate-to-edit",
            json!("true"),
        ),
        (
            "preflight.resources",
            memory.clone(),
            JOB,
            "BOX/resources/limits/memory",
            json!("99Mi"),
        ),
        (
            "certificates.source",
            json!("cert-manager"),
            MANAGER,
            "BOX/args",
            json!("--webhook-cert-dir=/etc/leadsman/webhook"),
        ),
        (
            "certificates.source",
            json!("cert-manager"),
            CERTIFICATE,
            "/spec/dnsNames/0",
            json!("leadsman-webhook.leadsman-system.svc"),
        ),
        (
            "certificates.certManager.issuerRef",
            json!({"kind": "ClusterIssuer", "name": "i"}),
            CERTIFICATE,
            "/spec/issuerRef/name",
            json!("i"),
        ),
        (
            "manager.replicas",
            json!(3),
            MANAGER,
            "/spec/replicas",
            json!(3),
        ),
        (
            "manager.port",
            json!(1234),
            MANAGER,
            "BOX/ports/0/containerPort",
            json!(1234),
        ),
        (
            "manager.port",
            json!(1234),
            MANAGER,
            "BOX/args",
            json!("--metrics-bind-address=:1234"),
        ),
        (
            "manager.podDisruptionBudget.maxUnavailable",
            json!("50%"),
            DISRUPTION,
            "/spec/maxUnavailable",
            json!("50%"),
        ),
        (
            "manager.topologySpreadConstraints",
            json!([]),
            MANAGER,
            "POD/topologySpreadConstraints",
            json!(null),
        ),
        (
            "agent.port",
            json!(1235),
            AGENT,
            "BOX/ports/0/containerPort",
            json!(1235),
        ),
        (
            "agent.port",
            json!(1235),
            AGENT,
            "BOX/args",
            json!("--metrics-bind-address=:1235"),
        ),
        (
            "agent.runtime.socket",
            json!("/run/a/b.sock"),
            AGENT,
            "BOX/args",
            json!("--runtime-endpoint=unix:///host/run/a/b.sock"),
        ),
        (
            "agent.runtime.socket",
            json!("/run/a/b.sock"),
            AGENT,
            "POD/volumes/0/hostPath/path",
            json!("/run/a"),
        ),
        (
            "agent.runtime.socket",
            json!("/run/a/b.sock"),
            AGENT,
            "BOX/volumeMounts/0/mountPath",
            json!("/host/run/a"),
        ),
        (
            "agent.updateStrategy",
            json!({"type": "OnDelete", "rollingUpdate": null}),
            AGENT,
            "/spec/updateStrategy",
            json!({"type": "OnDelete"}),
        ),
        (
            "agent.seLinuxOptions",
            json!({"type": "spc_t"}),
            AGENT,
            "BOX/securityContext/seLinuxOptions/type",
            json!("spc_t"),
        ),
        (
            "criticalPodsQuota.enabled",
            json!(true),
            "ResourceQuota/leadsman-critical-pods",
            "/spec/hard/pods",
            json!("7"),
        ),
        (
            "criticalPodsQuota.pods",
            json!(7),
            "ResourceQuota/leadsman-critical-pods",
            "/spec/hard/pods",
            json!("7"),
        ),
        (
            "metrics.service.enabled",
            json!(true),
            "Service/leadsman-metrics",
            "/spec/ports/0/targetPort",
            json!("metrics"),
        ),
        (
            "metrics.service.annotations",
            json!({"a": "b"}),
            "Service/leadsman-metrics",
            "/metadata/annotations/a",
            json!("b"),
        ),
        (
            "metrics.podMonitor.enabled",
            json!(true),
            "PodMonitor/leadsman",
            "/spec/podMetricsEndpoints/0/port",
            json!("metrics"),
        ),
        (
            "metrics.podMonitor.labels",
            json!({"a": "b"}),
            "PodMonitor/leadsman",
            "/metadata/labels/a",
            json!("b"),
        ),
        (
            "metrics.podMonitor.interval",
            json!("5s"),
            "PodMonitor/leadsman",
            "/spec/podMetricsEndpoints/0/interval",
            json!("5s"),
        ),
        (
            "networkPolicy.enabled",
            json!(true),
            "NetworkPolicy/leadsman-manager",
            "/spec/ingress/1/ports/0/port",
            json!(9443),
        ),
        (
            "networkPolicy.metricsFrom",
            peers.clone(),
            "NetworkPolicy/leadsman-manager",
            "/spec/ingress/0/from",
            peers.clone(),
        ),
        (
            "networkPolicy.webhookFrom",
            peers.clone(),
            "NetworkPolicy/leadsman-manager",
            "/spec/ingress/1/from",
            peers,
        ),
        (
            "networkPolicy.apiServerPorts",
            json!([1]),
            "NetworkPolicy/leadsman-manager",
            "/spec/egress/0/ports/0/port",
            json!(1),
        ),
        (
            "manager.nodeSelector",
            json!({"a": "b"}),
            JOB,
            "POD/nodeSelector/a",
            json!("b"),
        ),
    ];
    for workload in [MANAGER, AGENT] {
        let is_manager = workload == MANAGER;
        let key =
            |manager: &'static str, agent: &'static str| if is_manager { manager } else { agent };
        let account = key(
            "ServiceAccount/leadsman-manager",
            "ServiceAccount/leadsman-agent",
        );
        cases.extend([
            (
                "image.pullPolicy",
                json!("Never"),
                workload,
                "BOX/imagePullPolicy",
                json!("Never"),
            ),
            (
                "image.pullSecrets",
                json!([{"name": "r"}]),
                workload,
                "POD/imagePullSecrets/0/name",
                json!("r"),
            ),
            (
                "log.filter",
                json!("debug"),
                workload,
                "BOX/args",
                json!("--log=debug"),
            ),
            (
                "log.format",
                json!("json"),
                workload,
                "BOX/args",
                json!("--log-format=json"),
            ),
            (
                key("manager.resources", "agent.resources"),
                memory.clone(),
                workload,
                "BOX/resources/limits/memory",
                json!("99Mi"),
            ),
            (
                key(
                    "manager.serviceAccount.annotations",
                    "agent.serviceAccount.annotations",
                ),
                json!({"a": "b"}),
                account,
                "/metadata/annotations/a",
                json!("b"),
            ),
            (
                key("manager.priorityClassName", "agent.priorityClassName"),
                json!(""),
                workload,
                "POD/priorityClassName",
                json!(null),
            ),
            (
                key("manager.nodeSelector", "agent.nodeSelector"),
                json!({"a": "b"}),
                workload,
                "POD/nodeSelector/a",
                json!("b"),
            ),
            (
                key("manager.tolerations", "agent.tolerations"),
                json!([{"key": "k"}]),
                workload,
                "POD/tolerations",
                json!([{"key": "k"}]),
            ),
            (
                key("manager.affinity", "agent.affinity"),
                json!({"podAffinity": {}}),
                workload,
                "POD/affinity/podAffinity",
                json!({}),
            ),
            (
                key("manager.podAnnotations", "agent.podAnnotations"),
                json!({"a": "b"}),
                workload,
                "/spec/template/metadata/annotations/a",
                json!("b"),
            ),
            (
                key("manager.podLabels", "agent.podLabels"),
                json!({"a": "b"}),
                workload,
                "/spec/template/metadata/labels/a",
                json!("b"),
            ),
            (
                key("manager.extraArgs", "agent.extraArgs"),
                json!(["--x=y"]),
                workload,
                "BOX/args",
                json!("--x=y"),
            ),
            (
                key("manager.extraEnv", "agent.extraEnv"),
                json!([variable]),
                workload,
                "BOX/env",
                variable.clone(),
            ),
        ]);
    }
    cases
}

/// Values that take something away, so that each is set by itself.
fn alone() -> Vec<Case> {
    let name = |name: &str| json!(name);
    vec![
        ("crds.install", json!(false), CRD, "/kind", json!(null)),
        (
            "rbac.create",
            json!(false),
            "ClusterRole/leadsman-manager",
            "/kind",
            json!(null),
        ),
        (
            "rbac.create",
            json!(false),
            "ValidatingAdmissionPolicy/leadsman-agent-own-node",
            "/kind",
            json!(null),
        ),
        ("preflight.enabled", json!(false), JOB, "/kind", json!(null)),
        (
            "preflight.enabled",
            json!(false),
            "ClusterRole/leadsman-preflight",
            "/kind",
            json!(null),
        ),
        (
            "featureGates",
            name("PodProbeMarkerGate=false"),
            JOB,
            "/kind",
            json!(null),
        ),
        (
            "manager.serviceAccount.create",
            json!(false),
            "ServiceAccount/leadsman-manager",
            "/kind",
            json!(null),
        ),
        (
            "manager.podDisruptionBudget.enabled",
            json!(false),
            DISRUPTION,
            "/kind",
            json!(null),
        ),
        (
            "agent.serviceAccount.create",
            json!(false),
            "ServiceAccount/leadsman-agent",
            "/kind",
            json!(null),
        ),
        (
            "agent.hostNetwork",
            json!(false),
            AGENT,
            "POD/hostNetwork",
            json!(null),
        ),
        (
            "agent.hostNetwork",
            json!(false),
            AGENT,
            "BOX/env/1/valueFrom/fieldRef/fieldPath",
            name("status.hostIPs"),
        ),
        (
            "agent.runtime.preset",
            name("k3s"),
            AGENT,
            "BOX/args",
            name("--runtime-endpoint=unix:///host/run/k3s/containerd/containerd.sock"),
        ),
        (
            "agent.runtime.preset",
            name("microk8s"),
            AGENT,
            "BOX/args",
            name("--runtime-endpoint=unix:///host/var/snap/microk8s/common/run/containerd.sock"),
        ),
        (
            "agent.runtime.preset",
            name("crio"),
            AGENT,
            "POD/volumes/0/hostPath/path",
            name("/run/crio"),
        ),
    ]
}

#[test]
fn each_value_does_what_it_says() {
    let defaults = rendered(&[]);
    let together = together();
    let all = rendered(&together);
    for case in &together {
        assert!(is_seen(&all, case), "{case:?} is not seen");
        assert!(!is_seen(&defaults, case), "{case:?} is there without it");
    }
    for case in alone() {
        assert!(
            is_seen(&rendered(std::slice::from_ref(&case)), &case),
            "{case:?} is not seen"
        );
        assert!(!is_seen(&defaults, &case), "{case:?} is there without it");
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
    let cases: BTreeSet<_> = together()
        .iter()
        .chain(&alone())
        .map(|case| case.0)
        .collect();
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
    for (text, marker, serverless) in [
        ("", true, false),
        ("PodProbeMarkerGate=0", false, false),
        (
            "EnablePodProbeMarkerOnServerless=T,PodProbeMarkerGate=false",
            false,
            false,
        ),
        (
            "PodProbeMarkerGate=false, PodProbeMarkerGate=True,EnablePodProbeMarkerOnServerless = 1,",
            true,
            true,
        ),
    ] {
        let settings = [("featureGates", json!(text), "", "", json!(null))];
        let objects = rendered(&settings);
        let has = |key: &str| objects.contains_key(key);
        assert_eq!(
            has("ClusterRole/leadsman-manager-podprobe"),
            marker,
            "{text:?}"
        );
        assert_eq!(
            has("ClusterRole/leadsman-manager-webhooks"),
            serverless,
            "{text:?}"
        );
        assert_eq!(has("Service/leadsman-webhook"), serverless, "{text:?}");
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
}

#[test]
fn helm_lint_has_nothing_to_say() {
    run(program("helm").args(["lint", "--strict", "charts/leadsman"])).unwrap();
}
