//! A plan: what happens, and when. A seed gives a plan; a plan without some of its steps is a plan too, which is how one that
//! fails is shrunk. What a step names by number (a pod, a marker) is found among what is there when it is carried out.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// How many nodes there are at first.
pub(crate) const NODES: usize = 2;
/// How many replicas the manager has.
pub(crate) const MANAGERS: usize = 2;
/// How many markers and sets there are at most.
pub(crate) const MARKERS: usize = 3;
/// Likewise of sets of sidecars.
pub(crate) const SETS: usize = 2;
/// How many outcomes the commands of probes may ask for.
pub(crate) const KEYS: usize = 3;
/// What faults of one resource may concern.
pub(crate) const KINDS: [&str; 7] = [
    "pods",
    "nodes",
    "podprobemarkers",
    "nodepodprobes",
    "sidecarsets",
    "mutatingwebhookconfigurations",
    "leases",
];
/// When the last step is carried out, at the latest.
const LENGTH_MS: u64 = 45_000;

/// What happens in one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Of all randomness that is no step: delays, jitter, which request meets a fault.
    pub seed: u64,
    /// Whether the gate of `SidecarSet`s is on.
    pub has_sets: bool,
    /// Whether the templates of pods have no annotation, so that nobody owns what webhooks add to them.
    pub has_bare_pods: bool,
    /// How long a request or an event takes at most where it meets no fault, in milliseconds.
    pub latency_ms: u64,
    /// How many objects a page of a list has at most.
    pub page: u64,
    /// In the order of time.
    pub(crate) steps: Vec<Step>,
}

/// An action and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Milliseconds since the start.
    pub(crate) at_ms: u64,
    /// The action.
    pub(crate) action: Action,
}

/// A process of leadsman.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum ProcessId {
    /// A replica of the manager.
    Manager(usize),
    /// The agent of a node.
    Agent(usize),
}

/// The answer of a probe's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It exits with 0.
    Succeeds,
    /// Likewise, and it prints that the pod is the primary, with this version.
    Leads(u64),
    /// It exits with 1.
    Fails,
    /// The container runtime cannot run it, so no verdict follows.
    CannotRun,
}

/// The probe of a marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeShape {
    /// Of the pods of workload `b` only `main` is there.
    pub(crate) container: String,
    /// Which outcome its command asks for.
    pub(crate) key: usize,
    /// The number of its condition, if it has one.
    pub(crate) condition: Option<usize>,
    /// The number of the label and of the annotation that it sets, if it does.
    pub(crate) label: Option<usize>,
    /// Whether there is a policy for `Failed` as well as for `Succeeded`.
    pub(crate) marks_failure: bool,
    /// Seconds between two runs.
    pub(crate) period: u64,
    /// Failures in a row that count.
    pub(crate) failures: u64,
    /// Whether its label is what it prints, and only one pod is the primary.
    #[serde(default)]
    pub(crate) is_exclusive: bool,
}

/// What another client does to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Meddling {
    /// Sets a label that a marker may govern.
    SetLabel(usize),
    /// Removes it.
    RemoveLabel(usize),
    /// Sets an annotation that a marker may govern.
    SetAnnotation(usize),
    /// Sets a condition that a marker may govern to False.
    SetCondition(usize),
    /// Sets a label that is nobody's.
    SetOther,
    /// Moves the pod to another workload's label.
    Relabel,
    /// Puts the label `app` back.
    RelabelBack,
    /// Removes a label that a marker may govern whenever it is there, for a while.
    Fight(usize),
}

/// The edit of a set of sidecars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SetEdit {
    /// The image's number; the last one cannot be pulled.
    Image(usize),
    /// A variable of the environment.
    Variable(usize),
    /// Paused or resumed.
    Pause(bool),
    /// Pods that stay as they are.
    Partition(usize),
}

/// How a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WatchEnd {
    /// As when its time is over.
    Closed,
    /// The connection breaks.
    Broken,
    /// Its version is forgotten, so that all is listed again.
    Expired,
}

