//! The steps of a history: what may happen to a node.

use proptest::prelude::*;

use super::{CONTAINERS, PROBES};

#[derive(Clone, Debug)]
pub(super) enum NodeStep {
    /// A new container of this container, or none.
    Container(usize, Option<ModelState>),
    /// The container changes its state.
    State(usize, ModelState),
    /// A list of containers begins; it will show what is there now.
    BeginList,
    EndList,
    FailList,
    /// A list that takes no time.
    List,
    /// Ends the run that began so many runs ago, if it is still on its way.
    Finish(usize, RunFate),
    /// A number of milliseconds passes.
    Pass(u64),
    /// The probe does something else.
    Handler(usize, u16),
    /// Period and thresholds of this probe.
    Timing(usize, (u32, u32, u32)),
    Gate(usize, StartGate),
    /// The probes in the plan, one bit for each.
    Entries(u8),
    /// The object is deleted, or made again.
    Gone(bool),
    /// The API server keeps none of our own fields from now on, or all.
    Prunes(bool),
    /// Somebody empties the status.
    Wipe,
    /// The status is as OpenKruise's agent would have left it.
    OtherAgent,
    /// The status write that is under way ends.
    EndWrite(WriteFate),
    /// The agent starts again; a write under way was done, or was not.
    Restart {
        written: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelState {
    Created,
    Running,
    Exited(i32),
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunFate {
    Succeeded,
    Failed,
    Busy,
    Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartGate {
    Open,
    Current,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFate {
    Done,
    /// And nothing was written.
    Failed,
    /// The status was written, and nobody answered.
    Lost,
}

pub(super) fn any_steps() -> impl Strategy<Value = Vec<NodeStep>> {
    let step = prop_oneof![
        20 => run_step(),
        12 => container_step(),
        6 => plan_step(),
        8 => write_step(),
        1 => any::<bool>().prop_map(|written| NodeStep::Restart { written }),
    ];
    prop::collection::vec(step, 1..120)
}

fn run_step() -> impl Strategy<Value = NodeStep> {
    let ended = prop_oneof![
        3 => Just(RunFate::Succeeded),
        3 => Just(RunFate::Failed),
        1 => Just(RunFate::Busy),
        1 => Just(RunFate::Deadline),
    ];
    prop_oneof![
        3 => (0..6_usize, ended).prop_map(|(ago, ended)| NodeStep::Finish(ago, ended)),
        2 => (0..2_500_u64).prop_map(NodeStep::Pass),
    ]
}

fn container_step() -> impl Strategy<Value = NodeStep> {
    let containers = 0..CONTAINERS.len();
    prop_oneof![
        3 => (containers.clone(), prop::option::weighted(0.9, any_container_state()))
            .prop_map(|(container, seen)| NodeStep::Container(container, seen)),
        3 => (containers, any_container_state()).prop_map(|(container, seen)| NodeStep::State(container, seen)),
        6 => Just(NodeStep::List),
        2 => Just(NodeStep::BeginList),
        2 => Just(NodeStep::EndList),
        1 => Just(NodeStep::FailList),
    ]
}

fn any_container_state() -> impl Strategy<Value = ModelState> {
    prop_oneof![
        1 => Just(ModelState::Created),
        4 => Just(ModelState::Running),
        1 => (0..3).prop_map(ModelState::Exited),
        1 => Just(ModelState::Unknown),
    ]
}

fn plan_step() -> impl Strategy<Value = NodeStep> {
    let probes = 0..PROBES.len();
    let gate = prop_oneof![
        Just(StartGate::Open),
        Just(StartGate::Current),
        Just(StartGate::Other)
    ];
    let mask = prop_oneof![2 => 0..32_u8, 1 => Just(0), 2 => Just(31)];
    prop_oneof![
        1 => (probes.clone(), 0..3_u16).prop_map(|(probe, version)| NodeStep::Handler(probe, version)),
        1 => (probes.clone(), (1..4_u32, 1..4_u32, 1..4_u32))
            .prop_map(|(probe, timing)| NodeStep::Timing(probe, timing)),
        1 => (probes, gate).prop_map(|(probe, gate)| NodeStep::Gate(probe, gate)),
        2 => mask.prop_map(NodeStep::Entries),
        1 => any::<bool>().prop_map(NodeStep::Gone),
        1 => any::<bool>().prop_map(NodeStep::Prunes),
    ]
}

fn write_step() -> impl Strategy<Value = NodeStep> {
    let write = prop_oneof![4 => Just(WriteFate::Done), 1 => Just(WriteFate::Failed), 1 => Just(WriteFate::Lost)];
    prop_oneof![
        6 => write.prop_map(NodeStep::EndWrite),
        1 => Just(NodeStep::Wipe),
        1 => Just(NodeStep::OtherAgent),
    ]
}
