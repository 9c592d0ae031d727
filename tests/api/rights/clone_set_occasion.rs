//! What a manager meets of `CloneSet`s when it starts, so that it uses a right on them.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use leadsman_api::CloneSet;
use serde_json::{Value, json};

const VERSION: &str = "apps.kruise.io/v1alpha1";

/// The sets of a namespace, and what they own.
pub(super) struct CloneSetOccasions {
    sets: Api<CloneSet>,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    revisions: Api<ControllerRevision>,
}

impl CloneSetOccasions {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            sets: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            revisions: Api::namespaced(client.clone(), namespace),
        }
    }

    /// A set that has neither pod nor claim yet.
    pub(super) async fn make_new(&self, number: usize) -> Result<()> {
        self.make(&format!("clones-{number}"), 1).await?;
        Ok(())
    }

    /// A set of none, to which something is left: also a claim that it does not reuse.
    pub(super) async fn make_left(&self, number: usize) -> Result<()> {
        let name = format!("left-{number}");
        let owner = json!([self.make(&name, 0).await?]);
        for (id, app) in [("aaaaa", &*name), ("bbbbb", "other")] {
            let mut pod = template(app);
            pod["metadata"]["name"] = json!(format!("{name}-{id}"));
            pod["metadata"]["ownerReferences"] = owner.clone();
            pod["metadata"]["labels"]["apps.kruise.io/cloneset-instance-id"] = json!(id);
            let pod = serde_json::from_value(pod)?;
            self.pods.create(&PostParams::default(), &pod).await?;
        }
        let mut claim = claim_template();
        claim["metadata"] = json!({"name": format!("data-{name}-ccccc"), "ownerReferences": owner,
            "labels": {"app": name, "apps.kruise.io/cloneset-instance-id": "ccccc"}});
        let claim = serde_json::from_value(claim)?;
        self.claims.create(&PostParams::default(), &claim).await?;
        // As a set of this template records it.
        let mut present = template(&name);
        present["$patch"] = json!("replace");
        present["metadata"]["creationTimestamp"] = Value::Null;
        present["spec"]["containers"][0]["resources"] = json!({});
        for (revision, data, owners) in [
            ("one", json!({"spec": {"template": {}}}), owner),
            ("two", json!({"spec": {"template": present}}), json!([])),
        ] {
            let revision = json!({"metadata": {"name": format!("{name}-{revision}"), "labels": {"app": name},
                "ownerReferences": owners}, "revision": 2, "data": data});
            let revision = serde_json::from_value(revision)?;
            self.revisions
                .create(&PostParams::default(), &revision)
                .await?;
        }
        Ok(())
    }

    /// Makes a set. Returns the reference to it.
    async fn make(&self, name: &str, replicas: usize) -> Result<Value> {
        let set = json!({"apiVersion": VERSION, "kind": "CloneSet", "metadata": {"name": name},
            "spec": {"replicas": replicas, "revisionHistoryLimit": 0, "selector": {"matchLabels": {"app": name}},
                "scaleStrategy": {"disablePVCReuse": true}, "volumeClaimTemplates": [claim_template()],
                "template": template(name)}});
        let set = serde_json::from_value(set)?;
        let set: CloneSet = self.sets.create(&PostParams::default(), &set).await?;
        let uid = set.uid().context("a set has a uid")?;
        Ok(
            json!({"apiVersion": VERSION, "kind": "CloneSet", "name": name, "uid": uid, "controller": true}),
        )
    }
}

fn claim_template() -> Value {
    json!({"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
}
