//! A feature's webhook: its reviewer, and the objects for which the API server calls it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, Status, StatusCause, StatusDetails,
};
use leadsman_process::watch;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use leadsman_lease::Leadership;
use leadsman_process::clock;

use crate::barrier::{StateVersion, StoredBarrier};
use crate::review::sealed::{ReviewKind, Reviewed, Sealed as _};
use crate::review::{AdmissionRequest, ObjectKind, RefusalCause, Reviewer};

/// A webhook of a feature.
pub struct Webhook {
    pub(crate) name: &'static str,
    pub(crate) kind: ReviewKind,
    pub(crate) answers: Arc<dyn Answers>,
    pub(crate) calls: watch::Receiver<WebhookCalls>,
    /// The barrier that is stored in the configuration, as this process has seen it.
    pub(crate) stored: watch::Sender<StoredBarrier>,
    pub(crate) in_force: watch::Sender<Option<StateVersion>>,
    pub(crate) led_by: Option<watch::Receiver<Leadership>>,
}

/// The feature's end of a webhook: what it answers by, and what the API server is told.
#[derive(Debug)]
pub struct WebhookFeed<S> {
    snapshot: watch::Sender<Option<Arc<S>>>,
    calls: watch::Sender<WebhookCalls>,
}

/// The calls of a webhook, all of which have the same reviewer: an object for which several are made is reviewed several
/// times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookCalls {
    /// Each call; none if the API server is not to call at all.
    pub specs: Vec<WebhookSpec>,
    /// The version of the snapshot that they were made from ([`Reviewer::snapshot_version`]). No replica answers them by an earlier
    /// one, as long as its time allows to wait for it.
    pub barrier: Option<StateVersion>,
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
    /// Whether the webhook is called again when another one has changed the object afterwards. A reviewer that judges
    /// objects is called after all that change them.
    pub reinvoked: bool,
    /// The fate of an object while no answer comes.
    pub failure_policy: WebhookFailurePolicy,
    /// A tag that tells a review which call it is for ([`AdmissionRequest::tag`]), since the review
    /// that the API server sends does not name it. Calls with a barrier have one. It is in the
    /// path, so there must be few different ones over time.
    pub tag: Option<u16>,
}

/// The fate of an object if the API server gets no answer, or none that can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WebhookFailurePolicy {
    /// The object is accepted as it is.
    #[default]
    Ignore,
    /// The object is refused. Such a call must leave out the namespaces that are needed to get the
    /// webhook running again, that of this process among them. Its condition must not fail either:
    /// an object whose condition cannot be evaluated is refused too.
    Fail,
}

impl WebhookFailurePolicy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ignore => "Ignore",
            Self::Fail => "Fail",
        }
    }
}

/// One call, or none.
impl From<Option<WebhookSpec>> for WebhookCalls {
    fn from(spec: Option<WebhookSpec>) -> Self {
        Self {
            specs: spec.into_iter().collect(),
            barrier: None,
        }
    }
}

impl<S: Send + Sync + 'static> WebhookFeed<S> {
    /// Nothing is known yet: the answer is "no change", and a configuration that is there stays as it is.
    pub fn new() -> Self {
        Self {
            snapshot: watch::Sender::new(None),
            calls: watch::Sender::new(WebhookCalls::default()),
        }
    }

    /// The webhook that is fed.
    pub fn fed_webhook<R: Reviewer<Snapshot = S>>(&self, name: &'static str) -> Webhook {
        Webhook::new::<R>(name, self.snapshot.subscribe(), self.calls.subscribe())
    }

    /// Publishes a snapshot by which answers are given, and the calls that the API server is told
    /// to make.
    pub fn publish_snapshot(&self, calls: WebhookCalls, snapshot: Arc<S>) {
        // The calls first: without a snapshot the configuration stays as it is.
        self.calls.send_if_modified(|known| {
            let is_new = *known != calls;
            *known = calls;
            is_new
        });
        self.snapshot.send_replace(Some(snapshot));
    }
}

