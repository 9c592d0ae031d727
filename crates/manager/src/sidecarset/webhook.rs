//! The webhook that injects containers into pods when they are created.
//!
//! What a pod gets is a rule (`leadsman_core::sidecarset::snapshot`), and so is for which pods the API server calls
//! (`scope`). This module passes both on, on every replica, and counts what did not take effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use leadsman_admission::{
    AdmissionRequest, Mutation, PatchOperation, ReviewOperation, Reviewer, StateVersion, Webhook,
    WebhookCalls, WebhookFailurePolicy, WebhookFeed, WebhookSpec,
};
use leadsman_core::cluster::ResourceVersion;
use leadsman_core::sidecarset::reconcile::Config;
use leadsman_core::sidecarset::render::Remark;
use leadsman_core::sidecarset::resources::ResourceRemark;
use leadsman_core::sidecarset::scope::{ScopeCall, SetScope};
use leadsman_core::sidecarset::set;
use leadsman_core::sidecarset::snapshot::{Snapshot, SnapshotVersion};
use leadsman_core::workload::JsonObject;
use leadsman_process::metrics::Counters;
use leadsman_process::{Metrics, clock};
use prometheus_client::metrics::counter::Counter;

/// The webhook's name.
const WEBHOOK: &str = "sidecarset.leadsman.io";
/// The system's own, whose pods are never refused.
const SYSTEM: &str = "kube-system";
/// A pod without its sidecars has to be created again, so an answer is worth a wait; but every pod of a set waits for it.
const TIMEOUT_SECONDS: u8 = 3;
/// Warnings for who creates a pod. The API server takes 4,096 characters in all
/// (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
const WARNINGS: usize = 16;

/// The sets that the webhook knows.
pub(super) struct SetInjection {
    feed: WebhookFeed<Injectable>,
    remarks: RemarkCounters,
    /// The namespaces whose pods are never refused.
    protected: Vec<String>,
    known: Arc<Snapshot>,
    scope: SetScope,
}

impl SetInjection {
    /// No set is known yet.
    pub(super) fn new(config: &Config, metrics: &Metrics) -> Self {
        Self {
            feed: WebhookFeed::new(),
            remarks: RemarkCounters::new(metrics),
            protected: protected_namespaces(config),
            known: Arc::default(),
            scope: SetScope::default(),
        }
    }

    /// The webhook that answers by these sets.
    pub(super) fn injection_webhook(&self) -> Webhook {
        self.feed.fed_webhook::<SidecarInjector>(WEBHOOK)
    }

    /// Takes over what has changed.
    pub(super) fn publish_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        // The scope is the costly part: revisions change with every upgrade.
        if !SetScope::is_same(&snapshot, &self.known) {
            let scope = SetScope::new(&snapshot, &self.protected);
            self.warn_of_scope(&scope);
            self.scope = scope;
        }
        let calls = WebhookCalls {
            specs: self.scope.calls.iter().map(webhook_spec).collect(),
            // Unknown counts as 0, the lowest: a barrier must not ask for what no replica has.
            barrier: Some(to_state_version(snapshot.barrier(), 0)),
        };
        self.known = snapshot.clone();
        let remarks = self.remarks.clone();
        self.feed
            .publish_snapshot(calls, Arc::new(Injectable { snapshot, remarks }));
    }

    fn warn_of_scope(&self, scope: &SetScope) {
        if scope.is_widened && !self.scope.is_widened {
            tracing::warn!(
                webhook = WEBHOOK,
                "the SidecarSets have more selectors than fit into a webhook configuration: the API server also calls the \
                 webhook for pods that no SidecarSet selects. Select pods by fewer distinct labels, or namespaces by fewer \
                 distinct namespaceSelectors"
            );
        }
        // Once for each set, and not with each snapshot.
        let known = &self.scope.not_failing;
        for set in scope.not_failing.iter().filter(|set| !known.contains(set)) {
            tracing::warn!(
                sidecarset = %set,
                "{}: Fail has no effect: its pods cannot be told from others in a webhook configuration, since the \
                 SidecarSets that ask for it have too many selectors. Its pods are injected as with Ignore",
                set::FAILURE_POLICY_ANNOTATION
            );
        }
    }
}

