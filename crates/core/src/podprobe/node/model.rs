//! The node against a reference that is as naive as the rules are written, over random histories of one probe.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::machine::RunId;
use super::sim::{Sim, outcome, running};
use super::{ContainerState, SLOT};
use crate::podprobe::probe::CannotProbe;

#[derive(Clone, Debug)]
enum Step {
    Container(Option<(u8, Seen)>),
    /// Ends the run that began so many runs ago, if it is still on its way.
    Finish(usize, Ended),
    Pass(u64),
    Handler(u16),
    Timing(u32, u32, u32),
    Gate(Option<u8>),
    Restart,
    Wipe,
}

#[derive(Clone, Copy, Debug)]
enum Seen {
    Created,
    Running,
    Exited(i32),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum Ended {
    Succeeded,
    Failed,
    CannotProbe,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let seen = prop_oneof![
        1 => Just(Seen::Created),
        4 => Just(Seen::Running),
        1 => (0..3).prop_map(Seen::Exited),
        1 => Just(Seen::Unknown),
    ];
    let ended = prop_oneof![
        3 => Just(Ended::Succeeded),
        3 => Just(Ended::Failed),
        1 => Just(Ended::CannotProbe),
    ];
    let step = prop_oneof![
        3 => prop::option::weighted(0.9, (0..3_u8, seen)).prop_map(Step::Container),
        12 => (0..2_usize, ended).prop_map(|(ago, ended)| Step::Finish(ago, ended)),
        8 => (0..2_500_u64).prop_map(Step::Pass),
        1 => (80..83_u16).prop_map(Step::Handler),
        1 => (1..4_u32, 1..4_u32, 1..4_u32).prop_map(|(p, s, f)| Step::Timing(p, s, f)),
        1 => prop::option::of(0..3_u8).prop_map(Step::Gate),
        1 => Just(Step::Restart),
        1 => Just(Step::Wipe),
    ];
    prop::collection::vec(step, 1..120)
}

/// What the rules say of one probe.
#[derive(Clone, Debug)]
struct Reference {
    port: u16,
    timing: (u32, u32, u32),
    gate: Option<u8>,
    /// What the runtime says, and as what it is taken.
    shown: Option<(u8, Seen)>,
    container: Option<(u8, Seen)>,
    /// What users see, and the container it is about.
    verdict: Option<(&'static str, u8)>,
    /// Moves whenever probing begins anew.
    era: u64,
    /// Results of this era.
    results: Vec<bool>,
}

impl Reference {
    fn is_probing(&self) -> Option<u8> {
        let (id, seen) = self.container?;
        let open = self.gate.is_none_or(|gate| gate == id);
        (open && matches!(seen, Seen::Running)).then_some(id)
    }

    fn anew(&mut self) {
        self.era += 1;
        self.results.clear();
    }

    fn doubt(&mut self, about: u8) {
        if self.verdict.is_some() {
            self.verdict = Some(("Unknown", about));
        }
    }

    fn see(&mut self, container: Option<(u8, Seen)>) {
        let before = self.is_probing();
        let (old, new) = (self.container, container);
        self.shown = container;
        self.container = container;
        let Some((id, seen)) = new else {
            return self.anew();
        };
        // What the runtime does not say for a moment changes nothing about a container that is probed.
        if matches!(seen, Seen::Unknown) && before == Some(id) && self.gate.is_none_or(|g| g == id)
        {
            self.container = old;
            return;
        }
        if self.gate.is_some_and(|gate| gate != id) {
            self.doubt(id);
        } else if let Seen::Exited(_) = seen {
            self.verdict = Some(("Failed", id));
        } else if self.verdict.is_some_and(|(_, about)| about != id) {
            self.doubt(id);
        }
        if before.is_none() || self.is_probing() != before {
            self.anew();
        }
    }

    fn change_handler(&mut self, port: u16) {
        if port == self.port {
            return;
        }
        self.port = port;
        if let Some((_, about)) = self.verdict {
            self.doubt(about);
        }
        self.container = None;
        self.see(self.shown);
    }

    fn result(&mut self, succeeded: bool) {
        let Some(id) = self.is_probing() else {
            return;
        };
        self.results.push(succeeded);
        let row = self.results.iter().rev().take_while(|r| **r == succeeded);
        let (_, success, failure) = self.timing;
        let (name, threshold) = if succeeded {
            ("Succeeded", success)
        } else {
            ("Failed", failure)
        };
        if row.count() >= threshold as usize {
            self.verdict = Some((name, id));
        }
    }

    fn probe(&self) -> Value {
        let (period, success, failure) = self.timing;
        json!({"tcpSocket": {"port": self.port}, "periodSeconds": period, "successThreshold": success,
            "failureThreshold": failure})
    }
}

/// Both, side by side.
struct Bench {
    sim: Sim,
    reference: Reference,
    /// The era in which each run began.
    eras: HashMap<RunId, u64>,
    order: Vec<RunId>,
    attempts: HashMap<RunId, u32>,
    /// When the last run of this era began.
    last: Option<(u64, u128)>,
}

impl Bench {
    fn new() -> Self {
        let reference = Reference {
            port: 80,
            timing: (1, 1, 3),
            gate: None,
            shown: None,
            container: None,
            verdict: None,
            era: 0,
            results: Vec::new(),
        };
        let mut bench = Self {
            sim: Sim::new(),
            reference,
            eras: HashMap::new(),
            order: Vec::new(),
            attempts: HashMap::new(),
            last: None,
        };
        bench.plan();
        bench.sim.look();
        bench
    }

