//! Selectors of a set, which must select something where they are given.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cluster::{FieldErrors, Selector};

/// Reads a selector that must select something.
pub(super) fn read_required(
    wire: Option<&LabelSelector>,
    report: &mut FieldErrors<'_>,
) -> Selector {
    let selector = wire
        .map(|wire| Selector::read(wire, report))
        .unwrap_or_default();
    if selector.is_empty() {
        report.add("must not be empty: name a label in matchLabels or matchExpressions");
    }
    selector
}

/// Reads a selector that may be absent.
pub(super) fn read_optional(
    wire: Option<&LabelSelector>,
    report: &mut FieldErrors<'_>,
) -> Option<Selector> {
    wire.map(|wire| read_required(Some(wire), report))
}
