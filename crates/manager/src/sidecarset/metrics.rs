//! The metrics of sets: what they say, added up. No label is the name of a set or a pod.

use std::array;

use leadsman_core::sidecarset::reconcile::{REASONS, SetSums, SetTotals};
use leadsman_process::Metrics;
use leadsman_process::metrics::Labels;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Gauges by one label.
type SetGauges = Family<Labels<1>, Gauge>;

/// The metrics of all sets.
pub(super) struct SetMetrics {
    sets: [Gauge; REASONS.len()],
    /// The pods, by the states of [`STATES`].
    pods: [Gauge; STATES.len()],
}

/// The number of pods that are in a state.
type PodsInState = fn(&SetSums) -> usize;

/// The states by which pods are counted, and their sums.
const STATES: [(&str, PodsInState); 8] = [
    ("matched", |sums| sums.counts.matched),
    ("updated", |sums| sums.counts.updated),
    ("ready", |sums| sums.counts.ready),
    ("updated_ready", |sums| sums.counts.updated_ready),
    ("not_upgradable", |sums| sums.not_upgradable),
    ("refused", |sums| sums.refused),
    ("former", |sums| sums.former),
    ("not_injected", |sums| sums.lacking),
];

impl SetMetrics {
    /// Registers them.
    pub(super) fn new(registry: &Metrics) -> Self {
        let (sets, pods): (SetGauges, SetGauges) = Default::default();
        let metrics = Self {
            sets: array::from_fn(|place| sets.get_or_create_owned(&[("reason", REASONS[place])])),
            pods: STATES.map(|(state, _)| pods.get_or_create_owned(&[("state", state)])),
        };
        registry.register(|registry| {
            registry.register(
                "sidecarsets",
                "SidecarSets by the reason of their condition Ready, which is InForce if nothing is wrong",
                sets,
            );
            registry.register(
                "sidecarset_pods",
                "Pods of SidecarSets by their state, counted once for each set; not_injected are those that a set selects and \
                 that lack it",
                pods,
            );
        });
        metrics
    }

    /// Shows the totals.
    pub(super) fn publish_totals(&self, totals: &SetTotals) {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        for (gauge, count) in self.sets.iter().zip(totals.sets) {
            gauge.set(number(count));
        }
        for (gauge, (_, sum)) in self.pods.iter().zip(STATES) {
            gauge.set(number(sum(&totals.pods)));
        }
    }
}
