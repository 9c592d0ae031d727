//! A plan: what happens, and when. A seed gives a plan; a plan without some of its steps is a plan too, which is how one that
//! fails is shrunk. What a step names by number (a pod, a marker) is found among what is there when it is carried out.

mod draw;
mod sequence;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use self::draw::Draw;

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
/// The resources that a fault of one resource may concern.
pub(crate) const KINDS: [&str; 7] = [
    "pods",
    "nodes",
    "podprobemarkers",
    "nodepodprobes",
    "sidecarsets",
    "mutatingwebhookconfigurations",
    "leases",
];
/// The time at which the last step is carried out, at the latest.
const LENGTH_MS: u64 = 45_000;

/// The plan of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The seed of all randomness that is no step: delays, jitter, which request meets a fault.
    pub seed: u64,
    /// Whether the gate of `SidecarSet`s is on.
    pub has_sets: bool,
    /// Whether the templates of pods have no annotation, so that nobody owns what webhooks add to them.
    pub has_bare_pods: bool,
    /// How long a request or an event takes at most where it meets no fault, in milliseconds.
    pub latency_ms: u64,
    /// How many objects a page of a list has at most.
    pub page: u64,
    /// The steps, in the order of time.
    pub(crate) steps: Vec<Step>,
}

/// An action and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Milliseconds since the start.
    pub(crate) at_ms: u64,
    /// The action.
    pub(crate) action: PlannedAction,
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
pub(crate) enum ProbeAnswer {
    /// The command exits with 0.
    Succeeds,
    /// Likewise, and it prints that the pod is the primary, with this version.
    Leads(u64),
    /// The command exits with 1.
    Fails,
    /// The container runtime cannot run it, so no verdict follows.
    CannotRun,
}

/// The probe of a marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeShape {
    /// The container's name; pods of workload `b` have only `main`.
    pub(crate) container: String,
    /// The outcome that the probe's command asks for.
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

/// The edit of a pod by another client.
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
    /// The watch ends as when its time is over.
    Closed,
    /// The connection breaks.
    Broken,
    /// The watch's version is forgotten, so that all is listed again.
    Expired,
}

/// The action of a step. Each fault ends by itself. One with a resource concerns nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlannedAction {
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
    /// The answer of a probe's command from now on.
    SetAnswer {
        pod: usize,
        key: usize,
        answer: ProbeAnswer,
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
    /// Other clients change so many objects that a restore to before is seen by the versions.
    SkipVersions,
    /// etcd is restored as it was before that, and nobody is restarted; not while any process hears of changes late.
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
    /// The classes of the gate: all.
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
        // Nothing is undone where nobody meddles.
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
        let steps = draw.steps();
        Self {
            seed,
            has_sets,
            has_bare_pods: classes.contains(&FaultClass::BarePods),
            latency_ms,
            page,
            steps,
        }
    }

    /// A world with all that these classes have, in which nothing happens.
    pub(crate) fn of_world(seed: u64, classes: &[FaultClass]) -> Self {
        Self {
            seed,
            has_sets: classes.contains(&FaultClass::Sets),
            has_bare_pods: classes.contains(&FaultClass::BarePods),
            latency_ms: 20,
            page: 500,
            steps: Vec::new(),
        }
    }

    /// The steps of a round in such a world, which are not those of the seed's plan.
    pub(crate) fn steps_of_round(seed: u64, classes: &[FaultClass]) -> Vec<Step> {
        let mut rng = Rng::with_seed(seed);
        let has_exclusive = rng.bool();
        let mut draw = Draw {
            rng,
            classes,
            has_sets: classes.contains(&FaultClass::Sets),
            has_meddlers: classes.contains(&FaultClass::Meddlers),
            has_exclusive,
        };
        draw.steps()
    }

    /// Whether anybody undoes what leadsman writes.
    pub(crate) fn has_meddlers(&self) -> bool {
        let mut actions = self.steps.iter().map(|step| &step.action);
        actions.any(|action| {
            matches!(
                action,
                PlannedAction::Meddle { .. }
                    | PlannedAction::EmptyNodePodProbe { .. }
                    | PlannedAction::DeleteNodePodProbe { .. }
                    | PlannedAction::Restore { .. }
                    | PlannedAction::RestoreSkipped
            )
        })
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
