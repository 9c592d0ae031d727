use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::review::sealed::ReviewKind;
use crate::review::{Mutation, PatchOperation, Validation};

/// Adds the snapshot as an annotation, unless the object's name says what else to do.
pub(crate) struct Echo;

#[derive(Deserialize)]
pub(crate) struct Named {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Reviewer for Echo {
    type Object = Named;
    type Snapshot = String;
    type Response = Mutation;

    fn review_request(snapshot: &String, request: &AdmissionRequest<Named>) -> Mutation {
        let metadata = &request.object.metadata;
        match metadata.name.as_str() {
            "panics" => panic!("as the test wants"),
            "slow" => std::thread::sleep(Duration::from_millis(60)),
            _ => {}
        }
        let patch = if metadata.annotations.contains_key("echo") {
            Vec::new()
        } else if metadata.annotations.is_empty() {
            vec![PatchOperation::add_at(
                ["metadata", "annotations"],
                json!({"echo": snapshot}),
            )]
        } else {
            vec![PatchOperation::add_at(
                ["metadata", "annotations", "echo"],
                snapshot.as_str(),
            )]
        };
        Mutation {
            patch,
            refusal: (metadata.name == "unwanted").then(|| "nobody wants it".to_owned()),
            warnings: Vec::new(),
        }
    }
}

pub(crate) fn echo(calls: watch::Receiver<WebhookCalls>) -> Webhook {
    let (_, snapshot) = watch::channel(Some(Arc::new("seen".to_owned())));
    Webhook::new::<Echo>("echo.leadsman.test", snapshot, calls)
}

pub(crate) fn pod_review(name: &str, annotations: &Value) -> Vec<u8> {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
        "metadata": {"name": name, "annotations": annotations},
    });
    let request = json!({"uid": "u-1", "operation": "CREATE", "namespace": "a", "object": object});
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    serde_json::to_vec(&review).unwrap()
}

fn terms(patience: Duration) -> Terms {
    Terms {
        slot: None,
        tag: None,
        fails: false,
        deadline: clock::monotonic() + patience,
        may_wait: false,
    }
}

fn answer_now(webhook: &Webhook, body: &[u8], patience: Duration) -> ReviewAnswer {
    answer_on_terms(webhook, body, terms(patience))
}

fn answer_on_terms(webhook: &Webhook, body: &[u8], terms: Terms) -> ReviewAnswer {
    match webhook.answers.answer_review(body, terms) {
        ReviewResult::Now(answer) => answer,
        ReviewResult::Outdated(_) => panic!("it may not wait"),
    }
}

fn answer(body: &[u8], patience: Duration) -> (ReviewOutcome, Option<Value>) {
    let (_, none) = watch::channel(WebhookCalls::default());
    let answer = answer_now(&echo(none), body, patience);
    let body = answer
        .body
        .map(|body| serde_json::from_slice(&body).unwrap());
    (answer.outcome, body)
}

const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn a_patch_comes_back_for_the_uid_of_the_request() {
    let (outcome, body) = answer(&pod_review("a", &json!({"a": "b"})), PATIENCE);
    assert_eq!(outcome, ReviewOutcome::Patched);
    let mut body = body.unwrap();
    let patch: ByteString = serde_json::from_value(body["response"]["patch"].take()).unwrap();
    let patch: Value = serde_json::from_slice(&patch.0).unwrap();
    assert_eq!(
        patch,
        json!([{"op": "add", "path": "/metadata/annotations/echo", "value": "seen"}])
    );
    assert_eq!(
        body,
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": "u-1", "allowed": true, "patchType": "JSONPatch", "patch": null},
        })
    );
}

#[test]
fn whatever_goes_wrong_is_allowed_without_a_patch() {
    let unchanged = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": "u-1", "allowed": true},
    });
    let deleted = br#"{"request": {"uid": "u-1", "operation": "DELETE", "object": null}}"#;
    let short = Duration::from_millis(20);
    let table = [
        (
            "nothing to add",
            pod_review("a", &json!({"echo": "b"})),
            PATIENCE,
            ReviewOutcome::Unchanged,
        ),
        (
            "a panic",
            pod_review("panics", &json!({})),
            PATIENCE,
            ReviewOutcome::Panicked,
        ),
        (
            "late before",
            pod_review("a", &json!({})),
            Duration::ZERO,
            ReviewOutcome::Late,
        ),
        (
            "late after",
            pod_review("slow", &json!({})),
            short,
            ReviewOutcome::Late,
        ),
        (
            "no object",
            deleted.to_vec(),
            PATIENCE,
            ReviewOutcome::Malformed,
        ),
        (
            "another object",
            pod_review("a", &json!("none")),
            PATIENCE,
            ReviewOutcome::Malformed,
        ),
    ];
    for (case, body, patience, expected) in table {
        let (outcome, body) = answer(&body, patience);
        assert_eq!(
            (outcome, body),
            (expected, Some(unchanged.clone())),
            "{case}"
        );
    }
    assert_eq!(
        answer(b"no JSON", PATIENCE),
        (ReviewOutcome::Malformed, None)
    );
    let (_, snapshot) = watch::channel(None);
    let (_, calls) = watch::channel(WebhookCalls::default());
    let webhook = Webhook::new::<Echo>("echo.leadsman.test", snapshot, calls);
    let answer = answer_now(&webhook, &pod_review("a", &json!({})), PATIENCE);
    assert_eq!(answer.outcome, ReviewOutcome::NotReady);
    assert!(answer.body.is_some());
}

