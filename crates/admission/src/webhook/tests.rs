use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::review::PatchOperation;

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

    fn review(snapshot: &String, request: &AdmissionRequest<Named>) -> AdmissionResponse {
        let metadata = &request.object.metadata;
        match metadata.name.as_str() {
            "panics" => panic!("as the test wants"),
            "slow" => std::thread::sleep(Duration::from_millis(60)),
            _ => {}
        }
        let patch = if metadata.annotations.contains_key("echo") {
            Vec::new()
        } else if metadata.annotations.is_empty() {
            vec![PatchOperation::add(
                ["metadata", "annotations"],
                json!({"echo": snapshot}),
            )]
        } else {
            vec![PatchOperation::add(
                ["metadata", "annotations", "echo"],
                snapshot.as_str(),
            )]
        };
        AdmissionResponse {
            patch,
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

fn answer_now(webhook: &Webhook, body: &[u8], patience: Duration) -> Answer {
    let terms = Terms {
        slot: None,
        deadline: clock::monotonic() + patience,
        may_wait: false,
    };
    match webhook.answers.answer(body, terms) {
        Answered::Now(answer) => answer,
        Answered::Outdated(_) => panic!("it may not wait"),
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

/// Is sufficient from the second version on.
struct Versioned;

impl Reviewer for Versioned {
    type Object = Named;
    type Snapshot = u64;

    fn version(snapshot: &u64) -> Option<StateVersion> {
        Some(StateVersion([*snapshot, 0, 0]))
    }

    fn is_sufficient(snapshot: &u64, _: &AdmissionRequest<Named>) -> bool {
        *snapshot >= 2
    }

    fn review(_: &u64, _: &AdmissionRequest<Named>) -> AdmissionResponse {
        AdmissionResponse::default()
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
            deadline: clock::monotonic() + PATIENCE,
            may_wait,
        };
        webhook.answers.answer(&body, terms)
    };
    let at = |version| {
        let version = StateVersion([version, 0, 0]);
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
        let Answered::Outdated(changed) = ask(true) else {
            panic!("step {step} is answered too early")
        };
        let Answered::Now(answer) = ask(false) else {
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
    let Answered::Now(answer) = ask(true) else {
        panic!("it has all that it needs")
    };
    assert_eq!(answer.outcome, ReviewOutcome::Unchanged);
}
