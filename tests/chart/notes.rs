//! What Helm prints after an installation can be pasted into a terminal.

use leadsman_core::podprobe::{Compatibility, Marker};
use serde_json::Value;

use crate::render::root;

/// A shell ends a here-document only at a line that is the word alone, without blanks before it.
#[test]
fn the_marker_of_the_notes_is_one_that_a_shell_reads_and_leadsman_accepts() {
    let notes = root().join("charts/leadsman/templates/NOTES.txt");
    let notes = std::fs::read_to_string(notes).unwrap();
    let (_, document) = notes.split_once("kubectl apply -f - <<MARKER\n").unwrap();
    let document = document.split_once("\nMARKER\n");
    let (marker, _) = document.expect("the here-document has no end");
    let marker: Value = serde_norway::from_str(marker).unwrap();
    assert_eq!(marker["kind"], "PodProbeMarker");
    let marker = serde_json::from_value(marker).unwrap();
    Marker::parse(&marker, Compatibility::Kubernetes).unwrap();
}