// SDF-59
#[test]
fn a_mutation_refuses_an_object_only_where_the_call_asked_for_that() {
    let (_, calls) = watch::channel(WebhookCalls::default());
    let webhook = echo(calls);
    let body = pod_review("unwanted", &json!({}));
    for (fails, outcome) in [
        (false, ReviewOutcome::Patched),
        (true, ReviewOutcome::Refused),
    ] {
        let terms = Terms {
            fails,
            ..terms(PATIENCE)
        };
        let answer = answer_on_terms(&webhook, &body, terms);
        assert_eq!(answer.outcome, outcome);
        let body: Value = serde_json::from_slice(&answer.body.unwrap()).unwrap();
        let response = &body["response"];
        assert_eq!(response["allowed"], !fails);
        assert_eq!(response["patch"].is_null(), fails);
        if fails {
            assert_eq!(response["status"]["code"], 403);
            assert_eq!(response["status"]["message"], "nobody wants it");
        }
    }
}

/// Is sufficient from the second version on.
pub(crate) struct Versioned;

impl Reviewer for Versioned {
    type Object = Named;
    type Snapshot = u64;
    type Response = Mutation;

    fn snapshot_version(snapshot: &u64) -> Option<StateVersion> {
        Some(StateVersion::from([*snapshot]))
    }

    fn is_sufficient(snapshot: &u64, _: &AdmissionRequest<Named>) -> bool {
        *snapshot >= 2
    }

    fn review_request(_: &u64, _: &AdmissionRequest<Named>) -> Mutation {
        Mutation::default()
    }
}

#[tokio::test]
async fn a_review_waits_for_a_snapshot_that_suffices_and_for_the_barrier() {
    let snapshots = watch::Sender::new(None);
    let (_, calls) = watch::channel(WebhookCalls::default());
    let webhook = Webhook::new::<Versioned>("a.b.c", snapshots.subscribe(), calls);
    let body = pod_review("a", &json!({}));
    let ask = |may_wait| {
        let terms = Terms {
            slot: Some(1),
            may_wait,
            ..terms(PATIENCE)
        };
        webhook.answers.answer_review(&body, terms)
    };
    let at = |version| {
        let version = StateVersion::from([version]);
        StoredBarrier::At(crate::barrier::Barrier { version, slot: 1 })
    };
    let next: [&dyn Fn(); 4] = [
        &|| drop(snapshots.send_replace(Some(Arc::new(1)))),
        &|| drop(snapshots.send_replace(Some(Arc::new(2)))),
        &|| {
            webhook.stored.send_replace(at(3));
        },
        &|| drop(snapshots.send_replace(Some(Arc::new(3)))),
    ];
    for (step, next) in next.into_iter().enumerate() {
        let ReviewResult::Outdated(changed) = ask(true) else {
            panic!("step {step} is answered too early")
        };
        let ReviewResult::Now(answer) = ask(false) else {
            panic!("step {step} may not wait")
        };
        let expected = match step {
            0 => ReviewOutcome::NotReady,
            _ => ReviewOutcome::Outdated,
        };
        assert_eq!(answer.outcome, expected, "step {step}");
        next();
        tokio::time::timeout(PATIENCE, changed).await.unwrap();
    }
    let ReviewResult::Now(answer) = ask(true) else {
        panic!("it has all that it needs")
    };
    assert_eq!(answer.outcome, ReviewOutcome::Unchanged);
}

/// Refuses an object for each of its annotations, and warns of its name.
struct Strict;

impl Reviewer for Strict {
    type Object = Named;
    type Snapshot = u64;
    type Response = Validation;

    /// Whether an object is refused is not certain before the second version.
    fn is_sufficient(snapshot: &u64, request: &AdmissionRequest<Named>) -> bool {
        *snapshot >= 2 || request.object.metadata.annotations.is_empty()
    }

