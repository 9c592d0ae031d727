//! The recorded cases, and what is wrong with a patch or a whitelist.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::cluster::Invalid;

const RECORDED: &str =
    include_str!("../../../tests/fixtures/sidecarset/09-patch-pod-metadata.yaml");

fn documents() -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(RECORDED);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn strings(value: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(value.clone()).unwrap()
}

fn patch(policy: &str, annotations: &Value) -> (MetadataPatch, Vec<Invalid>) {
    let wire = serde_json::from_value(json!([{"patchPolicy": policy, "annotations": annotations}]));
    let wire: Vec<PatchPodMetadata> = wire.unwrap();
    let mut errors = Vec::new();
    let mut patches = MetadataPatch::read_all(&wire, &mut FieldErrors::new(&mut errors, "p"));
    (patches.remove(0), errors)
}

// SCS-42, SDF-1
#[test]
fn annotations_are_patched_as_recorded_and_where_openkruise_refuses_the_pod_they_stay() {
    let cases = documents().remove(0);
    for case in cases["cases"].as_array().unwrap() {
        let policy = case["policy"].as_str().unwrap();
        let policy = policy.strip_prefix("absent ").map_or(policy, |_| "");
        let (patch, _) = patch(policy, &case["patch"]);
        let before = strings(&case["before"]);
        let mut annotations = before.clone();
        let failures = patch.apply(&mut annotations, usize::MAX);
        if case.get("denied").is_some() {
            assert_eq!((annotations, failures.len()), (before, 1), "{case}");
        } else {
            assert_eq!(annotations, strings(&case["after"]), "{case}");
            assert!(failures.is_empty(), "{case}");
        }
    }
}

// SCS-43
#[test]
fn patches_are_applied_again_with_an_image_as_recorded() {
    let recorded = documents().remove(3);
    let states = recorded["inPlace"].as_array().unwrap();
    let mut annotations = strings(&states[1]["annotations"]);
    for (policy, wanted) in [
        ("Retain", json!({"r": "r2", "new": "n"})),
        ("Overwrite", json!({"o": "o2"})),
        ("MergePatchJson", json!({"m": "{\"b\":2}"})),
    ] {
        assert!(
            patch(policy, &wanted)
                .0
                .apply(&mut annotations, usize::MAX)
                .is_empty()
        );
    }
    assert_eq!(annotations, strings(&states[2]["annotations"]));
}

// SCS-74, SDF-20, SDF-24
#[test]
fn a_patch_that_could_not_be_applied_is_refused() {
    let errors = |policy: &str, annotations: Value| patch(policy, &annotations).1.len();
    assert_eq!(errors("Retain", json!({"a": "not json"})), 0);
    assert_eq!(
        errors("MergePatchJson", json!({"a": "{\"b\":null}", "b": "[1]"})),
        0
    );
    for text in ["not json", "null", "5", "\"x\"", "{", ""] {
        assert_eq!(errors("MergePatchJson", json!({"a": text})), 1, "{text}");
    }
    assert_eq!(errors("Merge", json!({"a": "x"})), 1);
    assert_eq!(errors("Retain", json!({})), 1);
    assert_eq!(errors("Retain", json!({"/": "x"})), 1);
}

// SCS-42
#[test]
fn what_cannot_be_merged_is_quoted_with_what_to_do() {
    let said = |value: &str, patched: &str| {
        let (patch, errors) = patch("MergePatchJson", &json!({"log": patched}));
        let mut annotations = BTreeMap::from([("log".to_owned(), value.to_owned())]);
        let failures = patch.apply(&mut annotations, usize::MAX);
        let errors = errors.iter().map(ToString::to_string);
        let said: Vec<_> = errors
            .chain(failures.iter().map(ToString::to_string))
            .collect();
        assert_eq!(annotations["log"], value, "it stays");
        said.join("\n")
    };
    assert_eq!(
        said("level=info", "{}"),
        "leaves annotation \"log\" of the pod as it is: MergePatchJson cannot merge into its value \"level=info\", which is \
         null or no JSON; make the value a JSON object where the pod is created, or use patchPolicy Overwrite"
    );
    let long = "x".repeat(1_000);
    assert!(said(&long, "{}").len() < 300, "a long value is cut");
    let refused = said("{}", "level=info");
    let expected = "\"level=info\" is no JSON object or array, as MergePatchJson needs; an example is '{\"level\": \"info\"}'";
    assert!(
        refused.lines().next().unwrap().ends_with(expected),
        "{refused}"
    );
}

