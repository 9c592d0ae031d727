//! The proof that no history of claims, lost replies, late writes and changes of leadership has a moment with two, and that each
//! ends with the one that a naive reading of the rules says.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::node_pod_probe::ContainerProbeState;
use proptest::prelude::*;
use serde_json::json;

use super::super::cluster::name;
use super::super::pod::{Owner, SimPod, mark};
use super::super::proof::{histories, marker};
use super::super::scene::app_x;
use super::super::world::{Fate, World, any_run_cost};
use super::{KINDS, node_of, pod_name, records_of, role};
use crate::cluster::ObjectName;
use crate::podprobe::index::tests::driver::{WatchedKind, WriteTarget};

/// One thing that happens to the database.
#[derive(Clone, Debug)]
enum Turn {
    /// Its probe prints this, as the agent says.
    Say(usize, &'static str, &'static str, u8),
    /// A late agent says what was true before: nothing new.
    Forget(usize),
    Restart(usize),
    Delete(usize),
    Add(usize),
    End(usize),
    Relabel(usize, bool),
    Remark(bool),
    DeleteMarker,
    Deliver(Option<WatchedKind>, u8),
    Send(usize),
    Fly(usize, Fate),
    /// Writes are sent and answered, and no watch shows anything.
    Work(u8),
    /// The Lease is lost while the write is under way that gives a pod the value, and another one has a better claim.
    LoseLeadWhileGiving(usize, u8),
    /// Another manager gives a pod the value, and this one leads again and knows of a better claim before its watch shows that.
    LeadAgainBehind(usize, u8),
    /// A manager is replaced that has announced the value to a pod, and another pod has it still.
    RestartBeforeTaking(usize, u8),
    Refuse,
    ListAgain(WatchedKind),
    Drain,
    Pass(u8),
    NewManager,
    LoseLead,
    LeadAgain,
}

impl Turn {
    fn take(self, world: &mut World, is_versioned: bool) {
        match self {
            Self::Say(pod, state, role, version) => {
                world.say(pod, state, &format!("{role} {version}"));
            }
            Self::Forget(pod) => world.cluster.edit_node_pod_probe(node_of(pod), |object| {
                object.status = None;
            }),
            Self::Restart(pod) => {
                let now = world.cluster.now;
                world.cluster.edit_pod(&pod_name(pod), |pod| {
                    pod.containers[0].id.push('x');
                    pod.containers[0].running_since = now;
                });
            }
            Self::Delete(pod) => world.cluster.delete(WatchedKind::Pod, &pod_name(pod)),
            Self::Add(pod) => world.add_pod(pod),
            Self::End(pod) => world
                .cluster
                .edit_pod(&pod_name(pod), |pod| pod.deleting = true),
            Self::Relabel(pod, is_selected) => world.cluster.edit_pod(&pod_name(pod), |pod| {
                let app = if is_selected { "x" } else { "y" };
                pod.labels.insert("app".to_owned(), mark(app, Owner::User));
            }),
            Self::Remark(is_back) => {
                let mut probe = role(is_versioned, None);
                if !is_back {
                    probe["podConditionType"] = json!("db/other");
                }
                let marker = marker(&app_x(), &[probe]);
                world.cluster.put_marker(&name("a", "way"), marker);
            }
            Self::DeleteMarker => world.cluster.delete(WatchedKind::Marker, &name("a", "way")),
            Self::Deliver(kind, count) => {
                for _ in 0..count {
                    world.deliver_of(kind);
                }
            }
            Self::Send(which) => drop(world.send(which)),
            Self::Fly(which, fate) => drop(world.fly(which, fate)),
            Self::Work(count) => {
                for _ in 0..count {
                    world.work();
                }
            }
            Self::LoseLeadWhileGiving(pod, version) => {
                world.lose_lead_while_giving(pod, version);
            }
            Self::LeadAgainBehind(pod, version) => world.lead_again_behind(pod, version),
            Self::RestartBeforeTaking(pod, version) => world.restart_before_taking(pod, version),
            Self::Refuse => drop(world.fly(0, Fate::Refused)),
            Self::ListAgain(kind) => world.cluster.list_again(kind),
            Self::Drain => world.drain(),
            Self::Pass(seconds) => world.pass(SignedDuration::from_secs(seconds.into())),
            Self::NewManager => world.restart(KINDS),
            Self::LoseLead => world.lose_lead(),
            Self::LeadAgain => world.lead_again(),
        }
    }
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let states = [
        "Succeeded",
        "Succeeded",
        "Succeeded",
        "Succeeded",
        "Failed",
        "Unknown",
    ];
    let roles = ["primary", "primary", "primary", "replica"];
    let say = (
        0..3usize,
        proptest::sample::select(states.to_vec()),
        proptest::sample::select(roles.to_vec()),
        0..5u8,
    );
    let fates = [
        Fate::CarriedOut,
        Fate::Answered,
        Fate::ReplyLost,
        Fate::Unavailable,
    ];
    let fate = prop_oneof![
        3 => Just(Fate::CarriedOut), 6 => Just(Fate::Answered), 3 => proptest::sample::select(fates.to_vec()),
    ];
    let kind = || proptest::sample::select(&KINDS[..]);
    prop_oneof![
        10 => say.prop_map(|(pod, state, role, version)| Turn::Say(pod, state, role, version)),
        1 => (0..3usize).prop_map(Turn::Forget),
        1 => (0..3usize).prop_map(Turn::Restart),
        1 => (0..3usize).prop_map(Turn::Delete),
        2 => (0..3usize).prop_map(Turn::Add),
        1 => (0..3usize).prop_map(Turn::End),
        1 => (0..3usize, any::<bool>()).prop_map(|(pod, is_selected)| Turn::Relabel(pod, is_selected)),
        1 => any::<bool>().prop_map(Turn::Remark),
        1 => Just(Turn::DeleteMarker),
        6 => (proptest::option::of(kind()), 1..6u8).prop_map(|(kind, count)| Turn::Deliver(kind, count)),
        8 => (0..4usize).prop_map(Turn::Send),
        8 => (0..4usize, fate).prop_map(|(which, fate)| Turn::Fly(which, fate)),
        4 => (1..5u8).prop_map(Turn::Work),
        2 => (0..3usize, 0..5u8).prop_map(|(pod, version)| Turn::LoseLeadWhileGiving(pod, version)),
        2 => (0..3usize, 0..5u8).prop_map(|(pod, version)| Turn::LeadAgainBehind(pod, version)),
        2 => (0..3usize, 0..5u8).prop_map(|(pod, version)| Turn::RestartBeforeTaking(pod, version)),
        1 => Just(Turn::Refuse),
        1 => kind().prop_map(Turn::ListAgain),
        3 => Just(Turn::Drain),
        2 => (0..3u8).prop_map(Turn::Pass),
        1 => Just(Turn::NewManager),
        2 => Just(Turn::LoseLead),
        3 => Just(Turn::LeadAgain),
    ]
}