/// The namespaces whose pods are never refused, each once: the manager may itself be in `kube-system`.
fn protected_namespaces(config: &Config) -> Vec<String> {
    let mut protected = vec![SYSTEM.to_owned(), config.namespace.clone()];
    protected.extend_from_slice(&config.protected_namespaces);
    let mut seen = BTreeSet::new();
    protected.retain(|name| seen.insert(name.clone()));
    protected
}

/// A version as the webhook has it, with a number for what is not known.
fn to_state_version(version: SnapshotVersion, unknown: u64) -> StateVersion {
    let SnapshotVersion {
        sets,
        revisions,
        whitelist,
    } = version;
    let kinds = [sets, revisions, whitelist];
    StateVersion::from(kinds.map(|version| version.number().unwrap_or(unknown)))
}

/// The same, read.
pub(super) fn from_state_version(StateVersion(kinds): StateVersion) -> SnapshotVersion {
    let [sets, revisions, whitelist, ..] = kinds.map(ResourceVersion::from);
    SnapshotVersion {
        sets,
        revisions,
        whitelist,
    }
}

/// The pods for which the API server calls.
fn webhook_spec(call: &ScopeCall) -> WebhookSpec {
    let text = |text: &str| Some(vec![text.to_owned()]);
    let condition = |name: &str, expression| MatchCondition {
        name: name.to_owned(),
        expression,
    };
    let selected = call
        .expression
        .clone()
        .map(|expression| condition("a-sidecarset-selects-it", expression));
    let no_mirror = condition("is-no-mirror-pod", SetScope::no_mirror_pod());
    WebhookSpec {
        rules: vec![RuleWithOperations {
            api_groups: text(""),
            api_versions: text("v1"),
            operations: text("CREATE"),
            resources: text("pods"),
            scope: Some("Namespaced".to_owned()),
        }],
        namespace_selector: call.namespaces.clone(),
        match_conditions: selected.into_iter().chain([no_mirror]).collect(),
        timeout_seconds: TIMEOUT_SECONDS,
        // The API server's own plugins run once more after this webhook, but not after another call of it: what they add
        // to the containers would be missing from containers that are rendered anew.
        reinvoked: false,
        tag: call.tag,
        failure_policy: match call.failure_policy {
            set::FailurePolicy::Ignore => WebhookFailurePolicy::Ignore,
            set::FailurePolicy::Fail => WebhookFailurePolicy::Fail,
        },
        ..WebhookSpec::default()
    }
}

/// The state that pods are reviewed by.
struct Injectable {
    snapshot: Arc<Snapshot>,
    remarks: RemarkCounters,
}

/// Injects containers into a pod.
struct SidecarInjector;

impl Reviewer for SidecarInjector {
    type Object = JsonObject;
    type Snapshot = Injectable;
    type Response = Mutation;

    fn snapshot_version(known: &Injectable) -> Option<StateVersion> {
        // A kind whose version is not known cannot be compared.
        Some(to_state_version(known.snapshot.version, u64::MAX))
    }

    fn is_sufficient(known: &Injectable, request: &AdmissionRequest<JsonObject>) -> bool {
        let AdmissionRequest {
            object, namespace, ..
        } = request;
        let snapshot = &known.snapshot;
        snapshot.knows_namespace(object, namespace, request.tag)
    }

