//! Sets, pods, claims and revisions on a [`TestServer`], with kubelets.

use std::collections::BTreeSet;
use std::time::Duration;

use leadsman_api::CloneSet;
use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_api::slim::revision::ControllerRevision;
use serde_json::{Value, json};

use super::super::{CloneSets, World};
pub(super) use crate::test_server::Answer;
use crate::test_server::{TestServer, Tested, Watched};

pub(super) const SET: &str = "s";
pub(super) const NAMESPACE: &str = "ns";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Set,
    Pod,
    Revision,
    Claim,
}

pub(super) const KINDS: [Kind; 4] = [Kind::Set, Kind::Pod, Kind::Revision, Kind::Claim];

pub(super) type Cluster = TestServer<CloneSets>;

impl Tested for CloneSets {
    type Kind = Kind;
    type Notes = ();
    const KINDS: &'static [(Kind, &'static str, Watched<Self>)] = &[
        (Kind::Set, "clonesets", Watched::of::<CloneSet>()),
        (Kind::Pod, "pods", Watched::of::<Pod>()),
        (
            Kind::Revision,
            "controllerrevisions",
            Watched::of::<ControllerRevision>(),
        ),
        (
            Kind::Claim,
            "persistentvolumeclaims",
            Watched::of::<PersistentVolumeClaim>(),
        ),
    ];
    const POD: Kind = Kind::Pod;

    fn limit_pods(world: &World) -> usize {
        let of_set = |set: &super::super::PodSet| {
            let targets = set.targets();
            // A held pod may have another one beside it.
            let held = if set.excludes_held { 100 } else { 0 };
            targets.replicas + targets.surge + held
        };
        world.sets.iter().map(|(_, set)| of_set(set)).sum()
    }

    fn check_creation(cluster: &Cluster, pod: &Value, limit: usize) {
        let owned = |pod: &String| cluster.pod(pod)["metadata"]["ownerReferences"] != json!([]);
        let active = cluster.active().iter().filter(|pod| owned(pod)).count();
        assert!(active < limit, "{active} pods are there, of {limit}");
        let name = &pod["metadata"]["name"];
        for claim in claims_of(pod) {
            let there = cluster.get(Kind::Claim, &claim);
            let there =
                there.unwrap_or_else(|| panic!("{name} mounts {claim}, which is not there"));
            assert!(there["metadata"].get("deletionTimestamp").is_none());
        }
    }

    fn delete(cluster: &mut Cluster, kind: Kind, name: &str) {
        match kind {
            Kind::Pod => cluster.delete_pod(name),
            Kind::Claim => {
                let active = cluster.active().into_iter();
                let mut users =
                    active.filter(|pod| claims_of(cluster.pod(pod)).contains(&name.to_owned()));
                assert_eq!(users.next(), None, "{name} is the claim of an active pod");
                cluster.delete_claim(name);
            }
            _ => cluster.remove(kind, name),
        }
    }

    fn note_object(cluster: &mut Cluster, kind: Kind, _: &str, _: &Value, is_there: bool) {
        if kind == Kind::Pod && !is_there {
            cluster.release_claims();
        }
    }
}

impl Cluster {
    /// With a set of this spec, all of whose pods run.
    pub(super) fn with_set(spec: Value) -> Self {
        let mut cluster = Self::new();
        cluster.create_set(SET, spec);
        cluster.settle();
        cluster
    }

    // What others do.

