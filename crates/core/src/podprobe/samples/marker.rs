//! Samples that combine parts of a marker: policies, selector, several probes.

use leadsman_api::limits;
use serde_json::{Value, json};

use super::{
    ANNOTATIONS, CONDITION, LABELS, NAME, OUTPUT, POLICIES, PROBES, SELECTOR, STATE, SampleVerdict,
    Table, map_of_many, map_of_one, pointer_to_path,
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

pub(super) fn add_outputs(table: &mut Table) {
    let output = |expression: &str| json!({"matches": expression});
    let role = || (OUTPUT, output("^(?<role>[a-z]+)$"));
    let at = |field: &str| format!("{}.{field}", pointer_to_path(OUTPUT));
    table.add_accepted("an output", &[role()]);
    for mismatch in ["", "Failed", "Unknown"] {
        let output = json!({"matches": "x", "mismatch": mismatch});
        table.add_accepted(format!("mismatch {mismatch:?}"), &[(OUTPUT, output)]);
    }
    let output_of = json!({"matches": "x", "mismatch": "Succeeded"});
    table.add_refused("mismatch Succeeded", &[(OUTPUT, output_of)], at("mismatch"));
    table.add_refused("no expression", &[(OUTPUT, output(""))], at("matches"));
    let longest = "x".repeat(limits::OUTPUT_EXPRESSION);
    table.add_accepted("longest expression", &[(OUTPUT, output(&longest))]);
    let longer = [(OUTPUT, output(&(longest + "x")))];
    table.add_refused("expression too long", &longer, at("matches"));
    table.add_sample(
        "an output of nothing",
        &[(OUTPUT, json!({}))],
        SampleVerdict::Unreadable,
    );
    let first = format!("{}[0]", pointer_to_path(POLICIES));
    let policies = |policy: Value| (POLICIES, json!([policy]));
    let label = |state: &str| policies(json!({"state": state, "labels": {"role": "a-$(role)"}}));
    table.add_accepted("a value as label", &[role(), label("Succeeded")]);
    table.add_refused(
        "a value without output",
        &[label("Succeeded")],
        "spec.probes[0]",
    );
    table.add_refused(
        "a value of Failed",
        &[role(), label("Failed")],
        first.as_str(),
    );
    let message = policies(json!({"state": "Succeeded", "message": "$(role)"}));
    table.add_accepted("a value as message", &[role(), message.clone()]);
    table.add_refused("a message without output", &[message], "spec.probes[0]");
    let longest = "x".repeat(limits::POLICY_MESSAGE);
    let message = |text: &str| policies(json!({"state": "Failed", "message": text}));
    table.add_accepted("longest message", &[message(&longest)]);
    let path = format!("{first}.message");
    table.add_refused("message too long", &[message(&(longest + "x"))], path);
    let literal = policies(json!({"state": "Succeeded", "annotations": {"a": "$(role)"}}));
    table.add_accepted("an annotation that looks like a value", &[literal]);
    for (seconds, is_valid) in [(-1, false), (0, true), (86_400, true), (86_401, false)] {
        let held = json!({"state": "Failed", "labels": {"a": "b"}, "holdSeconds": seconds});
        let (name, change) = (format!("{seconds} seconds"), [policies(held)]);
        if is_valid {
            table.add_accepted(name, &change);
        } else {
            table.add_refused(name, &change, format!("{first}.holdSeconds"));
        }
    }
    let alone = policies(json!({"state": "Succeeded", "holdSeconds": 1}));
    table.add_accepted("a hold alone", &[alone]);
    let negative = policies(json!({"state": "Succeeded", "holdSeconds": -1}));
    table.add_refused("a negative hold alone", &[negative], first.as_str());
    let of = |outputs: Value| {
        [
            role(),
            policies(json!({"state": "Succeeded", "outputs": outputs})),
        ]
    };
    let primary = |n: usize| json!({"when": {"role": "primary"}, "labels": {"a": n.to_string()}});
    let many = |count: usize| json!((0..count).map(primary).collect::<Vec<_>>());
    table.add_accepted("most outputs", &of(many(limits::OUTPUT_POLICIES)));
    let path = format!("{first}.outputs");
    table.add_refused(
        "too many outputs",
        &of(many(limits::OUTPUT_POLICIES + 1)),
        path,
    );
    let empty = json!([{"when": {}, "labels": {"a": "b"}}]);
    let path = format!("{first}.outputs[0].when");
    table.add_refused("an output of no value", &of(empty), path);
    let nothing = json!([{"when": {"role": "x"}}]);
    table.add_refused(
        "an output that sets nothing",
        &of(nothing),
        format!("{first}.outputs[0]"),
    );
    let read = json!([{"when": {"role": "x"}, "labels": {"app": "x"}}]);
    table.add_refused(
        "an output that sets what the selector reads",
        &of(read),
        pointer_to_path(PROBES),
    );
}

pub(super) fn add_exclusive(table: &mut Table) {
    let role = || {
        (
            OUTPUT,
            json!({"matches": "^(?<role>[a-z]+) (?<version>[0-9]+)$"}),
        )
    };
    let first = format!("{}[0]", pointer_to_path(POLICIES));
    let policies = |exclusive: Value| {
        let policy =
            json!({"state": "Succeeded", "labels": {"role": "$(role)"}, "exclusive": exclusive});
        [role(), (POLICIES, json!([policy]))]
    };
    let good = || json!({"label": "role", "value": "primary"});
    let with = |field: &str, value: Value| {
        let mut exclusive = good();
        exclusive[field] = value;
        policies(exclusive)
    };
    table.add_accepted("an exclusive value", &policies(good()));
    table.add_accepted("no exclusive value", &policies(json!(null)));
    table.add_accepted("with versions", &with("version", json!("$(version)")));
    table.add_accepted("by groups", &with("groupBy", json!("a.io/b")));
    let fixed = json!({"state": "Succeeded", "labels": {"role": "primary"}, "exclusive": good()});
    table.add_accepted("exclusive without output", &[(POLICIES, json!([fixed]))]);
    let in_outputs = json!([{"when": {"role": "primary"}, "labels": {"role": "primary"}}]);
    let of_outputs = json!({"state": "Succeeded", "outputs": in_outputs, "exclusive": good()});
    table.add_accepted(
        "exclusive of outputs",
        &[role(), (POLICIES, json!([of_outputs]))],
    );
    for (field, bad) in [
        ("label", json!("other")),
        ("value", json!("")),
        ("value", json!("no value")),
        ("value", json!("v".repeat(limits::LABEL + 1))),
        ("version", json!("")),
        ("version", json!("7")),
        ("version", json!("v$(version)")),
        ("version", json!("$$(version)")),
        ("groupBy", json!("")),
        ("groupBy", json!("-")),
        ("groupBy", json!("a/b/c")),
    ] {
        let path = format!("{first}.exclusive.{field}");
        table.add_refused(format!("exclusive {field} {bad}"), &with(field, bad), path);
    }
    let without_output = &with("version", json!("$(version)"))[1..];
    table.add_refused("a version without output", without_output, "spec.probes[0]");
    let failed = json!({"state": "Failed", "labels": {"role": "primary"}, "exclusive": good()});
    let path = format!("{first}.exclusive");
    table.add_refused("exclusive for Failed", &[(POLICIES, json!([failed]))], path);
    table.add_refused(
        "groups by a label that is set",
        &with("groupBy", json!("role")),
        "spec.probes[0]",
    );
    let succeeded =
        json!({"state": "Succeeded", "labels": {"role": "primary"}, "exclusive": good()});
    let other = |value: &str| {
        let failed = json!({"state": "Failed", "labels": {"role": value}});
        [(POLICIES, json!([succeeded, failed]))]
    };
    table.add_accepted("another value for Failed", &other("none"));
    table.add_refused(
        "the value for Failed too",
        &other("primary"),
        "spec.probes[0]",
    );
    for missing in ["label", "value"] {
        let mut exclusive = good();
        if let Some(object) = exclusive.as_object_mut() {
            object.remove(missing);
        }
        table.add_sample(
            format!("exclusive without {missing}"),
            &policies(exclusive),
            SampleVerdict::Unreadable,
        );
    }
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