    fn review_request(known: &Injectable, request: &AdmissionRequest<JsonObject>) -> Mutation {
        // The rules ask for nothing else; somebody may have added to the configuration.
        if request.operation != ReviewOperation::Create {
            return Mutation::default();
        }
        let AdmissionRequest {
            namespace, object, ..
        } = request;
        let injected = known.snapshot.inject(object, namespace, clock::now());
        let patch = injected.additions.json_patch(object).into_iter();
        let remarks = &injected.remarks;
        if !injected.additions.is_empty() || injected.sets.is_empty() {
            // Otherwise another call for the same pod has counted them.
            for (_, remark) in remarks {
                known.remarks.count_remark(remark);
            }
        }
        let warnings = remarks.iter().take(WARNINGS);
        Mutation {
            patch: patch.map(PatchOperation::from).collect(),
            refusal: known.snapshot.refusal(object, namespace),
            warnings: warnings
                .map(|(set, remark)| format!("SidecarSet {set:?} {remark}"))
                .collect(),
        }
    }
}

/// The remarks of sets that do not take effect in new pods, counted by reason.
#[derive(Clone)]
struct RemarkCounters(Counters<1>);

const REASONS: [&str; 13] = [
    "own_container",
    "conflict",
    "own_volume",
    "no_variable",
    "annotation_not_allowed",
    "annotation_not_merged",
    "no_pinned_revision",
    "no_target_container",
    "target_without_limit",
    "resources_adjusted",
    "host_port",
    "own_device",
    "would_be_invalid",
];

fn remark_reason(remark: &Remark) -> &'static str {
    match remark {
        Remark::OwnContainer(_) => REASONS[0],
        Remark::Overlap { .. } => REASONS[1],
        Remark::OwnVolume(_) => REASONS[2],
        Remark::NoVariable { .. } => REASONS[3],
        Remark::KeyNotAllowed(_) => REASONS[4],
        Remark::NotMerged(_) => REASONS[5],
        Remark::NoPinnedRevision(_) => REASONS[6],
        Remark::Resources { remark, .. } => match remark {
            ResourceRemark::NoTarget(_) => REASONS[7],
            ResourceRemark::Unlimited { .. } => REASONS[8],
            ResourceRemark::OfThePod(_)
            | ResourceRemark::NoLimit { .. }
            | ResourceRemark::NegativeRequest { .. }
            | ResourceRemark::RequestAboveLimit { .. }
            | ResourceRemark::TooLarge { .. } => REASONS[9],
        },
        Remark::HostPort(_) | Remark::HostNetwork(_) => REASONS[10],
        Remark::OwnDevice(_) => REASONS[11],
        Remark::Misfit(_) => REASONS[12],
    }
}

impl RemarkCounters {
    fn new(registry: &Metrics) -> Self {
        let counters = Counters::default();
        registry.register(|registry| {
            registry.register(
                "sidecarset_injection_remarks",
                "What SidecarSets say that did not take effect in a pod that was created, by reason; with own_container, \
                 conflict, host_port, own_device and would_be_invalid the whole set was left out",
                counters.clone(),
            );
        });
        let counters = Self(counters);
        // Each series exists from the start: `rate` does not see the event with which a counter begins.
        for reason in REASONS {
            drop(counters.remark_counter(reason));
        }
        counters
    }

    fn remark_counter(&self, reason: &'static str) -> Counter {
        self.0.get_or_create_owned(&[("reason", reason)])
    }

    fn count_remark(&self, remark: &Remark) {
        self.remark_counter(remark_reason(remark)).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SDF-61
    #[test]
    fn each_protected_namespace_is_named_once() {
        let config = |namespace: &str, more: &[&str]| Config {
            namespace: namespace.to_owned(),
            protected_namespaces: more.iter().map(|name| (*name).to_owned()).collect(),
            ..Config::default()
        };
        let named = |namespace, more: &[&str]| protected_namespaces(&config(namespace, more));
        assert_eq!(
            named("lms", &["cni", "kube-system"]),
            [SYSTEM, "lms", "cni"]
        );
        assert_eq!(named(SYSTEM, &[]), [SYSTEM]);
    }
}
