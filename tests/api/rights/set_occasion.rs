//! What a manager meets of `SidecarSet`s when it starts, so that it uses a right on them.

use anyhow::Result;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use leadsman_api::SidecarSet;
use leadsman_core::sidecarset::set::SidecarSet as ParsedSet;
use leadsman_core::workload::revision::{revision_hash, revision_name};
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_tests::scene::merge;
use leadsman_tests::{Scene, wait_for_answer};
use serde_json::{Value, json};

/// A set with a history, which it keeps little of.
const VERSIONED: &str = "versioned";

/// The sets of the cluster.
pub(super) struct SetOccasions {
    client: Client,
}

impl SetOccasions {
    pub(super) async fn new(client: &Client) -> Result<Self> {
        let own = Self {
            client: client.clone(),
        };
        wait_for_answer("SidecarSets are served", || async {
            Ok(own.sets().list(&ListParams::default()).await.ok().map(drop))
        })
        .await?;
        own.make(VERSIONED, json!({"spec": {"revisionHistoryLimit": 1}}))
            .await?;
        Ok(own)
    }

    fn sets(&self) -> Api<SidecarSet> {
        Api::all(self.client.clone())
    }

    fn revisions(&self) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A set that selects pods with its name as a label.
    pub(super) async fn make(&self, name: &str, over: Value) -> Result<()> {
        let set = serde_json::from_value(set(name, over))?;
        self.sets().create(&PostParams::default(), &set).await?;
        Ok(())
    }

    /// A set that the CRD takes, and the parser does not.
    pub(super) async fn make_wrong(&self, name: &str) -> Result<()> {
        let patch = json!([{"patchPolicy": "MergePatchJson", "annotations": {"a": "{"}}]);
        self.make(name, json!({"spec": {"patchPodMetadata": patch}}))
            .await
    }

    /// A set, a pod that it was injected into, and another image since.
    pub(super) async fn make_old_pod(&self, scene: &Scene, number: usize) -> Result<()> {
        let name = format!("upgraded-{number}");
        self.make(&name, json!({})).await?;
        let injected = ParsedSet::parse(&self.sets().get(&name).await?)
            .map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        let entry = |hash: &str| {
            let entry = json!({"updateTimestamp": "2026-01-01T00:00:00Z", "hash": hash, "sidecarSetName": name,
                "sidecarList": ["c"]});
            json!({&*name: entry}).to_string()
        };
        let env = json!([{"name": "IS_INJECTED", "value": "true"}]);
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}, "annotations": {
                "kruise.io/sidecarset-injected-list": name,
                "kruise.io/sidecarset-hash": entry(&injected.hashes.hash),
                "kruise.io/sidecarset-hash-without-image": entry(&injected.hashes.without_image),
            }},
            "spec": {"automountServiceAccountToken": false, "containers": [
                {"name": "c", "image": "i:1", "env": env}, {"name": "main", "image": "app:1"}]},
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &scene.ns);
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        let containers = json!([{"name": "c", "image": "i:2"}]);
        self.edit(&name, json!({"spec": {"containers": containers}}))
            .await
    }

    /// Another custom version of a set that has a revision, for managers have seen it before.
    pub(super) async fn rename_version(&self, number: usize) -> Result<()> {
        let version = format!("v{number}");
        self.edit(VERSIONED, json!({"spec": {"customVersion": version}}))
            .await
    }

    /// A revision beyond those that its set keeps.
    pub(super) async fn make_old_revision(&self, number: usize) -> Result<()> {
        let uid = self.sets().get(VERSIONED).await?.uid().unwrap_or_default();
        let owner = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "name": VERSIONED,
            "uid": uid, "controller": true, "blockOwnerDeletion": true}]);
        let data = json!({"spec": {"containers": [{"name": "c", "image": "i:0"}]}});
        self.make_revision(&format!("{VERSIONED}-old-{number}"), owner, data)
            .await
    }

    /// A set the name of whose revision is taken, by what no watch has shown.
    pub(super) async fn make_with_revision_in_the_way(&self, number: usize) -> Result<()> {
        let name = format!("late-{number}");
        let parsed = ParsedSet::parse(&serde_json::from_value(set(&name, json!({})))?)
            .map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        let hash = revision_hash(&parsed.template.revision_data(), 0);
        let revision = revision_name(&name, &hash);
        self.make_revision(&revision, Value::Null, json!({}))
            .await?;
        self.make(&name, json!({})).await
    }

    async fn make_revision(&self, name: &str, owner: Value, data: Value) -> Result<()> {
        let revision = json!({
            "metadata": {"name": name, "ownerReferences": owner, "labels": {"kruise.io/sidecarset-name": VERSIONED}},
            "data": data, "revision": 0,
        });
        let revision = serde_json::from_value(revision)?;
        self.revisions()
            .create(&PostParams::default(), &revision)
            .await?;
        Ok(())
    }

    async fn edit(&self, name: &str, edit: Value) -> Result<()> {
        let params = PatchParams::default();
        self.sets()
            .patch(name, &params, &Patch::Merge(edit))
            .await?;
        Ok(())
    }
}

fn set(name: &str, over: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "containers": [{"name": "c", "image": "i:1"}]},
    });
    merge(&mut set, over);
    set
}
