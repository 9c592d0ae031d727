//! What annotations of a pod record about its sets: whoever may edit the pod writes them. What is read of an entry where it
//! stands is what is read of the whole, and what is written is read as the same. Of two lines the second one is a set's patch.
#![no_main]

use std::collections::BTreeSet;

use jiff::Timestamp;
use leadsman_core::podprobe::exclusive::Records;
use leadsman_core::sidecarset::annotations::{
    HashEntries, HashEntry, InPlaceState, InPlaceStates, injected_sets, missing_variables,
    working_containers, write_injected_sets, write_working_containers,
};
use leadsman_core::sidecarset::metadata::merge;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Whether a number has a point. Where it is written again its last digit may differ (serde_json without `float_roundtrip`),
/// and no annotation of a set has any.
fn has_point(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_point),
        Value::Object(fields) => fields.values().any(has_point),
        _ => false,
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    if serde_json::from_str(text).is_ok_and(|value| has_point(&value)) {
        return;
    }
    let read = |text: &str| HashEntries::from_annotation(text, Timestamp::UNIX_EPOCH);
    let entries = read(text);
    for set in entries.sets() {
        assert_eq!(HashEntry::of_set(text, set), entries.entry_of(set));
        assert!(missing_variables(text, set).len() <= text.len());
        let state = InPlaceState::of_set(Some(text), set);
        let _ = (state.injected(), state.was_unready(), state.former(set));
    }
    let written = entries.write();
    assert_eq!(read(&written).write(), written);
    if let Some(states) = InPlaceStates::read(text) {
        let written = states.write();
        let again = InPlaceStates::read(&written).map(|states| states.write());
        assert_eq!(again, Some(written));
    }
    let working = working_containers(text);
    assert_eq!(
        working_containers(&write_working_containers(&working)),
        working
    );
    let list = write_injected_sets(injected_sets(text));
    let sets = |text| {
        injected_sets(text)
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(sets(&list), sets(text));
    if let Some((present, patch)) = text.split_once('\n')
        && let Ok(merged) = merge(present, patch)
    {
        assert!(serde_json::from_str::<IgnoredAny>(&merged).is_ok());
        // A character may become an escape of six, and half of a pair three bytes.
        assert!(merged.len() <= 6 * text.len());
    }
    if let Ok(records) = serde_json::from_str::<Records>(text) {
        let written = serde_json::to_string(&records).expect("records are written");
        assert_eq!(
            serde_json::from_str::<Records>(&written).ok(),
            Some(records)
        );
    }
});