impl<S: Send + Sync + 'static> Default for WebhookFeed<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl Webhook {
    /// A webhook whose requests `R` reviews with the latest snapshot; without one the answer is "no change". Its name,
    /// which is used in the configuration, the path and the metrics, is a domain of at least three labels
    /// (`IsFullyQualifiedName` in `k8s.io/apimachinery/pkg/util/validation`). While there are no calls, the API server is
    /// not told to call.
    pub fn new<R: Reviewer>(
        name: &'static str,
        snapshot: watch::Receiver<Option<Arc<R::Snapshot>>>,
        calls: watch::Receiver<WebhookCalls>,
    ) -> Self {
        debug_assert!(
            name.split('.').count() >= 3,
            "{name} is no domain of three labels"
        );
        let stored = watch::Sender::new(StoredBarrier::default());
        let answers = Arc::new(Reviewing::<R> {
            snapshot,
            stored: stored.subscribe(),
        });
        Self {
            name,
            kind: R::Response::KIND,
            answers,
            calls,
            stored,
            in_force: watch::Sender::new(None),
            led_by: None,
        }
    }

    /// The longest timeout of its calls. None while there are none.
    pub(crate) fn longest_timeout(&self) -> Option<Duration> {
        let calls = self.calls.borrow();
        let seconds = calls.specs.iter().map(|spec| spec.timeout_seconds).max()?;
        Some(Duration::from_secs(seconds.into()))
    }

    /// The API server is told to call only while this leadership is ours, beside that of [`Admission::start`].
    ///
    /// [`Admission::start`]: crate::Admission::start
    #[must_use]
    pub fn led_by(mut self, leadership: watch::Receiver<Leadership>) -> Self {
        self.led_by = Some(leadership);
        self
    }

    /// The barrier in force: every replica that answers has reached it. There is one too if no
    /// calls are wanted and none are stored. `None` while the stored calls differ from the desired
    /// ones.
    pub fn barrier_in_force(&self) -> watch::Receiver<Option<StateVersion>> {
        self.in_force.subscribe()
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReviewOutcome {
    /// The object was changed.
    Patched,
    /// The review changed nothing, or found nothing wrong.
    Unchanged,
    /// The object was refused for what is wrong with it.
    Refused,
    /// The feature is not ready: "no change".
    NotReady,
    /// The deadline has passed: "no change".
    Late,
    /// The reviewer panicked: "no change".
    Panicked,
    /// The replica is behind what it was called by. It answered by what it has, or refused.
    Outdated,
    /// The body is not a review, or the object cannot be decoded: "no change", or an error without a uid.
    Malformed,
}

impl ReviewOutcome {
    /// Whether the answer is that of the reviewer, by all that it needs to know.
    pub(crate) fn is_relied_on(self) -> bool {
        matches!(self, Self::Patched | Self::Unchanged | Self::Refused)
    }

    /// The API server's message to whoever creates an object that is refused for this outcome.
    pub(crate) fn refusal_message(self) -> &'static str {
        match self {
            Self::Patched | Self::Unchanged | Self::Refused => "reviewed",
            Self::NotReady => "this replica has not read yet what it reviews by",
            Self::Late => "the review took too long",
            Self::Panicked => "the review panicked; the log of the manager says why",
            Self::Outdated => {
                "this replica has not seen yet the namespace, or the change, that the review depends on; try again"
            }
            Self::Malformed => "the AdmissionReview cannot be decoded",
        }
    }
}

/// An answer with its outcome.
pub(crate) struct ReviewAnswer {
    pub(crate) outcome: ReviewOutcome,
    /// An `AdmissionReview`. None if the request has no uid.
    pub(crate) body: Option<Vec<u8>>,
}

/// An answer, or a snapshot to wait for first.
pub(crate) enum ReviewResult {
    Now(ReviewAnswer),
    /// Resolves when there is something new to answer by.
    Outdated(BoxFuture<'static, ()>),
}

/// How a request is to be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The slot in the path of the call.
    pub(crate) slot: Option<u8>,
    /// The tag in the path of the call.
    pub(crate) tag: Option<u16>,
    /// Whether the call prefers a refusal to an object that is not as it should be.
    pub(crate) fails: bool,
    /// The time at which the answer must be there; later it is "no change".
    pub(crate) deadline: Instant,
    /// Whether there is time to wait for another snapshot.
    pub(crate) may_wait: bool,
}

/// A reviewer, type-erased.
pub(crate) trait Answers: Send + Sync {
    /// Whether there is a snapshot. Before that, missing calls do not mean that the webhook is not in force.
    fn has_snapshot(&self) -> bool;

