//! The oldest markers of each namespace: only so many are acted on.
//!
//! Anybody who may create markers decides how many there are, and each event of a pod costs as much as all that are acted
//! on in its namespace. The others have a status that says so, and cost what they are themselves.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{MarkerChange, MarkerPhase, Markers, StopReason};
use crate::podprobe::index::context::{IndexContext, MarkerName};
use crate::podprobe::marker::Marker;

/// The valid markers of each namespace by their age.
#[derive(Debug)]
pub(super) struct Ages {
    /// Markers of one namespace that are acted on, at most.
    most: usize,
    by_namespace: BTreeMap<String, NamespaceAges>,
    /// Markers that may have passed the bound since they were last judged.
    unjudged: BTreeSet<MarkerName>,
}

/// The markers of one namespace. While one is surplus, all places among the oldest are taken.
#[derive(Debug, Default)]
struct NamespaceAges {
    oldest: BTreeSet<(Timestamp, MarkerName)>,
    surplus: BTreeSet<(Timestamp, MarkerName)>,
}

impl Ages {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            by_namespace: BTreeMap::new(),
            unjudged: BTreeSet::new(),
        }
    }

    pub(super) fn insert_marker(&mut self, name: &MarkerName, created: Timestamp) {
        let ages = self.by_namespace.entry(name.namespace.clone()).or_default();
        ages.oldest.insert((created, name.clone()));
        self.unjudged.insert(name.clone());
        if ages.oldest.len() > self.most
            && let Some(youngest) = ages.oldest.pop_last()
        {
            self.unjudged.insert(youngest.1.clone());
            ages.surplus.insert(youngest);
        }
    }

    pub(super) fn remove_marker(&mut self, name: &MarkerName, created: Timestamp) {
        let Some(ages) = self.by_namespace.get_mut(&name.namespace) else {
            return;
        };
        let place = (created, name.clone());
        ages.surplus.remove(&place);
        if ages.oldest.remove(&place)
            && let Some(next) = ages.surplus.pop_first()
        {
            self.unjudged.insert(next.1.clone());
            ages.oldest.insert(next);
        }
        if ages.oldest.is_empty() {
            self.by_namespace.remove(&name.namespace);
        }
    }

    /// Whether as many markers of its namespace as are acted on are older than this one, which need not be known.
    fn is_surplus(&self, marker: &Marker) -> bool {
        let Some(ages) = self.by_namespace.get(&marker.name.namespace) else {
            return false;
        };
        let last = ages.oldest.last();
        let is_younger =
            last.is_some_and(|(time, name)| (*time, &**name) < (marker.created, &marker.name));
        is_younger && ages.oldest.len() >= self.most
    }

    fn surplus_message(&self) -> String {
        let most = self.most;
        format!(
            "not acted on: {most} older markers of this namespace are, and no more than that; merge markers or delete some"
        )
    }
}

impl Markers {
    /// The phase of a marker that was observed: it is not acted on beyond the oldest ones.
    pub(super) fn limit_by_age(&self, phase: MarkerPhase) -> MarkerPhase {
        match phase {
            MarkerPhase::Active(marker) | MarkerPhase::Stopped(marker, StopReason::Loop(_))
                if self.ages.is_surplus(&marker) =>
            {
                MarkerPhase::Stopped(marker, StopReason::Surplus(self.ages.surplus_message()))
            }
            phase => phase,
        }
    }

    /// Stops the markers that are not among the oldest of their namespace any more, and restarts those that are now.
    pub(in crate::podprobe::index) fn judge_ages(
        &mut self,
        cx: &mut IndexContext,
    ) -> Vec<MarkerChange> {
        let mut changes = Vec::new();
        for name in std::mem::take(&mut self.ages.unjudged) {
            let phase = self.by_name.get(&name).map(|state| &state.phase);
            let reason = match phase {
                Some(
                    MarkerPhase::Active(marker) | MarkerPhase::Stopped(marker, StopReason::Loop(_)),
                ) if self.ages.is_surplus(marker) => {
                    Some(StopReason::Surplus(self.ages.surplus_message()))
                }
                Some(MarkerPhase::Stopped(marker, StopReason::Surplus(_)))
                    if !self.ages.is_surplus(marker) =>
                {
                    None
                }
                // One that its workload made stop stays so, at whatever age.
                _ => continue,
            };
            changes.extend(self.set_stopped(&name, reason, cx));
        }
        // Stopping or starting a marker inserts it anew, which changes no age.
        self.ages.unjudged.clear();
        changes
    }
}
