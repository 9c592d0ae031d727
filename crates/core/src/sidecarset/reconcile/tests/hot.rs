//! Properties of hot upgrades in any history: the container that serves is never stopped before another has taken over, and
//! a pod whose new container has taken over is rid of the one before, whatever became of the set meanwhile.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::traffic::Traffic;
use super::world::{BAD, Key, UNREADY, WatchedKind, World, pod_key, set_key};
use crate::sidecarset::annotations::{WORKING_CONTAINER, working_containers};
use crate::sidecarset::reconcile::writes::UPGRADE_POD;
use crate::sidecarset::set::ADOPT_PODS;

const PODS: usize = 2;
const SET: &str = "mesh";
/// The images that do nothing begin so.
const EMPTY: &str = "i:empty";

#[derive(Clone, Debug)]
enum Step {
    Image(&'static str),
    EmptyImage(u8),
    Env(u8),
    /// A container that pods lack which were created before.
    Container(bool),
    Strategy(Value),
    CreatePod(usize),
    DeletePod(usize),
    /// Whether the set selects a pod.
    Relabel(usize, bool),
    /// Whether the application is ready.
    App(usize, bool),
    Kubelet(usize),
    Traffic(Traffic),
}

fn any_step() -> impl Strategy<Value = Step> {
    let pod = || 0..PODS;
    let image = proptest::sample::select(vec!["i:1", "i:2", "i:3", BAD, UNREADY]);
    let strategy = proptest::sample::select(vec![
        json!({}),
        json!({"maxUnavailable": 3}),
        json!({"paused": true}),
        json!({"type": "NotUpdate"}),
        json!({"partition": 2}),
        json!({"partition": "100%"}),
    ]);
    prop_oneof![
        6 => image.prop_map(Step::Image),
        1 => (0..2_u8).prop_map(Step::EmptyImage),
        1 => (0..2_u8).prop_map(Step::Env),
        1 => any::<bool>().prop_map(Step::Container),
        3 => strategy.prop_map(Step::Strategy),
        3 => pod().prop_map(Step::CreatePod),
        1 => pod().prop_map(Step::DeletePod),
        1 => (pod(), any::<bool>()).prop_map(|(pod, selected)| Step::Relabel(pod, selected)),
        1 => (pod(), any::<bool>()).prop_map(|(pod, ready)| Step::App(pod, ready)),
        8 => pod().prop_map(Step::Kubelet),
        Traffic::WEIGHT + 3 => Traffic::any(3, 3, &[1, 400]).prop_map(Step::Traffic),
    ]
}

fn edit(world: &mut World, change: impl FnOnce(&mut Value)) {
    world.change(&set_key(SET), |set| change(&mut set["spec"]));
}

fn step(world: &mut World, step: &Step) {
    match step {
        Step::Image(image) => edit(world, |spec| {
            spec["containers"][0]["image"] = (*image).into();
        }),
        Step::EmptyImage(number) => edit(world, |spec| {
            let image = format!("{EMPTY}-{number}");
            spec["containers"][0]["upgradeStrategy"]["hotUpgradeEmptyImage"] = image.into();
        }),
        Step::Env(number) => edit(world, |spec| {
            spec["containers"][0]["env"] = json!([{"name": format!("E{number}")}]);
        }),
        Step::Container(is_there) => edit(world, |spec| {
            let containers = spec["containers"].as_array_mut().unwrap();
            containers.truncate(1);
            if *is_there {
                containers.push(json!({"name": "late", "image": "i:1"}));
            }
        }),
        Step::Strategy(strategy) => edit(world, |spec| spec["updateStrategy"] = strategy.clone()),
        Step::CreatePod(pod) => {
            let image = world.set(SET).unwrap().template.containers[0].image.clone();
            if ![BAD, UNREADY].contains(&&*image) {
                world.create_pod(*pod, true);
            }
        }
        Step::DeletePod(pod) => world.delete(&pod_key(*pod)),
        Step::Relabel(pod, is_selected) => {
            world.change(&pod_key(*pod), |pod| {
                let app = if *is_selected { "web" } else { "other" };
                pod["metadata"]["labels"]["app"] = app.into();
            });
        }
        Step::App(pod, is_ready) => {
            world.change(&pod_key(*pod), |pod| {
                let statuses = pod["status"]["containerStatuses"].as_array_mut().unwrap();
                let app = statuses.iter_mut().find(|status| status["name"] == "app");
                app.unwrap()["ready"] = (*is_ready).into();
            });
            world.start_containers(&pod_key(*pod));
        }
        Step::Kubelet(pod) => world.start_containers(&pod_key(*pod)),
        Step::Traffic(traffic) => world.happen(traffic),
    }
}

/// A container of a pod that serves.
#[derive(Clone, Debug, PartialEq)]
struct Server {
    pod: Value,
    name: String,
    container: Value,
}

/// Who serves in each pod: the last container with a real image that got ready. A sidecar that hands its connections over
/// does so in a hook that ends before the container is ready.
#[derive(Debug, Default)]
struct Servers {
    by_pod: BTreeMap<Key, Server>,
    seen: Vec<Value>,
}

impl Servers {
    /// Fails if a container has gone that served.
    fn observe(&mut self, world: &World) -> Result<(), TestCaseError> {
        let keys = world.keys(WatchedKind::Pod);
        self.by_pod.retain(|key, _| keys.contains(key));
        for key in keys {
            let pod = &world.objects[&key];
            let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
            let of_pair = statuses.iter().filter(|status| {
                let name = status["name"].as_str().unwrap();
                name.starts_with("mesh-")
                    && !status["spec"].as_str().unwrap().starts_with(EMPTY)
                    && status["ready"] == true
            });
            let of_pair: Vec<_> = of_pair.collect();
            for status in &of_pair {
                let id = &status["containerID"];
                if !self.seen.contains(id) {
                    self.seen.push(id.clone());
                    let server = Server {
                        pod: pod["metadata"]["uid"].clone(),
                        name: status["name"].as_str().unwrap().to_owned(),
                        container: id.clone(),
                    };
                    self.by_pod.insert(key.clone(), server);
                }
            }
            let server = &self.by_pod[&key];
            let is_there = of_pair
                .iter()
                .any(|status| status["containerID"] == server.container);
            prop_assert!(
                is_there && server.pod == pod["metadata"]["uid"],
                "{server:?} of {} is gone: {of_pair:?}",
                key.1
            );
        }
        Ok(())
    }

