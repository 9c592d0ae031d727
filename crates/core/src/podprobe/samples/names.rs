//! Names and values, each in every place that holds one.

use leadsman_api::limits;
use serde_json::json;

use super::{
    ANNOTATIONS, CONDITION, CONTAINER, LABELS, SELECTOR, Table, long_domain, map_of_one,
    pointer_to_path,
};

pub(super) fn qualified_names(table: &mut Table) {
    let longest = "a".repeat(limits::LABEL);
    let good = [
        "a".to_owned(),
        "A1".to_owned(),
        "1".to_owned(),
        "a.b_c-d".to_owned(),
        "a--b".to_owned(),
        "example.com/A_b".to_owned(),
        "e-x.1.com/a".to_owned(),
        // Kubernetes bounds the length of a domain, not of its parts (`IsDNS1123Subdomain`).
        format!("{longest}a.com/{longest}"),
        format!("{}/{longest}", long_domain(limits::SUBDOMAIN)),
    ];
    let bad = [
        "-a".to_owned(),
        "a-".to_owned(),
        "_a".to_owned(),
        "a b".to_owned(),
        "a\n".to_owned(),
        "é".to_owned(),
        "/a".to_owned(),
        "a/".to_owned(),
        "a/b/c".to_owned(),
        "a..b/c".to_owned(),
        "a./c".to_owned(),
        "-a/c".to_owned(),
        "a_b/c".to_owned(),
        format!("{longest}a"),
        format!("{}/a", long_domain(limits::SUBDOMAIN + 1)),
    ];
    let expression = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
    for (name, ok) in good
        .iter()
        .map(|n| (n, true))
        .chain(bad.iter().map(|n| (n, false)))
    {
        let places = [
            (
                "label",
                LABELS,
                map_of_one(name, "x"),
                pointer_to_path(LABELS),
            ),
            (
                "annotation",
                ANNOTATIONS,
                map_of_one(name, "x"),
                pointer_to_path(ANNOTATIONS),
            ),
            (
                "condition type",
                CONDITION,
                json!(name),
                pointer_to_path(CONDITION),
            ),
            (
                "matchLabels",
                SELECTOR,
                json!({"matchLabels": map_of_one(name, "x")}),
                "spec.selector.matchLabels".to_owned(),
            ),
            (
                "matchExpressions",
                SELECTOR,
                expression(name),
                "spec.selector.matchExpressions[0].key".to_owned(),
            ),
        ];
        for (place, pointer, value, path) in places {
            let title = format!("{place} {name:?}");
            if ok {
                table.add_accepted(title, &[(pointer, value)]);
            } else {
                table.add_refused(title, &[(pointer, value)], path);
            }
        }
    }
    table.add_refused(
        "label with an upper-case domain",
        &[(LABELS, map_of_one("Example.com/a", "x"))],
        pointer_to_path(LABELS),
    );
    table.add_accepted(
        "annotation with an upper-case domain",
        &[(ANNOTATIONS, map_of_one("Example.com/a", "x"))],
    );
    table.add_refused(
        "label \"\"",
        &[(LABELS, map_of_one("", "x"))],
        pointer_to_path(LABELS),
    );
    table.add_refused(
        "annotation \"\"",
        &[(ANNOTATIONS, map_of_one("", "x"))],
        pointer_to_path(ANNOTATIONS),
    );
}

