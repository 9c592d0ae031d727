//! Samples that combine parts of a marker: policies, selector, several probes.

use leadsman_api::limits;
use serde_json::{Value, json};

use super::{
    ANNOTATIONS, CONDITION, LABELS, NAME, POLICIES, PROBES, SELECTOR, STATE, SampleVerdict, Table,
    map_of_many, map_of_one, pointer_to_path,
};

pub(super) fn add_effects(table: &mut Table) {
    let policy = |state: &str| json!({"state": state, "labels": {"a": "b"}});
    for state in ["Succeeded", "Failed"] {
        table.add_accepted(
            format!("{state} alone"),
            &[(POLICIES, json!([policy(state)]))],
        );
        let twice = json!([policy(state), policy(state)]);
        table.add_refused(
            format!("{state} twice"),
            &[(POLICIES, twice)],
            format!("{}[1]", pointer_to_path(POLICIES)),
        );
    }
    for bad in ["", "Unknown", "succeeded", "True"] {
        table.add_refused(
            format!("state {bad:?}"),
            &[(STATE, json!(bad))],
            pointer_to_path(STATE),
        );
    }
    let three = json!([policy("Succeeded"), policy("Failed"), policy("Failed")]);
    table.add_refused(
        "three policies",
        &[(POLICIES, three)],
        pointer_to_path(POLICIES),
    );
    let first = format!("{}[0]", pointer_to_path(POLICIES));
    table.add_refused(
        "a policy of nothing",
        &[(POLICIES, json!([{"state": "Failed"}]))],
        first.as_str(),
    );
    for (name, none) in [("empty", json!({})), ("null", json!(null))] {
        table.add_refused(
            format!("{name} maps"),
            &[(LABELS, none.clone()), (ANNOTATIONS, none.clone())],
            first.as_str(),
        );
        table.add_accepted(format!("{name} labels"), &[(LABELS, none.clone())]);
        table.add_accepted(format!("{name} annotations"), &[(ANNOTATIONS, none)]);
    }
    let unknown = json!([policy("x"), policy("x")]);
    table.add_refused(
        "an unknown state twice",
        &[(POLICIES, unknown)],
        format!("{}[1]", pointer_to_path(POLICIES)),
    );
    table.add_accepted("condition alone", &[(POLICIES, json!([]))]);
    table.add_accepted("condition alone, policies null", &[(POLICIES, json!(null))]);
    table.add_accepted("policies alone", &[(CONDITION, json!(""))]);
    table.add_accepted(
        "policies alone, condition null",
        &[(CONDITION, json!(null))],
    );
    let nothing = [(POLICIES, json!([])), (CONDITION, json!(""))];
    table.add_refused("no effect", &nothing, "spec.probes[0]");
    let null = [(POLICIES, json!(null)), (CONDITION, json!(null))];
    table.add_refused("no effect, in null", &null, "spec.probes[0]");
    for (pointer, what) in [(LABELS, "labels"), (ANNOTATIONS, "annotations")] {
        let keys = |count| map_of_many(count, |n| format!("k{n}"), "x");
        table.add_accepted(
            format!("most {what}"),
            &[(pointer, keys(limits::POLICY_KEYS))],
        );
        let more = keys(limits::POLICY_KEYS + 1);
        table.add_refused(
            format!("too many {what}"),
            &[(pointer, more)],
            pointer_to_path(pointer),
        );
    }
    table.add_sample(
        "a label of a number",
        &[(LABELS, json!({"a": 1}))],
        SampleVerdict::Unreadable,
    );
}

