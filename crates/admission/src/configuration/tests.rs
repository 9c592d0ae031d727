use super::*;
use crate::barrier::StateVersion;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};

fn strings(strings: &[&str]) -> Vec<String> {
    strings.iter().map(ToString::to_string).collect()
}

fn webhook(name: &'static str) -> InForceWebhook {
    let rule = RuleWithOperations {
        operations: Some(strings(&["CREATE"])),
        api_groups: Some(strings(&[""])),
        api_versions: Some(strings(&["v1"])),
        resources: Some(strings(&["pods"])),
        ..RuleWithOperations::default()
    };
    let condition = |name: &str| MatchCondition {
        name: name.to_owned(),
        expression: "true".to_owned(),
    };
    InForceWebhook {
        name,
        barrier: None,
        specs: vec![WebhookSpec {
            rules: vec![rule],
            match_conditions: vec![condition("one"), condition("two")],
            timeout_seconds: 2,
            ..WebhookSpec::default()
        }],
    }
}

fn address() -> Address {
    Address::Service("leadsman-system/hook:8443".parse().unwrap())
}

fn wanted() -> Value {
    let bundle = CaBundle::Pem(b"CA".to_vec());
    desired_configuration::<MutatingWebhookConfiguration>(
        &[webhook("a.b.c"), webhook("d.e.f")],
        &address(),
        &bundle,
    )
    .unwrap()
}

/// As an API server shows it: with its defaults, ours and others' field managers.
fn stored(
    desired: &Value,
    change: impl FnOnce(&mut Value),
) -> Observed<MutatingWebhookConfiguration> {
    let mut object = desired.clone();
    object["metadata"]["managedFields"] = json!([{"manager": FIELD_MANAGER}]);
    for webhook in object["webhooks"].as_array_mut().unwrap() {
        webhook["rules"][0]["scope"] = json!("*");
    }
    change(&mut object);
    Observed::Present(serde_json::from_value(object).unwrap())
}

#[test]
fn a_service_and_a_url_are_named_with_their_paths() {
    let bundle = CaBundle::Pem(b"CA".to_vec());
    let config = address().client_config("/a.b.c", &bundle);
    let service =
        json!({"namespace": "leadsman-system", "name": "hook", "port": 8443, "path": "/a.b.c"});
    assert_eq!(config, json!({"service": service, "caBundle": "Q0E="}));
    assert_eq!(address().certificate_names(), ["hook.leadsman-system.svc"]);
    let url = Address::Url("https://127.0.0.1:9443/".parse().unwrap());
    let config = url.client_config("/a.b.c", &CaBundle::Elsewhere);
    assert_eq!(config, json!({"url": "https://127.0.0.1:9443/a.b.c"}));
    assert_eq!(url.certificate_names(), ["127.0.0.1"]);
}

#[test]
fn without_a_webhook_in_force_there_is_to_be_no_configuration() {
    assert_eq!(
        desired_configuration::<MutatingWebhookConfiguration>(
            &[],
            &address(),
            &CaBundle::Elsewhere
        ),
        None
    );
}

#[test]
fn the_two_kinds_differ_in_their_kind_and_in_reinvocation() {
    let bundle = CaBundle::Elsewhere;
    let mutating = desired_configuration::<MutatingWebhookConfiguration>(
        &[webhook("a.b.c")],
        &address(),
        &bundle,
    );
    let validating = desired_configuration::<ValidatingWebhookConfiguration>(
        &[webhook("a.b.c")],
        &address(),
        &bundle,
    );
    let (mut mutating, validating) = (mutating.unwrap(), validating.unwrap());
    assert_eq!(validating["kind"], "ValidatingWebhookConfiguration");
    mutating["kind"] = validating["kind"].clone();
    let entry = mutating["webhooks"][0].as_object_mut().unwrap();
    assert_eq!(entry.remove("reinvocationPolicy"), Some(json!("Never")));
    assert_eq!(mutating, validating);
}

#[test]
fn each_call_has_its_name_its_policy_and_the_barrier() {
    let fails = |fails: bool| {
        let mut spec = webhook("a.b.c").specs.remove(0);
        if fails {
            spec.failure_policy = WebhookFailurePolicy::Fail;
        }
        spec
    };
    let calls = InForceWebhook {
        specs: [true, true, false, false].map(fails).to_vec(),
        barrier: Some(Barrier {
            version: StateVersion::from([7, 5, 0]),
            slot: 3,
        }),
        ..webhook("a.b.c")
    };
    let desired = desired_configuration::<MutatingWebhookConfiguration>(
        &[calls],
        &address(),
        &CaBundle::Elsewhere,
    )
    .unwrap();
    let annotations = &desired["metadata"]["annotations"];
    let expected = json!({"a.b.c/barrier": "7.5/3", "admissions.enforcer/disabled": "true"});
    assert_eq!(*annotations, expected);
    let calls = desired["webhooks"].as_array().unwrap().iter();
    let calls = calls.map(|call| {
        let path = &call["clientConfig"]["service"]["path"];
        [&call["name"], &call["failurePolicy"], path].map(|value| value.as_str().unwrap())
    });
    let expected = [
        ["a-fail.b.c", "Fail", "/a.b.c/fail/3"],
        ["a-fail-2.b.c", "Fail", "/a.b.c/fail/3"],
        ["a.b.c", "Ignore", "/a.b.c/3"],
        ["a-2.b.c", "Ignore", "/a.b.c/3"],
    ];
    assert_eq!(calls.collect::<Vec<_>>(), expected);
}

