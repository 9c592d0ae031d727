//! How calls of the webhook are told apart by the namespaces that their sets select.

use super::set::Namespaces;
use crate::cluster::{Operator, Selector, cel};
use crate::workload::hash::fnv1_32;

/// The `namespaceSelector` of a set as text, if it has one.
pub(super) fn selector_text(namespaces: &Namespaces) -> Option<String> {
    match namespaces {
        Namespaces::Selected(selector) => Some(cel::labels_match(requirements(selector))),
        Namespaces::All | Namespaces::Named(_) => None,
    }
}

/// The tag of a selector of namespaces, in the path of a call: nothing else tells a review by which selector the API server has
/// selected the pod's. The tag is a hash of the text, so that every replica comes to the same, and short, since paths are to be
/// few: those of selectors that differ are alike once in 65,536.
pub(super) fn namespaces_tag(namespaces: &Namespaces) -> Option<u16> {
    let hash = fnv1_32(selector_text(namespaces)?.into_bytes());
    u16::try_from((hash >> 16) ^ (hash & 0xffff)).ok()
}

/// The requirements of a selector, as CEL conditions are made of them.
pub(super) fn requirements(selector: &Selector) -> impl Iterator<Item = (&str, &Operator)> {
    selector
        .requirements()
        .map(|(key, operator)| (&**key, operator))
}
