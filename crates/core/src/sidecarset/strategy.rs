//! How pods are upgraded, parsed: which of them, how many at once, and in which order.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leadsman_api::limits;
use leadsman_api::sidecar_set::UpdateStrategy as UpdateStrategyWire;

use super::selectors::read_optional;
use crate::cluster::{FieldErrors, Selector, names};
use crate::workload::amount::Amount;
use crate::workload::pod::ObservedPod;
use crate::workload::priority::Priority;
use crate::workload::scatter::{LabelPair, ScatterLabel, scattered_labels};

/// How pods are upgraded.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutStrategy {
    /// Whether pods are upgraded.
    pub mode: UpdateMode,
    /// The pods that are; all if None.
    pub selector: Option<Selector>,
    /// How many pods stay as they are.
    pub partition: Amount,
    /// How many pods may be unavailable.
    pub max_unavailable: Amount,
    /// The pods that come first.
    pub priority: Priority,
    /// The labels by which pods are spread.
    pub scatter: Vec<ScatterLabel>,
    /// How long an upgraded pod has to be ready before another takes its place; it stands in an annotation.
    pub min_ready: Duration,
}

/// Whether pods are upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateMode {
    /// Pods are upgraded.
    Rolling,
    /// No further pod is; what was begun is finished.
    Paused,
    /// Never.
    NotUpdate,
}

impl RolloutStrategy {
    /// Reads a strategy.
    pub fn read(wire: &UpdateStrategyWire, report: &mut FieldErrors<'_>) -> Self {
        let mode = match wire.type_.as_deref().unwrap_or_default() {
            "" | "RollingUpdate" if wire.paused => UpdateMode::Paused,
            "" | "RollingUpdate" => UpdateMode::Rolling,
            "NotUpdate" => UpdateMode::NotUpdate,
            other => {
                let message = format!("{other:?} is not one of RollingUpdate, NotUpdate");
                // An unknown type upgrades nothing.
                report.field("type").add(message);
                UpdateMode::NotUpdate
            }
        };
        let selector = read_optional(wire.selector.as_ref(), &mut report.field("selector"));
        let given = wire.partition.as_ref();
        let partition = read_amount(given, Amount::Number(0), &mut report.field("partition"));
        if selector.is_some() && !partition.is_zero() {
            report.field("partition").add(
                "cannot be set beside selector: the pods that are upgraded follow from one of the two",
            );
        }
        Self {
            mode,
            selector,
            partition,
            max_unavailable: read_max_unavailable(wire, &mut report.field("maxUnavailable")),
            priority: Priority::read(
                wire.priority_strategy.as_ref(),
                &mut report.field("priorityStrategy"),
            ),
            scatter: read_scatter(wire, &mut report.field("scatterStrategy")),
            min_ready: Duration::ZERO,
        }
    }

    /// The labels by which a pod is scattered.
    pub fn scattered_labels(&self, pod: &ObservedPod) -> Box<[LabelPair]> {
        scattered_labels(&self.scatter, |key| pod.labels.get(key))
    }
}

fn read_amount(
    wire: Option<&IntOrString>,
    default: Amount,
    report: &mut FieldErrors<'_>,
) -> Amount {
    let read = wire.map(|wire| report.check(Amount::read(wire)));
    read.flatten().unwrap_or(default)
}

fn read_max_unavailable(wire: &UpdateStrategyWire, report: &mut FieldErrors<'_>) -> Amount {
    let wire = wire.max_unavailable.as_ref();
    // 1 is the default of `OpenKruise` (`setSidecarSetUpdateStrategy`,
    // `apis/apps/defaults/v1alpha1.go`).
    let amount = read_amount(wire, Amount::Number(1), report);
    if amount.is_zero() {
        report.add("must not be 0, which stops the roll-out: set paused for that");
    }
    if matches!(amount, Amount::Percent(percent) if percent > 100) {
        report.add("must not be above 100%");
    }
    amount
}

fn read_scatter(wire: &UpdateStrategyWire, report: &mut FieldErrors<'_>) -> Vec<ScatterLabel> {
    let mut unique = BTreeSet::new();
    let mut terms = Vec::new();
    report.at_most(wire.scatter_strategy.len(), limits::TERMS, "terms");
    for (index, term) in wire.scatter_strategy.iter().enumerate() {
        let mut at = report.index(index);
        at.field("key").check(names::qualified_name(&term.key));
        if !unique.insert((&term.key, &term.value)) {
            at.add(format!("{}={} is listed twice", term.key, term.value));
        }
        terms.push(ScatterLabel {
            key: term.key.as_str().into(),
            value: (term.value != "*").then(|| term.value.as_str().into()),
        });
    }
    terms
}
