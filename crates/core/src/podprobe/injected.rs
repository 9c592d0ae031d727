//! The two annotations that pass a pod's probes to the provider of a virtual node, and a fingerprint of their values.

use std::num::NonZeroU64;

use super::contest::fingerprint;

/// The annotation with the probes: a JSON array of `name`, `containerName`, `probe` and `podConditionType`.
pub const PROBES: &str = "kruise.io/podprobe";
/// The annotation with the names of the probes' markers, sorted and separated by commas.
pub const MARKERS: &str = "kruise.io/podprobemarker-list";

/// Fingerprint of the values of [`PROBES`] and [`MARKERS`]; None without either. The index keeps it in place of the values,
/// since whoever creates a pod may make those long.
pub(super) fn fingerprint_of(probes: Option<&str>, markers: Option<&str>) -> Option<NonZeroU64> {
    let is_there = probes.is_some() || markers.is_some();
    is_there.then(|| NonZeroU64::new(fingerprint((probes, markers))).unwrap_or(NonZeroU64::MAX))
}
