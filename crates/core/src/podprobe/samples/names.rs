//! Names and values, each in every place that holds one.

use leadsman_api::limits;
use serde_json::json;

use super::{ANNOTATIONS, CONDITION, CONTAINER, LABELS, SELECTOR, Table, long_domain, one, path};

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
            ("label", LABELS, one(name, "x"), path(LABELS)),
            ("annotation", ANNOTATIONS, one(name, "x"), path(ANNOTATIONS)),
            ("condition type", CONDITION, json!(name), path(CONDITION)),
            (
                "matchLabels",
                SELECTOR,
                json!({"matchLabels": one(name, "x")}),
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
                table.accept(title, &[(pointer, value)]);
            } else {
                table.refuse(title, &[(pointer, value)], path);
            }
        }
    }
    table.refuse(
        "label with an upper-case domain",
        &[(LABELS, one("Example.com/a", "x"))],
        path(LABELS),
    );
    table.accept(
        "annotation with an upper-case domain",
        &[(ANNOTATIONS, one("Example.com/a", "x"))],
    );
    table.refuse("label \"\"", &[(LABELS, one("", "x"))], path(LABELS));
    table.refuse(
        "annotation \"\"",
        &[(ANNOTATIONS, one("", "x"))],
        path(ANNOTATIONS),
    );
}

pub(super) fn values(table: &mut Table) {
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
                one("k", value),
                format!("{}[k]", path(LABELS)),
            ),
            (
                "matchLabels",
                SELECTOR,
                json!({"matchLabels": one("k", value)}),
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
                table.accept(title, &[(pointer, changed)]);
            } else {
                table.refuse(title, &[(pointer, changed)], path);
            }
        }
    }
    table.accept(
        "annotation of any value",
        &[(ANNOTATIONS, one("k", "a b\n/é"))],
    );
    // Counted in characters.
    let most = "é".repeat(limits::ANNOTATION_VALUE);
    table.accept("longest annotation", &[(ANNOTATIONS, one("k", &most))]);
    table.refuse(
        "too long an annotation",
        &[(ANNOTATIONS, one("k", &format!("{most}x")))],
        format!("{}[k]", path(ANNOTATIONS)),
    );
    // Most of these are no names of containers in Kubernetes; the marker's status reports that no container is found.
    for good in ["a", "0", "a--1", "A", "-a", "a_b", "é", longest.as_str()] {
        table.accept(format!("container {good:?}"), &[(CONTAINER, json!(good))]);
    }
    for bad in ["", too_long.as_str()] {
        table.refuse(
            format!("container {bad:?}"),
            &[(CONTAINER, json!(bad))],
            path(CONTAINER),
        );
    }
}

pub(super) fn reserved(table: &mut Table) {
    for &condition in limits::RESERVED_CONDITION_TYPES {
        table.refuse(
            format!("condition {condition}"),
            &[(CONDITION, json!(condition))],
            path(CONDITION),
        );
    }
    for open in ["ready", "example.com/Ready", "kubernetes.io/ready"] {
        table.accept(format!("condition {open}"), &[(CONDITION, json!(open))]);
    }
    for (pointer, what) in [(LABELS, "label"), (ANNOTATIONS, "annotation")] {
        for key in reserved_keys() {
            table.refuse(
                format!("reserved {what} {key}"),
                &[(pointer, one(&key, "x"))],
                path(pointer),
            );
        }
        for key in OPEN_KEYS {
            table.accept(format!("open {what} {key}"), &[(pointer, one(key, "x"))]);
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
