//! The two annotations by which a pod on a virtual node names its probes, and what stands for their values.

use std::num::NonZeroU64;

use super::contest::fingerprint;

/// The annotation with the probes: a JSON array of `name`, `containerName`, `probe` and `podConditionType`.
pub const PROBES: &str = "kruise.io/podprobe";
/// The annotation with the names of the markers that they are from, in order, separated by commas.
pub const MARKERS: &str = "kruise.io/podprobemarker-list";

/// Stands for the values of [`PROBES`] and [`MARKERS`]; none where neither is there. A pod keeps it in place of the values, which
/// anybody who makes pods may make long.
pub(super) fn fingerprint_of(probes: Option<&str>, markers: Option<&str>) -> Option<NonZeroU64> {
    let is_there = probes.is_some() || markers.is_some();
    is_there.then(|| NonZeroU64::new(fingerprint((probes, markers))).unwrap_or(NonZeroU64::MAX))
}