    /// Fails if a container has not been reset after another has taken over.
    fn expect_resets(&self, world: &World) -> Result<(), TestCaseError> {
        for (key, server) in &self.by_pod {
            let pod = &world.objects[key];
            let working = pod["metadata"]["annotations"][WORKING_CONTAINER].as_str();
            let working = working_containers(working.unwrap());
            if working[SET] != server.name {
                continue;
            }
            let containers = pod["spec"]["containers"].as_array().unwrap().iter();
            let real = containers.filter(|container| {
                let name = container["name"].as_str().unwrap();
                let image = container["image"].as_str().unwrap();
                name.starts_with("mesh-") && !image.starts_with(EMPTY)
            });
            let real: Vec<_> = real.map(|container| &container["name"]).collect();
            prop_assert_eq!(real, [&json!(server.name)], "{}", key.1);
        }
        Ok(())
    }
}

/// A world with a set whose container takes turns, and with its pods.
fn world() -> World {
    let mut world = World::new();
    let set = json!({
        "metadata": {"name": SET, "labels": {}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{
                "name": SET, "image": "i:1",
                "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": EMPTY},
            }],
        },
    });
    world.create(&set_key(SET), set);
    world.settle();
    world.pass(10);
    for pod in 0..PODS {
        step(&mut world, &Step::CreatePod(pod));
    }
    world
}