    /// Waits for the first snapshot.
    fn wait_for_snapshot(&self) -> BoxFuture<'static, ()>;

    /// The version of the snapshot. None without one, and where states have none.
    fn snapshot_version(&self) -> Option<StateVersion>;

    /// Waits until the snapshot includes this version, or until it does not.
    fn wait_until_included(&self, version: StateVersion, included: bool) -> BoxFuture<'static, ()>;

    /// Answers an `AdmissionReview`.
    fn answer_review(&self, body: &[u8], terms: Terms) -> ReviewResult;
}

struct Reviewing<R: Reviewer> {
    snapshot: watch::Receiver<Option<Arc<R::Snapshot>>>,
    stored: watch::Receiver<StoredBarrier>,
}

impl<R: Reviewer> Answers for Reviewing<R> {
    fn has_snapshot(&self) -> bool {
        self.snapshot.borrow().is_some()
    }

    fn wait_for_snapshot(&self) -> BoxFuture<'static, ()> {
        let mut snapshot = self.snapshot.clone();
        async move {
            if snapshot.wait_for(Option::is_some).await.is_err() {
                // The feature ended before its first snapshot.
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn snapshot_version(&self) -> Option<StateVersion> {
        version_of::<R>(self.snapshot.borrow().as_deref())
    }

    fn wait_until_included(&self, version: StateVersion, included: bool) -> BoxFuture<'static, ()> {
        let mut snapshot = self.snapshot.clone();
        async move {
            let is_included = |snapshot: &Option<Arc<R::Snapshot>>| {
                let own = version_of::<R>(snapshot.as_deref());
                own.is_some_and(|own| own.includes(version) == included)
            };
            if snapshot.wait_for(is_included).await.is_err() {
                // The feature has ended.
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn answer_review(&self, body: &[u8], terms: Terms) -> ReviewResult {
        // Both are cloned before they are read, so that no change is missed.
        let (mut snapshots, mut barriers) = (self.snapshot.clone(), self.stored.clone());
        // The lock is held only for a clone, so the control loop never waits for a review.
        let snapshot = snapshots.borrow_and_update().clone();
        let stored = *barriers.borrow_and_update();
        let reviewed = match &snapshot {
            // A snapshot is immutable, so a panic leaves nothing half written.
            Some(snapshot) => catch_unwind(AssertUnwindSafe(|| {
                review_body::<R>(snapshot, stored, body, terms)
            })),
            None if terms.may_wait => Ok(None),
            None => Ok(Some(answer_no_change(ReviewOutcome::NotReady, body))),
        };
        let reviewed =
            reviewed.unwrap_or_else(|_| Some(answer_no_change(ReviewOutcome::Panicked, body)));
        reviewed.map_or_else(
            || ReviewResult::Outdated(wait_for_either(snapshots, barriers).boxed()),
            ReviewResult::Now,
        )
    }
}

fn version_of<R: Reviewer>(snapshot: Option<&R::Snapshot>) -> Option<StateVersion> {
    snapshot.and_then(R::snapshot_version)
}

async fn wait_for_either<S, B>(
    mut snapshots: watch::Receiver<S>,
    mut barriers: watch::Receiver<B>,
) {
    tokio::select! {
        // Either ends the wait.
        biased;
        Ok(()) = snapshots.changed() => {}
        Ok(()) = barriers.changed() => {}
        else => std::future::pending().await,
    }
}

/// The answer to a review; None if it is to wait for another snapshot or barrier.
fn review_body<R: Reviewer>(
    snapshot: &R::Snapshot,
    stored: StoredBarrier,
    body: &[u8],
    terms: Terms,
) -> Option<ReviewAnswer> {
    let late = || clock::monotonic() >= terms.deadline;
    if late() {
        return Some(answer_no_change(ReviewOutcome::Late, body));
    }
    let mut review: ReviewIn<AdmissionRequest<R::Object>> = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => {
            tracing::debug!(%error, "cannot decode an AdmissionReview, answering with no change");
            return Some(answer_no_change(ReviewOutcome::Malformed, body));
        }
    };
    review.request.tag = terms.tag;
    let is_current = stored.is_reached(terms.slot, R::snapshot_version(snapshot))
        && R::is_sufficient(snapshot, &review.request);
    // Decoded again when there is something new: waiting requests keep their bodies, not their objects.
    if !is_current && terms.may_wait {
        return None;
    }
    let mut reviewed = R::review_request(snapshot, &review.request).into_reviewed();
    reviewed.refusal = reviewed.refusal.filter(|_| terms.fails);
    // The API server has given up on it: counted as late, it is not taken for a patch that was applied.
    if late() {
        return Some(answer_no_change(ReviewOutcome::Late, body));
    }
    let outcome = if !reviewed.causes.is_empty() {
        ReviewOutcome::Refused
    } else if !is_current {
        ReviewOutcome::Outdated
    } else if reviewed.refusal.is_some() {
        ReviewOutcome::Refused
    } else if reviewed.patch.is_empty() {
        ReviewOutcome::Unchanged
    } else {
        ReviewOutcome::Patched
    };
    let AdmissionRequest {
        uid, kind, name, ..
    } = &review.request;
    Some(ReviewAnswer {
        outcome,
        body: Some(encode_review(uid, &reviewed, (kind, name))),
    })
}

/// "No change", for this reason.
pub(crate) fn answer_no_change(outcome: ReviewOutcome, body: &[u8]) -> ReviewAnswer {
    let review = serde_json::from_slice::<ReviewIn<UidOnly>>(body).ok();
    let unchanged = Reviewed::default();
    let of_no_object = (&ObjectKind::default(), "");
    ReviewAnswer {
        outcome,
        body: review.map(|review| encode_review(&review.request.uid, &unchanged, of_no_object)),
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
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
}

fn encode_review(uid: &str, reviewed: &Reviewed, object: (&ObjectKind, &str)) -> Vec<u8> {
    let json = |value| serde_json::to_vec(value).expect("strings and JSON values always encode");
    let denied = reviewed.refusal.as_deref().map(denied_status);
    let is_patched = !reviewed.patch.is_empty() && denied.is_none();
    let patch = is_patched.then(|| {
        let patch = serde_json::to_vec(&reviewed.patch);
        ByteString(patch.expect("strings and JSON values always encode"))
    });
    let invalid = (!reviewed.causes.is_empty()).then(|| invalid_status(&reviewed.causes, object));
    let status = invalid.or(denied);
    json(&ReviewOut {
        api_version: "admission.k8s.io/v1",
        kind: "AdmissionReview",
        response: ResponseOut {
            uid,
            allowed: status.is_none(),
            status,
            patch_type: patch.is_some().then_some("JSONPatch"),
            patch,
            warnings: &reviewed.warnings,
        },
    })
}

/// The object is as it may be, and yet it is refused: what the API server makes of a refusal without a status, with a message
/// (`ToStatusErr` in `k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go`).
fn denied_status(message: &str) -> Status {
    Status {
        status: Some("Failure".to_owned()),
        code: Some(i32::from(StatusCode::FORBIDDEN.as_u16())),
        reason: Some("Forbidden".to_owned()),
        message: Some(message.to_owned()),
        ..Status::default()
    }
}

/// A status such as the API server's for an invalid object (`NewInvalid` in
/// `k8s.io/apimachinery/pkg/api/errors`), so that clients show each cause with its field.
fn invalid_status(causes: &[RefusalCause], (kind, name): (&ObjectKind, &str)) -> Status {
    let ObjectKind { group, kind } = kind;
    let qualified = match group.as_str() {
        "" => kind.clone(),
        group => format!("{kind}.{group}"),
    };
    let texts: Vec<_> = causes
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    let text = match &texts[..] {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let causes = causes.iter().map(|cause| StatusCause {
        field: Some(cause.field.clone()),
        message: Some(cause.message.clone()),
        reason: Some("FieldValueInvalid".to_owned()),
    });
    Status {
        status: Some("Failure".to_owned()),
        code: Some(i32::from(StatusCode::UNPROCESSABLE_ENTITY.as_u16())),
        reason: Some("Invalid".to_owned()),
        message: Some(format!("{qualified} {name:?} is invalid: {text}")),
        details: Some(StatusDetails {
            group: Some(group.clone()),
            kind: Some(kind.clone()),
            name: Some(name.to_owned()),
            causes: Some(causes.collect()),
            ..StatusDetails::default()
        }),
        ..Status::default()
    }
}

#[cfg(test)]
pub(crate) mod tests;
