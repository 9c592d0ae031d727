//! An entry of managedFields, read without a tree of values: it owns what a walk of such a tree finds.
#![no_main]

use std::collections::BTreeSet;

use leadsman_api::slim::FieldOwner;
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (Ok(owner), Ok(tree)) = (
        serde_json::from_str::<FieldOwner>(text),
        serde_json::from_str::<Value>(text),
    ) else {
        return;
    };
    let fields = &tree["fieldsV1"];
    for (owned, fields) in [
        (&owner.owned.labels, &fields["f:metadata"]["f:labels"]),
        (
            &owner.owned.annotations,
            &fields["f:metadata"]["f:annotations"],
        ),
    ] {
        let keys = fields
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys());
        let found = keys.filter_map(|key| key.strip_prefix("f:"));
        let owned: BTreeSet<_> = owned.iter().map(String::as_str).collect();
        // Of a field that is there twice, a tree has the last alone.
        assert!(owned.is_superset(&found.collect()), "{owned:?}");
    }
    let bytes = [
        owner.owned.labels,
        owner.owned.annotations,
        owner.owned.conditions,
    ];
    assert!(bytes.iter().flatten().map(String::len).sum::<usize>() <= text.len());
});