pub(super) fn add_selectors(table: &mut Table) {
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
        table.add_refused(name, &[(SELECTOR, empty)], pointer_to_path(SELECTOR));
    }
    for operator in ["In", "NotIn"] {
        table.add_accepted(
            operator,
            &by(json!({"key": "k", "operator": operator, "values": ["a", "b", "a"]})),
        );
        let values = format!("{at}.values");
        table.add_refused(
            format!("{operator} nothing"),
            &by(json!({"key": "k", "operator": operator})),
            values.as_str(),
        );
        let empty = json!({"key": "k", "operator": operator, "values": []});
        table.add_refused(format!("{operator} an empty list"), &by(empty), values);
    }
    for operator in ["Exists", "DoesNotExist"] {
        table.add_accepted(operator, &by(json!({"key": "k", "operator": operator})));
        table.add_accepted(
            format!("{operator} with no value"),
            &by(json!({"key": "k", "operator": operator, "values": []})),
        );
        let with_value = json!({"key": "k", "operator": operator, "values": ["a"]});
        table.add_refused(
            format!("{operator} with a value"),
            &by(with_value),
            format!("{at}.values"),
        );
    }
    for bad in ["", "in", "Gt"] {
        let expression = json!({"key": "k", "operator": bad, "values": ["a"]});
        table.add_refused(
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
            json!({"matchLabels": map_of_many(count, |n| format!("k{n}"), "x")}),
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
    table.add_accepted("most matchLabels", &labels(most));
    table.add_refused(
        "too many matchLabels",
        &labels(most + 1),
        "spec.selector.matchLabels",
    );
    table.add_accepted("most matchExpressions", &expressions(most));
    table.add_refused(
        "too many matchExpressions",
        &expressions(most + 1),
        "spec.selector.matchExpressions",
    );
    table.add_accepted("most values", &values(limits::SELECTOR_VALUES));
    table.add_refused(
        "too many values",
        &values(limits::SELECTOR_VALUES + 1),
        "spec.selector.matchExpressions[0].values",
    );
}

fn selector_reads(table: &mut Table) {
    let by = |expression: Value| [(SELECTOR, json!({"matchExpressions": [expression]}))];
    table.add_refused(
        "label that matchLabels reads",
        &[(LABELS, map_of_one("app", "x"))],
        pointer_to_path(PROBES),
    );
    table.add_accepted(
        "annotation named as a label that matchLabels reads",
        &[(ANNOTATIONS, map_of_one("app", "x"))],
    );
    for operator in ["In", "NotIn", "Exists", "DoesNotExist"] {
        let values = if operator.ends_with("In") {
            json!(["x"])
        } else {
            json!([])
        };
        let expression = json!({"key": "gameserver-idle", "operator": operator, "values": values});
        table.add_refused(
            format!("label that {operator} reads"),
            &by(expression),
            pointer_to_path(PROBES),
        );
    }
}

pub(super) fn add_probes(table: &mut Table) {
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
    table.add_refused("no probes", &probes(0), pointer_to_path(PROBES));
    table.add_accepted("most probes", &probes(limits::PROBES));
    table.add_refused(
        "too many probes",
        &probes(limits::PROBES + 1),
        pointer_to_path(PROBES),
    );
    table.add_refused("empty name", &[(NAME, json!(""))], pointer_to_path(NAME));
    let longest = "n".repeat(limits::PROBE_NAME);
    // Types of conditions are valid names too.
    for good in ["Idle/1", "-", "~!\"'{}", "Ready", "a.b_c-d", &longest] {
        table.add_accepted(format!("name {good:?}"), &[(NAME, json!(good))]);
    }
    let too_long = format!("{longest}n");
    for bad in ["#", "a#b", "a b", " ", "a\n", "\u{7f}", "é", &too_long] {
        table.add_refused(
            format!("name {bad:?}"),
            &[(NAME, json!(bad))],
            pointer_to_path(NAME),
        );
    }
    let two = |first: Value, second: Value| [(PROBES, json!([first, second]))];
    table.add_refused(
        "one name twice",
        &two(probe("a", "c"), probe("a", "d")),
        "spec.probes[1]",
    );
    table.add_refused(
        "one condition twice",
        &two(probe("a", "c"), probe("b", "c")),
        pointer_to_path(PROBES),
    );
    table.add_accepted(
        "two names that differ in case",
        &two(probe("a", "c"), probe("A", "C")),
    );
    table.add_accepted("no condition twice", &two(probe("a", ""), probe("b", "")));
    let three = json!([probe("a", "c"), probe("b", ""), probe("d", "c")]);
    table.add_refused(
        "one condition twice, apart",
        &[(PROBES, three)],
        pointer_to_path(PROBES),
    );
    for missing in ["name", "containerName", "probe"] {
        let mut whole = probe("a", "c");
        whole
            .as_object_mut()
            .expect("a probe is an object")
            .remove(missing);
        table.add_sample(
            format!("no {missing}"),
            &[(PROBES, json!([whole]))],
            SampleVerdict::Unreadable,
        );
    }
}