pub(super) fn add_values(table: &mut Table) {
    let longest = "a".repeat(limits::LABEL);
    let too_long = format!("{longest}a");
    let values = [
        ("", true),
        ("a", true),
        ("A.b_c-1", true),
        (longest.as_str(), true),
        (too_long.as_str(), false),
        ("-a", false),
        ("a-", false),
        ("a b", false),
        ("a/b", false),
        ("é", false),
        ("a\n", false),
    ];
    for (value, ok) in values {
        let expression = json!({"key": "k", "operator": "NotIn", "values": [value]});
        let places = [
            (
                "label",
                LABELS,
                map_of_one("k", value),
                format!("{}[k]", pointer_to_path(LABELS)),
            ),
            (
                "matchLabels",
                SELECTOR,
                json!({"matchLabels": map_of_one("k", value)}),
                "spec.selector.matchLabels[k]".to_owned(),
            ),
            (
                "matchExpressions",
                SELECTOR,
                json!({"matchExpressions": [expression]}),
                "spec.selector.matchExpressions[0].values[0]".to_owned(),
            ),
        ];
        for (place, pointer, changed, path) in places {
            let title = format!("{place} with value {value:?}");
            if ok {
                table.add_accepted(title, &[(pointer, changed)]);
            } else {
                table.add_refused(title, &[(pointer, changed)], path);
            }
        }
    }
    table.add_accepted(
        "annotation of any value",
        &[(ANNOTATIONS, map_of_one("k", "a b\n/é"))],
    );
    // Counted in characters.
    let most = "é".repeat(limits::ANNOTATION_VALUE);
    table.add_accepted(
        "longest annotation",
        &[(ANNOTATIONS, map_of_one("k", &most))],
    );
    table.add_refused(
        "too long an annotation",
        &[(ANNOTATIONS, map_of_one("k", &format!("{most}x")))],
        format!("{}[k]", pointer_to_path(ANNOTATIONS)),
    );
    // Most of these are no names of containers in Kubernetes; the marker's status reports that no container is found.
    for good in ["a", "0", "a--1", "A", "-a", "a_b", "é", longest.as_str()] {
        table.add_accepted(format!("container {good:?}"), &[(CONTAINER, json!(good))]);
    }
    for bad in ["", too_long.as_str()] {
        table.add_refused(
            format!("container {bad:?}"),
            &[(CONTAINER, json!(bad))],
            pointer_to_path(CONTAINER),
        );
    }
}

pub(super) fn add_reserved(table: &mut Table) {
    for &condition in limits::RESERVED_CONDITION_TYPES {
        table.add_refused(
            format!("condition {condition}"),
            &[(CONDITION, json!(condition))],
            pointer_to_path(CONDITION),
        );
    }
    for open in ["ready", "example.com/Ready", "kubernetes.io/ready"] {
        table.add_accepted(format!("condition {open}"), &[(CONDITION, json!(open))]);
    }
    for (pointer, what) in [(LABELS, "label"), (ANNOTATIONS, "annotation")] {
        for key in reserved_keys() {
            table.add_refused(
                format!("reserved {what} {key}"),
                &[(pointer, map_of_one(&key, "x"))],
                pointer_to_path(pointer),
            );
        }
        for key in OPEN_KEYS {
            table.add_accepted(
                format!("open {what} {key}"),
                &[(pointer, map_of_one(key, "x"))],
            );
        }
    }
}

/// Every reserved key, and one below every reserved prefix.
pub(super) fn reserved_keys() -> Vec<String> {
    let prefixes = limits::RESERVED_PREFIXES.iter();
    let below = prefixes.map(|prefix| format!("{prefix}x"));
    let keys = limits::RESERVED_KEYS.iter().map(|&key| key.to_owned());
    keys.chain(below).collect()
}

/// Keys that no list reserves, and that OpenKruise accepts.
pub(super) const OPEN_KEYS: &[&str] = &[
    "controller.kubernetes.io/pod-deletion-cost",
    "controller.kubernetes.io/ingress",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "app.kubernetes.io/component",
    "my-pod-template-hash",
    "example.com/pod-template-hash",
    "kubernetes.io",
    "kubernetes.io/a",
    "kubernetes.io/configs",
    "k8s.io/a",
    "a.b.k8s.io/c",
    "node.kubernetes.io/name",
    "sub.apps.kubernetes.io/name",
    "notkubernetes.io/a",
    "kubernetes.io.example.com/a",
    "apps.kruise.io/a",
    "apps.kruise.io/specified-delete",
    "game.kruise.io/idle",
];
