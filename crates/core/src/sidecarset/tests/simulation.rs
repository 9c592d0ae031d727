//! Roll-outs on pods whose kubelets act when they like: whatever is edited meanwhile, no more pods are down than may be,
//! and in the end all have the set's image, with one write a pod and image.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::sidecarset::annotations::{HASH, HASH_WITHOUT_IMAGE, INJECTED_LIST};
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::pod::{LastUpgrade, PodState};
use crate::sidecarset::render::{Injection, RenderOptions, inject_sets};
use crate::sidecarset::rollout::recorded_by_upgrade;
use crate::sidecarset::rollout::tests::naive::{Member, plan};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::upgrade::plan_upgrade;
use crate::workload::JsonObject;
use crate::workload::pod::{ObservedPod, ObservedStatus};

const NOW: &str = "2026-01-01T00:00:00Z";
/// An image that never starts.
const BAD: &str = "i:bad";
/// An image that starts and never gets ready.
const UNREADY: &str = "i:unready";
/// An image that starts and gets ready, and with which no application works.
const BREAKING: &str = "i:breaking";

#[derive(Clone, Debug)]
enum Step {
    /// The set gets an image.
    Edit(&'static str),
    /// The set is paused or resumed.
    Pause(bool),
    /// The upgrade goes on.
    Upgrade,
    /// A write of the pod is refused, whatever it is.
    Refuse(usize),
    /// The kubelet of a pod restarts its sidecar.
    Restart(usize),
    /// Another pod takes the place of a pod.
    Replace(usize),
    /// The application of a pod fails, whatever its sidecar does, or works again.
    Break(usize, bool),
    /// The application of a pod fails for a moment, in which the upgrade goes on, and its kubelet acts on that.
    Falter(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let image = prop_oneof![
        Just("i:1"),
        Just("i:2"),
        Just("i:3"),
        Just(BAD),
        Just(UNREADY),
        Just(BREAKING)
    ];
    prop_oneof![
        1 => image.prop_map(Step::Edit),
        1 => any::<bool>().prop_map(Step::Pause),
        4 => Just(Step::Upgrade),
        1 => (0..8_usize).prop_map(Step::Refuse),
        4 => (0..8_usize).prop_map(Step::Restart),
        1 => (0..8_usize).prop_map(Step::Replace),
        2 => (0..8_usize, prop::bool::weighted(0.7))
            .prop_map(|(place, is_broken)| Step::Break(place, is_broken)),
        4 => (0..8_usize).prop_map(Step::Falter),
    ]
}

fn set(image: &str, is_paused: bool, max_unavailable: usize) -> SidecarSet {
    let wire = json!({
        "metadata": {"name": "s"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "side", "image": image}],
            "updateStrategy": {"paused": is_paused, "maxUnavailable": max_unavailable},
        },
    });
    SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
}

struct World {
    set: SidecarSet,
    max_unavailable: usize,
    pods: Vec<ObservedPod>,
    containers: usize,
    /// A pod whose writes are refused.
    refused: Option<usize>,
    /// Pods whose application fails.
    broken: BTreeSet<usize>,
    /// Whether any ever did.
    was_any_broken: bool,
    /// Pods that were ready before their last upgrade, and not since.
    taken_down: BTreeSet<usize>,
    writes: usize,
}

impl World {
    fn new(count: usize, max_unavailable: usize) -> Self {
        let mut world = Self {
            set: set("i:1", false, max_unavailable),
            max_unavailable,
            pods: Vec::new(),
            containers: 0,
            refused: None,
            broken: BTreeSet::new(),
            was_any_broken: false,
            taken_down: BTreeSet::new(),
            writes: 0,
        };
        for number in 0..count {
            let pod = world.new_pod(number);
            world.pods.push(pod);
        }
        world
    }

