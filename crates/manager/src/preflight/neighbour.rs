//! What is read of `OpenKruise`.

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Api, Client};
use leadsman_lease::{LeaseEvent, LeaseState, watch_lease};
use leadsman_process::{ApiServer, clock};

use super::facts::{Lookup, look};
use crate::openkruise::{Gate, LEASE, NAMESPACE, Neighbour, Standing, feature_gates, read_gates};

/// Its agents.
const DAEMON: &str = "kruise-daemon";
const VALIDATING: &str = "kruise-validating-webhook-configuration";
const MUTATING: &str = "kruise-mutating-webhook-configuration";

/// What there is of it.
#[derive(Clone, Debug)]
pub struct OpenKruise {
    /// Its manager.
    pub manager: Lookup<Standing>,
    /// The feature gates of its agents, if there are any.
    pub daemon: Lookup<Option<String>>,
    /// Webhooks that are asked before pods or markers are written, and whose silence is a refusal.
    pub webhooks: Lookup<Vec<Webhook>>,
}

/// A webhook that has to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// `validatingwebhookconfiguration` or `mutatingwebhookconfiguration`.
    pub kind: &'static str,
    /// Of the configuration.
    pub configuration: &'static str,
    /// Its own.
    pub name: String,
    /// `pods` or `podprobemarkers`.
    pub about: &'static str,
}

/// Looks at it. The Lease is followed until it was renewed or has ended.
pub(super) async fn openkruise(client: &Client) -> OpenKruise {
    let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    let daemon = look(daemons.get_opt(DAEMON)).await.map(|daemon| {
        let template = daemon?.spec?.template;
        Some(feature_gates(&template.spec?).unwrap_or_default())
    });
    OpenKruise {
        manager: manager(client).await,
        daemon,
        webhooks: look(webhooks(client)).await,
    }
}

async fn manager(client: &Client) -> Lookup<Standing> {
    let mut events = watch_lease(ApiServer::new(client.clone()), NAMESPACE, LEASE);
    let mut neighbour = Neighbour::default();
    let mut first_end = None;
    loop {
        let now = clock::monotonic();
        if let Some(holder) = neighbour.to_be_read(now) {
            let gate = look(read_gates(client, NAMESPACE, &holder)).await;
            neighbour.gate_read(&holder, gate.unwrap_or(Gate::NoPod));
        }
        let ends = neighbour.ends(now);
        // Its end moves with a renewal.
        let renewed = first_end.is_some() && ends != first_end;
        match neighbour.standing(now) {
            Standing::Unknown => {}
            standing @ Standing::Away => return Ok(standing),
            standing @ (Standing::Aside { .. } | Standing::Acts { .. }) if renewed => {
                return Ok(standing);
            }
            Standing::Aside { .. } | Standing::Acts { .. } => {
                first_end = first_end.or(ends);
            }
        }
        tokio::select! {
            Some(event) = events.next() => match event {
                LeaseEvent::Observed(LeaseState::Present(lease)) => {
                    neighbour.lease_seen(lease, clock::monotonic(), clock::now());
                }
                LeaseEvent::Observed(LeaseState::Absent | LeaseState::Deleted(_)) => neighbour.lease_absent(),
                LeaseEvent::Following => {}
                LeaseEvent::Failed(failed) => {
                    return Err(failed.reason().unwrap_or_default().to_owned());
                }
            },
            () = clock::sleep_until(ends) => {}
        }
    }
}

async fn webhooks(client: &Client) -> kube::Result<Vec<Webhook>> {
    let mut found = Vec::new();
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = validating.get_opt(VALIDATING).await?;
    for hook in configuration.and_then(|it| it.webhooks).unwrap_or_default() {
        let (policy, rules) = (hook.failure_policy, hook.rules.unwrap_or_default());
        let hooks = blocking(
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
        let hooks = blocking(
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

/// What a webhook keeps from being written while nobody answers it. Without a policy it is `Fail`
/// (`pkg/apis/admissionregistration/v1/defaults.go`).
fn blocking(
    kind: &'static str,
    configuration: &'static str,
    name: &str,
    policy: Option<String>,
    rules: &[RuleWithOperations],
) -> Vec<Webhook> {
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
    let about = [("", "pods"), (leadsman_api::GROUP, "podprobemarkers")];
    let about = about
        .into_iter()
        .filter(|(group, resource)| is_about(group, resource));
    let webhook = |(_, about)| Webhook {
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
    fn a_webhook_blocks_what_its_rules_name_unless_it_may_be_ignored() {
        let rule = |group: &str, resource: &str| -> Vec<RuleWithOperations> {
            let rule = json!([{"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"],
                "resources": [resource], "scope": "*"}]);
            serde_json::from_value(rule).unwrap()
        };
        let about = |policy: Option<&str>, rules: &[RuleWithOperations]| -> Vec<&str> {
            let policy = policy.map(ToOwned::to_owned);
            let found = blocking(
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
            ["podprobemarkers"]
        );
        assert!(about(Some("Ignore"), &rule("", "pods")).is_empty());
        assert!(about(None, &rule("apps.kruise.io", "clonesets")).is_empty());
        assert!(about(None, &rule("", "pods/eviction")).is_empty());
    }
}
