//! The kinds that the API server serves, and the objects that are there before anything happens.

use serde_json::{Value, json};

use crate::kubelet::node_name;
use crate::rest::RestClient;

/// The namespace of the tenant.
pub(crate) const TENANT: &str = "shop";
/// The namespace of leadsman.
pub(crate) const SYSTEM: &str = "leadsman-system";
/// The Lease of managers.
pub(crate) const LEASE: &str = leadsman_manager::LEASE;
/// The Lease's namespace.
pub(crate) const LEASE_NAMESPACE: &str = leadsman_manager::LEASE_NAMESPACE;
/// The tenant's markers.
pub(crate) const MARKERS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/shop/podprobemarkers";
/// All sets.
pub(crate) const SETS: &str = "/apis/apps.kruise.io/v1beta1/sidecarsets";
/// All objects of nodes.
pub(crate) const NODE_POD_PROBES: &str = "/apis/apps.kruise.io/v1alpha1/nodepodprobes";
/// All nodes.
pub(crate) const NODE_PATH: &str = "/api/v1/nodes";

fn crds(has_sets: bool) -> Vec<Value> {
    let texts = leadsman_api::PODPROBE_CRDS
        .into_iter()
        .chain(has_sets.then_some(leadsman_api::SIDECAR_SET_CRD));
    let crds = texts.map(|text| {
        let mut crd: Value = serde_norway::from_str(text).expect("the CRDs are YAML");
        // The model serves the version that is stored, and leadsman asks for the newest; both versions have the same fields.
        let versions = crd["spec"]["versions"]
            .as_array_mut()
            .expect("a CRD has versions");
        let is_new = |version: &Value| version["name"] == "v1beta1";
        if versions.iter().any(is_new) {
            versions.retain(is_new);
            versions[0]["storage"] = json!(true);
        }
        crd
    });
    crds.collect()
}

/// Creates what an installed cluster has: namespaces, CRDs, the roles that own webhook configurations.
pub(crate) async fn install(rest: &RestClient, has_sets: bool) {
    let mut made = Vec::new();
    for name in [TENANT, SYSTEM, "kube-system", "default"] {
        let labels = json!({"kubernetes.io/metadata.name": name});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        made.push(rest.create("/api/v1/namespaces", &namespace).await);
    }
    for crd in crds(has_sets) {
        made.push(
            rest.create(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                &crd,
            )
            .await,
        );
    }
    for name in [
        leadsman_admission::OWNER,
        leadsman_admission::VALIDATING_OWNER,
    ] {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}});
        made.push(
            rest.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role)
                .await,
        );
    }
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": leadsman_admission::OWNER},
    });
    made.push(
        rest.create(
            &format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/roles"),
            &role,
        )
        .await,
    );
    for made in made {
        made.expect("nothing is there that is in the way");
    }
}

/// Creates a node, as its kubelet does.
pub(crate) async fn add_node(rest: &RestClient, node: usize) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(node)}});
    let _there = rest.create(NODE_PATH, &object).await;
}
