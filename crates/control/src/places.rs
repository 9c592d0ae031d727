//! Fair shares of the requests in flight.
//!
//! Each class of each feature is a flow. A flow has a few places of its own, which no other flow takes, so its first
//! requests never wait for answers to another flow's, even if those never come. All other places go to flows that have
//! work, and a freed one to the waiting flow with the fewest. So flows that are all busy get equal shares, and one that
//! is busy alone gets nearly all.
//!
//! Pure: [`crate::feature`] asks for places and gives them back.

use std::sync::{Arc, Mutex, PoisonError};

use leadsman_process::watch;

/// The places, shared by the loops of all features.
pub(crate) struct SharedPlaces {
    places: Arc<Mutex<Places>>,
    wakes: Arc<watch::Sender<()>>,
    changed: watch::Receiver<()>,
}

impl Clone for SharedPlaces {
    fn clone(&self) -> Self {
        Self {
            places: Arc::clone(&self.places),
            wakes: Arc::clone(&self.wakes),
            changed: self.wakes.subscribe(),
        }
    }
}

impl SharedPlaces {
    pub(crate) fn new(places: Places) -> Self {
        let (wakes, changed) = watch::channel(());
        Self {
            places: Arc::new(Mutex::new(places)),
            wakes: Arc::new(wakes),
            changed,
        }
    }

    /// Takes and gives back places, and wakes the other features that may now get one. The caller must try to take a
    /// place before it waits for [`SharedPlaces::wait_for_change`].
    pub(crate) fn update_and_wake<T>(&mut self, update: impl FnOnce(&mut Places) -> T) -> T {
        // Each method changes one flow completely or not at all, so a panic leaves no half-made state.
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let updated = update(&mut places);
        if places.take_changed() {
            self.wakes.send_replace(());
        }
        // The caller has tried already; only later changes may give it a place.
        self.changed.mark_unchanged();
        updated
    }

    /// Waits until a flow that was refused a place may get one.
    pub(crate) async fn wait_for_change(&mut self) {
        self.changed
            .changed()
            .await
            .expect("its sender lives as long as this");
    }
}

/// The places of all flows.
#[derive(Debug)]
pub(crate) struct Places {
    limit: usize,
    flows: Vec<Flow>,
    /// Whether a change may have given a place to a waiting flow.
    changed: bool,
}

#[derive(Debug, Default)]
struct Flow {
    in_flight: usize,
    /// Whether it has work and was refused a place.
    waits: bool,
}

impl Places {
    /// `limit` places together.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            flows: Vec::new(),
            changed: false,
        }
    }

    /// All places together.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Adds flows, and returns the index of the first.
    pub(crate) fn add_flows(&mut self, count: usize) -> usize {
        let first = self.flows.len();
        self.flows.resize_with(first + count, Flow::default);
        first
    }

    /// The number of places of each flow's own: a quarter of an equal share, at least one.
    fn guaranteed_per_flow(&self) -> usize {
        let flows = self.flows.len().max(1);
        // No flow has a place of its own if there are more flows than places.
        (self.limit / (4 * flows)).max(1).min(self.limit / flows)
    }

    /// How many places each flow has.
    #[cfg(test)]
    pub(crate) fn taken_by_flow(&self) -> Vec<usize> {
        self.flows.iter().map(|flow| flow.in_flight).collect()
    }

    /// Takes a place for a flow, or notes that it waits for one.
    pub(crate) fn try_take(&mut self, flow: usize) -> bool {
        let may = self.may_take(flow);
        let flow = &mut self.flows[flow];
        if may {
            flow.in_flight += 1;
            // A flow that waited for this one may be next.
            self.changed |= flow.waits;
        }
        flow.waits = !may;
        may
    }

    fn may_take(&self, flow: usize) -> bool {
        let own = self.guaranteed_per_flow();
        let in_flight = self.flows[flow].in_flight;
        if in_flight < own {
            return true;
        }
        // The places of the other flows count as taken while they are unused too: they are kept for them.
        let taken: usize = self.flows.iter().map(|flow| flow.in_flight.max(own)).sum();
        let is_next = self
            .flows
            .iter()
            .all(|other| !other.waits || other.in_flight >= in_flight);
        // A waiting flow with fewer requests in flight goes first; between equals the order of
        // their loops decides.
        taken < self.limit && is_next
    }

    /// Records that the flow has nothing that waits for a place.
    pub(crate) fn stop_waiting(&mut self, flow: usize) {
        let waits = &mut self.flows[flow].waits;
        self.changed |= *waits;
        *waits = false;
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, flow: usize) {
        let flow = &mut self.flows[flow];
        debug_assert!(flow.in_flight > 0, "a place is given back once");
        flow.in_flight = flow.in_flight.saturating_sub(1);
        self.changed = true;
    }

    /// Whether waiting flows should try again; resets this.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed) && self.flows.iter().any(|flow| flow.waits)
    }
}

#[cfg(test)]
mod tests;