    fn plan(&mut self) {
        self.sim.ask_for(&[("m#p", self.reference.probe())]);
        let entry = &mut self.sim.object.spec.pod_probes[0].probes[0];
        entry.revision = Some(self.reference.port.to_string());
        entry.started_container_id = self.reference.gate.map(|id| format!("containerd://{id}"));
        self.sim.show();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Container(container) => {
                self.reference.see(*container);
                self.see(*container);
            }
            Step::Finish(ago, ended) => self.finish(*ago, *ended),
            Step::Pass(millis) => {
                // In steps of a slot, so that each begin is noted in its own.
                let mut left = Duration::from_millis(*millis);
                while left > Duration::ZERO {
                    let part = left.min(SLOT);
                    self.sim.pass(part);
                    self.note();
                    left -= part;
                }
            }
            Step::Handler(port) => {
                self.reference.change_handler(*port);
                self.plan();
            }
            Step::Timing(period, success, failure) => {
                self.reference.timing = (*period, *success, *failure);
                self.plan();
            }
            Step::Gate(gate) => {
                self.reference.gate = *gate;
                let shown = self.reference.shown;
                self.reference.see(shown);
                self.plan();
            }
            Step::Restart => self.restart(),
            Step::Wipe => {
                self.sim.object.status = None;
                self.sim.show();
            }
        }
        self.note();
    }

    fn see(&mut self, container: Option<(u8, Seen)>) {
        let id = container.map(|(id, _)| id.to_string());
        let state = container.map(|(_, seen)| match seen {
            Seen::Created => ContainerState::Created,
            Seen::Running => running(),
            Seen::Exited(exit_code) => ContainerState::Exited { exit_code },
            Seen::Unknown => ContainerState::Unknown,
        });
        self.sim.container(id.as_deref().zip(state));
    }

    fn finish(&mut self, ago: usize, ended: Ended) {
        let Some(run) = self.order.iter().rev().nth(ago).copied() else {
            return;
        };
        if !self.sim.runs.contains_key(&run) {
            return;
        }
        let counts = self.eras[&run] == self.reference.era;
        match ended {
            Ended::Succeeded | Ended::Failed => {
                let succeeded = matches!(ended, Ended::Succeeded);
                if counts {
                    self.reference.result(succeeded);
                }
                self.sim.finish(run, Ok(outcome(succeeded, "")));
            }
            Ended::CannotProbe => {
                *self.attempts.entry(run).or_insert(1) += 1;
                let busy = CannotProbe::Runtime("busy".to_owned());
                self.sim.finish(run, Err(busy));
                let again = counts && self.attempts[&run] <= 3;
                assert_eq!(self.sim.runs.contains_key(&run), again);
            }
        }
    }

    /// All is written before, as it is when an agent has had a moment.
    fn restart(&mut self) {
        self.sim.pass(Duration::from_secs(1));
        self.note();
        self.sim.restart();
        let shown = self.reference.shown;
        self.reference.see(None);
        self.eras.clear();
        self.order.clear();
        self.attempts.clear();
        self.reference.see(shown);
        self.sim.look();
    }

    /// Notes what began, and checks that it may.
    fn note(&mut self) {
        let begun: Vec<_> = self.sim.runs.values().cloned().collect();
        for run in begun {
            if self.eras.contains_key(&run.id) {
                continue;
            }
            let probing = self.reference.is_probing().map(|id| id.to_string());
            assert_eq!(
                Some(&*run.container),
                probing.as_deref(),
                "probed, but may not"
            );
            let era = self.reference.era;
            let overlaps = self
                .sim
                .runs
                .keys()
                .any(|other| self.eras.get(other) == Some(&era));
            assert!(!overlaps, "a probe overlaps itself");
            self.eras.insert(run.id, era);
            self.order.push(run.id);
            self.last = Some((era, self.sim.millis()));
        }
    }

    fn check(&mut self) {
        let node = &self.sim.node;
        let held = node.verdicts().next();
        let expected = self
            .reference
            .verdict
            .map(|(state, about)| (state, about.to_string()));
        assert_eq!(held, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    // PRB-6, PRB-8, PRB-9, PRB-10, PRB-11, PRB-12
    #[test]
    fn the_node_holds_what_the_rules_say(steps in steps()) {
        let mut bench = Bench::new();
        for step in &steps {
            bench.step(step);
            bench.check();
        }
        // And the API server is told, whatever was wiped.
        bench.sim.pass(Duration::from_secs(1));
        let shown = bench.sim.shown().into_values().next();
        let expected = bench.reference.verdict.map(|(state, _)| state.to_owned());
        prop_assert_eq!(shown, expected);
        // What may be probed is probed, if need be after what is still on its way.
        bench.note();
        if bench.reference.is_probing().is_some() {
            bench.sim.finish_all(true, "");
            bench.sim.pass(Duration::from_secs(4));
            prop_assert!(!bench.sim.runs.is_empty());
        }
    }
}
