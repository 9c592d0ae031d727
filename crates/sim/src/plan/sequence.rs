//! Sequences of steps that single draws hardly ever meet: each was a fault of leadsman once, or is what a rule is there for.

use super::draw::Draw;
use super::{FaultClass, MANAGERS, PlannedAction, ProbeAnswer, ProcessId, SETS, SetEdit, WatchEnd};

/// Steps, each with its distance from the first in milliseconds.
type Sequence = Vec<(u64, PlannedAction)>;

/// The subject of a sequence, whichever it is.
struct Subject {
    process: ProcessId,
    /// The other replica.
    other: ProcessId,
    pod: usize,
    set: usize,
    image: usize,
    /// Milliseconds.
    soon: u64,
    kind: &'static str,
}

impl Draw<'_> {
    /// One of the sequences, or nothing where its faults are not among those of the plan.
    pub(super) fn sequence(&mut self) -> Sequence {
        let number = self.rng.usize(..MANAGERS);
        let subject = Subject {
            process: ProcessId::Manager(number),
            other: ProcessId::Manager((number + 1) % MANAGERS),
            pod: self.rng.usize(..8),
            set: self.rng.usize(..SETS),
            image: self.rng.usize(..4),
            soon: self.rng.u64(500..6000),
            kind: self.one_of(&["pods", "nodes", "podprobemarkers", "nodepodprobes"]),
        };
        let (crashes, requests) = (FaultClass::Crashes, FaultClass::Requests);
        match self.rng.u8(..12) {
            0 if self.has(requests) => subject.late_renewal(self),
            1 | 2 if self.has(FaultClass::Stale) && self.has(crashes) => {
                subject.late_takeover(self)
            }
            3 if self.has_sets && self.has(requests) => subject.lost_upgrade(),
            4 if self.has_sets && self.has(FaultClass::Watches) => subject.list_amid_upgrades(self),
            5 if self.has_sets && self.has(FaultClass::Stale) => subject.unknown_set(),
            6 if self.has(crashes) && self.has(requests) => subject.late_list(),
            7 if self.has_meddlers => subject.taken_lease(self),
            8 if self.has(requests) => subject.lost_requests(self),
            9 if self.has(FaultClass::Restores) && self.rng.u8(..3) == 0 => subject.restore(self),
            10 if self.has_exclusive && self.has(requests) => subject.lost_claims(),
            11 if self.has_exclusive && self.has(FaultClass::Stale) => subject.late_claims(),
            _ => Vec::new(),
        }
    }
}

impl Subject {
    /// A leader loses the Lease just after a late reply to a renewal.
    fn late_renewal(&self, draw: &mut Draw) -> Sequence {
        vec![
            (0, self.slow("leases", 4900, 6000)),
            (6000, silent(self.process, "leases", 20_000)),
            (20_000, draw.edit()),
            (20_000 + self.soon / 4, draw.edit()),
        ]
    }

    /// Another replica takes over, and is behind.
    fn late_takeover(&self, draw: &mut Draw) -> Sequence {
        vec![
            (0, self.late(self.kind, 40_000)),
            (self.soon / 2, draw.edit()),
            (self.soon, draw.edit()),
            (self.soon + 3000, stop(self.other, 20_000)),
        ]
    }

    /// The answer to an upgrade is lost, and the set is paused before it is sent again.
    fn lost_upgrade(&self) -> Sequence {
        vec![
            (0, self.late("pods", 25_000)),
            (0, self.lost_replies("pods", 1)),
            (0, self.set_edit(SetEdit::Image(3))),
            (self.soon, self.set_edit(SetEdit::Pause(true))),
            (self.soon + 10_000, self.set_edit(SetEdit::Pause(false))),
        ]
    }

    /// All pods are listed while upgrades are under way.
    fn list_amid_upgrades(&self, draw: &mut Draw) -> Sequence {
        let expired = PlannedAction::EndWatches {
            process: self.process,
            only: Some("pods".to_owned()),
            end: WatchEnd::Expired,
        };
        vec![
            (0, self.set_edit(SetEdit::Image(self.image))),
            (0, self.slow("pods", 3000, 8000)),
            (self.soon / 4, expired),
            (self.soon / 3, draw.edit()),
        ]
    }

