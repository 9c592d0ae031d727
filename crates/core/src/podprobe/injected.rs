//! The two annotations that pass a pod's probes to the provider of a virtual node: a fingerprint of their values, and how
//! long these may be.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZeroU64;

use leadsman_api::limits::ANNOTATIONS_BYTES;

/// The annotation with the probes: a JSON array of `name`, `containerName`, `probe` and `podConditionType`.
pub const PROBES: &str = "kruise.io/podprobe";
/// The annotation with the names of the probes' markers, sorted and separated by commas.
pub const MARKERS: &str = "kruise.io/podprobemarker-list";

/// Maximum size of both values together: half of what all annotations of a pod may have is left to others.
pub const INJECTED_BYTES: usize = ANNOTATIONS_BYTES / 2;

/// The bytes of a pod's annotations that both values leave free, when the pod gets them first, for those that come
/// later: marks, and the annotations of other webhooks and of whoever edits the pod. A pod that has them keeps them while
/// they fit at all: what came later is what this was left free for. The API server refuses a pod with more, whoever adds the
/// last byte, and a pod must not be refused because of probes.
pub const FREE_BYTES: usize = 32 * 1024;
const _: () = assert!(
    INJECTED_BYTES + FREE_BYTES + PROBES.len() + MARKERS.len() < ANNOTATIONS_BYTES,
    "a pod without other annotations has room for all that the two may have"
);

/// Fingerprint of the values of [`PROBES`] and [`MARKERS`]; None without either. The index keeps it in place of the values,
/// since whoever creates a pod may make those long.
pub(super) fn fingerprint_of(probes: Option<&str>, markers: Option<&str>) -> Option<NonZeroU64> {
    let is_there = probes.is_some() || markers.is_some();
    // A hash of 0 counts as another one: in place of 0 the option is kept, so it takes no more than
    // the number.
    is_there.then(|| {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        NonZeroU64::new(hasher.hash_one((probes, markers))).unwrap_or(NonZeroU64::MAX)
    })
}

/// The moment at which the annotations of a pod are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The pod is being created: whatever it has was copied.
    Creation,
    /// The pod exists.
    Existence,
}

/// The bytes that both values may have beside a pod's other annotations. Those that `is_ours` take no room: a mark that did
/// would remove the probe that it follows from, and so itself.
///
/// The room is the same for all pods whose annotations leave enough, so that few changes of an annotation change it.
pub(super) fn annotation_room_in(
    annotations: &[(String, String)],
    moment: Moment,
    is_ours: impl Fn(&str) -> bool,
) -> usize {
    let has_them = annotations.iter().any(|(key, _)| key == MARKERS);
    let free = match moment {
        Moment::Existence if has_them => 0,
        Moment::Creation | Moment::Existence => FREE_BYTES,
    };
    let others = annotations.iter().filter(|(key, _)| {
        let key = key.as_str();
        key != PROBES && key != MARKERS && !is_ours(key)
    });
    let taken: usize = others.map(|(key, value)| key.len() + value.len()).sum();
    let keys = PROBES.len() + MARKERS.len();
    ANNOTATIONS_BYTES
        .saturating_sub(free + keys + taken)
        .min(INJECTED_BYTES)
}
