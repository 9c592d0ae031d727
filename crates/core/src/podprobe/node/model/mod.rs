//! The node against a reference that is as naive as the rules are written, over random histories: several probes of
//! several containers, plans that come and go, lists of containers and status writes that are late, fail or are lost, statuses of
//! another agent.
//!
//! | module | holds |
//! |---|---|
//! | `asked` | the plan, and what an earlier agent has left in the status |
//! | `steps` | what may happen, with a strategy: a history that fails prints itself |
//! | `reference` | what the rules say of one probe |

mod asked;
mod reference;
mod steps;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proptest::prelude::*;

use self::reference::{AskedProbe, ModelContainer, ReferenceProbe};
use self::steps::{ModelState, NodeStep, RunFate, StartGate, WriteFate, any_steps};
use super::RunId;
use super::sim::{Sim, outcome_of};
use super::{ContainerName, PodIdentity, RuntimeContainer, RuntimeState, SLOT};
use crate::podprobe::probe::CannotProbe;

/// Pod and name of each container.
const CONTAINERS: [(&str, &str); 3] = [("u0", "main"), ("u0", "side"), ("u1", "main")];
/// Pod and namespace.
const NAMESPACES: [(&str, &str); 2] = [("u0", "ns"), ("u1", "other")];
/// Container, name and kind of each probe. One name is in two pods.
const PROBES: [(usize, &str, bool); 5] = [
    (0, "m#a", false),
    (0, "m#b", true),
    (1, "m#c", false),
    (2, "m#a", true),
    (2, "n#a", true),
];

/// Both, side by side.
struct NodeModel {
    sim: Sim,
    asked: [AskedProbe; PROBES.len()],
    /// Probes that are in the plan when there is an object.
    mask: u8,
    /// The references of the probes in the plan, by the probe's number.
    references: BTreeMap<usize, ReferenceProbe>,
    /// The states that users know, by the probe's number.
    last_known: HashMap<usize, &'static str>,
    /// Whether an object was seen since the agent's start.
    planned: bool,
    /// The containers as they are.
    containers: [Option<ModelContainer>; CONTAINERS.len()],
    newest_id: u32,
    /// A list of containers that is under way: when it began, and what it will show.
    list: Option<(Duration, [Option<ModelContainer>; CONTAINERS.len()])>,
    /// The time when the newest list that has succeeded began.
    last_list_began: Option<Duration>,
    /// The probe and the era of each run that was noted.
    eras: HashMap<RunId, (usize, u64)>,
    order: Vec<RunId>,
    attempts: HashMap<RunId, u32>,
}

impl NodeModel {
    fn new() -> Self {
        let asked = AskedProbe {
            version: 0,
            timing: (1, 1, 3),
            gate: None,
        };
        let mut sim = Sim::new();
        sim.holds_writes = true;
        let mut bench = Self {
            sim,
            asked: [asked; PROBES.len()],
            mask: 0b1_1111,
            references: BTreeMap::new(),
            last_known: HashMap::new(),
            planned: false,
            containers: [None; CONTAINERS.len()],
            newest_id: 0,
            list: None,
            last_list_began: None,
            eras: HashMap::new(),
            order: Vec::new(),
            attempts: HashMap::new(),
        };
        bench.show_plan();
        bench.list_now();
        bench
    }

    fn play_step(&mut self, step: &NodeStep) {
        // No two things happen at the same moment.
        self.pass_time(Duration::from_millis(1));
        match step {
            NodeStep::Container(container, next) => self.change_container(*container, *next),
            NodeStep::State(container, seen) => {
                if let Some(container) = &mut self.containers[*container] {
                    container.seen = *seen;
                }
            }
            NodeStep::BeginList => self.list = Some((self.sim.world_time(), self.containers)),
            NodeStep::EndList => {
                if let Some((began, containers)) = self.list.take() {
                    self.end_list(began, containers);
                }
            }
            NodeStep::FailList => self.list = None,
            NodeStep::List => self.list_now(),
            NodeStep::Finish(ago, ended) => self.finish_run(*ago, *ended),
            NodeStep::Pass(millis) => self.pass_time(Duration::from_millis(*millis)),
            NodeStep::Handler(probe, version) => {
                self.change_asked_probe(*probe, |asked| asked.version = *version);
            }
            NodeStep::Timing(probe, timing) => {
                self.change_asked_probe(*probe, |asked| asked.timing = *timing);
            }
            NodeStep::Gate(probe, gate) => {
                let current = self.containers[PROBES[*probe].0].map(|container| container.id);
                self.change_asked_probe(*probe, |asked| {
                    asked.gate = match gate {
                        StartGate::Open => None,
                        StartGate::Current => current,
                        StartGate::Other => Some(u32::MAX),
                    };
                });
            }
            NodeStep::Entries(mask) => {
                self.mask = *mask;
                self.show_plan();
            }
            NodeStep::Gone(gone) => self.set_object_deleted(*gone),
            NodeStep::Prunes(prunes) => {
                self.sim.prunes = *prunes;
                self.show_plan();
            }
            NodeStep::Wipe => {
                self.sim.object.status = None;
                self.sim.show_object();
            }
            NodeStep::OtherAgent => {
                self.write_status_of_openkruise();
                self.sim.show_object();
            }
            NodeStep::EndWrite(write) => self.end_write(*write),
            NodeStep::Restart { written } => self.restart_agent(*written),
        }
        self.note_started_runs();
    }

