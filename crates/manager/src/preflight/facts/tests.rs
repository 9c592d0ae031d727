//! What is read of a CRD, and which rights are checked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::client::Body;
use leadsman_admission::{CONFIGURATION, OWNER, SECRET, VALIDATING_OWNER};

use super::*;

#[test]
fn a_crd_without_our_fields_is_recognised_by_what_it_drops() {
    let of_sets = leadsman_api::crd::sidecar_set_crd();
    for ours in leadsman_api::crd::podprobe_crds()
        .into_iter()
        .chain([of_sets])
    {
        let seen = compare_crds(&ours, &ours);
        assert_eq!((seen.not_served.len(), &seen.converter), (0, &None));
        assert!(seen.drops.is_empty() && seen.release.is_none(), "{seen:?}");
        assert!(seen.rules, "{seen:?}");
        let mut theirs = serde_json::to_value(&ours).unwrap();
        theirs["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "kruise"});
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
        theirs.pointer_mut(status).unwrap()["properties"] = json!({});
        let seen = compare_crds(&ours, &serde_json::from_value(theirs.clone()).unwrap());
        assert!(
            seen.drops.iter().all(|place| place.starts_with("status.")),
            "{seen:?}"
        );
        assert!(!seen.drops.is_empty());
        assert_eq!(seen.release.as_deref(), Some("kruise"));
        theirs["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
        let seen = compare_crds(&ours, &serde_json::from_value(theirs).unwrap());
        assert_eq!(seen.release, None);
    }
}

// SCS-2
#[test]
fn a_crd_of_sets_with_one_version_or_a_conversion_is_recognised() {
    let ours = leadsman_api::crd::sidecar_set_crd();
    let mut theirs = serde_json::to_value(&ours).unwrap();
    theirs["spec"]["versions"][1]["served"] = json!(false);
    let service = json!({"namespace": "kruise-system", "name": "kruise-webhook-service"});
    theirs["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}});
    let seen = compare_crds(&ours, &serde_json::from_value(theirs).unwrap());
    assert_eq!(seen.not_served, ["v1beta1"]);
    assert_eq!(
        seen.converter.as_deref(),
        Some("kruise-system/kruise-webhook-service")
    );
}

#[tokio::test]
async fn nothing_more_is_asked_where_nobody_answers() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
        std::future::ready(Err::<http::Response<Body>, _>(refused))
    });
    let client = Client::new(service, "default");
    let scope = PreflightScope {
        namespace: "games".to_owned(),
        gates: Gates::default(),
        standing_rule: None,
        part: InstallPart::Manager,
    };
    let error = read_facts(&client, &scope).await.unwrap_err().to_string();
    assert!(error.contains("connection refused"), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_version_is_read_with_what_providers_append() {
    assert_eq!(
        ["34", "31+", "30-gke", ""].map(parse_leading_number),
        [34, 31, 30, 0]
    );
}

#[test]
fn every_right_of_the_manager_is_checked() {
    let gates = Gates::default();
    let rights = manager_rights("leadsman-system", gates);
    let features = feature_rights(gates);
    let of_features = features
        .iter()
        .map(|(_, rights)| rights.cluster.len() + rights.own_namespace.len());
    let leases = LEASE_RIGHTS.len() + openkruise::GUARD_RIGHTS.len();
    assert_eq!(rights.len(), of_features.sum::<usize>() + leases);
    let create = rights
        .iter()
        .find(|right| right.verb == "create" && right.resource == "leases");
    assert_eq!(
        create.map(|right| (&*right.name, right.namespace.as_str())),
        Some(("", LEASE_NAMESPACE))
    );
}

#[test]
fn without_a_feature_no_right_of_one_is_checked() {
    let off = manager_rights(
        "leadsman-system",
        "PodProbeMarkerGate=false".parse().unwrap(),
    );
    let of_leader = ["leases", "clusterroles", "clusterrolebindings"];
    assert!(
        off.iter()
            .all(|right| of_leader.contains(&&*right.resource)),
        "{off:?}"
    );
}

// PPM-16
#[test]
fn the_rights_of_webhooks_are_checked_with_their_gate() {
    let serverless = "EnablePodProbeMarkerOnServerless=true".parse().unwrap();
    let rights = manager_rights("games", serverless);
    let of = |resource: &str| -> Vec<_> {
        let rights = rights.iter().filter(|right| right.resource == resource);
        rights
            .map(|right| (&*right.name, &*right.namespace, right.verb))
            .collect()
    };
    let secrets = of("secrets");
    assert!(secrets.contains(&("", "games", "create")), "{secrets:?}");
    assert!(
        secrets.contains(&(SECRET, "games", "update")),
        "{secrets:?}"
    );
    let configurations = of("mutatingwebhookconfigurations");
    assert!(
        configurations.contains(&(CONFIGURATION, "", "patch")),
        "{configurations:?}"
    );
    let roles = [(OWNER, "", "get"), (openkruise::ROLE, "", "get")];
    assert_eq!(of("clusterroles"), roles);
    assert_eq!(of("roles"), [(OWNER, "games", "get")]);
    assert_eq!(of("validatingwebhookconfigurations"), []);
}

// SCS-80
#[test]
fn the_rights_of_both_configurations_are_checked_with_the_gate_of_sets() {
    let rights = manager_rights("games", "SidecarSetGate=true".parse().unwrap());
    let is_there = |resource: &str, name: &str, verb: &str| {
        let mut rights = rights.iter();
        rights.any(|one| one.resource == resource && one.name == name && one.verb == verb)
    };
    for configurations in [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ] {
        assert!(
            is_there(configurations, CONFIGURATION, "patch"),
            "{rights:?}"
        );
    }
    assert!(
        is_there("clusterroles", VALIDATING_OWNER, "get"),
        "{rights:?}"
    );
    assert!(is_there("secrets", SECRET, "update"), "{rights:?}");
}
