//! A feature's webhook: its reviewer, and the objects for which the API server calls it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use leadsman_process::clock;

use crate::review::{AdmissionRequest, AdmissionResponse, Reviewer};

/// A webhook of a feature.
pub struct Webhook {
    pub(crate) name: &'static str,
    pub(crate) answers: Arc<dyn Answers>,
    pub(crate) spec: watch::Receiver<Option<WebhookSpec>>,
}

/// The objects for which the API server calls the webhook. Objects that it leaves out cost no call, so it should be as
/// narrow as possible.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookSpec {
    /// Operations and resources.
    pub rules: Vec<RuleWithOperations>,
    /// Labels of the namespace; none for all.
    pub namespace_selector: LabelSelector,
    /// Labels of the object; none for all.
    pub object_selector: LabelSelector,
    /// CEL expressions on the request, all of which must hold (KEP-3716; at most 64).
    pub match_conditions: Vec<MatchCondition>,
    /// The timeout in seconds, 1 to 30, after which the API server goes on without an answer.
    pub timeout_seconds: u8,
    /// Whether the webhook is called again when another one has changed the object afterwards.
    pub reinvoked: bool,
}

impl Webhook {
    /// A webhook whose requests `R` reviews with the latest snapshot; without one the answer is "no change". Its name,
    /// which is used in the configuration, the path and the metrics, is a domain of at least three labels
    /// (`IsFullyQualifiedName` in `k8s.io/apimachinery/pkg/util/validation`). While there is no spec, the API server is
    /// not told to call.
    pub fn new<R: Reviewer>(
        name: &'static str,
        snapshot: watch::Receiver<Option<Arc<R::Snapshot>>>,
        spec: watch::Receiver<Option<WebhookSpec>>,
    ) -> Self {
        debug_assert!(
            name.split('.').count() >= 3,
            "{name} is no domain of three labels"
        );
        let answers = Arc::new(Reviewing::<R> { snapshot });
        Self {
            name,
            answers,
            spec,
        }
    }

    /// The path at which the webhook is served.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.name)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReviewOutcome {
    /// The object was changed.
    Patched,
    /// There was nothing to change.
    Unchanged,
    /// The feature is not ready: "no change".
    NotReady,
    /// The deadline has passed: "no change".
    Late,
    /// The reviewer panicked: "no change".
    Panicked,
    /// The body is not a review, or the object cannot be decoded: "no change", or an error without a uid.
    Malformed,
}

/// An answer with its outcome.
pub(crate) struct Answer {
    pub(crate) outcome: ReviewOutcome,
    /// An `AdmissionReview`. None if the request has no uid.
    pub(crate) body: Option<Vec<u8>>,
}

/// A reviewer, type-erased.
pub(crate) trait Answers: Send + Sync {
    /// Whether there is a snapshot. Before that, a missing spec does not mean that the webhook is not in force.
    fn is_ready(&self) -> bool;

    /// Waits for the first snapshot.
    fn ready(&self) -> BoxFuture<'static, ()>;

    /// Answers an `AdmissionReview`, with "no change" after the deadline.
    fn answer(&self, body: &[u8], deadline: Instant) -> Answer;
}

struct Reviewing<R: Reviewer> {
    snapshot: watch::Receiver<Option<Arc<R::Snapshot>>>,
}

impl<R: Reviewer> Answers for Reviewing<R> {
    fn is_ready(&self) -> bool {
        self.snapshot.borrow().is_some()
    }

