//! Where containers stand in a pod, and which of several sets comes first.

use super::*;

// SDF-3
#[test]
fn containers_of_several_sets_stand_in_the_order_of_the_sets_names() {
    let sets: Vec<_> = ["c", "a", "b"]
        .map(|name| set(name, "2026-01-01T00:00:00Z", &one(&format!("z-{name}"))))
        .into();
    let mut reversed = sets.clone();
    reversed.reverse();
    for sets in [sets, reversed] {
        let injected = inject_all(&pod(), &sets, RenderOptions::default(), NOW);
        assert_eq!(
            names(&injected.additions.apply(&pod())),
            ["z-a", "z-b", "z-c", "app"]
        );
    }
}

// SCS-9
#[test]
fn containers_can_be_sorted_by_name() {
    let sets = [
        set("a", "2026-01-01T00:00:00Z", &one("z")),
        set("b", "2026-01-01T00:00:00Z", &one("y")),
    ];
    let options = RenderOptions {
        containers: ContainerOrder::ByName,
        ..RenderOptions::default()
    };
    let injected = inject_all(&pod(), &sets, options, NOW);
    assert_eq!(names(&injected.additions.apply(&pod())), ["y", "z", "app"]);
}

#[test]
fn what_is_injected_has_the_variable_with_its_value() {
    for (name, value, expected) in [
        ("IS_INJECTED", "true", true),
        ("IS_INJECTED", "false", false),
        ("OTHER", "true", false),
    ] {
        let container = json!({"name": "side", "env": [{"name": name, "value": value}]});
        let found = is_injected(container.as_object().unwrap());
        assert_eq!(found, expected, "{container}");
    }
}

// SCS-11
#[test]
fn an_injected_container_is_replaced_where_it_stands() {
    let mut pod = pod();
    let old = json!({"name": "side", "image": "old:1", "env": [{"name": "IS_INJECTED", "value": "true"}]});
    list_mut(&mut pod).push(old);
    let injected = inject_all(
        &pod,
        &[set("s", "2026-01-01T00:00:00Z", &one("side"))],
        RenderOptions::default(),
        NOW,
    );
    let after = injected.additions.apply(&pod);
    assert_eq!(names(&after), ["app", "side"]);
    assert_eq!(after["spec"]["containers"][1]["image"], "i:1");
}