    fn change_container(&mut self, container: usize, next: Option<ModelState>) {
        self.containers[container] = next.map(|seen| {
            self.newest_id += 1;
            ModelContainer {
                id: self.newest_id,
                seen,
                started_at: self.sim.current_moment().wall,
            }
        });
    }

    fn list_now(&mut self) {
        self.list = None;
        self.end_list(self.sim.world_time(), self.containers);
    }

    fn end_list(
        &mut self,
        began: Duration,
        containers: [Option<ModelContainer>; CONTAINERS.len()],
    ) {
        self.last_list_began = self.last_list_began.max(Some(began));
        let now = self.sim.current_moment().wall;
        for (probe, reference) in &mut self.references {
            if began >= reference.added {
                reference.observe_container(containers[PROBES[*probe].0], now);
            }
        }
        self.sim.containers = CONTAINERS
            .iter()
            .zip(containers)
            .filter_map(|((uid, name), observed)| {
                let name = ContainerName {
                    pod: pod_of_uid(uid),
                    name: (*name).into(),
                };
                Some((name, observed_container(observed?)))
            })
            .collect();
        self.sim
            .list_containers_from(began.saturating_sub(self.sim.agent_start()));
    }

    fn change_asked_probe(&mut self, probe: usize, change: impl FnOnce(&mut AskedProbe)) {
        change(&mut self.asked[probe]);
        self.show_plan();
    }

    fn set_object_deleted(&mut self, gone: bool) {
        if gone && !self.sim.gone {
            self.sim.object.status = None;
            if !self.references.is_empty() {
                let references = &self.references;
                self.last_known
                    .retain(|probe, _| references.contains_key(probe));
            }
        }
        self.sim.gone = gone;
        self.show_plan();
    }

    fn pass_time(&mut self, time: Duration) {
        // The time passes in steps of a slot, so that each begin is noted in its own.
        let mut left = time;
        while left > Duration::ZERO {
            let part = left.min(SLOT);
            self.sim.pass_time(part);
            self.note_started_runs();
            left -= part;
        }
    }

    fn finish_run(&mut self, ago: usize, ended: RunFate) {
        let Some(run) = self.order.iter().rev().nth(ago).copied() else {
            return;
        };
        let Some(begun) = self.sim.begun.get(&run).copied() else {
            return;
        };
        let (probe, era) = self.eras[&run];
        let now = self.sim.current_moment().wall;
        let reference = self.references.get_mut(&probe);
        let reference = reference.filter(|reference| reference.era == era);
        let counts = reference.is_some();
        let result = match ended {
            RunFate::Succeeded => Ok(outcome_of(true, "")),
            RunFate::Failed => Ok(outcome_of(false, "")),
            RunFate::Busy => Err(CannotProbe::Runtime("busy".to_owned())),
            RunFate::Deadline => Err(CannotProbe::Deadline),
        };
        // Nobody but a hung command lets a runtime that lives pass our deadline.
        let timeout = Duration::from_secs(1);
        let is_alive = self.last_list_began > Some(begun + timeout);
        let hung = ended == RunFate::Deadline && PROBES[probe].2 && is_alive;
        if let Some(reference) = reference {
            if ended == RunFate::Succeeded {
                reference.count_result(true, now);
            } else if ended == RunFate::Failed || hung {
                reference.count_result(false, now);
            }
        }
        let attempts = self.attempts.entry(run).or_insert(0);
        *attempts += 1;
        let again = counts && ended == RunFate::Busy && *attempts < 3;
        self.sim.finish_run(run, result);
        assert_eq!(self.sim.runs.contains_key(&run), again, "tried again");
    }

    fn end_write(&mut self, write: WriteFate) {
        match write {
            WriteFate::Done => self.sim.end_write(true, true),
            WriteFate::Failed => self.sim.end_write(false, false),
            WriteFate::Lost => self.sim.end_write(true, false),
        }
    }

    /// Another agent takes over, while a write is perhaps under way.
    fn restart_agent(&mut self, written: bool) {
        if written && let Some(status) = self.sim.in_flight.take() {
            self.sim.store_status(status);
        }
        self.references.clear();
        self.last_known.clear();
        self.planned = false;
        self.list = None;
        self.last_list_began = None;
        self.eras.clear();
        self.order.clear();
        self.attempts.clear();
        self.sim.replace_agent();
        self.show_plan();
    }

