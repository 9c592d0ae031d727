//! The steps of a plan, drawn one by one.

use fastrand::Rng;

use super::{
    FaultClass, KEYS, KINDS, LENGTH_MS, MANAGERS, MARKERS, Meddling, NODES, PlannedAction,
    ProbeAnswer, ProbeShape, ProcessId, SETS, SetEdit, Step, WatchEnd,
};

/// A generator of plans' steps, and what of the simulation they may concern.
pub(super) struct Draw<'a> {
    pub(super) rng: Rng,
    pub(super) classes: &'a [FaultClass],
    pub(super) has_sets: bool,
    pub(super) has_meddlers: bool,
    pub(super) has_exclusive: bool,
}

impl Draw<'_> {
    /// The steps of a plan, in the order of time.
    pub(super) fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for marker in 0..MARKERS {
            if self.rng.u8(..) < 200 {
                let action = PlannedAction::PutMarker {
                    marker,
                    probes: self.probes(),
                };
                steps.push(Step {
                    at_ms: self.rng.u64(0..3000),
                    action,
                });
            }
        }
        if self.has_sets {
            steps.push(Step {
                at_ms: self.rng.u64(0..3000),
                action: PlannedAction::MakeSet { set: 0 },
            });
        }
        // A seed has few classes of faults at once, so that none hides another.
        let count = self.rng.usize(8..40);
        let wild = self.rng.f64() * 0.5;
        for _ in 0..count {
            let action = if self.rng.f64() < wild {
                self.fault()
            } else {
                Some(self.edit())
            };
            if let Some(action) = action {
                steps.push(Step {
                    at_ms: self.rng.u64(3000..LENGTH_MS),
                    action,
                });
            }
        }
        for _ in 0..self.rng.usize(..3) {
            let from = self.rng.u64(3000..LENGTH_MS);
            let actions = self.sequence().into_iter();
            steps.extend(actions.map(|(after, action)| Step {
                at_ms: from + after,
                action,
            }));
        }
        steps.sort_by_key(|step| step.at_ms);
        steps
    }

    pub(super) fn has(&self, class: FaultClass) -> bool {
        self.classes.contains(&class)
    }

    pub(super) fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())].clone()
    }

    fn maybe(&mut self, below: usize) -> Option<usize> {
        self.rng.bool().then(|| self.rng.usize(..below))
    }

    pub(super) fn probes(&mut self) -> Vec<ProbeShape> {
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
                // All markers share these: what one gave, another one finds.
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

    pub(super) fn edit(&mut self) -> PlannedAction {
        let pod = self.rng.usize(..8);
        let marker = self.rng.usize(..MARKERS);
        if self.has_sets && self.rng.u8(..) < 90 {
            return self.set_edit();
        }
        if self.has_exclusive && self.rng.u8(..) < 100 {
            return self.claim(pod);
        }
        match self.rng.u8(..24) {
            0..=2 => PlannedAction::PutMarker {
                marker,
                probes: self.probes(),
            },
            3 => PlannedAction::DeleteMarker { marker },
            4 => PlannedAction::HoldMarker {
                marker,
                held: self.rng.bool(),
            },
            5 | 6 => PlannedAction::Scale {
                workload: self.rng.usize(..2),
                replicas: self.rng.usize(0..=3),
            },
            7 | 8 => PlannedAction::DeletePod { pod },
            9 => PlannedAction::EndPod {
                pod,
                succeeded: self.rng.bool(),
            },
            10 | 11 => PlannedAction::RestartContainer {
                pod,
                container: self.rng.usize(..2),
            },
            12 if self.has(FaultClass::Nodes) => PlannedAction::RemoveNode {
                node: self.rng.usize(..NODES),
            },
            13 | 14 if self.has(FaultClass::Nodes) => PlannedAction::AddNode {
                node: self.rng.usize(..NODES),
            },
            15..=17 if self.has_meddlers => self.meddling(pod),
            _ => PlannedAction::SetAnswer {
                pod,
                key: self.rng.usize(..KEYS),
                answer: self.one_of(&[
                    ProbeAnswer::Succeeds,
                    ProbeAnswer::Fails,
                    ProbeAnswer::Succeeds,
                    ProbeAnswer::Fails,
                    ProbeAnswer::CannotRun,
                ]),
            },
        }
    }

    /// A pod says that it is the primary, or that it is not.
    fn claim(&mut self, pod: usize) -> PlannedAction {
        let version = self.rng.u64(1..6);
        let answers = [
            ProbeAnswer::Leads(version),
            ProbeAnswer::Leads(version),
            ProbeAnswer::Succeeds,
        ];
        PlannedAction::SetAnswer {
            pod,
            key: 0,
            answer: self.one_of(&answers),
        }
    }

    fn meddling(&mut self, pod: usize) -> PlannedAction {
        let key = self.rng.usize(..KEYS);
        let node = self.rng.usize(..NODES);
        match self.rng.u8(..12) {
            0 => PlannedAction::EmptyNodePodProbe { node },
            1 => PlannedAction::DeleteNodePodProbe { node },
            _ => PlannedAction::Meddle {
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

    fn set_edit(&mut self) -> PlannedAction {
        let set = self.rng.usize(..SETS);
        let edit = match self.rng.u8(..10) {
            0 | 1 => return PlannedAction::MakeSet { set },
            2 => return PlannedAction::DeleteSet { set },
            3..=6 => SetEdit::Image(self.rng.usize(..4)),
            7 => SetEdit::Variable(self.rng.usize(..2)),
            8 => SetEdit::Pause(self.rng.bool()),
            _ => SetEdit::Partition(self.rng.usize(..3)),
        };
        PlannedAction::EditSet { set, edit }
    }

    fn process(&mut self) -> ProcessId {
        match self.rng.u8(..3) {
            0 => ProcessId::Agent(self.rng.usize(..NODES)),
            _ => ProcessId::Manager(self.rng.usize(..MANAGERS)),
        }
    }

    pub(super) fn fault(&mut self) -> Option<PlannedAction> {
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
            FaultClass::Stale if self.rng.bool() => PlannedAction::Lag {
                process,
                versions: self.rng.u64(1..30),
                for_ms,
            },
            FaultClass::Stale => PlannedAction::DelayEvents {
                process,
                resource: self.one_of(&KINDS).to_owned(),
                by_ms: self.rng.u64(100..=for_ms),
                for_ms,
            },
            FaultClass::Watches if self.rng.u8(..4) == 0 => PlannedAction::Compact,
            FaultClass::Watches => PlannedAction::EndWatches {
                process,
                only: self.only(),
                end: self.one_of(&[WatchEnd::Closed, WatchEnd::Broken, WatchEnd::Expired]),
            },
            FaultClass::Requests => self.request_fault(process, for_ms),
            FaultClass::Crashes if self.rng.u8(..4) == 0 => PlannedAction::Stop {
                process,
                down_ms: self.rng.u64(100..8000),
            },
            FaultClass::Crashes => PlannedAction::Crash {
                process,
                writes: self.rng.usize(..4),
                is_done: self.rng.bool(),
                down_ms: self.rng.u64(100..12_000),
            },
            FaultClass::Clocks => PlannedAction::JumpClock {
                seconds: self.rng.i64(-120..120),
            },
            // One seed in eight of those that would: it ends all that was before.
            _ if self.rng.u8(..8) == 0 => PlannedAction::Restore {
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

    fn request_fault(&mut self, process: ProcessId, for_ms: u64) -> PlannedAction {
        let only = self.only();
        match self.rng.u8(..8) {
            0 | 1 => PlannedAction::LoseReplies {
                process,
                only,
                count: self.rng.usize(1..4),
            },
            2 => PlannedAction::LoseRequests {
                process,
                only,
                count: self.rng.usize(1..4),
            },
            3 | 4 => PlannedAction::Refuse {
                process,
                only,
                status: self.one_of(&[409, 429, 429, 500, 503, 504]),
                retry_after: self.maybe(3).map(|seconds| seconds as u64),
                for_ms,
            },
            5 => PlannedAction::Delay {
                process,
                only,
                // Requests of a former leader arrive late, and nothing in them says that it is former: a limit of leadsman.
                by_ms: self.rng.u64(50..3000),
                for_ms,
            },
            _ => PlannedAction::Silence {
                process,
                only,
                for_ms: for_ms * 2,
            },
        }
    }
}