    /// A pod that is injected and runs.
    fn new_pod(&mut self, number: usize) -> ObservedPod {
        let pod = json!({
            "metadata": {"name": format!("p{number}"), "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        });
        let pod: JsonObject = serde_json::from_value(pod).unwrap();
        let whitelist = Whitelist::default();
        let injection = Injection {
            set: &self.set,
            template: &self.set.template,
            hashes: &self.set.hashes,
            revision: "r",
            newest: None,
            allowed_keys: whitelist.allowed_keys(|_| None, true),
            missing_pin: None,
        };
        let injected = inject_sets(
            &pod,
            &[injection],
            RenderOptions::default(),
            NOW.parse().unwrap(),
        );
        let mut pod = injected.additions.apply(&pod);
        pod.insert(
            "status".to_owned(),
            json!({
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "app"}, {"name": "side"}],
            }),
        );
        let mut pod = ObservedPod::new(&serde_json::from_value(Value::Object(pod)).unwrap());
        assert!(
            [HASH, HASH_WITHOUT_IMAGE, INJECTED_LIST]
                .iter()
                .all(|key| pod.annotations.contains_key(key))
        );
        self.restart(&mut pod);
        pod
    }

    /// Starts the sidecar with the image that it is to have.
    fn restart(&mut self, pod: &mut ObservedPod) {
        self.containers += 1;
        let side = pod
            .containers
            .iter_mut()
            .find(|container| &*container.name == "side")
            .unwrap();
        let does_start = &*side.image != BAD;
        let is_good = does_start && &*side.image != UNREADY;
        side.status = Some(ObservedStatus {
            is_ready: is_good,
            restarts: 0,
            image: side.image.clone(),
            // All images are one.
            image_id: "i@sha256:0".into(),
            container_id: Some(format!("runtime://{}", self.containers).into()),
            running: does_start.then_some(None),
            waits_for_pod: false,
        });
        pod.ready = is_good.then_some(None);
    }

    fn states(&self) -> Vec<PodState> {
        let read = |pod| {
            let label = None::<fn(&str) -> Option<&'static str>>;
            PodState::read(&self.set, pod, label, NOW.parse().unwrap())
        };
        self.pods.iter().map(|pod| read(pod).unwrap()).collect()
    }

    fn upgrade(&mut self) -> usize {
        let states = self.states();
        let pods = self.pods.iter().zip(states.iter().copied()).enumerate();
        let members = pods.map(|(place, (pod, state))| Member {
            pod,
            state,
            is_refused: self.refused == Some(place),
        });
        let members: Vec<_> = members.collect();
        let next = plan(&self.set, &members).next;
        let whitelist = Whitelist::default();
        let mut written = 0;
        for place in next {
            let allowed = whitelist.allowed_keys(|_| None, true);
            let pod = &mut self.pods[place];
            let found = recorded_by_upgrade(states[place]);
            let now = NOW.parse().unwrap();
            let upgrade = plan_upgrade(&self.set, "r", (pod, found), &allowed, now);
            for (key, value) in upgrade.patch["metadata"]["annotations"]
                .as_object()
                .unwrap()
            {
                pod.annotations
                    .extend([(key.as_str().into(), value.as_str().unwrap().into())]);
            }
            let side = pod
                .containers
                .iter_mut()
                .find(|container| &*container.name == "side");
            if !upgrade.restarts.is_empty() {
                if states[place].is_ready() {
                    self.taken_down.insert(place);
                }
                side.unwrap().image = self.set.template.containers[0].image.clone();
            }
            written += 1;
        }
        self.writes += written;
        written
    }

    fn step(&mut self, step: &Step) {
        let is_paused = self.set.update.mode == crate::sidecarset::strategy::UpdateMode::Paused;
        let image = self.set.template.containers[0].image.clone();
        match step {
            Step::Edit(image) => self.set = set(image, is_paused, self.max_unavailable),
            Step::Pause(is_paused) => self.set = set(&image, *is_paused, self.max_unavailable),
            Step::Upgrade => drop(self.upgrade()),
            Step::Refuse(place) => self.refused = Some(*place),
            Step::Restart(place) => self.restart_pod(*place),
            Step::Replace(place) => {
                if *place < self.pods.len() && ![BAD, UNREADY, BREAKING].contains(&&*image) {
                    self.pods[*place] = self.new_pod(*place);
                    self.taken_down.remove(place);
                    self.show_readiness(*place);
                }
            }
            Step::Break(place, is_broken) => {
                self.was_any_broken = true;
                if *is_broken {
                    self.broken.insert(*place);
                } else {
                    self.broken.remove(place);
                }
                self.show_readiness(*place);
            }
            Step::Falter(place) => {
                self.was_any_broken = true;
                let is_new = self.broken.insert(*place);
                self.show_readiness(*place);
                self.upgrade();
                if is_new {
                    self.broken.remove(place);
                }
                self.restart_pod(*place);
            }
        }
    }

    fn restart_pod(&mut self, place: usize) {
        if place < self.pods.len() {
            let mut pod = self.pods[place].clone();
            self.restart(&mut pod);
            self.pods[place] = pod;
            self.show_readiness(place);
        }
    }

    /// Whether the image that a pod's sidecar runs is why its application does not work.
    fn is_broken_by_image(&self, place: usize) -> bool {
        let side = self.pods[place].container("side").unwrap();
        let status = side.status.as_ref();
        status.is_some_and(|status| *status.image == *BREAKING) && !self.broken.contains(&place)
    }

    /// Whether the set's image has broken as many pods that were ready as may be unavailable.
    fn is_stopped_by_image(&self) -> bool {
        let states = self.states();
        let taken_down = self.taken_down.iter().copied();
        let broken = taken_down
            .filter(|place| states[*place].is_updated() && self.is_broken_by_image(*place));
        broken.count() >= self.max_unavailable
    }

    /// A pod is ready if its application works and its sidecar is ready.
    fn show_readiness(&mut self, place: usize) {
        if place >= self.pods.len() {
            return;
        }
        let does_work = !self.broken.contains(&place) && !self.is_broken_by_image(place);
        let pod = &mut self.pods[place];
        let is_ready = pod.container("side").unwrap().is_ready() && does_work;
        pod.ready = is_ready.then_some(None);
        if is_ready {
            self.taken_down.remove(&place);
        }
    }

    fn serving(&self) -> usize {
        self.states()
            .iter()
            .filter(|state| state.is_serving())
            .count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-46, SCS-50, SCS-55, SDF-32, SDF-34, SDF-35, SDF-37
    #[test]
    fn no_more_pods_are_down_than_may_be_and_all_are_upgraded_in_the_end(
        count in 1..8_usize,
        max_unavailable in 1..4_usize,
        steps in proptest::collection::vec(any_step(), 0..40),
    ) {
        let mut world = World::new(count, max_unavailable);
        for step in &steps {
            let (is_stopped, writes) = (world.is_stopped_by_image(), world.writes);
            world.step(step);
            prop_assert!(!is_stopped || world.writes == writes, "{step:?}");
            if !world.was_any_broken {
                prop_assert!(count - world.serving() <= max_unavailable, "{step:?}");
            }
            prop_assert!(world.taken_down.len() <= max_unavailable, "{step:?}");
        }
        // Applications work again that an upgrade may have broken. No other holds up anybody.
        for place in 0..count {
            if world.states()[place].last_upgrade == LastUpgrade::OfReady {
                world.step(&Step::Break(place, false));
            }
        }
        // A last good image, and kubelets that act.
        let states = world.states();
        // A pod that an upgrade has taken down, and that cannot be written, holds up the others rightly.
        let is_serving = |place: &usize| states.get(*place).is_some_and(|state| state.is_serving());
        world.refused = world.refused.filter(is_serving);
        let refused = world.refused;
        world.step(&Step::Pause(false));
        world.step(&Step::Edit("i:last"));
        world.writes = 0;
        for _ in 0..3 * count {
            for place in 0..count {
                world.restart_pod(place);
            }
            world.upgrade();
        }
        // One pod whose write is refused does not hold up the others.
        let states = world.states();
        for (place, state) in states.iter().enumerate() {
            let is_done = state.is_updated() && state.is_consistent();
            let is_serving = state.is_serving() || world.broken.contains(&place);
            prop_assert!(is_done && is_serving || refused == Some(place), "{place}");
        }
        prop_assert_eq!(world.writes, count - usize::from(refused.is_some()));
        world.refused = None;
        world.upgrade();
        for place in 0..count {
            world.restart_pod(place);
        }
        for (place, state) in world.states().iter().enumerate() {
            prop_assert!(state.is_updated() && (state.is_serving() || world.broken.contains(&place)));
        }
        prop_assert_eq!(world.upgrade(), 0);
    }
}