/// The place of the next write of a pod among those under way. Other writes are carried out.
fn next_pod_write(world: &mut World) -> usize {
    world.deliver_all();
    for _ in 0..50 {
        world.send(0);
        let mut under_way = world.in_flight.iter();
        if let Some(place) = under_way.position(|one| one.is(&UPGRADE_POD)) {
            return place;
        }
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
        }
        world.deliver_all();
    }
    panic!("no pod is written: {:?}", world.dirty);
}

// SDF-46, SDF-48
#[test]
fn a_set_made_anew_does_not_end_the_hot_upgrade_of_its_predecessor_unasked() {
    for has_more in [false, true] {
        let mut world = world();
        step(&mut world, &Step::DeletePod(1));
        world.settle();
        step(&mut world, &Step::Image("i:2"));
        let upgrade = next_pod_write(&mut world);
        world.carry_out(upgrade, true);
        step(&mut world, &Step::Kubelet(0));
        let spec = world.objects[&set_key(SET)]["spec"].clone();
        world.delete(&set_key(SET));
        world.settle();
        world.pass(10);
        let images = |world: &World| {
            let containers = &world.objects[&pod_key(0)]["spec"]["containers"];
            [0, 1].map(|place| containers[place]["image"].as_str().unwrap().to_owned())
        };
        world.create(
            &set_key(SET),
            json!({"metadata": {"name": SET, "labels": {}}, "spec": spec}),
        );
        step(&mut world, &Step::Container(has_more));
        world.settle();
        assert_eq!(images(&world), ["i:1", "i:2"], "{has_more}");
        world.change(&set_key(SET), |set| {
            set["metadata"]["annotations"][ADOPT_PODS] = "true".into();
        });
        world.settle();
        assert_eq!(images(&world), [EMPTY, "i:2"], "{has_more}");
    }
}

// SDF-35, SDF-46
#[test]
fn while_its_end_is_refused_no_other_hot_upgrade_of_a_pod_begins() {
    let mut world = world();
    step(&mut world, &Step::DeletePod(1));
    world.settle();
    let images = |world: &World| {
        let containers = &world.objects[&pod_key(0)]["spec"]["containers"];
        [0, 1].map(|place| containers[place]["image"].as_str().unwrap().to_owned())
    };
    step(&mut world, &Step::Image("i:2"));
    let upgrade = next_pod_write(&mut world);
    world.carry_out(upgrade, true);
    assert_eq!(images(&world), ["i:1", "i:2"]);
    step(&mut world, &Step::Kubelet(0));
    let reset = next_pod_write(&mut world);
    world.refuse(reset);
    // Back to the image that the first one has, or on: either would stop the second one, which serves.
    for image in ["i:1", "i:3"] {
        step(&mut world, &Step::Image(image));
        world.settle();
        assert_eq!(images(&world), ["i:1", "i:2"]);
    }
    world.pass(400);
    world.settle();
    assert_eq!(images(&world), ["i:3", EMPTY]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-59, SCS-60, SDF-46
    #[test]
    fn no_container_that_serves_is_stopped_and_each_hot_upgrade_that_took_over_ends(
        steps in proptest::collection::vec(any_step(), 1..120),
    ) {
        let mut world = world();
        let mut servers = Servers::default();
        servers.observe(&world)?;
        for one in &steps {
            step(&mut world, one);
            servers.observe(&world)?;
        }
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
            servers.observe(&world)?;
        }
        world.deliver_all();
        world.pass(1000);
        for _ in 0..400 {
            for pod in 0..PODS {
                world.start_containers(&pod_key(pod));
                servers.observe(&world)?;
            }
            world.deliver_all();
            if !world.send(0) {
                break;
            }
            if !world.in_flight.is_empty() {
                world.carry_out(0, true);
            }
            servers.observe(&world)?;
        }
        prop_assert!(world.dirty.is_empty(), "{:?}", world.dirty);
        servers.expect_resets(&world)?;
    }
}
