//! The loop that watches the Lease of `OpenKruise`'s manager, and withholds leadership from a feature while that manager
//! acts on the same objects.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kube::Client;
use leadsman_lease::{Leadership, LeaseEvent, LeaseState, describe_lease_failure, watch_lease};
use leadsman_process::{ApiServer, ReadinessCheck, clock};
use tokio::sync::watch;
use tokio::time::timeout;

use super::gates::{read_gates, switch_off_command};
use super::manager::{GateState, OpenKruiseManager, OpenKruiseState};
use super::{LEASE, NAMESPACE};
use crate::gates::Gates;

/// The deadline of reading the gates.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Passes leadership on while no `OpenKruise` acts on the same objects.
pub(crate) struct OpenKruiseGuard {
    server: ApiServer,
    manager: OpenKruiseManager,
    leadership: watch::Receiver<Leadership>,
    gates: Gates,
    check: ReadinessCheck,
    reported: OpenKruiseState,
    /// For `PodProbeMarker`, on which `OpenKruise` acts unless its gate is off.
    probes: Passage,
    /// For `SidecarSet`, on which every `OpenKruise` acts: it has no gate for it.
    sets: Passage,
}

/// The leadership that is passed on to a feature, and what was passed on so far.
///
/// Each time in which none was passed on begins another term: it may be so short that nobody looks while it lasts, and
/// `OpenKruise` may have written all the same.
struct Passage {
    passed_on: watch::Sender<Leadership>,
    /// The number of terms so far.
    terms: u64,
    /// The term of our own Lease that is passed on, if one is.
    current: Option<u64>,
    /// Whether `OpenKruise`'s manager may have written since this process started.
    was_active: bool,
}

/// The gates of a holder.
type GateRead = (String, kube::Result<GateState>);

impl OpenKruiseGuard {
    /// A guard that passes nothing on until `OpenKruise`'s Lease was read. `check` passes while leadership is passed
    /// on.
    pub(crate) fn new(
        server: ApiServer,
        leadership: watch::Receiver<Leadership>,
        gates: Gates,
        check: ReadinessCheck,
    ) -> Self {
        Self {
            server,
            manager: OpenKruiseManager::default(),
            leadership,
            gates,
            check,
            reported: OpenKruiseState::Unknown,
            probes: Passage::new(),
            sets: Passage::new(),
        }
    }

    /// Leadership, as far as it is passed on to what acts on `PodProbeMarker`s.
    pub(crate) fn leadership_over_markers(&self) -> watch::Receiver<Leadership> {
        self.probes.passed_on.subscribe()
    }

    /// Leadership, as far as it is passed on to what acts on `SidecarSet`s.
    pub(crate) fn leadership_over_sets(&self) -> watch::Receiver<Leadership> {
        self.sets.passed_on.subscribe()
    }

    /// Runs until the sender of leadership is dropped.
    pub(crate) async fn run(mut self) {
        let mut events = watch_lease(self.server.clone(), NAMESPACE, LEASE);
        let mut reading: BoxFuture<'static, GateRead> = pending().boxed();
        // The gates of a holder are read with each renewal of its Lease, until they are off.
        let (mut renewed, mut in_flight) = (false, false);
        loop {
            // At most one read at a time, with the pace of the Lease's renewals: no timer of our own.
            if renewed
                && !in_flight
                && let Some(holder) = self.manager.holder_to_inspect(clock::monotonic())
            {
                reading = read_gate(self.server.client.clone(), holder).boxed();
                in_flight = true;
            }
            // Before the wait: whatever woke this loop may have changed the state, an expiry included.
            renewed = false;
            self.publish_leadership();
            let expires_at = self.manager.expires_at(clock::monotonic());
            tokio::select! {
                Some(event) = events.next() => {
                    renewed = matches!(event, LeaseEvent::Observed(LeaseState::Present(_)));
                    self.on_lease_event(event);
                }
                (holder, gate) = &mut reading => {
                    reading = pending().boxed();
                    in_flight = false;
                    self.on_gate_read(&holder, gate);
                }
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = clock::sleep_until(expires_at) => {}
            }
        }
    }

