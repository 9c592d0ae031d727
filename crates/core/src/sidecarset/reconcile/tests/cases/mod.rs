//! Single cases: what is written for a set and its pods, and what is not.

mod condition;
mod in_force;
mod missed;
mod revisions;
mod roll_out;
mod stored;

use serde_json::{Value, json};

use super::world::{
    BAD, Key, Sent, UNREADY, WatchedKind, World, barrier, object, pod_key, pod_name, set_key,
    status_of, upgrade_of,
};
use crate::cluster::{Refusal, ResourceVersion};
use crate::sidecarset::annotations::{HASH, HASH_WITHOUT_IMAGE, INJECTED_LIST};
use crate::sidecarset::condition::UPGRADABLE;
use crate::sidecarset::metadata::{CONFIGURATION, WHITELIST};
use crate::sidecarset::reconcile::world::MOST_SETS;
use crate::sidecarset::reconcile::writes::{
    CREATE_REVISION, DELETE_REVISION, EVENT, PATCH_REVISION, SET_HASHES, SET_STATUS, UPGRADE_POD,
};
use crate::sidecarset::reconcile::{Hold, Lack, SetByName, Turn};
use crate::sidecarset::set::{ADOPT_PODS, MIN_READY_SECONDS_ANNOTATION};
use crate::sidecarset::snapshot::SnapshotVersion;

fn spec(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": format!("{name}-side"), "image": "i:1"}],
            "updateStrategy": {"maxUnavailable": 1},
        },
    })
}

/// A world with a set and so many injected pods, where nothing is due.
fn world(pods: usize) -> World {
    let mut world = World::new();
    world.create(&set_key("log"), spec("log"));
    world.settle();
    world.pass(10);
    for pod in 0..pods {
        world.create_pod(pod, true);
    }
    world.settle();
    world.writes.clear();
    world
}

impl World {
    fn edit(&mut self, set: &str, pointer: &str, value: &Value) {
        let at = pointer.rsplit_once('/').unwrap();
        self.change(&set_key(set), |object| {
            object.pointer_mut(at.0).unwrap()[at.1] = value.clone();
        });
        self.deliver_all();
    }

    fn status(&self, set: &str) -> &Value {
        &self.objects[&set_key(set)]["status"]
    }

    fn counts(&self, set: &str) -> [u64; 3] {
        let status = self.status(set);
        ["matchedPods", "updatedPods", "readyPods"].map(|field| status[field].as_u64().unwrap())
    }

    fn reason(&self, set: &str) -> (&str, &str, &str) {
        let condition = &self.status(set)["conditions"][0];
        assert_eq!(condition["type"], "Ready");
        let text = |field: &str| condition[field].as_str().unwrap();
        (text("status"), text("reason"), text("message"))
    }

    fn image(&self, pod: usize) -> &str {
        self.objects[&pod_key(pod)]["spec"]["containers"][0]["image"]
            .as_str()
            .unwrap()
    }

    /// The pods that are upgraded by the writes so far.
    fn upgraded(&self) -> Vec<String> {
        let pods = self.writes.iter().filter(|sent| sent.is(&UPGRADE_POD));
        pods.map(|sent| sent.id.name.name.clone()).collect()
    }

    fn events(&self) -> Vec<(String, String)> {
        let events = self.writes.iter().filter(|sent| sent.is(&EVENT));
        let text = |sent: &Sent, field: &str| sent.body[field].as_str().unwrap().to_owned();
        events
            .map(|sent| (text(sent, "reason"), text(sent, "note")))
            .collect()
    }

    fn revisions(&self) -> Vec<(i64, String)> {
        let keys = self.keys(WatchedKind::Revision);
        let mut revisions: Vec<_> = keys
            .iter()
            .map(|key| {
                (
                    self.objects[key]["revision"].as_i64().unwrap(),
                    key.1.name.clone(),
                )
            })
            .collect();
        revisions.sort();
        revisions
    }

    fn condition(&self, pod: usize) -> Option<&Value> {
        let mut conditions = self.objects[&pod_key(pod)]["status"]["conditions"]
            .as_array()?
            .iter();
        conditions.find(|condition| condition["type"] == UPGRADABLE)
    }

    /// The image that either of the first two containers of a pod has got last.
    fn image_of_either(&self, pod: usize) -> &str {
        self.objects[&pod_key(pod)]["spec"]["containers"][1]["image"]
            .as_str()
            .unwrap()
    }

    /// The application of a pod gets ready, or fails; its containers run on.
    fn gate(&mut self, pod: usize, is_open: bool) {
        self.open_gate(&pod_key(pod), is_open);
        self.deliver_all();
    }

    fn rank(&mut self, pod: usize, rank: &str) {
        let key = pod_key(pod);
        self.change(&key, |pod| pod["metadata"]["labels"]["rank"] = json!(rank));
        self.deliver_all();
    }

    /// Takes out the upgrade of a pod, which is not answered.
    fn take(&mut self, pod: usize) -> Option<Sent> {
        self.take_due(&upgrade_of(pod))
    }

    /// What has become of the upgrade of a pod that was taken out is not known.
    fn lose_answer(&mut self, pod: usize) {
        self.reconciler.note_failed(&upgrade_of(pod), false);
        self.pass(0);
    }
}

/// Whoever may write a pod may write any annotation of it.
// SCS-24, SDF-52
#[test]
fn a_pod_that_names_more_sets_than_it_can_have_costs_no_more_than_so_many() {
    let mut world = world(1);
    let names: Vec<_> = (0..20_000).map(|number| format!("set-{number}")).collect();
    world.change(&pod_key(0), |pod| {
        let list = format!("log,{},{}", "x".repeat(64), names.join(","));
        pod["metadata"]["annotations"][INJECTED_LIST] = list.into();
    });
    world.settle();
    let known = world.reconciler.world();
    let pod = known.pods.observed(&pod_name(0)).unwrap();
    assert_eq!(pod.injected.len(), MOST_SETS);
    assert!(pod.injected.iter().all(|name| name.len() < 64));
    assert_eq!(world.counts("log"), [1, 1, 1]);
}
