//! Revisions that `OpenKruise` has computed, byte for byte.

use serde::Deserialize;
use serde_json::Value;

use super::super::template::RevisionData;
use crate::workload::revision::{revision_hash, revision_name};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recorded {
    id: String,
    clone_set: String,
    collision_count: i32,
    stored_template: Value,
    data: String,
    hash: String,
    revision_name: String,
}

// CLS-6, CLS-7
#[test]
fn data_and_names_are_those_that_openkruise_has_recorded() {
    let text = include_str!("../../../tests/fixtures/cloneset-revisions.jsonl");
    let recorded: Vec<Recorded> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(recorded.len(), 13);
    for one in recorded {
        let data = RevisionData::of(one.stored_template.as_object().unwrap());
        assert_eq!(*data.0, *one.data, "{}", one.id);
        let hash = revision_hash(&data.0, one.collision_count);
        assert_eq!(hash, one.hash, "{}", one.id);
        assert_eq!(revision_name(&one.clone_set, &hash), one.revision_name);
        // What is stored reads as what was computed.
        let stored: Value = serde_json::from_str(&one.data).unwrap();
        assert_eq!(RevisionData::read(&stored), data, "{}", one.id);
        // Whoever goes back to it has the same revision.
        assert_eq!(RevisionData::of(&data.template()), data, "{}", one.id);
    }
}
