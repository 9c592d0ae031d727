//! Sets in the form of `v1beta1`, and what only that has.

use serde_json::{Value, json};

use super::cluster::{Cluster, Kind, SET};

/// A set in the form of `v1alpha1`, and the same one in that of `v1beta1`.
fn forms(replicas: usize, policy: &str, settings: &Value) -> [Value; 2] {
    let mut old = settings.clone();
    old["type"] = json!(policy);
    let mut new = settings.clone();
    new["podUpdatePolicy"] = json!(policy);
    let new = json!({"type": "RollingUpdate", "rollingUpdate": new});
    [old, new].map(|strategy| json!({"replicas": replicas, "updateStrategy": strategy}))
}

// CLS-2, CLD-40
#[test]
fn a_set_means_the_same_in_either_form() {
    for (policy, settings) in [
        ("ReCreate", json!({"partition": 2, "maxUnavailable": 2})),
        (
            "InPlaceIfPossible",
            json!({"partition": "50%", "maxUnavailable": 1}),
        ),
        ("InPlaceOnly", json!({"maxUnavailable": 1, "paused": true})),
        ("ReCreate", json!({"maxUnavailable": 0, "maxSurge": 1})),
    ] {
        let ends = forms(4, policy, &settings).map(|spec| {
            let mut cluster = Cluster::with_set(spec);
            cluster.set_image("app:2");
            cluster.settle();
            let counts = (cluster.with_image("app:2").len(), cluster.created.len());
            (
                counts,
                cluster.writes.clone(),
                cluster.status()["updateRevision"].clone(),
            )
        });
        assert_eq!(ends[0], ends[1], "{policy} {settings}");
    }
}

// CLS-2
#[test]
fn without_settings_the_defaults_are_those_of_the_other_form() {
    for strategy in [
        json!({"type": "RollingUpdate"}),
        json!({"type": "RollingUpdate", "rollingUpdate": {}}),
    ] {
        let mut cluster = Cluster::with_set(json!({"replicas": 5, "updateStrategy": strategy}));
        cluster.set_image("app:2");
        cluster.step();
        cluster.step();
        assert_eq!(cluster.deleted.len(), 1, "re-created, a fifth at a time");
        cluster.settle();
        assert_eq!(cluster.with_image("app:2").len(), 5);
    }
}

// CLD-41
#[test]
fn pods_beside_held_ones_are_asked_for_by_a_field_too() {
    let mut cluster = Cluster::with_set(json!({
        "replicas": 2,
        "scaleStrategy": {"excludePreparingDelete": true},
        "lifecycle": {"preDelete": {"labelsHandler": {"hook": "on"}}},
        "template": {"metadata": {"labels": {"app": SET, "hook": "on"}},
            "spec": {"containers": [{"name": "main", "image": "app:1"}]}},
    }));
    let pod = cluster.active()[0].clone();
    let labels = json!({"apps.kruise.io/specified-delete": "x"});
    cluster.patch(Kind::Pod, &pod, &json!({"metadata": {"labels": labels}}));
    cluster.settle();
    assert_eq!((cluster.active().len(), cluster.created.len()), (3, 3));
}

// CLD-7
#[test]
fn claims_are_reused_unless_the_set_says_no() {
    let claim = json!({"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    for (scale, is_reused) in [
        (json!({}), true),
        (json!({"enablePVCReuse": true}), true),
        (json!({"enablePVCReuse": false}), false),
        (json!({"disablePVCReuse": true}), false),
    ] {
        let mut cluster = Cluster::with_set(
            json!({"replicas": 1, "scaleStrategy": scale, "volumeClaimTemplates": [claim]}),
        );
        let name = cluster.names(Kind::Claim)[0].clone();
        let uid = |cluster: &Cluster| {
            cluster
                .get(Kind::Claim, &name)
                .map(|it| it["metadata"]["uid"].clone())
        };
        let before = uid(&cluster);
        let pod = cluster.active()[0].clone();
        cluster.delete_pod(&pod);
        cluster.run_kubelets();
        cluster.settle();
        assert_eq!(uid(&cluster) == before, is_reused, "{scale}");
        assert_eq!(cluster.names(Kind::Claim).len(), 1);
    }
}

// CLS-34, CLD-43
#[test]
fn with_on_delete_pods_are_updated_when_they_are_deleted() {
    for pause in [false, true] {
        let strategy =
            json!({"type": "OnDelete", "rollingUpdate": {"maxSurge": 1, "paused": pause}});
        let mut cluster = Cluster::with_set(json!({"replicas": 3, "updateStrategy": strategy}));
        let pods = cluster.active();
        cluster.set_image("app:2");
        cluster.settle();
        assert_eq!((cluster.active(), cluster.created.len()), (pods.clone(), 3));
        cluster.delete_pod(&pods[0]);
        let labels = json!({"apps.kruise.io/specified-delete": "x"});
        cluster.patch(
            Kind::Pod,
            &pods[1],
            &json!({"metadata": {"labels": labels}}),
        );
        cluster.settle();
        assert_eq!(
            (cluster.with_image("app:2").len(), cluster.active().len()),
            (2, 3)
        );
        let status = cluster.status();
        assert_eq!(
            (
                &status["updatedReplicas"],
                &status["expectedUpdatedReplicas"]
            ),
            (&json!(2), &json!(3))
        );
        // Back to a type that updates: the rest follows.
        cluster.edit(&json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"paused": false}}}));
        cluster.settle();
        assert_eq!(cluster.with_image("app:2").len(), 3);
    }
}

// CLS-58, CLS-61, CLS-65
#[test]
fn the_api_server_needs_nobody_to_read_and_to_judge_a_set() {
    let crd = serde_json::to_value(leadsman_api::crd::clone_set_crd()).unwrap();
    let conversion = crd["spec"]["conversion"]["strategy"].as_str();
    assert_ne!(conversion, Some("Webhook"));
    let versions = crd["spec"]["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 2);
    for version in versions {
        assert!(version["subresources"]["scale"].is_object());
        let schema = version["schema"].to_string();
        assert!(schema.contains("is immutable: make another set"));
        let names = "/schema/openAPIV3Schema/properties/spec/properties/scaleStrategy/properties/podsToDelete";
        assert_eq!(
            version.pointer(names).unwrap()["x-kubernetes-list-type"],
            "set"
        );
    }
}
