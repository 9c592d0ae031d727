//! Samples that combine parts of a marker: policies, selector, several probes.

use leadsman_api::limits;
use serde_json::{Value, json};

use super::{
    ANNOTATIONS, CONDITION, LABELS, NAME, POLICIES, PROBES, SELECTOR, STATE, Table, Verdict, many,
    one, path,
};

pub(super) fn effects(table: &mut Table) {
    let policy = |state: &str| json!({"state": state, "labels": {"a": "b"}});
    for state in ["Succeeded", "Failed"] {
        table.accept(
            format!("{state} alone"),
            &[(POLICIES, json!([policy(state)]))],
        );
        let twice = json!([policy(state), policy(state)]);
        table.refuse(
            format!("{state} twice"),
            &[(POLICIES, twice)],
            format!("{}[1]", path(POLICIES)),
        );
    }
    for bad in ["", "Unknown", "succeeded", "True"] {
        table.refuse(
            format!("state {bad:?}"),
            &[(STATE, json!(bad))],
            path(STATE),
        );
    }
    let three = json!([policy("Succeeded"), policy("Failed"), policy("Failed")]);
    table.refuse("three policies", &[(POLICIES, three)], path(POLICIES));
    let first = format!("{}[0]", path(POLICIES));
    table.refuse(
        "a policy of nothing",
        &[(POLICIES, json!([{"state": "Failed"}]))],
        first.as_str(),
    );
    for (name, none) in [("empty", json!({})), ("null", json!(null))] {
        table.refuse(
            format!("{name} maps"),
            &[(LABELS, none.clone()), (ANNOTATIONS, none.clone())],
            first.as_str(),
        );
        table.accept(format!("{name} labels"), &[(LABELS, none.clone())]);
        table.accept(format!("{name} annotations"), &[(ANNOTATIONS, none)]);
    }
    let unknown = json!([policy("x"), policy("x")]);
    table.refuse(
        "an unknown state twice",
        &[(POLICIES, unknown)],
        format!("{}[1]", path(POLICIES)),
    );
    table.accept("condition alone", &[(POLICIES, json!([]))]);
    table.accept("condition alone, policies null", &[(POLICIES, json!(null))]);
    table.accept("policies alone", &[(CONDITION, json!(""))]);
    table.accept(
        "policies alone, condition null",
        &[(CONDITION, json!(null))],
    );
    let nothing = [(POLICIES, json!([])), (CONDITION, json!(""))];
    table.refuse("no effect", &nothing, "spec.probes[0]");
    let null = [(POLICIES, json!(null)), (CONDITION, json!(null))];
    table.refuse("no effect, in null", &null, "spec.probes[0]");
    for (pointer, what) in [(LABELS, "labels"), (ANNOTATIONS, "annotations")] {
        let keys = |count| many(count, |n| format!("k{n}"), "x");
        table.accept(
            format!("most {what}"),
            &[(pointer, keys(limits::POLICY_KEYS))],
        );
        let more = keys(limits::POLICY_KEYS + 1);
        table.refuse(
            format!("too many {what}"),
            &[(pointer, more)],
            path(pointer),
        );
    }
    table.add(
        "a label of a number",
        &[(LABELS, json!({"a": 1}))],
        Verdict::Unreadable,
    );
}

pub(super) fn selectors(table: &mut Table) {
    let by = |expression: Value| [(SELECTOR, json!({"matchExpressions": [expression]}))];
    let at = "spec.selector.matchExpressions[0]";
    for (name, empty) in [
        ("empty selector", json!({})),
        ("selector of null", json!({"matchLabels": null})),
        (
            "selector of empty lists",
            json!({"matchLabels": {}, "matchExpressions": []}),
        ),
    ] {
        table.refuse(name, &[(SELECTOR, empty)], path(SELECTOR));
    }
    for operator in ["In", "NotIn"] {
        table.accept(
            operator,
            &by(json!({"key": "k", "operator": operator, "values": ["a", "b", "a"]})),
        );
        let values = format!("{at}.values");
        table.refuse(
            format!("{operator} nothing"),
            &by(json!({"key": "k", "operator": operator})),
            values.as_str(),
        );
        let empty = json!({"key": "k", "operator": operator, "values": []});
        table.refuse(format!("{operator} an empty list"), &by(empty), values);
    }
    for operator in ["Exists", "DoesNotExist"] {
        table.accept(operator, &by(json!({"key": "k", "operator": operator})));
        table.accept(
            format!("{operator} with no value"),
            &by(json!({"key": "k", "operator": operator, "values": []})),
        );
        let with_value = json!({"key": "k", "operator": operator, "values": ["a"]});
        table.refuse(
            format!("{operator} with a value"),
            &by(with_value),
            format!("{at}.values"),
        );
    }
    for bad in ["", "in", "Gt"] {
        let expression = json!({"key": "k", "operator": bad, "values": ["a"]});
        table.refuse(
            format!("operator {bad:?}"),
            &by(expression),
            format!("{at}.operator"),
        );
    }
    selector_bounds(table);
    selector_reads(table);
}