/// What happens at a time. Each fault ends by itself. One with a resource concerns nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    /// Creates the marker, or gives it other probes.
    PutMarker {
        marker: usize,
        probes: Vec<ProbeShape>,
    },
    /// Deletes it.
    DeleteMarker { marker: usize },
    /// A finalizer of somebody else's comes or goes.
    HoldMarker { marker: usize, held: bool },
    /// The number of a workload's pods.
    Scale { workload: usize, replicas: usize },
    /// Deletes a pod, which its workload replaces.
    DeletePod { pod: usize },
    /// All containers of a pod end.
    EndPod { pod: usize, succeeded: bool },
    /// A container of a pod ends, and its kubelet starts it again.
    RestartContainer { pod: usize, container: usize },
    /// What a probe's command answers from now on.
    SetAnswer {
        pod: usize,
        key: usize,
        answer: Answer,
    },
    /// A node goes with all that is on it, or comes back empty.
    RemoveNode { node: usize },
    /// Likewise.
    AddNode { node: usize },
    /// Another client edits a pod.
    Meddle { pod: usize, with: Meddling },
    /// Another client empties what a `NodePodProbe` asks for.
    EmptyNodePodProbe { node: usize },
    /// Another client deletes it.
    DeleteNodePodProbe { node: usize },
    /// Creates a set of sidecars.
    MakeSet { set: usize },
    /// Edits it.
    EditSet { set: usize, edit: SetEdit },
    /// Deletes it.
    DeleteSet { set: usize },
    /// A process asks an API server that is behind.
    Lag {
        process: ProcessId,
        versions: u64,
        for_ms: u64,
    },
    /// The events of one resource come late.
    DelayEvents {
        process: ProcessId,
        resource: String,
        by_ms: u64,
        for_ms: u64,
    },
    /// The watches of a process, or of one resource, end at their next events.
    EndWatches {
        process: ProcessId,
        only: Option<String>,
        end: WatchEnd,
    },
    /// Versions before this time are forgotten: watches and lists from there are answered with 410.
    Compact,
    /// The next writes are carried out, and the process hears nothing of it.
    LoseReplies {
        process: ProcessId,
        only: Option<String>,
        count: usize,
    },
    /// The next requests are lost.
    LoseRequests {
        process: ProcessId,
        only: Option<String>,
        count: usize,
    },
    /// Requests are refused with this status.
    Refuse {
        process: ProcessId,
        only: Option<String>,
        status: u16,
        retry_after: Option<u64>,
        for_ms: u64,
    },
    /// Requests are slow.
    Delay {
        process: ProcessId,
        only: Option<String>,
        by_ms: u64,
        for_ms: u64,
    },
    /// No request is answered and no event comes.
    Silence {
        process: ProcessId,
        only: Option<String>,
        for_ms: u64,
    },
    /// The process dies at its next write but `writes`, before or after that is carried out, and starts again later.
    Crash {
        process: ProcessId,
        writes: usize,
        is_done: bool,
        down_ms: u64,
    },
    /// The process is told to stop, and starts again later.
    Stop { process: ProcessId, down_ms: u64 },
    /// The time of day jumps, for all processes of leadsman.
    JumpClock { seconds: i64 },
    /// etcd is restored as it was so many versions ago, and all processes are restarted, as its manual asks for.
    Restore { versions: u64 },
    /// Many objects that are not ours change, so that a restore to before is seen by the versions.
    SkipVersions,
    /// etcd is restored as it was before that, and nobody is restarted.
    RestoreSkipped,
    /// Another client writes itself into the Lease.
    TakeLease,
}

/// A kind of faults, to leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum FaultClass {
    /// API servers that are behind, and events that are late.
    Stale,
    /// Watches that end, and versions that are forgotten.
    Watches,
    /// Requests and replies that are lost, refused or slow, and outages.
    Requests,
    /// Processes that die or are stopped.
    Crashes,
    /// Clocks that jump.
    Clocks,
    /// Restores of etcd.
    Restores,
    /// Other clients that edit what leadsman governs.
    Meddlers,
    /// Sets of sidecars.
    Sets,
    /// Nodes that come and go.
    Nodes,
    /// Pods whose templates have no annotation.
    BarePods,
    /// Values that only one pod has.
    Exclusive,
}

impl FaultClass {
    /// Those of the gate: all.
    pub const GATE: [Self; 11] = [
        Self::Stale,
        Self::Watches,
        Self::Requests,
        Self::Crashes,
        Self::Clocks,
        Self::Restores,
        Self::Meddlers,
        Self::Sets,
        Self::Nodes,
        Self::BarePods,
        Self::Exclusive,
    ];
}