    /// Notes what began, and checks that it may.
    fn note_started_runs(&mut self) {
        let begun: Vec<_> = self.sim.runs.values().cloned().collect();
        for run in begun {
            if self.eras.contains_key(&run.id) {
                continue;
            }
            let probe = probe_number(&run.key);
            let reference = self
                .references
                .get(&probe)
                .expect("what runs is in the plan");
            let probing = reference.probed_container().map(|id| id.to_string());
            assert_eq!(
                Some(&*run.container),
                probing.as_deref(),
                "probed, but may not"
            );
            let era = (probe, reference.era);
            let mut others = self.sim.runs.keys();
            assert!(
                !others.any(|other| self.eras.get(other) == Some(&era)),
                "a probe overlaps itself"
            );
            self.eras.insert(run.id, era);
            self.order.push(run.id);
        }
    }

    fn check_status(&mut self) {
        let held: BTreeMap<usize, (&str, Option<u32>)> = self
            .sim
            .node
            .iter_verdicts()
            .map(|(key, state, about)| {
                (
                    probe_number(key),
                    (state, about.map(|id| id.parse().unwrap())),
                )
            })
            .collect();
        let verdicts = self.references.iter().filter_map(|(probe, reference)| {
            let verdict = reference.verdict.as_ref()?;
            Some((*probe, (verdict.state, verdict.about)))
        });
        assert_eq!(held, verdicts.collect());
        for change in std::mem::take(&mut self.sim.changes) {
            let probe = probe_number(&change.key);
            let to = change.to.as_str();
            let news = to != "Unknown" && self.last_known.get(&probe) != Some(&to);
            assert_eq!(change.send_event, news, "{change:?}");
            if news {
                self.last_known.insert(probe, to);
            }
        }
    }

    /// Checks that the API server has all in the end, whatever was lost or wiped; and that what may be probed is probed.
    fn settle_everything(&mut self) {
        self.sim.gone = false;
        self.show_plan();
        self.list_now();
        self.sim.holds_writes = false;
        self.sim.end_write(true, true);
        self.pass_time(Duration::from_secs(11));
        self.check_status();
        let states = self.references.iter().filter_map(|(probe, reference)| {
            Some((
                probe_name(*probe),
                reference.verdict.as_ref()?.state.to_owned(),
            ))
        });
        let states: BTreeMap<_, _> = states.collect();
        assert_eq!(self.sim.shown_by_pod(), states);
        for _ in 0..20 {
            self.sim
                .pass_time_with_results(Duration::from_secs(1), true, "");
        }
        for (probe, reference) in &self.references {
            if reference.probed_container().is_some() {
                let shown = self.sim.shown_by_pod();
                assert_eq!(
                    shown.get(&probe_name(*probe)).map(|s| &**s),
                    Some("Succeeded")
                );
            }
        }
        assert_eq!(self.sim.shown_obstacles(), []);
    }
}

/// The pod and the name of a probe.
fn probe_name(probe: usize) -> (String, String) {
    let (container, name, _) = PROBES[probe];
    (CONTAINERS[container].0.to_owned(), name.to_owned())
}

fn probe_number(key: &super::ProbeKey) -> usize {
    let known = (0..PROBES.len())
        .find(|probe| probe_name(*probe) == (key.pod.uid.to_string(), key.id.to_string()));
    known.expect("it was asked for")
}

fn pod_of_uid(uid: &str) -> PodIdentity {
    let of_pod = NAMESPACES.iter().find(|(pod, _)| *pod == uid);
    PodIdentity {
        namespace: of_pod.expect("it is one of ours").1.into(),
        name: uid.into(),
        uid: uid.into(),
    }
}

fn observed_container(container: ModelContainer) -> RuntimeContainer {
    RuntimeContainer {
        id: container.id.to_string().into(),
        state: match container.seen {
            ModelState::Created => RuntimeState::Created,
            ModelState::Running => RuntimeState::Running {
                started_at: container.started_at,
            },
            ModelState::Exited(exit_code) => RuntimeState::Exited { exit_code },
            ModelState::Unknown => RuntimeState::Unknown,
        },
    }
}

/// Histories of one test run, unless `PROPTEST_CASES` says how many.
fn proptest_config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() {
            config.cases
        } else {
            1_000
        },
        ..config
    }
}

proptest! {
    #![proptest_config(proptest_config())]

    // PRB-6, PRB-8, PRB-9, PRB-10, PRB-11, PRB-12, PRB-13, DEF-2, DEF-8, DEF-9
    #[test]
    fn the_node_holds_what_the_rules_say(steps in any_steps()) {
        let mut bench = NodeModel::new();
        for step in &steps {
            bench.play_step(step);
            bench.check_status();
        }
        bench.settle_everything();
    }
}