/// What the pods say and show in the end, read naively.
fn assert_settled(world: &World, is_versioned: bool) {
    let Some(_) = world.cluster.markers.get(&name("a", "way")) else {
        let mut pods = world.cluster.pods.values().filter(|pod| pod.is_active());
        assert!(pods.all(|pod| records_of(pod).is_empty() && !pod.labels.contains_key("role")));
        return;
    };
    let is_primary = |pod: &SimPod| {
        pod.labels
            .get("role")
            .is_some_and(|mark| mark.value == "primary")
    };
    let mut floor = 0;
    // By version, whether it has the value, and when it was claimed.
    let mut claims: BTreeMap<(u64, bool, Timestamp), Vec<String>> = BTreeMap::new();
    let (mut silent, mut primaries) = (Vec::new(), Vec::new());
    for (name, pod) in &world.cluster.pods {
        let record = records_of(pod).remove("way#role").unwrap_or_default();
        floor = floor.max(record.version.unwrap_or_default());
        if is_primary(pod) {
            assert!(record.holds, "{name} is primary without a record");
            primaries.push(name.name.clone());
        }
    }
    for (name, pod) in &world.cluster.pods {
        let is_selected = pod.labels["app"].value == "x" && pod.is_active();
        let state = world.current_state(name, pod).filter(|_| is_selected);
        match state {
            Some(state)
                if state.state == "Succeeded"
                    && state.values.as_ref().unwrap()["role"] == "primary" =>
            {
                let version = state.values.unwrap()["version"].parse().unwrap();
                let version = if is_versioned { version } else { 0 };
                if version >= floor || !is_versioned {
                    let rank = (
                        version,
                        is_versioned && is_primary(pod),
                        state.last_transition_time.unwrap().0,
                    );
                    claims.entry(rank).or_default().push(name.name.clone());
                }
            }
            Some(state) => {
                let expected = (state.state == "Succeeded").then(|| json!("replica"));
                let role = pod.labels.get("role").map(|mark| mark.value.clone());
                assert_eq!(role, expected, "{name} {state:?}");
            }
            None if is_selected && is_primary(pod) => silent.push(name.name.clone()),
            None => {}
        }
    }
    assert!(primaries.len() <= 1, "{primaries:?}");
    match (claims.last_key_value(), primaries.first()) {
        // A pod of which nothing is known keeps the value beside claims that are no better.
        (_, Some(primary)) if silent.contains(primary) => {}
        (Some((_, best)), Some(primary)) => {
            assert!(best.contains(primary), "{primary} of {claims:?}");
        }
        (Some(_), None) => panic!("nobody has what {claims:?} claim"),
        (None, Some(primary)) => assert!(
            !world.cluster.pods[&name("a", primary)].is_active(),
            "{primary} claims nothing"
        ),
        (None, None) => {}
    }
}