/// JSON can write half of a surrogate pair, and no text has one.
// SCS-42
#[test]
fn a_key_that_is_no_text_is_read_as_go_reads_it_and_what_stands_beside_it_is_kept() {
    for (present, patch, merged) in [
        (
            r#"{"\ud800":1,"keep":2}"#,
            r#"{"a":1}"#,
            r#"{"a":1,"keep":2,"?":1}"#,
        ),
        (
            r#"{"n":{"\udc00x":1}}"#,
            r#"{"n":{"a":1}}"#,
            r#"{"n":{"a":1,"?x":1}}"#,
        ),
        (
            r#"{"keep":2}"#,
            r#"{"\ud800\ud801":1}"#,
            r#"{"keep":2,"??":1}"#,
        ),
        (
            r#"{"keep":2}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"a":"\ud800","keep":2}"#,
        ),
    ] {
        let merged = merged.replace('?', "\u{fffd}");
        assert_eq!(merge(present, patch), Ok(merged), "{present} {patch}");
    }
    let pair = r#"{"\ud83d\ude00":1}"#;
    assert_eq!(merge(pair, "{}"), Ok("{\"\u{1f600}\":1}".to_owned()));
}

// SCS-74
#[test]
fn a_key_stands_in_one_patch_of_a_set_only() {
    let wire = json!([{"annotations": {"a": "1", "b": "1"}}, {"annotations": {"a": "2"}}]);
    let wire: Vec<PatchPodMetadata> = serde_json::from_value(wire).unwrap();
    let mut errors = Vec::new();
    MetadataPatch::read_all(
        &wire,
        &mut FieldErrors::new(&mut errors, "patchPodMetadata"),
    );
    let messages: Vec<_> = errors.iter().map(Invalid::to_string).collect();
    let message = "patchPodMetadata[1].annotations: \"a\" stands in another entry too";
    assert_eq!(messages, [message]);
}

#[test]
fn deep_nesting_is_refused_before_it_fills_the_stack() {
    let deep = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    assert_eq!(merge(&deep(60), &deep(60)), Ok(deep(60)));
    assert_eq!(merge("{}", &deep(10_000)), Err(MergeError::Nesting));
    // What the patch does not touch is copied.
    let untouched = format!("{{\"x\":{}}}", deep(100));
    assert_eq!(
        merge(&untouched, "{\"y\":1}").unwrap().len(),
        untouched.len() + 6
    );
}

fn allowed(list: &Whitelist, labels: &[(&str, &str)], key: &str) -> bool {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    list.allowed_keys(|key| labels.get(key).copied(), false)
        .contains(key)
}

// SCS-44
#[test]
fn the_whitelist_answers_as_recorded() {
    let recorded = documents();
    let text = recorded[1]["data"]["SidecarSet_PatchPodMetadata_WhiteList"]
        .as_str()
        .unwrap();
    let (list, errors) = Whitelist::read(text);
    assert!(errors.is_empty(), "{errors:?}");
    for case in recorded[2]["whitelist"].as_array().unwrap() {
        let label = case["setLabels"]["sidecar"].as_str().unwrap();
        // The gate `SidecarSetPatchPodMetadataDefaultsAllowed` was on.
        let labels = |key: &str| (key == "sidecar").then_some(label);
        let keys = list.allowed_keys(labels, true);
        let is_allowed = keys.contains(case["key"].as_str().unwrap());
        assert_eq!(is_allowed, case["answer"] == "accepted", "{case}");
    }
}

// SCS-45
#[test]
fn without_a_rule_that_applies_the_gate_decides() {
    let rules = json!({"rules": [{"selector": {"matchLabels": {"a": "b"}}, "allowedAnnotationKeyExprs": ["^x$"]}]});
    let (list, _) = Whitelist::read(&rules.to_string());
    for (list, labels) in [(&list, None), (&Whitelist::default(), Some("b"))] {
        let label = |key: &str| labels.filter(|_| key == "a");
        assert!(list.allowed_keys(label, true).contains("x"));
        assert!(!list.allowed_keys(label, false).contains("x"));
    }
    // Where one applies, the gate does not help.
    assert!(!list.allowed_keys(|_| Some("b"), true).contains("y"));
    assert!(allowed(&list, &[("a", "b")], "x"));
}

// SDF-17
#[test]
fn a_misspelt_rule_allows_nothing_and_is_reported() {
    for (rule, path) in [
        (
            json!({"selectors": {}, "allowedAnnotationKeyExprs": ["."]}),
            "rules[0]",
        ),
        (json!({"allowedAnnotationKeyExpr": ["."]}), "rules[0]"),
        (
            json!({"allowedAnnotationKeyExprs": ["("]}),
            "rules[0].allowedAnnotationKeyExprs[0]",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}, "allowedAnnotationKeyExprs": ["."]}),
            "rules[0].selector",
        ),
    ] {
        let (list, errors) = Whitelist::read(&json!({"rules": [rule.clone()]}).to_string());
        assert!(!allowed(&list, &[], "x"), "{rule}");
        assert_eq!(errors.len(), 1, "{rule}");
        assert_eq!(errors[0].path, path, "{rule}");
    }
    for (text, count) in [
        ("no json", 1),
        ("{\"rules\":{}}", 1),
        ("{\"rule\":[]}", 1),
        ("{}", 0),
    ] {
        assert_eq!(Whitelist::read(text).1.len(), count, "{text}");
    }
}