    fn ready(&self) -> BoxFuture<'static, ()> {
        let mut snapshot = self.snapshot.clone();
        async move {
            if snapshot.wait_for(Option::is_some).await.is_err() {
                // The feature ended before its first snapshot.
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn answer(&self, body: &[u8], deadline: Instant) -> Answer {
        // The lock is held only for a clone, so the control loop never waits for a review.
        let Some(snapshot) = self.snapshot.borrow().clone() else {
            return no_change(ReviewOutcome::NotReady, body);
        };
        // A snapshot is immutable, so a panic leaves nothing half written.
        let reviewed = catch_unwind(AssertUnwindSafe(|| review::<R>(&snapshot, body, deadline)));
        reviewed.unwrap_or_else(|_| no_change(ReviewOutcome::Panicked, body))
    }
}

fn review<R: Reviewer>(snapshot: &R::Snapshot, body: &[u8], deadline: Instant) -> Answer {
    let late = || clock::monotonic() >= deadline;
    if late() {
        return no_change(ReviewOutcome::Late, body);
    }
    let review: ReviewIn<AdmissionRequest<R::Object>> = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => {
            tracing::debug!(%error, "cannot decode an AdmissionReview, answering with no change");
            return no_change(ReviewOutcome::Malformed, body);
        }
    };
    let response = R::review(snapshot, &review.request);
    if late() {
        return no_change(ReviewOutcome::Late, body);
    }
    let outcome = if response.patch.is_empty() {
        ReviewOutcome::Unchanged
    } else {
        ReviewOutcome::Patched
    };
    Answer {
        outcome,
        body: Some(encode(&review.request.uid, &response)),
    }
}

/// "No change", for this reason.
pub(crate) fn no_change(outcome: ReviewOutcome, body: &[u8]) -> Answer {
    let review = serde_json::from_slice::<ReviewIn<UidOnly>>(body).ok();
    let unchanged = AdmissionResponse::default();
    Answer {
        outcome,
        body: review.map(|review| encode(&review.request.uid, &unchanged)),
    }
}

#[derive(Deserialize)]
struct ReviewIn<T> {
    request: T,
}

#[derive(Deserialize)]
struct UidOnly {
    uid: String,
}

/// The API server accepts an answer only with the version, kind and uid of the request, and with both a patch and its
/// type or neither (`VerifyAdmissionResponse` in `k8s.io/apiserver/pkg/admission/plugin/webhook/request`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewOut<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: ResponseOut<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseOut<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
}

fn encode(uid: &str, response: &AdmissionResponse) -> Vec<u8> {
    let json = |value| serde_json::to_vec(value).expect("strings and JSON values always encode");
    let patch = (!response.patch.is_empty()).then(|| {
        let patch = serde_json::to_vec(&response.patch);
        ByteString(patch.expect("strings and JSON values always encode"))
    });
    json(&ReviewOut {
        api_version: "admission.k8s.io/v1",
        kind: "AdmissionReview",
        response: ResponseOut {
            uid,
            allowed: true,
            patch_type: patch.is_some().then_some("JSONPatch"),
            patch,
            warnings: &response.warnings,
        },
    })
}

#[cfg(test)]
pub(crate) mod tests {
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

    pub(crate) fn echo(spec: watch::Receiver<Option<WebhookSpec>>) -> Webhook {
        let (_, snapshot) = watch::channel(Some(Arc::new("seen".to_owned())));
        Webhook::new::<Echo>("echo.leadsman.test", snapshot, spec)
    }

    pub(crate) fn pod_review(name: &str, annotations: &Value) -> Vec<u8> {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
            "metadata": {"name": name, "annotations": annotations},
        });
        let request =
            json!({"uid": "u-1", "operation": "CREATE", "namespace": "a", "object": object});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        serde_json::to_vec(&review).unwrap()
    }

    fn answer(body: &[u8], patience: Duration) -> (ReviewOutcome, Option<Value>) {
        let (_, none) = watch::channel(None);
        let answer = echo(none)
            .answers
            .answer(body, clock::monotonic() + patience);
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
        let (_, spec) = watch::channel(None);
        let webhook = Webhook::new::<Echo>("echo.leadsman.test", snapshot, spec);
        let answer = webhook
            .answers
            .answer(&pod_review("a", &json!({})), clock::monotonic() + PATIENCE);
        assert_eq!(answer.outcome, ReviewOutcome::NotReady);
        assert!(answer.body.is_some());
    }
}
