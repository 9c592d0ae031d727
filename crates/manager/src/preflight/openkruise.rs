//! Reading the state of `OpenKruise`: its manager, its agents and its webhooks.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Api, Client};
use leadsman_process::clock;

use super::facts::{Lookup, lookup_reply};
use crate::openkruise::{
    OpenKruiseManager, OpenKruiseState, feature_gates_flag, find_namespace, look_for_openkruise,
};

/// Between two looks at its Lease, which it renews every two seconds (`RetryPeriod` of controller-runtime's
/// `pkg/manager/manager.go`).
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The DaemonSet of its agents.
const DAEMON: &str = "kruise-daemon";
const VALIDATING: &str = "kruise-validating-webhook-configuration";
const MUTATING: &str = "kruise-mutating-webhook-configuration";

/// The rights that reading it takes beside [`GUARD_RIGHTS`](crate::openkruise::GUARD_RIGHTS): group, resource, name (any, if
/// empty), verb. Which pod holds the Lease is not known beforehand.
pub(super) const OPENKRUISE_RIGHTS: [(&str, &str, &str, &str); 4] = [
    ("", "pods", "", "list"),
    ("apps", "daemonsets", DAEMON, "get"),
    (
        ADMISSION,
        "validatingwebhookconfigurations",
        VALIDATING,
        "get",
    ),
    (ADMISSION, "mutatingwebhookconfigurations", MUTATING, "get"),
];
const ADMISSION: &str = "admissionregistration.k8s.io";

/// The parts of it that are installed.
#[derive(Clone, Debug)]
pub struct OpenKruiseFacts {
    /// The state of its manager.
    pub manager: Lookup<OpenKruiseState>,
    /// The feature gates of its agents, if there are any.
    pub daemon: Lookup<Option<String>>,
    /// The webhooks without which pods, markers or `SidecarSet`s cannot be written.
    pub webhooks: Lookup<Vec<BlockingWebhook>>,
}

/// The resource of `SidecarSet`.
pub(super) const SIDECAR_SETS: &str = "sidecarsets";

/// A webhook with failurePolicy Fail: while it does not answer, its objects cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingWebhook {
    /// `validatingwebhookconfiguration` or `mutatingwebhookconfiguration`.
    pub kind: &'static str,
    /// The name of the configuration.
    pub configuration: &'static str,
    /// The name of the webhook.
    pub name: String,
    /// `pods`, `podprobemarkers` or `sidecarsets`.
    pub about: &'static str,
}

/// Reads all of it. The Lease is looked at until it was renewed or has expired.
pub(super) async fn read_openkruise(client: &Client) -> OpenKruiseFacts {
    // A tenant may be able to make a namespace and a DaemonSet of these names.
    let daemon = lookup_reply(async {
        let Some(namespace) = find_namespace(client).await? else {
            return Ok(None);
        };
        let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), &namespace);
        daemons.get_opt(DAEMON).await
    });
    let daemon = daemon.await.map(|daemon| {
        let template = daemon?.spec.template;
        // An absent flag leaves all gates at their defaults, as an empty one does.
        Some(feature_gates_flag(&template.spec?).unwrap_or_default())
    });
    OpenKruiseFacts {
        manager: read_manager_state(client).await,
        daemon,
        webhooks: lookup_reply(read_blocking_webhooks(client)).await,
    }
}

async fn read_manager_state(client: &Client) -> Lookup<OpenKruiseState> {
    let mut manager = OpenKruiseManager::default();
    // The loop ends: the Lease is renewed, expires or is released, and a look that fails is an error here.
    let mut first_expiry = None;
    loop {
        let found = lookup_reply(look_for_openkruise(client)).await?;
        let now = clock::monotonic();
        manager.observe(found, now, clock::now());
        let state = manager.state_at(now);
        let expires_at = manager.expires_at(now);
        // A renewal moves the expiry.
        let is_renewed = first_expiry.is_some() && expires_at != first_expiry;
        if state == OpenKruiseState::Absent || is_renewed {
            return Ok(state);
        }
        first_expiry = first_expiry.or(expires_at);
        clock::sleep_until(Some(now + BETWEEN_LOOKS)).await;
    }
}

