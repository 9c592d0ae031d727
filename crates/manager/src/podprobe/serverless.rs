//! The webhook that injects the probes into pods when they are created, since a virtual node may run them.
//!
//! What is injected is a rule (`leadsman_core::podprobe::serverless`). This module passes the markers to the webhook on
//! every replica, and decides for which pods the API server calls it.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use leadsman_admission::{
    AdmissionRequest, Mutation, PatchOperation, Reviewer, Webhook, WebhookFeed, WebhookSpec,
};
use leadsman_api::slim;
use leadsman_core::podprobe::Machines;
use leadsman_core::podprobe::serverless::{Changes, MarkerScope, ProviderMarkers};
use serde_json::{Map, Value, json};

/// The webhook's name.
const WEBHOOK: &str = "podprobe.leadsman.io";
/// A pod is created without its probes rather than later: they are written as soon as it is on a virtual node.
const TIMEOUT_SECONDS: u8 = 1;

/// The markers that the webhook knows.
pub(crate) struct InjectionWebhook {
    markers: ProviderMarkers,
    /// Whether all markers have been listed. Before that no marker would seem to match a pod.
    is_listed: bool,
    feed: WebhookFeed<ProviderMarkers>,
    was_widened: bool,
}

impl InjectionWebhook {
    /// No marker is known yet.
    pub(crate) fn new() -> Self {
        Self {
            markers: ProviderMarkers::default(),
            is_listed: false,
            feed: WebhookFeed::new(),
            was_widened: false,
        }
    }

    /// The webhook that answers by these markers.
    pub(crate) fn injection_webhook(&self) -> Webhook {
        self.feed.fed_webhook::<ServerlessInjector>(WEBHOOK)
    }

    /// Takes over the changed markers. `lists_all` says whether all of them are listed.
    pub(crate) fn take_over_changes(&mut self, machines: &mut Machines, lists_all: bool) {
        let changed = machines.take_changed_markers();
        let is_changed = !changed.is_empty();
        for (name, marker) in changed {
            self.markers.set_marker(&name, marker);
        }
        // An empty snapshot is published without a marker too: until something is published, a
        // configuration that an earlier process has left is not removed.
        let is_first = lists_all && !self.is_listed;
        self.is_listed |= lists_all;
        if !self.is_listed || !is_changed && !is_first {
            return;
        }
        let scope = MarkerScope::new(&self.markers);
        let is_widened = scope.as_ref().is_some_and(MarkerScope::is_widened);
        if is_widened && !self.was_widened {
            tracing::warn!(
                webhook = WEBHOOK,
                "the markers have more namespaces or selectors than fit into a webhook configuration: the API server also \
                 calls the webhook for pods that no marker matches. Use fewer distinct selectors"
            );
        }
        self.was_widened = is_widened;
        let snapshot = Arc::new(self.markers.clone());
        self.feed
            .publish_snapshot(scope.map(webhook_spec).into(), snapshot);
    }
}

/// The pods for which the API server calls the webhook.
fn webhook_spec(scope: MarkerScope) -> WebhookSpec {
    let namespaces = scope.namespaces.map(|names| LabelSelectorRequirement {
        // Every namespace has its name as this label (KEP-2161).
        key: "kubernetes.io/metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(names),
    });
    let condition = scope.expression.map(|expression| MatchCondition {
        name: "a-marker-matches".to_owned(),
        expression,
    });
    let text = |text: &str| Some(vec![text.to_owned()]);
    WebhookSpec {
        rules: vec![RuleWithOperations {
            api_groups: text(""),
            api_versions: text("v1"),
            // A provider may read a pod once, when it gets it; later changes are written like marks.
            operations: text("CREATE"),
            resources: text("pods"),
            scope: Some("Namespaced".to_owned()),
        }],
        namespace_selector: LabelSelector {
            match_expressions: namespaces.map(|namespaces| vec![namespaces]),
            ..LabelSelector::default()
        },
        match_conditions: condition.into_iter().collect(),
        timeout_seconds: TIMEOUT_SECONDS,
        // Another webhook may add the container of a probe.
        reinvoked: true,
        ..WebhookSpec::default()
    }
}

/// Injects the probes into a pod.
struct ServerlessInjector;

impl Reviewer for ServerlessInjector {
    type Object = slim::Pod;
    type Snapshot = ProviderMarkers;
    type Response = Mutation;

    fn review_request(
        snapshot: &ProviderMarkers,
        request: &AdmissionRequest<slim::Pod>,
    ) -> Mutation {
        let changes = snapshot.review_pod(&request.namespace, &request.object);
        Mutation {
            patch: patch_pod(&request.object, changes),
            ..Mutation::default()
        }
    }
}

fn patch_pod(pod: &slim::Pod, changes: Changes) -> Vec<PatchOperation> {
    if pod.annotations.is_empty() && !changes.is_empty() {
        // The parent of what is added has to exist (RFC 6902, 4.1), so the first annotations are added as a whole.
        let pairs = changes.iter();
        let pairs =
            pairs.filter_map(|(key, value)| Some(((*key).to_owned(), json!(value.as_ref()?))));
        let all: Map<String, Value> = pairs.collect();
        return vec![PatchOperation::add_at(["metadata", "annotations"], all)];
    }
    let changes = changes.into_iter();
    let operations = changes.map(|(key, value)| {
        let path = ["metadata", "annotations", key];
        match value {
            Some(value) => PatchOperation::add_at(path, &*value),
            None => PatchOperation::remove_at(path),
        }
    });
    operations.collect()
}

#[cfg(test)]
mod tests {
    use leadsman_core::podprobe::serverless::{MARKERS, PROBES};

    use super::*;

    fn patch_of(annotations: &Value, changes: Changes) -> Value {
        let pod = json!({"metadata": {"annotations": annotations}});
        let patch = patch_pod(&serde_json::from_value(pod).unwrap(), changes);
        serde_json::to_value(patch).unwrap()
    }

    // PPM-16
    #[test]
    fn annotations_are_set_one_by_one_or_as_a_map_where_there_is_none() {
        let set = || vec![(PROBES, Some("[1]".into())), (MARKERS, Some("m".into()))];
        let probes = "/metadata/annotations/kruise.io~1podprobe";
        let markers = "/metadata/annotations/kruise.io~1podprobemarker-list";
        for none in [json!(null), json!({})] {
            assert_eq!(
                patch_of(&none, set()),
                json!([{"op": "add", "path": "/metadata/annotations", "value": {PROBES: "[1]", MARKERS: "m"}}])
            );
        }
        assert_eq!(
            patch_of(&json!({"a": "b"}), set()),
            json!([{"op": "add", "path": probes, "value": "[1]"}, {"op": "add", "path": markers, "value": "m"}])
        );
        assert_eq!(
            patch_of(&json!({MARKERS: "gone"}), vec![(MARKERS, None)]),
            json!([{"op": "remove", "path": markers}])
        );
        assert_eq!(patch_of(&json!(null), Changes::new()), json!([]));
    }
}