#[test]
fn what_differs_from_ours_is_applied_and_what_others_add_stays() {
    let wanted = wanted();
    let others_webhook = json!({
        "name": "x.y.z", "admissionReviewVersions": ["v1"], "clientConfig": {}, "sideEffects": "None",
    });
    let others_condition = json!({"name": "x", "expression": "false"});
    let narrower = json!({"matchLabels": {"a": "b"}});
    // Where the object differs, what is there then or appended, and what is done.
    let table = [
        (
            "/metadata/labels",
            json!({"app.kubernetes.io/name": "leadsman", "x": "y"}),
            ConfigurationStep::Rest,
        ),
        ("/webhooks/-", others_webhook, ConfigurationStep::Rest),
        (
            "/webhooks/0/matchConditions/-",
            others_condition,
            ConfigurationStep::RemoveConditions,
        ),
        ("/metadata/labels", json!({}), ConfigurationStep::Apply),
        (
            "/webhooks",
            json!([wanted["webhooks"][0]]),
            ConfigurationStep::Apply,
        ),
        (
            "/webhooks/1/failurePolicy",
            json!("Fail"),
            ConfigurationStep::Apply,
        ),
        (
            "/webhooks/0/clientConfig/caBundle",
            json!("eA=="),
            ConfigurationStep::Apply,
        ),
        (
            "/webhooks/0/rules/-",
            json!({"resources": ["nodes"]}),
            ConfigurationStep::Apply,
        ),
        (
            "/webhooks/0/objectSelector",
            narrower,
            ConfigurationStep::Apply,
        ),
        (
            "/webhooks/1/matchConditions/0/expression",
            json!("false"),
            ConfigurationStep::Apply,
        ),
    ];
    for (path, value, expected) in table {
        let case = format!("{path}: {value}");
        let observed = stored(&wanted, |object| match path.strip_suffix("/-") {
            Some(list) => push(object.pointer_mut(list).unwrap(), value),
            None => *object.pointer_mut(path).unwrap() = value,
        });
        assert_eq!(
            decide_step(Some(&wanted), &observed, Some(&wanted)),
            expected,
            "{case}"
        );
    }
    let reversed = stored(&wanted, |object| {
        object["webhooks"].as_array_mut().unwrap().reverse();
    });
    assert_eq!(
        decide_step(Some(&wanted), &reversed, Some(&wanted)),
        ConfigurationStep::Rest
    );
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}

#[test]
fn it_is_made_again_when_deleted_and_goes_when_nothing_is_in_force() {
    let wanted = wanted();
    let ours = stored(&wanted, |_| {});
    let others = stored(&wanted, |o| o["metadata"]["managedFields"] = json!([]));
    let table = [
        (None, Observed::Unknown, ConfigurationStep::Rest),
        (Some(&wanted), Observed::Unknown, ConfigurationStep::Rest),
        (None, Observed::Absent, ConfigurationStep::Rest),
        (Some(&wanted), Observed::Absent, ConfigurationStep::Apply),
        (None, ours, ConfigurationStep::Delete),
        (None, others, ConfigurationStep::Rest),
    ];
    for (desired, observed, expected) in table {
        assert_eq!(
            decide_step(desired, &observed, desired),
            expected,
            "{observed:?}"
        );
    }
}

#[test]
fn what_is_not_wanted_any_more_goes_with_another_apply() {
    let before = wanted();
    let bundle = CaBundle::Pem(b"CA".to_vec());
    let mut fewer = webhook("a.b.c");
    fewer.specs[0].match_conditions.pop();
    let now = desired_configuration::<MutatingWebhookConfiguration>(
        &[fewer, webhook("d.e.f")],
        &address(),
        &bundle,
    )
    .unwrap();
    let observed = stored(&before, |_| {});
    assert!(observed.has_desired(&now), "the difference does not show");
    assert_eq!(
        decide_step(Some(&now), &observed, Some(&before)),
        ConfigurationStep::Apply
    );
    assert_eq!(
        decide_step(Some(&before), &observed, None),
        ConfigurationStep::Apply,
        "a new leader"
    );
}

