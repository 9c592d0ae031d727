//! The webhook that refuses `SidecarSet`s as they are written, for what the CRD cannot say of them.
//!
//! What is wrong is a rule (`leadsman_core::sidecarset::review`). A set that is written while no webhook answers is judged
//! by the feature, so this one is never waited for. It has no barrier: whatever of two sets that are written together a
//! replica has not seen yet, the feature sees.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use leadsman_admission::{
    AdmissionRequest, RefusalCause, Reviewer, Validation, Webhook, WebhookCalls, WebhookFeed,
    WebhookSpec,
};
use leadsman_api::{GROUP, SidecarSet};
use leadsman_core::sidecarset::review::judge;
use leadsman_core::sidecarset::set::JUDGED_ANNOTATIONS;
use leadsman_core::sidecarset::snapshot::Snapshot;

/// The webhook's name.
const WEBHOOK: &str = "validate-sidecarset.leadsman.io";
/// Half of it is for the answer, and half of that for another look at what the set is judged beside.
const TIMEOUT_SECONDS: u8 = 2;

/// The state that sets are judged beside.
pub(super) struct ReviewFeed {
    feed: WebhookFeed<Snapshot>,
}

impl ReviewFeed {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self {
            feed: WebhookFeed::new(),
        }
    }

    /// The webhook that judges by it.
    pub(super) fn review_webhook(&self) -> Webhook {
        self.feed.fed_webhook::<SetReviewer>(WEBHOOK)
    }

    /// Takes over what has changed.
    pub(super) fn publish_snapshot(&self, snapshot: Arc<Snapshot>) {
        let calls = WebhookCalls {
            specs: vec![webhook_spec()],
            barrier: None,
        };
        self.feed.publish_snapshot(calls, snapshot);
    }
}

/// The writes of sets that may be refused. Of others, such as those of finalizers, of a status or of our own hashes, the API
/// server knows by itself that they say nothing else about pods than before.
fn webhook_spec() -> WebhookSpec {
    let text = |text: &[&str]| Some(text.iter().map(ToString::to_string).collect());
    let annotation =
        // Reading a key that is not there would be an error, and with `Ignore` an error means no call
        // (`matchConditions` of `ValidatingWebhook`, `k8s.io/api/admissionregistration/v1/types.go`).
        |object: &str, key: &str| format!("{object}.metadata.?annotations[?'{key}'].orValue('')");
    let changed = JUDGED_ANNOTATIONS.map(|key| {
        format!(
            "{} != {}",
            annotation("object", key),
            annotation("oldObject", key)
        )
    });
    let expression = format!(
        "request.operation == 'CREATE' || object.spec != oldObject.spec || {}",
        changed.join(" || ")
    );
    WebhookSpec {
        rules: vec![RuleWithOperations {
            api_groups: text(&[GROUP]),
            api_versions: text(&["v1alpha1", "v1beta1"]),
            operations: text(&["CREATE", "UPDATE"]),
            resources: text(&["sidecarsets"]),
            scope: Some("Cluster".to_owned()),
        }],
        match_conditions: vec![MatchCondition {
            name: "says-something-else-about-pods".to_owned(),
            expression,
        }],
        timeout_seconds: TIMEOUT_SECONDS,
        ..WebhookSpec::default()
    }
}

/// Judges a set.
struct SetReviewer;

impl Reviewer for SetReviewer {
    type Object = SidecarSet;
    type Snapshot = Snapshot;
    type Response = Validation;

    /// A set that is refused for what other objects say is looked at again, as long as there is time: the list of annotations
    /// may have been applied just before, or the other set deleted.
    fn is_sufficient(known: &Snapshot, request: &AdmissionRequest<SidecarSet>) -> bool {
        !judge(&request.object, request.old_object.as_ref(), known).depends_on_others
    }

    fn review_request(known: &Snapshot, request: &AdmissionRequest<SidecarSet>) -> Validation {
        let judgement = judge(&request.object, request.old_object.as_ref(), known);
        let causes = judgement.errors.into_iter().map(|invalid| RefusalCause {
            field: invalid.path,
            message: invalid.message,
        });
        Validation {
            causes: causes.collect(),
            warnings: judgement.warnings,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The request to create a set with this in its spec.
    fn creation(spec: &Value) -> AdmissionRequest<SidecarSet> {
        let mut set = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
            "metadata": {"name": "log"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": "log", "image": "log:1"}]}});
        for (field, value) in spec.as_object().unwrap() {
            set["spec"][field] = value.clone();
        }
        let request = json!({"uid": "u", "operation": "CREATE", "object": set});
        serde_json::from_value(request).unwrap()
    }

    // SCS-73
    #[test]
    fn only_what_other_objects_may_still_allow_is_looked_at_again() {
        let known = Snapshot::default();
        let unlisted = json!({"patchPodMetadata": [{"annotations": {"other/b": "1"}}]});
        let wrong = json!({"containers": [{"name": "log", "image": "log:1",
            "resources": {"limits": {"cpu": "much"}}}]});
        for (spec, is_refused, is_sufficient) in [
            (json!({}), false, true),
            (wrong, true, true),
            (unlisted, true, false),
        ] {
            let request = creation(&spec);
            let causes = SetReviewer::review_request(&known, &request).causes;
            assert_eq!(!causes.is_empty(), is_refused, "{causes:?}");
            let found = SetReviewer::is_sufficient(&known, &request);
            assert_eq!(found, is_sufficient, "{spec}");
        }
    }
}
