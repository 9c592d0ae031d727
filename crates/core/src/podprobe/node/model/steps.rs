//! What may happen to a node.

use proptest::prelude::*;

use super::{PLACES, PROBES};

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A new container of this place, or none.
    Container(usize, Option<Seen>),
    /// Its container does something else.
    State(usize, Seen),
    /// A look begins; it will show what is there now.
    BeginLook,
    EndLook,
    FailLook,
    /// A look that takes no time.
    Look,
    /// Ends the run that began so many runs ago, if it is still on its way.
    Finish(usize, Ended),
    /// So many milliseconds.
    Pass(u64),
    /// This probe does something else.
    Handler(usize, u16),
    /// Period and thresholds of this probe.
    Timing(usize, (u32, u32, u32)),
    Gate(usize, GateAt),
    /// These probes are in the plan, one bit for each.
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
    EndWrite(Write),
    /// The agent starts again; a write under way was done, or was not.
    Restart {
        written: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Created,
    Running,
    Exited(i32),
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Succeeded,
    Failed,
    Busy,
    Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateAt {
    Open,
    Current,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Done,
    /// And nothing was written.
    Failed,
    /// It was written, and nobody answered.
    Lost,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => runs(),
        12 => world(),
        6 => plans(),
        8 => writes(),
        1 => any::<bool>().prop_map(|written| Step::Restart { written }),
    ];
    prop::collection::vec(step, 1..120)
}

fn runs() -> impl Strategy<Value = Step> {
    let ended = prop_oneof![
        3 => Just(Ended::Succeeded),
        3 => Just(Ended::Failed),
        1 => Just(Ended::Busy),
        1 => Just(Ended::Deadline),
    ];
    prop_oneof![
        3 => (0..6_usize, ended).prop_map(|(ago, ended)| Step::Finish(ago, ended)),
        2 => (0..2_500_u64).prop_map(Step::Pass),
    ]
}

fn world() -> impl Strategy<Value = Step> {
    let places = 0..PLACES.len();
    prop_oneof![
        3 => (places.clone(), prop::option::weighted(0.9, seen()))
            .prop_map(|(place, seen)| Step::Container(place, seen)),
        3 => (places, seen()).prop_map(|(place, seen)| Step::State(place, seen)),
        6 => Just(Step::Look),
        2 => Just(Step::BeginLook),
        2 => Just(Step::EndLook),
        1 => Just(Step::FailLook),
    ]
}

fn seen() -> impl Strategy<Value = Seen> {
    prop_oneof![
        1 => Just(Seen::Created),
        4 => Just(Seen::Running),
        1 => (0..3).prop_map(Seen::Exited),
        1 => Just(Seen::Unknown),
    ]
}

fn plans() -> impl Strategy<Value = Step> {
    let probes = 0..PROBES.len();
    let gate = prop_oneof![
        Just(GateAt::Open),
        Just(GateAt::Current),
        Just(GateAt::Other)
    ];
    let mask = prop_oneof![2 => 0..32_u8, 1 => Just(0), 2 => Just(31)];
    prop_oneof![
        1 => (probes.clone(), 0..3_u16).prop_map(|(probe, version)| Step::Handler(probe, version)),
        1 => (probes.clone(), (1..4_u32, 1..4_u32, 1..4_u32))
            .prop_map(|(probe, timing)| Step::Timing(probe, timing)),
        1 => (probes, gate).prop_map(|(probe, gate)| Step::Gate(probe, gate)),
        2 => mask.prop_map(Step::Entries),
        1 => any::<bool>().prop_map(Step::Gone),
        1 => any::<bool>().prop_map(Step::Prunes),
    ]
}

fn writes() -> impl Strategy<Value = Step> {
    let write =
        prop_oneof![4 => Just(Write::Done), 1 => Just(Write::Failed), 1 => Just(Write::Lost)];
    prop_oneof![
        6 => write.prop_map(Step::EndWrite),
        1 => Just(Step::Wipe),
        1 => Just(Step::OtherAgent),
    ]
}