#[test]
fn conditions_of_others_go_from_our_webhooks_alone() {
    let wanted = wanted();
    let other = json!({"name": "x", "expression": "false"});
    let observed = stored(&wanted, |object| {
        object["metadata"]["resourceVersion"] = json!("7");
        push(&mut object["webhooks"][1]["matchConditions"], other.clone());
        let theirs = json!({
            "name": "x.y.z", "admissionReviewVersions": ["v1"], "clientConfig": {}, "sideEffects": "None",
            "matchConditions": [other],
        });
        push(&mut object["webhooks"], theirs);
    });
    let patch = observed.without_others_conditions(&wanted).unwrap();
    assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
    let lengths = patch["webhooks"].as_array().unwrap().iter();
    let lengths = lengths.map(|webhook| webhook["matchConditions"].as_array().unwrap().len());
    assert_eq!(lengths.collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn cert_manager_is_left_the_bundle_where_it_injects_it() {
    let wanted = wanted();
    let plain = stored(&wanted, |_| {});
    assert!(!plain.is_injected());
    let told = stored(&wanted, |o| {
        o["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] = json!("a/b");
    });
    assert!(told.is_injected());
}

/// The field set of [`wanted`], as kube-apiserver 1.34 records it for an apply.
fn owned() -> Value {
    let condition = |name: &str| {
        (
            format!("k:{{\"name\":\"{name}\"}}"),
            json!({".": {}, "f:expression": {}, "f:name": {}}),
        )
    };
    let conditions: Map<_, _> = ["one", "two"].map(condition).into_iter().collect();
    let webhook = |name: &str| {
        let fields = json!({
            ".": {}, "f:admissionReviewVersions": {},
            "f:clientConfig": {"f:caBundle": {}, "f:service": {"f:name": {}, "f:namespace": {}, "f:path": {}, "f:port": {}}},
            "f:failurePolicy": {}, "f:matchConditions": conditions, "f:matchPolicy": {}, "f:name": {},
            "f:namespaceSelector": {}, "f:objectSelector": {}, "f:reinvocationPolicy": {}, "f:rules": {},
            "f:sideEffects": {}, "f:timeoutSeconds": {},
        });
        (format!("k:{{\"name\":\"{name}\"}}"), fields)
    };
    let webhooks: Map<_, _> = ["a.b.c", "d.e.f"].map(webhook).into_iter().collect();
    json!({
        "f:metadata": {
            "f:annotations": {"f:admissions.enforcer/disabled": {}},
            "f:labels": {"f:app.kubernetes.io/name": {}},
            "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}},
        },
        "f:webhooks": webhooks,
    })
}

#[test]
fn a_leader_applies_nothing_that_an_earlier_one_has_applied() {
    const LABELS: &str = "/fieldsV1/f:metadata/f:labels";
    const OWNERS: &str = "/fieldsV1/f:metadata/f:ownerReferences";
    const CONDITIONS: &str = "/fieldsV1/f:webhooks/k:{\"name\":\"a.b.c\"}/f:matchConditions";
    let mut wanted = wanted();
    let owner = json!({"kind": "ClusterRole", "name": "n", "uid": "u"});
    wanted["metadata"]["ownerReferences"] = json!([owner]);
    let condition = json!({"k:{\"name\":\"x\"}": {".": {}, "f:expression": {}, "f:name": {}}});
    // Where the entry of our field manager differs, and what is there then.
    let table = [
        ("/manager", json!(FIELD_MANAGER), ConfigurationStep::Rest),
        ("/manager", json!("somebody"), ConfigurationStep::Apply),
        ("/operation", json!("Update"), ConfigurationStep::Apply),
        ("/fieldsV1", Value::Null, ConfigurationStep::Apply),
        (
            "/fieldsV1/f:webhooks",
            json!({"k:{\"name\":\"a.b.c\"}": {}}),
            ConfigurationStep::Apply,
        ),
        (
            LABELS,
            json!({"f:app.kubernetes.io/name": {}, "f:x": {}}),
            ConfigurationStep::Apply,
        ),
        (LABELS, json!({"f:x": {}}), ConfigurationStep::Apply),
        (
            OWNERS,
            json!({"k:{\"uid\":\"v\"}": {}}),
            ConfigurationStep::Apply,
        ),
        (CONDITIONS, condition, ConfigurationStep::Apply),
    ];
    for (path, value, expected) in table {
        let mut entry =
            json!({"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned()});
        let case = format!("{path}: {value}");
        *entry.pointer_mut(path).unwrap() = value;
        let observed = stored(&wanted, |object| {
            object["metadata"]["managedFields"] = json!([{"manager": "kubectl"}, entry]);
        });
        assert_eq!(
            decide_step(Some(&wanted), &observed, None),
            expected,
            "{case}"
        );
    }
}