fn selector_bounds(table: &mut Table) {
    let by = |expression: Value| [(SELECTOR, json!({"matchExpressions": [expression]}))];
    let labels = |count| {
        [(
            SELECTOR,
            json!({"matchLabels": many(count, |n| format!("k{n}"), "x")}),
        )]
    };
    let expression = |n: usize| json!({"key": format!("k{n}"), "operator": "Exists"});
    let expressions = |count: usize| {
        let all: Vec<_> = (0..count).map(expression).collect();
        [(SELECTOR, json!({"matchExpressions": all}))]
    };
    let values = |count: usize| {
        let all: Vec<_> = (0..count).map(|n| format!("v{n}")).collect();
        by(json!({"key": "k", "operator": "In", "values": all}))
    };
    let most = limits::SELECTOR_EXPRESSIONS;
    table.accept("most matchLabels", &labels(most));
    table.refuse(
        "too many matchLabels",
        &labels(most + 1),
        "spec.selector.matchLabels",
    );
    table.accept("most matchExpressions", &expressions(most));
    table.refuse(
        "too many matchExpressions",
        &expressions(most + 1),
        "spec.selector.matchExpressions",
    );
    table.accept("most values", &values(limits::SELECTOR_VALUES));
    table.refuse(
        "too many values",
        &values(limits::SELECTOR_VALUES + 1),
        "spec.selector.matchExpressions[0].values",
    );
}

fn selector_reads(table: &mut Table) {
    let by = |expression: Value| [(SELECTOR, json!({"matchExpressions": [expression]}))];
    table.refuse(
        "label that matchLabels reads",
        &[(LABELS, one("app", "x"))],
        path(PROBES),
    );
    table.accept(
        "annotation named as a label that matchLabels reads",
        &[(ANNOTATIONS, one("app", "x"))],
    );
    for operator in ["In", "NotIn", "Exists", "DoesNotExist"] {
        let values = if operator.ends_with("In") {
            json!(["x"])
        } else {
            json!([])
        };
        let expression = json!({"key": "gameserver-idle", "operator": operator, "values": values});
        table.refuse(
            format!("label that {operator} reads"),
            &by(expression),
            path(PROBES),
        );
    }
}

pub(super) fn probes(table: &mut Table) {
    let probe = |name: &str, condition: &str| {
        json!({
            "name": name, "containerName": "c", "podConditionType": condition,
            "probe": {"exec": {"command": ["true"]}},
            "markerPolicy": [{"state": "Succeeded", "labels": {"a": "b"}}],
        })
    };
    let probes = |count: usize| {
        let all: Vec<_> = (0..count)
            .map(|n| probe(&format!("p{n}"), &format!("c{n}")))
            .collect();
        [(PROBES, json!(all))]
    };
    table.refuse("no probes", &probes(0), path(PROBES));
    table.accept("most probes", &probes(limits::PROBES));
    table.refuse("too many probes", &probes(limits::PROBES + 1), path(PROBES));
    table.refuse("empty name", &[(NAME, json!(""))], path(NAME));
    let longest = "n".repeat(limits::PROBE_NAME);
    // Types of conditions are valid names too.
    for good in ["Idle/1", "-", "~!\"'{}", "Ready", "a.b_c-d", &longest] {
        table.accept(format!("name {good:?}"), &[(NAME, json!(good))]);
    }
    let too_long = format!("{longest}n");
    for bad in ["#", "a#b", "a b", " ", "a\n", "\u{7f}", "é", &too_long] {
        table.refuse(format!("name {bad:?}"), &[(NAME, json!(bad))], path(NAME));
    }
    let two = |first: Value, second: Value| [(PROBES, json!([first, second]))];
    table.refuse(
        "one name twice",
        &two(probe("a", "c"), probe("a", "d")),
        "spec.probes[1]",
    );
    table.refuse(
        "one condition twice",
        &two(probe("a", "c"), probe("b", "c")),
        path(PROBES),
    );
    table.accept(
        "two names that differ in case",
        &two(probe("a", "c"), probe("A", "C")),
    );
    table.accept("no condition twice", &two(probe("a", ""), probe("b", "")));
    let three = json!([probe("a", "c"), probe("b", ""), probe("d", "c")]);
    table.refuse(
        "one condition twice, apart",
        &[(PROBES, three)],
        path(PROBES),
    );
    for missing in ["name", "containerName", "probe"] {
        let mut whole = probe("a", "c");
        whole
            .as_object_mut()
            .expect("a probe is an object")
            .remove(missing);
        table.add(
            format!("no {missing}"),
            &[(PROBES, json!([whole]))],
            Verdict::Unreadable,
        );
    }
}