    /// A set with these fields beside a template with one container.
    pub(super) fn create_set(&mut self, name: &str, mut spec: Value) {
        if spec.get("template").is_none() {
            spec["template"] = json!({"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
        }
        spec["selector"] = json!({"matchLabels": {"app": name}});
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        self.create(Kind::Set, name, json!({"metadata": metadata, "spec": spec}));
    }

    pub(super) fn edit(&mut self, spec: &Value) {
        self.patch(Kind::Set, SET, &json!({"spec": spec}));
    }

    pub(super) fn set_image(&mut self, image: &str) {
        let containers = json!([{"name": "main", "image": image}]);
        self.edit(&json!({"template": {"spec": {"containers": containers}}}));
    }

    /// Somebody deletes a pod: one that is bound to no node goes at once, another one when its kubelet says so.
    pub(super) fn delete_pod(&mut self, name: &str) {
        match self.get(Kind::Pod, name) {
            Some(pod) if !pod["spec"]["nodeName"].is_string() && finalizers(pod) == 0 => {
                self.remove(Kind::Pod, name);
            }
            _ => {
                let at = self.time().wall.to_string();
                let going = json!({"metadata": {"deletionTimestamp": at}});
                self.patch(Kind::Pod, name, &going);
            }
        }
    }

    /// The kubelets take one step with each pod: they end those that are being deleted, start containers and report. What is in
    /// an image `bad` is never ready.
    pub(super) fn run_kubelets(&mut self) {
        for name in self.pods() {
            self.run_kubelet(&name);
        }
    }

    pub(super) fn run_kubelet(&mut self, name: &str) {
        let Some(pod) = self.get(Kind::Pod, name).cloned() else {
            return;
        };
        if pod["metadata"].get("deletionTimestamp").is_some() {
            if finalizers(&pod) == 0 {
                self.remove(Kind::Pod, name);
            }
            return;
        }
        if pod["status"]["phase"] == "Failed" {
            return;
        }
        let node = format!("n{}", name.bytes().map(usize::from).sum::<usize>() % 3);
        let (image, runs) = (
            &pod["spec"]["containers"][0]["image"],
            &pod["status"]["containerStatuses"][0],
        );
        let image = image.as_str().unwrap().to_owned();
        let is_same = runs["image"] == json!(image);
        let id = if is_same {
            runs["containerID"].clone()
        } else {
            json!(format!("id://{}", self.version))
        };
        let is_good = !image.starts_with("bad");
        let condition = |type_: &str| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .find(|one| one["type"] == type_)
                .cloned()
        };
        let gates = pod["spec"]["readinessGates"]
            .as_array()
            .into_iter()
            .flatten();
        let is_true = |type_: &Value| {
            condition(type_.as_str().unwrap()).is_some_and(|one| one["status"] == "True")
        };
        let is_open = gates.map(|gate| &gate["conditionType"]).all(is_true);
        let ready = if is_good && is_open { "True" } else { "False" };
        let mut since = json!(self.time().wall.to_string());
        if let Some(before) = condition("Ready").filter(|one| one["status"] == ready) {
            since = before["lastTransitionTime"].clone();
        }
        let started = if is_same {
            runs["state"]["running"]["startedAt"].clone()
        } else {
            json!(self.time().wall.to_string())
        };
        let container = json!({"name": "main", "image": image, "imageID": format!("sha256:{image}"), "containerID": id,
            "ready": is_good, "restartCount": 0, "state": {"running": {"startedAt": started}}});
        let status = json!({"phase": "Running", "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]});
        self.patch(
            Kind::Pod,
            name,
            &json!({"spec": {"nodeName": node}, "status": status}),
        );
    }

    /// A claim stays while a pod has it that has not ended (`pvc-protection`).
    pub(super) fn delete_claim(&mut self, name: &str) {
        let at = self.time().wall.to_string();
        self.patch(
            Kind::Claim,
            name,
            &json!({"metadata": {"deletionTimestamp": at}}),
        );
        self.release_claims();
    }

    fn release_claims(&mut self) {
        let pods = self.pods().into_iter().map(|pod| self.pod(&pod).clone());
        let used: BTreeSet<_> = pods
            .filter(|pod| pod["status"]["phase"] != "Failed")
            .flat_map(|pod| claims_of(&pod))
            .collect();
        for name in self.names(Kind::Claim) {
            let claim = self.get(Kind::Claim, &name).unwrap();
            if claim["metadata"].get("deletionTimestamp").is_some() && !used.contains(&name) {
                self.remove(Kind::Claim, &name);
            }
        }
    }

    // What there is.

    pub(super) fn pod(&self, name: &str) -> &Value {
        self.get(Kind::Pod, name).unwrap()
    }

    pub(super) fn pods(&self) -> Vec<String> {
        self.names(Kind::Pod)
    }

    /// The pods that neither terminate nor have ended.
    pub(super) fn active(&self) -> Vec<String> {
        let mut pods = self.pods();
        pods.retain(|name| is_active(self.pod(name)));
        pods
    }

    /// The active pods whose container has this image.
    pub(super) fn with_image(&self, image: &str) -> Vec<String> {
        let mut pods = self.active();
        pods.retain(|name| self.pod(name)["spec"]["containers"][0]["image"] == image);
        pods
    }

    /// How many active pods are ready.
    pub(super) fn count_ready(&self) -> usize {
        let active = self.active().into_iter();
        active.filter(|name| is_ready(self.pod(name))).count()
    }

    pub(super) fn status(&self) -> &Value {
        &self.get(Kind::Set, SET).unwrap()["status"]
    }

    /// The reasons of the set's conditions.
    pub(super) fn reasons(&self) -> Vec<String> {
        let conditions = self.status()["conditions"].as_array();
        let conditions = conditions.into_iter().flatten();
        conditions
            .map(|one| one["reason"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(super) fn state_of(&self, pod: &str) -> String {
        let state = &self.pod(pod)["metadata"]["labels"]["lifecycle.apps.kruise.io/state"];
        state.as_str().unwrap_or_default().to_owned()
    }

    /// Carries everything out and shows everything, and has the kubelets work, for a while.
    pub(super) fn settle(&mut self) {
        for _ in 0..15 {
            self.step();
            self.run_kubelets();
            self.wait(Duration::from_secs(2));
        }
    }
}

/// The names of the claims that a pod has.
pub(super) fn claims_of(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array();
    let claims = volumes.into_iter().flatten();
    let claims = claims.filter_map(|one| one.pointer("/persistentVolumeClaim/claimName")?.as_str());
    claims.map(str::to_owned).collect()
}

fn finalizers(pod: &Value) -> usize {
    pod["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
}

fn is_active(pod: &Value) -> bool {
    pod["metadata"].get("deletionTimestamp").is_none() && pod["status"]["phase"] != "Failed"
}

/// Whether a pod is ready as the API server has it.
pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}