impl Plan {
    /// The plan of a seed, with faults of these classes alone.
    pub fn of_seed(seed: u64, classes: &[FaultClass]) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Half of the seeds are for one feature alone, whose stories are shorter.
        let has_sets = classes.contains(&FaultClass::Sets) && rng.bool();
        // Where nobody meddles, nothing is undone.
        let has_meddlers = classes.contains(&FaultClass::Meddlers) && rng.bool();
        let has_exclusive = classes.contains(&FaultClass::Exclusive) && rng.bool();
        let latency_ms = [0, 20, 100, 300][rng.usize(..4)];
        let page = [2, 4, 500][rng.usize(..3)];
        let mut draw = Draw {
            rng,
            classes,
            has_sets,
            has_meddlers,
            has_exclusive,
        };
        let mut steps = Vec::new();
        for marker in 0..MARKERS {
            if draw.rng.u8(..) < 200 {
                let action = Action::PutMarker {
                    marker,
                    probes: draw.probes(),
                };
                steps.push(Step {
                    at_ms: draw.rng.u64(0..3000),
                    action,
                });
            }
        }
        if has_sets {
            steps.push(Step {
                at_ms: draw.rng.u64(0..3000),
                action: Action::MakeSet { set: 0 },
            });
        }
        // A seed has few classes of faults at once, so that none hides another.
        let count = draw.rng.usize(8..40);
        let wild = draw.rng.f64() * 0.5;
        for _ in 0..count {
            let action = if draw.rng.f64() < wild {
                draw.fault()
            } else {
                Some(draw.edit())
            };
            if let Some(action) = action {
                steps.push(Step {
                    at_ms: draw.rng.u64(3000..LENGTH_MS),
                    action,
                });
            }
        }
        for _ in 0..draw.rng.usize(..3) {
            let from = draw.rng.u64(3000..LENGTH_MS);
            let actions = draw.sequence().into_iter();
            steps.extend(actions.map(|(after, action)| Step {
                at_ms: from + after,
                action,
            }));
        }
        steps.sort_by_key(|step| step.at_ms);
        Self {
            seed,
            has_sets,
            has_bare_pods: classes.contains(&FaultClass::BarePods),
            latency_ms,
            page,
            steps,
        }
    }

    /// Whether anybody undoes what leadsman writes.
    pub(crate) fn has_meddlers(&self) -> bool {
        let mut actions = self.steps.iter().map(|step| &step.action);
        actions.any(|action| {
            matches!(
                action,
                Action::Meddle { .. }
                    | Action::EmptyNodePodProbe { .. }
                    | Action::DeleteNodePodProbe { .. }
                    | Action::Restore { .. }
                    | Action::RestoreSkipped
            )
        })
    }
}

struct Draw<'a> {
    rng: Rng,
    classes: &'a [FaultClass],
    has_sets: bool,
    has_meddlers: bool,
    has_exclusive: bool,
}