    fn on_lease_event(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Observed(LeaseState::Present(lease)) => {
                let (now, wall) = (clock::monotonic(), clock::now());
                if self.manager.observe_lease(lease, now, wall) {
                    tracing::info!("OpenKruise's manager has held its Lease unseen");
                    self.probes.end_term();
                    self.sets.end_term();
                }
            }
            LeaseEvent::Observed(LeaseState::Absent | LeaseState::Deleted(_)) => {
                self.manager.observe_no_lease();
            }
            LeaseEvent::Following => self.manager.watch_resumed(clock::monotonic()),
            LeaseEvent::Failed(error) => {
                self.manager.watch_lost(clock::monotonic());
                let reason =
                    describe_lease_failure("list or watch OpenKruise's", NAMESPACE, LEASE, &error);
                // Once its state is known, a broken watch changes nothing that was decided: the state stays until it is
                // over.
                if self.reported == OpenKruiseState::Unknown {
                    self.check.set_not_ready(reason);
                } else {
                    tracing::info!(reason, "watch of OpenKruise's Lease failed, retrying");
                }
            }
        }
    }

    fn on_gate_read(&mut self, holder: &str, gate: kube::Result<GateState>) {
        match gate {
            Ok(gate) => self.manager.record_gate(holder, gate),
            Err(error) => {
                tracing::info!(holder, %error, "reading the feature gates of OpenKruise's manager failed, retrying");
            }
        }
    }

    /// Passes leadership on or withholds it, and reports why.
    fn publish_leadership(&mut self) {
        let state = self.manager.state_at(clock::monotonic());
        let leadership = *self.leadership.borrow_and_update();
        self.probes.publish_leadership(leadership, &state);
        self.sets
            .publish_leadership(leadership, &state_for_sets(&state));
        if state != self.reported {
            self.report_state(&state);
            self.reported = state;
        }
    }

    fn report_state(&self, state: &OpenKruiseState) {
        match state {
            // The check says so from the start.
            OpenKruiseState::Unknown => {}
            OpenKruiseState::Absent => {
                // Every OpenKruise that runs is active to sets, and so this tells whether one ran at all.
                if self.sets.was_active {
                    tracing::info!("OpenKruise's manager has stopped");
                }
                self.check.set_ready();
            }
            OpenKruiseState::GateOff { holder } => {
                tracing::info!(holder, "OpenKruise runs with PodProbeMarkerGate=false");
                if self.gates.sidecar_set {
                    self.check.set_not_ready(sets_conflict_message(holder));
                } else {
                    self.check.set_ready();
                }
            }
            OpenKruiseState::Active { holder, gate } => {
                self.check.set_not_ready(if self.gates.pod_probe_marker {
                    conflict_message(holder, gate)
                } else {
                    sets_conflict_message(holder)
                });
            }
        }
    }
}

/// The state as it is to what acts on `SidecarSet`s.
fn state_for_sets(state: &OpenKruiseState) -> OpenKruiseState {
    match state {
        OpenKruiseState::GateOff { holder } => OpenKruiseState::Active {
            holder: holder.clone(),
            gate: GateState::Off,
        },
        other => other.clone(),
    }
}

impl Passage {
    fn new() -> Self {
        Self {
            passed_on: watch::Sender::new(Leadership::Unknown),
            terms: 0,
            current: None,
            was_active: false,
        }
    }

    /// Begins another term, since `OpenKruise`'s manager may have written in this one.
    fn end_term(&mut self) {
        self.was_active = true;
        self.current = None;
    }

    fn publish_leadership(&mut self, leadership: Leadership, state: &OpenKruiseState) {
        let passed_on = self.leadership_to_pass_on(leadership, state);
        self.passed_on.send_if_modified(|published| {
            let changed = *published != passed_on;
            *published = passed_on;
            changed
        });
    }

    /// Our own leadership as far as it is passed on in this state.
    fn leadership_to_pass_on(
        &mut self,
        leadership: Leadership,
        state: &OpenKruiseState,
    ) -> Leadership {
        let passed_on = match state {
            OpenKruiseState::Unknown => Leadership::Unknown,
            OpenKruiseState::Active { .. } => {
                self.was_active = true;
                Leadership::Standby
            }
            // Its last writes may not have reached our watches.
            OpenKruiseState::Absent | OpenKruiseState::GateOff { .. } if self.was_active => {
                leadership.after_others()
            }
            OpenKruiseState::Absent | OpenKruiseState::GateOff { .. } => leadership,
        };
        let term = passed_on.term_number();
        if term.is_some() && term != self.current {
            // Terms are counted here, since one term of ours may be passed on as several: before and after an OpenKruise.
            self.terms += 1;
        }
        self.current = term;
        passed_on.in_term(self.terms)
    }
}

