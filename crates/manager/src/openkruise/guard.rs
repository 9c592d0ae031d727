//! The loop that withholds a term of leadership while an `OpenKruise` manager acts on the same objects.
//!
//! It looks before the first write of a term. One that comes later is reported, and nothing else: whoever writes goes on
//! writing, since a manager that falls silent in mid-work leaves marks as they are for as long as somebody holds a Lease.
//! Neither case makes a replica less ready, by which API servers would be kept from its webhooks.

use std::future::pending;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use leadsman_lease::Leadership;
use leadsman_process::reply::{error_chain, judge_watch_error};
use leadsman_process::watch;
use leadsman_process::{ApiServer, Metrics, ReadinessCheck, clock};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::timeout;

use super::LEASE;
use super::gates::switch_off_command;
use super::look::look_for_openkruise;
use super::manager::{GateState, ManagerLook, OpenKruiseManager, OpenKruiseState};
use crate::gates::{Gates, Ungated};

/// The deadline of a look.
const DEADLINE: Duration = Duration::from_secs(10);
/// The interval of looks while a term is withheld: within a third of the time for which its Lease is held (15 s).
const WITHHELD: Duration = Duration::from_secs(5);
/// The interval of looks that only report.
const REPORTING: Duration = Duration::from_mins(5);

/// Passes terms of leadership on while no `OpenKruise` acts on the same objects.
pub(crate) struct OpenKruiseGuard {
    server: ApiServer,
    leadership: watch::Receiver<Leadership>,
    gates: Gates,
    /// Whether it is to be left out of account (`--ignore-openkruise`).
    is_ignored: bool,
    /// Fails while a look is forbidden or fails otherwise.
    check: ReadinessCheck,
    conflict: Gauge,
    manager: OpenKruiseManager,
    /// Whether it is installed, or was since this process started: its last writes may not have reached our watches.
    was_installed: bool,
    /// The conflict that was last reported.
    reported: Option<String>,
    /// The passage for `PodProbeMarker`, on which `OpenKruise` acts unless its gate is off.
    markers: Passage,
    /// The passage for `SidecarSet` and the systems on the kernel, on which every `OpenKruise` acts: it has no gate for them.
    sets: Passage,
}

/// The leadership that is passed on to a feature.
struct Passage {
    passed_on: watch::Sender<Leadership>,
    /// The term in which no `OpenKruise` was seen to act before the first write.
    admitted: Option<AdmittedTerm>,
}

#[derive(Clone, Copy)]
struct AdmittedTerm {
    term: u64,
    after_openkruise: bool,
}

impl OpenKruiseGuard {
    /// A guard that passes no term on before it has looked.
    pub(crate) fn new(
        server: ApiServer,
        leadership: watch::Receiver<Leadership>,
        (gates, is_ignored): (Gates, bool),
        check: ReadinessCheck,
        metrics: &Metrics,
    ) -> Self {
        // A standby does not look.
        check.set_ready();
        let conflict = Gauge::default();
        metrics.register(|registry| {
            registry.register(
                "openkruise_conflict",
                "1 while an OpenKruise manager acts on the same objects, as the leader has last seen it",
                conflict.clone(),
            );
        });
        Self {
            server,
            leadership,
            gates,
            is_ignored,
            check,
            conflict,
            manager: OpenKruiseManager::default(),
            was_installed: false,
            reported: None,
            markers: Passage::new(),
            sets: Passage::new(),
        }
    }

    /// Leadership, as far as it is passed on to what acts on `PodProbeMarker`s.
    pub(crate) fn leadership_over_markers(&self) -> watch::Receiver<Leadership> {
        self.markers.passed_on.subscribe()
    }

    /// Leadership, as far as it is passed on to what acts on `SidecarSet`s, and on other objects for which `OpenKruise` has no
    /// gate.
    pub(crate) fn leadership_over_sets(&self) -> watch::Receiver<Leadership> {
        self.sets.passed_on.subscribe()
    }

    /// Runs until the sender of leadership is dropped.
    pub(crate) async fn run(mut self) {
        let (mut term, mut next_look) = (None, None);
        let mut look: BoxFuture<'static, kube::Result<ManagerLook>> = pending().boxed();
        loop {
            let leadership = *self.leadership.borrow_and_update();
            if leadership.term_number() != term {
                term = leadership.term_number();
                // A look that began in another term says nothing of this one.
                look = pending().boxed();
                next_look = term
                    .filter(|_| !self.is_ignored)
                    .map(|_| clock::monotonic());
                self.begin_term(term);
            }
            self.markers.pass_on(leadership);
            self.sets.pass_on(leadership);
            tokio::select! {
                // A change of leadership first, since what a look found may be of another term. None of them is ready on
                // each turn.
                biased;
                changed = self.leadership.changed() => if changed.is_err() {
                    return;
                },
                found = &mut look => {
                    look = pending().boxed();
                    if let Some(term) = term {
                        self.on_look(found, term);
                        next_look = Some(clock::monotonic() + self.interval(term));
                    }
                }
                () = clock::sleep_until(next_look) => {
                    next_look = None;
                    look = look_in_time(self.server.client.clone()).boxed();
                }
            }
        }
    }

    fn begin_term(&mut self, term: Option<u64>) {
        match term {
            // A standby does not look, and the next leader says what it sees.
            None => {
                self.check.set_ready();
                self.report_conflict(None);
            }
            Some(term) if self.is_ignored => {
                let admitted = AdmittedTerm {
                    term,
                    after_openkruise: false,
                };
                self.markers.admit(admitted);
                self.sets.admit(admitted);
            }
            Some(_) => {}
        }
    }

