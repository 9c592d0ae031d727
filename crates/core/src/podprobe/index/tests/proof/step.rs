//! The steps of a history: what the cluster, its users, its agents and the manager may do next, and how likely.

use proptest::prelude::*;

use super::super::cluster::Admission;
use super::super::pod::{OTHERS, Owner};
use super::super::world::Fate;
use super::KINDS;
use crate::podprobe::index::tests::driver::WatchedKind;

/// What is wrong with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    BadName,
    ReadsWhatItWrites,
}

/// What a verdict says of the entry that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedId {
    Right,
    Wrong,
    Nothing,
}

impl ReportedId {
    pub(super) fn of(self, right: Option<&String>) -> Option<String> {
        match self {
            Self::Right => right.cloned(),
            Self::Wrong => Some("wrong".to_owned()),
            Self::Nothing => None,
        }
    }
}

/// An agent's verdict about one of the entries that it has been given.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) node: u8,
    pub(super) entry: u8,
    pub(super) state: &'static str,
    pub(super) message: Option<&'static str>,
    pub(super) revision: ReportedId,
    pub(super) container: ReportedId,
    /// Whether it says that it cannot probe, alone or beside a verdict.
    pub(super) cannot: Option<bool>,
}

/// One thing that happens. Numbers pick one of few.
#[derive(Clone, Debug)]
pub(super) enum Step {
    PutMarker {
        marker: u8,
        selector: u8,
        first: u8,
        second: Option<u8>,
        flaw: Flaw,
        finalizers: u8,
    },
    DeleteMarker(u8),
    PutPod {
        pod: u8,
        app: u8,
        tier: bool,
        node: u8,
        /// It is the mirror of a static pod.
        is_mirror: bool,
    },
    DeletePod(u8),
    Relabel {
        pod: u8,
        app: u8,
        tier: Option<bool>,
    },
    ChangePod {
        pod: u8,
        what: u8,
        how: u8,
    },
    PutNode {
        node: u8,
        is_virtual: bool,
    },
    DeleteNode(u8),
    Report(Report),
    EditObject {
        node: u8,
        what: u8,
        how: u8,
    },
    DeleteObject(u8),
    Tamper {
        pod: u8,
        mark: u8,
        how: u8,
        owner: Owner,
    },
    /// The provider of a virtual node reports.
    Provide {
        pod: u8,
        condition: u8,
        status: &'static str,
    },
    /// The agent of a node comes or changes, or goes.
    Agent {
        node: u8,
        ready: Option<bool>,
    },
    /// The watches show some of what happened; one kind alone, or all in order.
    Deliver {
        kind: Option<WatchedKind>,
        count: u8,
    },
    /// The watch of a kind breaks and begins again with a list.
    ListAgain(WatchedKind),
    /// An event that was seen before is seen once more.
    Repeat(u8),
    Send(usize),
    Fly(usize, Fate),
    Drain,
    Pass(u16),
    Admit(Option<Admission>),
    Restart([WatchedKind; 4]),
    LoseLead,
    LeadAgain,
}

fn some_kind() -> impl Strategy<Value = WatchedKind> {
    proptest::sample::select(&KINDS[..])
}