async fn read_gate(client: Client, holder: String) -> GateRead {
    let gate = timeout(READ_TIMEOUT, read_gates(&client, NAMESPACE, &holder)).await;
    // An error like one of the client: it is tried again with the next renewal.
    let late = |_| {
        Err(kube::Error::Service(
            format!("no reply within {} s", READ_TIMEOUT.as_secs()).into(),
        ))
    };
    (holder, gate.unwrap_or_else(late))
}

/// Why leadership is withheld, and what to do about it.
fn conflict_message(holder: &str, gate: &GateState) -> String {
    let holds = format!("OpenKruise's manager {holder} holds the Lease {NAMESPACE}/{LEASE}");
    match gate {
        GateState::Unread | GateState::Off => {
            format!("{holds}; whether its PodProbeMarkerGate is on has not been read yet")
        }
        GateState::On(gates) => format!(
            "{holds} with PodProbeMarkerGate on: both would write the same objects, so leadsman writes nothing. \
             Switch the gate off: {}",
            switch_off_command(gates)
        ),
        GateState::NoPod => format!(
            "{holds}, and no pod in that namespace shows its feature gates: leadsman writes nothing until that manager \
             has stopped. Stop it, or run it in a pod with {}=PodProbeMarkerGate=false",
            super::GATES_FLAG
        ),
    }
}

/// Why leadership over `SidecarSet`s is withheld.
fn sets_conflict_message(holder: &str) -> String {
    format!(
        "OpenKruise's manager {holder} holds the Lease {NAMESPACE}/{LEASE}: it acts on SidecarSets, for which it has no \
         feature gate, so leadsman writes nothing for them. Stop it, or run leadsman with SidecarSetGate=false"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // SCS-80
    #[test]
    fn an_openkruise_whose_gate_is_off_leads_over_sidecar_sets_all_the_same() {
        let until = clock::monotonic() + Duration::from_hours(1);
        let leads = Leadership::Leads {
            term: 1,
            after_others: false,
            until,
        };
        let off = OpenKruiseState::GateOff {
            holder: "one".to_owned(),
        };
        let (mut probes, mut sets) = (Passage::new(), Passage::new());
        assert_eq!(probes.leadership_to_pass_on(leads, &off), leads);
        assert_eq!(
            sets.leadership_to_pass_on(leads, &state_for_sets(&off)),
            Leadership::Standby
        );
        let absent = state_for_sets(&OpenKruiseState::Absent);
        assert_eq!(
            sets.leadership_to_pass_on(leads, &absent),
            leads.after_others()
        );
    }

    // PPM-19
    #[test]
    fn whoever_looks_only_after_openkruise_was_active_sees_another_term() {
        let until = clock::monotonic() + Duration::from_hours(1);
        let leads = |term, after_others| Leadership::Leads {
            term,
            after_others,
            until,
        };
        let active = OpenKruiseState::Active {
            holder: "one".to_owned(),
            gate: GateState::Unread,
        };
        let absent = OpenKruiseState::Absent;
        let mut passage = Passage::new();
        let mut pass =
            |leadership, state: &OpenKruiseState| passage.leadership_to_pass_on(leadership, state);
        let (first, second) = (leads(1, false), leads(2, false));
        assert_eq!(pass(first, &OpenKruiseState::Unknown), Leadership::Unknown);
        assert_eq!(pass(first, &absent), leads(1, false));
        assert_eq!(pass(first, &absent), leads(1, false), "renewed");
        assert_eq!(pass(first, &active), Leadership::Standby);
        assert_eq!(
            pass(first, &absent),
            leads(2, true),
            "the same term of ours"
        );
        assert_eq!(pass(second, &absent), leads(3, true));
        assert_eq!(pass(Leadership::Standby, &absent), Leadership::Standby);
        assert_eq!(pass(leads(3, false), &absent), leads(4, true));
        // It was active while its Lease was not watched.
        passage.end_term();
        assert_eq!(
            passage.leadership_to_pass_on(leads(3, false), &absent),
            leads(5, true)
        );
    }
}