    fn on_look(&mut self, found: kube::Result<ManagerLook>, term: u64) {
        let now = clock::monotonic();
        match found {
            Ok(found) => {
                self.check.set_ready();
                self.was_installed |= !matches!(found, ManagerLook::NotInstalled);
                self.manager.observe(found, now, clock::now());
            }
            Err(error) => {
                let reason = match &error {
                    kube::Error::Api(status) => judge_watch_error(status).explain_reason(),
                    error => error_chain(error),
                };
                let text = format!(
                    "cannot see whether an OpenKruise manager acts on the same objects: {reason}"
                );
                // A manager that writes already goes on, and looks again.
                if self.is_withheld(term) {
                    self.check.set_not_ready(text);
                } else {
                    tracing::warn!("{text}");
                }
                return;
            }
        }
        let state = self.manager.state_at(now);
        let admitted = AdmittedTerm {
            term,
            after_openkruise: self.was_installed,
        };
        if !matches!(state, OpenKruiseState::Active { .. }) {
            self.markers.admit(admitted);
        }
        if state == OpenKruiseState::Absent {
            self.sets.admit(admitted);
        }
        let conflict = self.describe_conflict(&state, term);
        self.report_conflict(conflict);
    }

    fn interval(&self, term: u64) -> Duration {
        if self.is_withheld(term) {
            WITHHELD
        } else {
            REPORTING
        }
    }

    /// Whether a feature waits for an OpenKruise manager to stop before its first write of the term.
    fn is_withheld(&self, term: u64) -> bool {
        let of_markers = self.gates.pod_probe_marker && !self.markers.is_admitted(term);
        of_markers || !self.gates.ungated().is_empty() && !self.sets.is_admitted(term)
    }

    /// The message that says what an operator has to know and to do, if anything.
    fn describe_conflict(&self, state: &OpenKruiseState, term: u64) -> Option<String> {
        match state {
            OpenKruiseState::Active { holder, gate } if self.gates.pod_probe_marker => Some(
                conflict_message(holder, gate, self.markers.is_admitted(term)),
            ),
            OpenKruiseState::Active { holder, .. } | OpenKruiseState::GateOff { holder }
                if !self.gates.ungated().is_empty() =>
            {
                let ours = self.gates.ungated();
                Some(ungated_conflict_message(
                    holder,
                    &ours,
                    self.sets.is_admitted(term),
                ))
            }
            _ => None,
        }
    }

    fn report_conflict(&mut self, conflict: Option<String>) {
        self.conflict.set(conflict.is_some().into());
        if conflict == self.reported {
            return;
        }
        match &conflict {
            Some(conflict) => tracing::warn!("{conflict}"),
            None if self.leadership.borrow().term_number().is_some() => {
                tracing::info!("no OpenKruise manager acts on the same objects any more");
            }
            None => {}
        }
        self.reported = conflict;
    }
}

impl Passage {
    fn new() -> Self {
        Self {
            passed_on: watch::Sender::new(Leadership::Unknown),
            admitted: None,
        }
    }

    fn is_admitted(&self, term: u64) -> bool {
        self.admitted.is_some_and(|admitted| admitted.term == term)
    }

    /// Permits the writes of this term, until its end.
    fn admit(&mut self, admitted: AdmittedTerm) {
        if !self.is_admitted(admitted.term) {
            self.admitted = Some(admitted);
        }
    }

    fn pass_on(&self, leadership: Leadership) {
        let passed_on = match (leadership.term_number(), self.admitted) {
            (None, _) => leadership,
            (Some(term), Some(admitted)) if admitted.term == term => {
                if admitted.after_openkruise {
                    leadership.after_others()
                } else {
                    leadership
                }
            }
            (Some(_), _) => Leadership::Standby,
        };
        self.passed_on.send_if_modified(|published| {
            let changed = *published != passed_on;
            *published = passed_on;
            changed
        });
    }
}

async fn look_in_time(client: Client) -> kube::Result<ManagerLook> {
    let late = |_| {
        let late = format!("no reply within {} s", DEADLINE.as_secs());
        Err(kube::Error::Service(late.into()))
    };
    let found = timeout(DEADLINE, look_for_openkruise(&client)).await;
    found.unwrap_or_else(late)
}

/// Says that both act on markers, and what to do about it.
fn conflict_message(holder: &str, gate: &GateState, writes: bool) -> String {
    let holds = format!("OpenKruise's manager {holder} holds the Lease {LEASE}");
    let consequence = if writes {
        "both write the same objects, and each undoes what the other writes"
    } else {
        "both would write the same objects, so leadsman writes nothing"
    };
    match gate {
        GateState::Unread | GateState::Off => {
            format!(
                "{holds}, and its feature gates cannot be read (the log says why): {consequence}. Stop it, or switch its \
                 PodProbeMarkerGate off"
            )
        }
        GateState::On(gates) => format!(
            "{holds} with PodProbeMarkerGate on: {consequence}. Switch the gate off: {}",
            switch_off_command(gates)
        ),
        GateState::NoPod => format!(
            "{holds}, and no pod in the namespace of that Lease shows its feature gates: {consequence}. Stop it, or run it in a pod with \
             {}=PodProbeMarkerGate=false",
            super::GATES_FLAG
        ),
    }
}

/// Says that both act on kinds for which `OpenKruise` has no gate, and what to do about it.
fn ungated_conflict_message(holder: &str, ours: &Ungated, writes: bool) -> String {
    let consequence = if writes {
        "so both act on them"
    } else {
        "so leadsman writes nothing for them"
    };
    format!(
        "OpenKruise's manager {holder} holds the Lease {LEASE}: it acts on {}, for which it has no feature gate, {consequence}. \
         Stop it, or run leadsman with {}",
        ours.kinds(),
        ours.gates_off()
    )
}

#[cfg(test)]
mod tests;