/// What users, nodes and agents do.
fn cluster_step() -> impl Strategy<Value = Step> {
    let flaw = prop_oneof![
        20 => Just(Flaw::None),
        1 => Just(Flaw::BadName),
        1 => Just(Flaw::ReadsWhatItWrites),
    ];
    let marker = (
        0..4u8,
        0..9u8,
        0..8u8,
        proptest::option::of(0..8u8),
        flaw,
        0..4u8,
    );
    let reported = || prop_oneof![6 => Just(ReportedId::Right), 1 => Just(ReportedId::Wrong), 1 => Just(ReportedId::Nothing)];
    let states = [
        "Succeeded",
        "Failed",
        "Unknown",
        "Succeeded",
        "Failed",
        "Odd",
    ];
    let messages = [None, Some("hi"), Some("ho")];
    let statuses = ["True", "False", "Unknown", "Odd"];
    let report = (
        (0..2u8, any::<u8>()),
        proptest::sample::select(states.to_vec()),
        proptest::sample::select(messages.to_vec()),
        (reported(), reported()),
        proptest::option::weighted(0.15, any::<bool>()),
    );
    let owner = proptest::sample::select(OTHERS.to_vec());
    prop_oneof![
        2 => marker.prop_map(|(marker, selector, first, second, flaw, finalizers)| Step::PutMarker { marker, selector, first, second, flaw, finalizers }),
        1 => (0..4u8).prop_map(Step::DeleteMarker),
        2 => (0..3u8, 0..2u8, any::<bool>(), 0..2u8, proptest::bool::weighted(0.25)).prop_map(|(pod, app, tier, node, is_mirror)| Step::PutPod { pod, app, tier, node, is_mirror }),
        1 => (0..3u8).prop_map(Step::DeletePod),
        1 => (0..3u8, 0..3u8, any::<Option<bool>>()).prop_map(|(pod, app, tier)| Step::Relabel { pod, app, tier }),
        2 => (0..3u8, 0..8u8, any::<u8>()).prop_map(|(pod, what, how)| Step::ChangePod { pod, what, how }),
        1 => (0..2u8, proptest::bool::weighted(0.2)).prop_map(|(node, is_virtual)| Step::PutNode { node, is_virtual }),
        1 => (0..4u8).prop_map(Step::DeleteNode),
        5 => report.prop_map(|((node, entry), state, message, (revision, container), cannot)| Step::Report(Report { node, entry, state, message, revision, container, cannot })),
        1 => (0..2u8, 0..4u8, any::<u8>()).prop_map(|(node, what, how)| Step::EditObject { node, what, how }),
        1 => (0..8u8).prop_map(Step::DeleteObject),
        3 => (0..3u8, 0..3u8, proptest::sample::select(statuses.to_vec())).prop_map(|(pod, condition, status)| Step::Provide { pod, condition, status }),
        2 => (0..3u8, 0..6u8, 0..3u8, owner).prop_map(|(pod, mark, how, owner)| Step::Tamper { pod, mark, how, owner }),
        1 => (0..2u8, any::<Option<bool>>()).prop_map(|(node, ready)| Step::Agent { node, ready }),
    ]
}

/// What happens between the API server and the manager.
fn manager_step() -> impl Strategy<Value = Step> {
    use Admission::{EmptySpec, Ignore, Strip};
    let fates = [
        Fate::CarriedOut,
        Fate::Answered,
        Fate::ReplyLost,
        Fate::Unavailable,
        Fate::Refused,
    ];
    let fate = prop_oneof![
        4 => Just(Fate::CarriedOut),
        6 => Just(Fate::Answered),
        4 => proptest::sample::select(fates.to_vec()),
    ];
    let admissions = [
        None,
        None,
        Some(Ignore(WatchedKind::Pod)),
        Some(Ignore(WatchedKind::Marker)),
        Some(Ignore(WatchedKind::NodePodProbe)),
        Some(Strip("role")),
        Some(Strip("note")),
        Some(EmptySpec),
    ];
    prop_oneof![
        4 => (proptest::option::of(some_kind()), 1..8u8).prop_map(|(kind, count)| Step::Deliver { kind, count }),
        5 => (0..8usize).prop_map(Step::Send),
        6 => (0..8usize, fate).prop_map(|(which, fate)| Step::Fly(which, fate)),
        2 => some_kind().prop_map(Step::ListAgain),
        1 => any::<u8>().prop_map(Step::Repeat),
        2 => Just(Step::Drain),
        2 => prop_oneof![0..10u16, 0..8000u16].prop_map(Step::Pass),
        1 => proptest::sample::select(admissions.to_vec()).prop_map(Step::Admit),
        1 => Just(KINDS).prop_shuffle().prop_map(Step::Restart),
        1 => Just(Step::LoseLead),
        1 => Just(Step::LeadAgain),
    ]
}

pub(super) fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(prop_oneof![cluster_step(), manager_step()], 0..100)
}