impl Draw<'_> {
    fn has(&self, class: FaultClass) -> bool {
        self.classes.contains(&class)
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())].clone()
    }

    fn maybe(&mut self, below: usize) -> Option<usize> {
        self.rng.bool().then(|| self.rng.usize(..below))
    }

    fn probes(&mut self) -> Vec<ProbeShape> {
        let count = self.rng.usize(1..=2);
        let mut probes: Vec<ProbeShape> = Vec::new();
        for _ in 0..count {
            let mut probe = ProbeShape {
                container: self.one_of(&["main", "main", "extra"]).to_owned(),
                key: self.rng.usize(..KEYS),
                condition: self.maybe(KEYS),
                label: self.maybe(KEYS),
                marks_failure: self.rng.bool(),
                period: self.rng.u64(1..=2),
                failures: self.rng.u64(1..=2),
                is_exclusive: false,
            };
            if self.has_exclusive && probes.is_empty() {
                probe.is_exclusive = true;
                // Of all markers alike: what one gave, another one finds.
                (probe.key, probe.label) = (0, Some(self.rng.usize(..2)));
            }
            // The schema of markers refuses a condition that two probes have, and a probe that sets nothing.
            let taken = probes
                .iter()
                .any(|other| other.condition == probe.condition);
            if taken {
                probe.condition = None;
            }
            if probe.condition.is_none() {
                probe.label.get_or_insert(0);
            }
            probes.push(probe);
        }
        probes
    }

    fn edit(&mut self) -> Action {
        let pod = self.rng.usize(..8);
        let marker = self.rng.usize(..MARKERS);
        if self.has_sets && self.rng.u8(..) < 90 {
            return self.set_edit();
        }
        if self.has_exclusive && self.rng.u8(..) < 100 {
            return self.claim(pod);
        }
        match self.rng.u8(..24) {
            0..=2 => Action::PutMarker {
                marker,
                probes: self.probes(),
            },
            3 => Action::DeleteMarker { marker },
            4 => Action::HoldMarker {
                marker,
                held: self.rng.bool(),
            },
            5 | 6 => Action::Scale {
                workload: self.rng.usize(..2),
                replicas: self.rng.usize(0..=3),
            },
            7 | 8 => Action::DeletePod { pod },
            9 => Action::EndPod {
                pod,
                succeeded: self.rng.bool(),
            },
            10 | 11 => Action::RestartContainer {
                pod,
                container: self.rng.usize(..2),
            },
            12 if self.has(FaultClass::Nodes) => Action::RemoveNode {
                node: self.rng.usize(..NODES),
            },
            13 | 14 if self.has(FaultClass::Nodes) => Action::AddNode {
                node: self.rng.usize(..NODES),
            },
            15..=17 if self.has_meddlers => self.meddling(pod),
            _ => Action::SetAnswer {
                pod,
                key: self.rng.usize(..KEYS),
                answer: self.one_of(&[
                    Answer::Succeeds,
                    Answer::Fails,
                    Answer::Succeeds,
                    Answer::Fails,
                    Answer::CannotRun,
                ]),
            },
        }
    }

    /// A pod says that it is the primary, or that it is not.
    fn claim(&mut self, pod: usize) -> Action {
        let version = self.rng.u64(1..6);
        let answers = [
            Answer::Leads(version),
            Answer::Leads(version),
            Answer::Succeeds,
        ];
        Action::SetAnswer {
            pod,
            key: 0,
            answer: self.one_of(&answers),
        }
    }

    fn meddling(&mut self, pod: usize) -> Action {
        let key = self.rng.usize(..KEYS);
        let node = self.rng.usize(..NODES);
        match self.rng.u8(..12) {
            0 => Action::EmptyNodePodProbe { node },
            1 => Action::DeleteNodePodProbe { node },
            _ => Action::Meddle {
                pod,
                with: self.one_of(&[
                    Meddling::SetLabel(key),
                    Meddling::RemoveLabel(key),
                    Meddling::SetAnnotation(key),
                    Meddling::SetCondition(key),
                    Meddling::SetOther,
                    Meddling::Relabel,
                    Meddling::RelabelBack,
                    Meddling::Fight(key),
                ]),
            },
        }
    }

    fn set_edit(&mut self) -> Action {
        let set = self.rng.usize(..SETS);
        let edit = match self.rng.u8(..10) {
            0 | 1 => return Action::MakeSet { set },
            2 => return Action::DeleteSet { set },
            3..=6 => SetEdit::Image(self.rng.usize(..4)),
            7 => SetEdit::Variable(self.rng.usize(..2)),
            8 => SetEdit::Pause(self.rng.bool()),
            _ => SetEdit::Partition(self.rng.usize(..3)),
        };
        Action::EditSet { set, edit }
    }

    fn process(&mut self) -> ProcessId {
        match self.rng.u8(..3) {
            0 => ProcessId::Agent(self.rng.usize(..NODES)),
            _ => ProcessId::Manager(self.rng.usize(..MANAGERS)),
        }
    }

    fn fault(&mut self) -> Option<Action> {
        let process = self.process();
        // Some outlast a Lease, so that another replica leads while they go on.
        let for_ms = match self.rng.u8(..3) {
            0 => self.rng.u64(12_000..45_000),
            _ => self.rng.u64(500..12_000),
        };
        let class = self.one_of(&[
            FaultClass::Stale,
            FaultClass::Watches,
            FaultClass::Requests,
            FaultClass::Requests,
            FaultClass::Crashes,
            FaultClass::Crashes,
            FaultClass::Clocks,
            FaultClass::Restores,
        ]);
        if !self.has(class) {
            return None;
        }
        Some(match class {
            FaultClass::Stale if self.rng.bool() => Action::Lag {
                process,
                versions: self.rng.u64(1..30),
                for_ms,
            },
            FaultClass::Stale => Action::DelayEvents {
                process,
                resource: self.one_of(&KINDS).to_owned(),
                by_ms: self.rng.u64(100..=for_ms),
                for_ms,
            },
            FaultClass::Watches if self.rng.u8(..4) == 0 => Action::Compact,
            FaultClass::Watches => Action::EndWatches {
                process,
                only: self.only(),
                end: self.one_of(&[WatchEnd::Closed, WatchEnd::Broken, WatchEnd::Expired]),
            },
            FaultClass::Requests => self.request_fault(process, for_ms),
            FaultClass::Crashes if self.rng.u8(..4) == 0 => Action::Stop {
                process,
                down_ms: self.rng.u64(100..8000),
            },
            FaultClass::Crashes => Action::Crash {
                process,
                writes: self.rng.usize(..4),
                is_done: self.rng.bool(),
                down_ms: self.rng.u64(100..12_000),
            },
            FaultClass::Clocks => Action::JumpClock {
                seconds: self.rng.i64(-120..120),
            },
            // One seed in eight of those that would: it ends all that was before.
            _ if self.rng.u8(..8) == 0 => Action::Restore {
                versions: self.rng.u64(1..60),
            },
            _ => return None,
        })
    }

    /// A resource, or none for all.
    fn only(&mut self) -> Option<String> {
        let kind = self.one_of(&KINDS).to_owned();
        self.rng.bool().then_some(kind)
    }

    /// What seldom meets by chance, and how many milliseconds after the first.
    #[expect(
        clippy::too_many_lines,
        reason = "a table, with a row for each sequence"
    )]
    fn sequence(&mut self) -> Vec<(u64, Action)> {
        let number = self.rng.usize(..MANAGERS);
        let process = ProcessId::Manager(number);
        let other = ProcessId::Manager((number + 1) % MANAGERS);
        let (pod, set) = (self.rng.usize(..8), self.rng.usize(..SETS));
        let only = |resource: &str| Some(resource.to_owned());
        let slow = |resource, by_ms, for_ms| Action::Delay {
            process,
            only: only(resource),
            by_ms,
            for_ms,
        };
        let late = |resource: &str, by_ms| Action::DelayEvents {
            process,
            resource: resource.to_owned(),
            by_ms,
            for_ms: by_ms,
        };
        let silent = |process, resource, for_ms| Action::Silence {
            process,
            only: only(resource),
            for_ms,
        };
        let edit = |edit| Action::EditSet { set, edit };
        let image = self.rng.usize(..4);
        let soon = self.rng.u64(500..6000);
        let kind = self.one_of(&["pods", "nodes", "podprobemarkers", "nodepodprobes"]);
        let claim = |pod, version| Action::SetAnswer {
            pod,
            key: 0,
            answer: Answer::Leads(version),
        };
        match self.rng.u8(..12) {
            // A leader loses the Lease just after a late reply to a renewal.
            0 if self.has(FaultClass::Requests) => vec![
                (0, slow("leases", 4900, 6000)),
                (6000, silent(process, "leases", 20_000)),
                (20_000, self.edit()),
                (20_000 + soon / 4, self.edit()),
            ],
            // Another replica takes over, and is behind.
            1 | 2 if self.has(FaultClass::Stale) && self.has(FaultClass::Crashes) => vec![
                (0, late(kind, 40_000)),
                (soon / 2, self.edit()),
                (soon, self.edit()),
                (
                    soon + 3000,
                    Action::Stop {
                        process: other,
                        down_ms: 20_000,
                    },
                ),
            ],
            // The answer to an upgrade is lost, and the set is paused before it is sent again.
            3 if self.has_sets && self.has(FaultClass::Requests) => vec![
                (0, late("pods", 25_000)),
                (
                    0,
                    Action::LoseReplies {
                        process,
                        only: only("pods"),
                        count: 1,
                    },
                ),
                (0, edit(SetEdit::Image(3))),
                (soon, edit(SetEdit::Pause(true))),
                (soon + 10_000, edit(SetEdit::Pause(false))),
            ],
            // All pods are listed while upgrades are under way.
            4 if self.has_sets && self.has(FaultClass::Watches) => vec![
                (0, edit(SetEdit::Image(image))),
                (0, slow("pods", 3000, 8000)),
                (
                    soon / 4,
                    Action::EndWatches {
                        process,
                        only: only("pods"),
                        end: WatchEnd::Expired,
                    },
                ),
                (soon / 3, self.edit()),
            ],
            // New pods meet a set that a replica of the webhook does not know yet.
            5 if self.has_sets && self.has(FaultClass::Stale) => vec![
                (0, late("sidecarsets", 12_000)),
                (0, edit(SetEdit::Image(image))),
                (soon, Action::DeletePod { pod }),
                (soon + 500, Action::DeletePod { pod: pod + 1 }),
            ],
            // Both replicas start, and one kind is listed later than the others.
            6 if self.has(FaultClass::Crashes) && self.has(FaultClass::Requests) => {
                let stop = |process| Action::Stop {
                    process,
                    down_ms: 100,
                };
                vec![
                    (0, stop(process)),
                    (0, stop(other)),
                    (0, silent(process, kind, 8000)),
                    (0, silent(other, kind, 8000)),
                ]
            }
            7 if self.has_meddlers => vec![
                (0, slow("leases", 4900, 8000)),
                (soon, Action::TakeLease),
                (soon + 300, self.edit()),
                (soon + 600, self.edit()),
            ],
            // Requests of one kind are lost one after the other.
            8 if self.has(FaultClass::Requests) => vec![
                (
                    0,
                    Action::LoseRequests {
                        process,
                        only: only(kind),
                        count: 6,
                    },
                ),
                (0, self.edit()),
            ],
            // A primary gives way to another one while writes are late or lost, and again after a change of leadership.
            10 if self.has_exclusive && self.has(FaultClass::Requests) => vec![
                (0, claim(pod, 6)),
                (soon, slow("pods", 2500, 12_000)),
                (
                    soon,
                    Action::LoseReplies {
                        process,
                        only: only("pods"),
                        count: 2,
                    },
                ),
                (soon, claim(pod + 1, 7)),
                (soon + 3000, claim(pod, 8)),
            ],
            11 if self.has_exclusive && self.has(FaultClass::Stale) => vec![
                (0, late("pods", 30_000)),
                (0, claim(pod, 6)),
                (
                    soon,
                    Action::Stop {
                        process: other,
                        down_ms: 20_000,
                    },
                ),
                (soon + 500, claim(pod + 1, 7)),
            ],
            9 if self.has(FaultClass::Restores) && self.rng.u8(..3) == 0 => vec![
                (0, Action::SkipVersions),
                (0, self.edit()),
                (soon / 2, self.edit()),
                (soon + 4000, Action::RestoreSkipped),
            ],
            _ => Vec::new(),
        }
    }

    fn request_fault(&mut self, process: ProcessId, for_ms: u64) -> Action {
        let only = self.only();
        match self.rng.u8(..8) {
            0 | 1 => Action::LoseReplies {
                process,
                only,
                count: self.rng.usize(1..4),
            },
            2 => Action::LoseRequests {
                process,
                only,
                count: self.rng.usize(1..4),
            },
            3 | 4 => Action::Refuse {
                process,
                only,
                status: self.one_of(&[409, 429, 429, 500, 503, 504]),
                retry_after: self.maybe(3).map(|seconds| seconds as u64),
                for_ms,
            },
            5 => Action::Delay {
                process,
                only,
                // What a former leader has on its way arrives, and nothing in a request could tell: a limit of leadsman.
                by_ms: self.rng.u64(50..3000),
                for_ms,
            },
            _ => Action::Silence {
                process,
                only,
                for_ms: for_ms * 2,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_plan_which_is_read_back_from_its_json() {
        let plan = Plan::of_seed(7, &FaultClass::GATE);
        assert_eq!(plan, Plan::of_seed(7, &FaultClass::GATE));
        assert_ne!(plan.steps, Plan::of_seed(8, &FaultClass::GATE).steps);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