async fn read_blocking_webhooks(client: &Client) -> kube::Result<Vec<BlockingWebhook>> {
    let mut found = Vec::new();
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = validating.get_opt(VALIDATING).await?;
    for hook in configuration.and_then(|it| it.webhooks).unwrap_or_default() {
        let (policy, rules) = (hook.failure_policy, hook.rules.unwrap_or_default());
        let hooks = blocking_webhooks(
            "validatingwebhookconfiguration",
            VALIDATING,
            &hook.name,
            policy,
            &rules,
        );
        found.extend(hooks);
    }
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = mutating.get_opt(MUTATING).await?;
    for hook in configuration.and_then(|it| it.webhooks).unwrap_or_default() {
        let (policy, rules) = (hook.failure_policy, hook.rules.unwrap_or_default());
        let hooks = blocking_webhooks(
            "mutatingwebhookconfiguration",
            MUTATING,
            &hook.name,
            policy,
            &rules,
        );
        found.extend(hooks);
    }
    Ok(found)
}

/// The resources that cannot be written while nobody answers a webhook. A failurePolicy defaults to `Fail`
/// (`SetDefaults_ValidatingWebhook`, `pkg/apis/admissionregistration/v1/defaults.go`).
fn blocking_webhooks(
    kind: &'static str,
    configuration: &'static str,
    name: &str,
    policy: Option<String>,
    rules: &[RuleWithOperations],
) -> Vec<BlockingWebhook> {
    if policy.is_some_and(|policy| policy != "Fail") {
        return Vec::new();
    }
    let is_about = |group: &str, resource: &str| {
        rules.iter().any(|rule| {
            let has = |names: &Option<Vec<String>>, own: &str| {
                names
                    .iter()
                    .flatten()
                    .any(|name| name == own || name == "*")
            };
            has(&rule.api_groups, group) && has(&rule.resources, resource)
        })
    };
    let about = [
        ("", "pods"),
        (leadsman_api::GROUP, "podprobemarkers"),
        (leadsman_api::GROUP, SIDECAR_SETS),
    ]
    .into_iter()
    .filter(|(group, resource)| is_about(group, resource));
    let webhook = |(_, about)| BlockingWebhook {
        kind,
        configuration,
        name: name.to_owned(),
        about,
    };
    about.map(webhook).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // DEF-24
    #[test]
    fn a_webhook_blocks_what_its_rules_name_unless_failures_are_ignored() {
        let rule = |group: &str, resource: &str| -> Vec<RuleWithOperations> {
            let rule = json!([{"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"],
                "resources": [resource], "scope": "*"}]);
            serde_json::from_value(rule).unwrap()
        };
        let about = |policy: Option<&str>, rules: &[RuleWithOperations]| -> Vec<&str> {
            let policy = policy.map(ToOwned::to_owned);
            let found = blocking_webhooks(
                "validatingwebhookconfiguration",
                VALIDATING,
                "n",
                policy,
                rules,
            );
            found.iter().map(|hook| hook.about).collect()
        };
        assert_eq!(about(Some("Fail"), &rule("", "pods")), ["pods"]);
        assert_eq!(
            about(None, &rule("apps.kruise.io", "podprobemarkers")),
            ["podprobemarkers"]
        );
        assert_eq!(
            about(None, &rule("apps.kruise.io", "*")),
            ["podprobemarkers", "sidecarsets"]
        );
        assert!(about(Some("Ignore"), &rule("", "pods")).is_empty());
        assert!(about(None, &rule("apps.kruise.io", "clonesets")).is_empty());
        assert!(about(None, &rule("", "pods/eviction")).is_empty());
    }
}
