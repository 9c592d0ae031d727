//! What was recorded of `OpenKruise`'s webhooks, held against the CRDs: a dry run of each object that was sent.

use anyhow::{Result, ensure};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Error};
use leadsman_tests::Scene;
use serde::Deserialize;
use serde_json::{Value, json};

/// The cases of a kind, a JSON object a line, and how leadsman differs.
pub(crate) struct RecordedCases<'a> {
    pub(crate) kind: &'a str,
    pub(crate) lines: &'a str,
    /// The cases that mean nothing, or with which no pod would run: `OpenKruise` takes them.
    pub(crate) refused: &'a [&'a str],
    /// The cases that the API server judges later, if at all.
    pub(crate) judged_later: &'a [&'a str],
    /// Whether a spec has its defaults once it is stored.
    pub(crate) is_complete: fn(&Value) -> bool,
}

/// An object that was sent, and whether it was taken.
#[derive(Deserialize)]
struct Recorded {
    case: String,
    #[serde(default = "first_version")]
    version: String,
    allowed: bool,
    object: Value,
}

fn first_version() -> String {
    "v1alpha1".to_owned()
}

impl RecordedCases<'_> {
    /// Fails unless the API server takes and refuses what is to be taken and refused.
    pub(crate) async fn check(&self, scene: &Scene) -> Result<()> {
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let mut problems = Vec::new();
        for line in self.lines.lines() {
            let recorded: Recorded = serde_json::from_str(line)?;
            let (case, version) = (&*recorded.case, &*recorded.version);
            let is_wanted = recorded.allowed && !self.refused.contains(&case)
                || self.judged_later.contains(&case);
            let mut object = recorded.object;
            object["apiVersion"] = json!(format!("apps.kruise.io/{version}"));
            object["kind"] = json!(self.kind);
            let kind = GroupVersionKind::gvk("apps.kruise.io", version, self.kind);
            let kind = ApiResource::from_gvk(&kind);
            let objects = Api::namespaced_with(scene.client.clone(), &scene.ns, &kind);
            let object: DynamicObject = serde_json::from_value(object)?;
            match objects.create(&dry_run, &object).await {
                Ok(stored) => {
                    let spec = &stored.data["spec"];
                    if !is_wanted || !(self.is_complete)(spec) {
                        problems.push(format!("{case} was taken: {spec}"));
                    }
                }
                Err(Error::Api(status)) if !is_wanted && status.code == 422 => {
                    eprintln!("{case}: {}", status.message);
                }
                Err(error) => problems.push(format!("{case}: {error}")),
            }
        }
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    }
}