    fn review_request(_: &u64, request: &AdmissionRequest<Named>) -> Validation {
        let metadata = &request.object.metadata;
        let former = request.old_object.as_ref();
        let is_new = |key: &&String| {
            former.is_none_or(|former| !former.metadata.annotations.contains_key(*key))
        };
        let causes = metadata
            .annotations
            .keys()
            .filter(is_new)
            .map(|key| RefusalCause {
                field: format!("metadata.annotations[{key}]"),
                message: "is not wanted".to_owned(),
            });
        Validation {
            causes: causes.collect(),
            warnings: vec![format!("{:?} is a name", metadata.name)],
        }
    }
}

fn strict_review(annotations: &Value, before: &Value) -> Vec<u8> {
    let object =
        |annotations: &Value| json!({"metadata": {"name": "a", "annotations": annotations}});
    let old = match before {
        Value::Null => Value::Null,
        before => object(before),
    };
    let request = json!({
        "uid": "u-1", "operation": "UPDATE", "name": "a",
        "kind": {"group": "example.com", "version": "v1", "kind": "Thing"},
        "object": object(annotations), "oldObject": old,
    });
    serde_json::to_vec(&json!({"request": request})).unwrap()
}

fn strict(version: u64) -> Webhook {
    let (_, snapshot) = watch::channel(Some(Arc::new(version)));
    let (_, calls) = watch::channel(WebhookCalls::default());
    Webhook::new::<Strict>("strict.leadsman.test", snapshot, calls)
}

// SDF-28
#[test]
fn a_refusal_names_each_field_as_the_api_server_would() {
    let webhook = strict(2);
    assert_eq!(webhook.kind, ReviewKind::Validating);
    let two = json!({"x": "1", "y": "1"});
    let answer = answer_now(&webhook, &strict_review(&two, &json!(null)), PATIENCE);
    assert_eq!(answer.outcome, ReviewOutcome::Refused);
    let body: Value = serde_json::from_slice(&answer.body.unwrap()).unwrap();
    let response = &body["response"];
    assert_eq!(response["allowed"], false);
    assert_eq!(response["patch"], Value::Null);
    assert_eq!(response["warnings"], json!(["\"a\" is a name"]));
    let status = &response["status"];
    assert_eq!(status["code"], 422);
    assert_eq!(status["reason"], "Invalid");
    assert_eq!(
        status["message"],
        "Thing.example.com \"a\" is invalid: [metadata.annotations[x]: is not wanted, \
         metadata.annotations[y]: is not wanted]"
    );
    let cause = |field: &str| json!({"reason": "FieldValueInvalid", "field": field, "message": "is not wanted"});
    let causes = json!([
        cause("metadata.annotations[x]"),
        cause("metadata.annotations[y]")
    ]);
    let expected = json!({"group": "example.com", "kind": "Thing", "name": "a", "causes": causes});
    assert_eq!(status["details"], expected);
}

// SCS-83
#[test]
fn an_object_is_refused_for_its_causes_alone() {
    let webhook = strict(2);
    let one = json!({"x": "1"});
    let table = [
        (
            "it was so before",
            strict_review(&one, &one),
            PATIENCE,
            ReviewOutcome::Unchanged,
        ),
        (
            "a late review",
            strict_review(&one, &json!(null)),
            Duration::ZERO,
            ReviewOutcome::Late,
        ),
        (
            "an old object that cannot be decoded",
            strict_review(&one, &json!("none")),
            PATIENCE,
            ReviewOutcome::Malformed,
        ),
    ];
    for (case, body, patience, expected) in table {
        let answer = answer_now(&webhook, &body, patience);
        assert_eq!(answer.outcome, expected, "{case}");
        let body: Value = serde_json::from_slice(&answer.body.unwrap()).unwrap();
        assert_eq!(body["response"]["allowed"], true, "{case}");
        assert_eq!(body["response"]["status"], Value::Null, "{case}");
    }
}

#[tokio::test]
async fn a_refusal_that_is_not_certain_waits_and_is_given_in_the_end() {
    let snapshots = watch::Sender::new(Some(Arc::new(1)));
    let (_, calls) = watch::channel(WebhookCalls::default());
    let webhook = Webhook::new::<Strict>("strict.leadsman.test", snapshots.subscribe(), calls);
    let ask = |annotations: &Value, may_wait| {
        let terms = Terms {
            may_wait,
            ..terms(PATIENCE)
        };
        let body = strict_review(annotations, &json!(null));
        webhook.answers.answer_review(&body, terms)
    };
    let one = json!({"x": "1"});
    assert!(matches!(ask(&json!({}), true), ReviewResult::Now(_)));
    assert!(matches!(ask(&one, true), ReviewResult::Outdated(_)));
    for (version, may_wait) in [(1, false), (2, true)] {
        snapshots.send_replace(Some(Arc::new(version)));
        let ReviewResult::Now(answer) = ask(&one, may_wait) else {
            panic!("version {version} waits")
        };
        assert_eq!(answer.outcome, ReviewOutcome::Refused);
    }
}
