//! What a run costs: each looks at all pods of its set.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::CloneSet;
use leadsman_api::slim::Pod;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::{Now, Reconciler, Source, Store};
use serde_json::{Value, json};

use super::super::claims::{ClaimNotes, Claims};
use super::super::names::free_names;
use super::super::{CloneSets, PodSet};
use super::cluster::{Cluster, Kind, SET};

/// Runs of which the cheapest counts.
const RUNS: u64 = 7;

/// A set of many pods as one of few has left it, whose runs can be measured.
struct Many {
    reconciler: Reconciler<CloneSets>,
    pods: Vec<Value>,
    now: Now,
}

impl Many {
    /// With replicas that are this share of the pods, in hundredths.
    fn of(mut cluster: Cluster, count: usize, share: usize, edit: &Value) -> Self {
        let pod = cluster.pod(&cluster.active()[0]).clone();
        cluster.edit(edit);
        // The revision of the edit.
        cluster.step();
        cluster.step();
        let mut set = cluster.get(Kind::Set, SET).unwrap().clone();
        // Some names come twice.
        let names = names_of_pods(&PodSet::read(&read(&set)), count);
        set["spec"]["replicas"] = json!(names.len() * share / 100);
        let set: CloneSet = read(&set);
        let pods = names.into_iter().map(|name| {
            let mut pod = pod.clone();
            pod["metadata"]["uid"] = json!(format!("of-{name}"));
            pod["metadata"]["name"] = json!(name);
            pod
        });
        let mut many = Self {
            reconciler: Reconciler::new(CloneSets::default(), || Duration::ZERO),
            pods: pods.collect(),
            now: cluster.time(),
        };
        many.reconciler.observe_object(Arc::new(set), Source::Reply);
        for name in cluster.names(Kind::Revision) {
            let revision: ControllerRevision = read(cluster.get(Kind::Revision, &name).unwrap());
            many.reconciler
                .observe_object(Arc::new(revision), Source::Reply);
        }
        for place in 0..many.pods.len() {
            many.observe(place, 1);
        }
        many.reconciler.begin_term();
        many.reconciler.run_keys(many.now);
        many
    }

    fn observe(&mut self, place: usize, version: u64) {
        let metadata = &mut self.pods[place]["metadata"];
        metadata["resourceVersion"] = json!((1_000_000 + version).to_string());
        metadata["labels"]["version"] = json!(version.to_string());
        let pod: Pod = read(&self.pods[place]);
        self.reconciler.observe_object(Arc::new(pod), Source::Reply);
    }

    /// The CPU time of the run after an event of a pod, at best.
    fn cost(&mut self) -> Duration {
        let costs = (0..RUNS).map(|number| {
            self.observe(0, 2 + number);
            let begun = cpu_time();
            self.reconciler.run_keys(self.now);
            cpu_time().saturating_sub(begun)
        });
        costs.min().unwrap()
    }
}

/// The CPU time of this thread so far: other processes take none of it.
fn cpu_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.unwrap().into()
}

/// The first names that pods of a set get.
fn names_of_pods(set: &PodSet, count: usize) -> BTreeSet<String> {
    let (pods, store, mut notes) = (Store::default(), Store::default(), ClaimNotes::default());
    let claims = Claims::survey(set, &pods, &store, &mut notes);
    let names = free_names(set, &pods, (&claims, &[])).take(count);
    names.map(|name| name.name).collect()
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

// CLD-51
#[test]
fn a_run_costs_in_proportion_to_the_pods_of_its_set() {
    let image = |image: &str| json!({"template": {"spec": {"containers": [{"name": "main", "image": image}]}}});
    let replaced = {
        let mut edit = image("app:2");
        edit["updateStrategy"] = json!({"type": "ReCreate"});
        edit
    };
    for (what, share, edit) in [
        ("at rest", 100, json!({})),
        ("created", 200, json!({})),
        ("deleted", 50, json!({})),
        ("updated in place", 100, image("app:2")),
        ("replaced", 100, replaced),
    ] {
        let costs = [500, 5_000].map(|count| {
            let strategy = json!({"type": "InPlaceOnly", "maxUnavailable": "10%"});
            let cluster = Cluster::with_set(json!({"replicas": 2, "updateStrategy": strategy}));
            Many::of(cluster, count, share, &edit).cost()
        });
        let growth = costs[1].as_secs_f64() / costs[0].as_secs_f64();
        eprintln!("{what}: {costs:?}, {growth:.1} times");
        // Ten times the pods: of what is sorted a little more than ten times, and more where caches are too small. What compares
        // each with each would cost a hundred times.
        assert!(growth < 20.0, "{what}: {costs:?}");
    }
}
