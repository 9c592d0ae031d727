//! The `SidecarSet` of the bench, and pods that it was injected into as the webhook would have done it.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use kube::Client;
use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::slim::Pod;
use leadsman_core::cluster::whole_seconds;
use leadsman_core::sidecarset::metadata::Whitelist;
use leadsman_core::sidecarset::pod::LastUpgrade;
use leadsman_core::sidecarset::render::{Injection, RenderOptions, inject_sets};
use leadsman_core::sidecarset::selection::SetHistory;
use leadsman_core::sidecarset::set::SidecarSet;
use leadsman_core::sidecarset::upgrade::plan_upgrade;
use leadsman_core::workload::pod::ObservedPod;
use leadsman_process::clock;
use serde_json::{Value, json};

use super::api::{ApiRequest, CREATE, MERGE, SIDECAR_SETS};
use super::world::{container_id, filled};

/// Its container, of which a pod has one.
pub(super) const CONTAINER: &str = "proxy";
const NAME: &str = "mesh";

names! {
    /// The image of a version of it.
    image(version: u32) = "registry.example.com/mesh/proxy:1.{version}.0";
}

/// The set in its first version, as the API server has it.
pub(super) struct Sidecars {
    set: SidecarSet,
    revision: Arc<str>,
}

impl Sidecars {
    /// The first version.
    pub(super) const FIRST: u32 = 0;

    /// Creates the set.
    pub(super) async fn make(client: &Client) -> Result<Self> {
        let create = ApiRequest::new(CREATE, SIDECAR_SETS, "kubectl", &object(Self::FIRST));
        let set: SidecarSetWire = serde_json::from_str(&create.send(client).await?)?;
        Self::read(&set)
    }

    fn read(set: &SidecarSetWire) -> Result<Self> {
        let set = SidecarSet::parse(set);
        let set = set.map_err(|errors| anyhow!("the set of the bench: {errors:?}"))?;
        let history = SetHistory::new(&set, Vec::new(), None);
        Ok(Self {
            set,
            revision: history.newest,
        })
    }

    /// Another version of the set.
    pub(super) fn edit(version: u32) -> ApiRequest {
        let containers = &object(version)["spec"]["containers"];
        let body = json!({"spec": {"containers": containers}});
        ApiRequest::new(MERGE, &format!("{SIDECAR_SETS}/{NAME}"), "kubectl", &body)
    }

    /// The set as it is in another version.
    pub(super) fn version(&self, version: u32) -> Result<Self> {
        let mut set: SidecarSetWire = serde_json::from_value(object(version))?;
        set.metadata.uid = Some(self.set.uid.to_string());
        Self::read(&set)
    }

    /// The patch by which a manager upgrades a pod to this version.
    pub(super) fn patch(&self, pod: &Pod) -> Value {
        let whitelist = Whitelist::default();
        let allowed = whitelist.allowed_keys(|_| None, false);
        let (pod, now) = (ObservedPod::new(pod), whole_seconds(clock::now()));
        let pod = (&pod, LastUpgrade::OfReady);
        plan_upgrade(&self.set, &self.revision, pod, &allowed, now).patch
    }

    /// A pod with what the set gives it.
    ///
    /// # Panics
    /// When the pod is no object, which is this program's fault.
    pub(super) fn inject(&self, pod: &Value) -> Value {
        let pod = pod.as_object().expect("a pod is an object");
        let whitelist = Whitelist::default();
        let injection = Injection {
            set: &self.set,
            template: &self.set.template,
            hashes: &self.set.hashes,
            revision: &self.revision,
            allowed_keys: whitelist.allowed_keys(|_| None, false),
            newest: None,
            missing_pin: None,
        };
        let now = whole_seconds(clock::now());
        let injected = inject_sets(pod, &[injection], RenderOptions::default(), now);
        injected.additions.apply(pod).into()
    }

    /// Adds the set's container to what a kubelet reports of a pod: it runs as the pod's own does.
    pub(super) fn report_running(report: &mut Value) {
        let statuses = report["status"]["containerStatuses"].as_array_mut();
        if let Some(statuses) = statuses {
            let of_sidecars: Vec<_> = statuses.iter().cloned().map(of_sidecar).collect();
            statuses.extend(of_sidecars);
        }
    }
}

/// The status of the set's container, by that of the pod's own.
fn of_sidecar(mut status: Value) -> Value {
    let image = image(Sidecars::FIRST);
    let id = status["containerID"].as_str().unwrap_or_default();
    status["containerID"] = json!(format!("containerd://{}", container_id(id)));
    status["imageID"] = json!(format!("{image}@sha256:{:064x}", 1));
    status["image"] = json!(image);
    status["name"] = json!(CONTAINER);
    status
}

fn object(version: u32) -> Value {
    let values = [("$image", image(version))];
    let values = values.each_ref().map(|(word, image)| (*word, &**image));
    filled(include_str!("objects/sidecar_set.json"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_reports_both_containers() {
        let id = format!("containerd://{}", container_id("pod"));
        let mut report =
            json!({"status": {"containerStatuses": [{"name": "server", "containerID": id}]}});
        Sidecars::report_running(&mut report);
        let statuses = report["status"]["containerStatuses"].as_array().unwrap();
        assert_eq!(
            [&statuses[0]["name"], &statuses[1]["name"]],
            ["server", CONTAINER]
        );
        assert_ne!(statuses[0]["containerID"], statuses[1]["containerID"]);
    }
}