    /// New pods meet a set that a replica of the webhook does not know yet.
    fn unknown_set(&self) -> Sequence {
        let (pod, next) = (self.pod, self.pod + 1);
        vec![
            (0, self.late("sidecarsets", 12_000)),
            (0, self.set_edit(SetEdit::Image(self.image))),
            (self.soon, PlannedAction::DeletePod { pod }),
            (self.soon + 500, PlannedAction::DeletePod { pod: next }),
        ]
    }

    /// Both replicas start, and one kind is listed later than the others.
    fn late_list(&self) -> Sequence {
        vec![
            (0, stop(self.process, 100)),
            (0, stop(self.other, 100)),
            (0, silent(self.process, self.kind, 8000)),
            (0, silent(self.other, self.kind, 8000)),
        ]
    }

    /// Somebody else takes the Lease while renewals are late.
    fn taken_lease(&self, draw: &mut Draw) -> Sequence {
        vec![
            (0, self.slow("leases", 4900, 8000)),
            (self.soon, PlannedAction::TakeLease),
            (self.soon + 300, draw.edit()),
            (self.soon + 600, draw.edit()),
        ]
    }

    /// Requests of one kind are lost one after the other.
    fn lost_requests(&self, draw: &mut Draw) -> Sequence {
        let lost = PlannedAction::LoseRequests {
            process: self.process,
            only: Some(self.kind.to_owned()),
            count: 6,
        };
        vec![(0, lost), (0, draw.edit())]
    }

    /// Etcd is restored to a time before the last edits.
    fn restore(&self, draw: &mut Draw) -> Sequence {
        vec![
            (0, PlannedAction::SkipVersions),
            (0, draw.edit()),
            (self.soon / 2, draw.edit()),
            (self.soon + 4000, PlannedAction::RestoreSkipped),
        ]
    }

    /// A primary gives way to another one while writes are late or lost, and takes the place again.
    fn lost_claims(&self) -> Sequence {
        vec![
            (0, claim(self.pod, 6)),
            (self.soon, self.slow("pods", 2500, 12_000)),
            (self.soon, self.lost_replies("pods", 2)),
            (self.soon, claim(self.pod + 1, 7)),
            (self.soon + 3000, claim(self.pod, 8)),
        ]
    }

    /// A primary gives way to another one while a replica takes over that is behind.
    fn late_claims(&self) -> Sequence {
        vec![
            (0, self.late("pods", 30_000)),
            (0, claim(self.pod, 6)),
            (self.soon, stop(self.other, 20_000)),
            (self.soon + 500, claim(self.pod + 1, 7)),
        ]
    }

    fn slow(&self, resource: &str, by_ms: u64, for_ms: u64) -> PlannedAction {
        PlannedAction::Delay {
            process: self.process,
            only: Some(resource.to_owned()),
            by_ms,
            for_ms,
        }
    }

    fn late(&self, resource: &str, by_ms: u64) -> PlannedAction {
        PlannedAction::DelayEvents {
            process: self.process,
            resource: resource.to_owned(),
            by_ms,
            for_ms: by_ms,
        }
    }

    fn lost_replies(&self, resource: &str, count: usize) -> PlannedAction {
        PlannedAction::LoseReplies {
            process: self.process,
            only: Some(resource.to_owned()),
            count,
        }
    }

    fn set_edit(&self, edit: SetEdit) -> PlannedAction {
        PlannedAction::EditSet {
            set: self.set,
            edit,
        }
    }
}

fn silent(process: ProcessId, resource: &str, for_ms: u64) -> PlannedAction {
    PlannedAction::Silence {
        process,
        only: Some(resource.to_owned()),
        for_ms,
    }
}

fn stop(process: ProcessId, down_ms: u64) -> PlannedAction {
    PlannedAction::Stop { process, down_ms }
}

fn claim(pod: usize, version: u64) -> PlannedAction {
    PlannedAction::SetAnswer {
        pod,
        key: 0,
        answer: ProbeAnswer::Leads(version),
    }
}