impl World {
    fn lose_lead_while_giving(&mut self, pod: usize, version: u8) {
        self.say(pod, "Succeeded", &format!("primary {version}"));
        for _ in 0..8 {
            while self.deliver() {}
            if !self.send(0) || self.gives_label(pod) {
                break;
            }
            self.fly(0, Fate::Answered);
        }
        let version = version + 1;
        self.say((pod + 1) % 3, "Succeeded", &format!("primary {version}"));
        self.lose_lead();
    }

    fn lead_again_behind(&mut self, pod: usize, version: u8) {
        self.say(pod, "Succeeded", &format!("primary {version}"));
        self.lose_lead();
        let version = version + 1;
        self.say((pod + 1) % 3, "Succeeded", &format!("primary {version}"));
        self.lead_again();
        for _ in 0..8 {
            self.work();
        }
    }

    fn restart_before_taking(&mut self, pod: usize, version: u8) {
        self.say((pod + 1) % 3, "Succeeded", &format!("primary {version}"));
        self.drain();
        let version = version + 1;
        self.say(pod, "Succeeded", &format!("primary {version}"));
        while self.deliver() {}
        let target = WriteTarget::PodMarks(pod_name(pod));
        if let Some(which) = self.dirty.iter().position(|one| *one == target) {
            self.send(which);
            self.fly(0, Fate::CarriedOut);
        }
        self.restart(KINDS);
        for _ in 0..4 {
            let pods = self.dirty.iter().position(|one| *one == target);
            let flights = self.writes.len();
            self.send(pods.unwrap_or_default());
            if self.writes.len() > flights {
                self.fly(0, Fate::CarriedOut);
            }
        }
    }

    /// Whether the last write gives a pod the value.
    fn gives_label(&self, pod: usize) -> bool {
        let last = self.writes.last();
        last.is_some_and(|(target, write)| {
            *target == WriteTarget::PodMarks(pod_name(pod))
                && format!("{write:?}").contains("\"role\": String(\"primary\")")
        })
    }

    /// The verdict on a pod that counts.
    fn current_state(&self, name: &ObjectName, pod: &SimPod) -> Option<ContainerProbeState> {
        let object = self.cluster.node_pod_probes.get(pod.node.as_ref()?)?;
        let mut entries = object
            .spec
            .pod_probes
            .iter()
            .filter(|one| one.uid == pod.uid);
        let revision = entries.next()?.probes.first()?.revision.clone();
        let mut statuses = object.status.as_ref()?.pod_probe_statuses.iter();
        let own = statuses.find(|one| one.uid == pod.uid && one.name == name.name)?;
        let state = own.probe_states.first()?.clone();
        let is_about = state.last_transition_time.as_ref()?.0 >= pod.containers[0].running_since;
        (state.revision == revision && is_about).then_some(state)
    }
}

fn prove(is_versioned: bool, run_cost: Option<Duration>, turns: &[Turn]) {
    let mut world = World::database(&role(is_versioned, None));
    world.run_cost = run_cost;
    world.restart(KINDS);
    for (which, turn) in turns.iter().enumerate() {
        turn.clone().take(&mut world, is_versioned);
        if which % 5 == 0 {
            world.pass(SignedDuration::from_secs(1));
        }
    }
    world.lead_again();
    world.rest();
    assert_settled(&world, is_versioned);
    world.writes.clear();
    world.restart(KINDS);
    world.rest();
    let writes = world.writes.iter();
    let writes: Vec<_> = writes
        .filter(|(target, _)| matches!(target, WriteTarget::PodMarks(_)))
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");
}

proptest! {
    #![proptest_config(histories())]

    // PPM-23
    #[test]
    fn no_history_has_a_moment_with_two_and_each_ends_with_the_best_claim(
        is_versioned in any::<bool>(),
        run_cost in any_run_cost(),
        turns in proptest::collection::vec(any_turn(), 0..80),
    ) {
        prove(is_versioned, run_cost, &turns);
    }
}
