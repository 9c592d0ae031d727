//! The loop that follows the Lease of `OpenKruise`'s manager, and holds our leadership back while it acts on the same
//! objects.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kube::Client;
use leadsman_lease::{Leadership, LeaseEvent, LeaseState, describe_lease_failure, watch_lease};
use leadsman_process::{ApiServer, Condition, clock};
use tokio::sync::watch;
use tokio::time::timeout;

use super::gates::{read_gates, switch_off};
use super::neighbour::{Gate, Neighbour, Standing};
use super::{LEASE, NAMESPACE};

/// An answer about pods is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// One who lets leadership through while there is no `OpenKruise` that acts on the same objects.
pub(crate) struct Guard {
    server: ApiServer,
    neighbour: Neighbour,
    own: watch::Receiver<Leadership>,
    passed_on: watch::Sender<Leadership>,
    condition: Condition,
    shown: Standing,
    /// It has written while this process ran.
    has_acted: bool,
}

type Read = (String, kube::Result<Gate>);

impl Guard {
    /// Nothing is let through before `OpenKruise`'s Lease was looked for. `condition` holds while leadership passes.
    pub(crate) fn new(
        server: ApiServer,
        own: watch::Receiver<Leadership>,
        condition: Condition,
    ) -> Self {
        Self {
            server,
            neighbour: Neighbour::default(),
            own,
            passed_on: watch::Sender::new(Leadership::Standby),
            condition,
            shown: Standing::Unknown,
            has_acted: false,
        }
    }

    /// Our leadership as far as it is let through.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.passed_on.subscribe()
    }

    /// Follows until there is no leadership to be told of any more.
    pub(crate) async fn run(mut self) {
        let mut events = watch_lease(self.server.clone(), NAMESPACE, LEASE);
        let mut reading: BoxFuture<'static, Read> = pending().boxed();
        // The gates of a holder are asked for with its signs of life, until they are off.
        let (mut asks, mut reads) = (false, false);
        loop {
            if asks
                && !reads
                && let Some(holder) = self.neighbour.to_be_read(clock::monotonic())
            {
                reading = read(self.server.client.clone(), holder).boxed();
                reads = true;
            }
            asks = false;
            self.tell();
            let ends = self.neighbour.ends(clock::monotonic());
            tokio::select! {
                Some(event) = events.next() => {
                    asks = matches!(event, LeaseEvent::Observed(LeaseState::Present(_)));
                    self.watched(event);
                }
                (holder, gate) = &mut reading => {
                    reading = pending().boxed();
                    reads = false;
                    self.has_read(&holder, gate);
                }
                changed = self.own.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = clock::sleep_until(ends) => {}
            }
        }
    }

    fn watched(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Observed(LeaseState::Present(lease)) => {
                self.neighbour
                    .lease_seen(lease, clock::monotonic(), clock::now());
            }
            LeaseEvent::Observed(LeaseState::Absent | LeaseState::Deleted(_)) => {
                self.neighbour.lease_absent()
            }
            LeaseEvent::Following => self.neighbour.follows(clock::monotonic()),
            LeaseEvent::Failed(error) => {
                self.neighbour.lost(clock::monotonic());
                let reason =
                    describe_lease_failure("look for OpenKruise's", NAMESPACE, LEASE, &error);
                if self.shown == Standing::Unknown {
                    self.condition.not_ready(reason);
                } else {
                    tracing::info!(
                        reason,
                        "the watch of OpenKruise's Lease broke off, beginning again"
                    );
                }
            }
        }
    }

    fn has_read(&mut self, holder: &str, gate: kube::Result<Gate>) {
        match gate {
            Ok(gate) => self.neighbour.gate_read(holder, gate),
            Err(error) => {
                tracing::info!(holder, %error, "cannot read the feature gates of OpenKruise's manager, asking again");
            }
        }
    }

    /// Lets leadership through or holds it back, and says why.
    fn tell(&mut self) {
        let standing = self.neighbour.standing(clock::monotonic());
        let own = *self.own.borrow_and_update();
        let passes = match &standing {
            Standing::Unknown => false,
            Standing::Acts { .. } => {
                self.has_acted = true;
                false
            }
            Standing::Away | Standing::Aside { .. } => true,
        };
        let leadership = match (passes, self.has_acted) {
            (false, _) => Leadership::Standby,
            (true, false) => own,
            // What it has written may not have reached our watches.
            (true, true) => own.after_others(),
        };
        if standing != self.shown {
            self.show(&standing);
            self.shown = standing;
        }
        self.passed_on.send_if_modified(|told| {
            let changed = *told != leadership;
            *told = leadership;
            changed
        });
    }

    fn show(&self, standing: &Standing) {
        match standing {
            Standing::Unknown => {}
            Standing::Away => {
                if self.has_acted {
                    tracing::info!("OpenKruise's manager has ended");
                }
                self.condition.ready();
            }
            Standing::Aside { holder } => {
                tracing::info!(holder, "OpenKruise runs with PodProbeMarkerGate=false");
                self.condition.ready();
            }
            Standing::Acts { holder, gate } => self.condition.not_ready(in_the_way(holder, gate)),
        }
    }
}

async fn read(client: Client, holder: String) -> Read {
    let gate = timeout(PATIENCE, read_gates(&client, NAMESPACE, &holder)).await;
    let late = |_| Err(kube::Error::Service("no answer in time".into()));
    (holder, gate.unwrap_or_else(late))
}

/// What is in the way, and what to do about it.
fn in_the_way(holder: &str, gate: &Gate) -> String {
    let before = format!("OpenKruise's manager {holder} holds the Lease {NAMESPACE}/{LEASE}");
    match gate {
        Gate::Unread | Gate::Off => {
            format!("{before}; looking whether its PodProbeMarkerGate is on")
        }
        Gate::On(gates) => format!(
            "{before} with PodProbeMarkerGate on: both would write the same objects, so nothing is written here. \
             Switch it off: {}",
            switch_off(gates)
        ),
        Gate::NoPod => format!(
            "{before}, and no pod in that namespace tells its feature gates: nothing is written here until it has \
             ended. Stop it, or run it with {}=PodProbeMarkerGate=false in a pod",
            super::GATES_FLAG
        ),
    }
}
