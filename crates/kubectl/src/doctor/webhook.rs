//! The findings about the webhooks by which new pods get probes and sidecars and by which invalid sets are refused, and
//! about their certificate. Pure.
//!
//! No Secret is read: the CA bundle of the configuration is public, and a certificate that the manager issues expires
//! with its CA.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use leadsman_admission::{CONFIGURATION, bundle_validity};
use leadsman_core::podprobe::explain::{Unread, format_age};
use leadsman_manager::finding;
use leadsman_manager::preflight::{CheckResult, Finding};

use super::facts::{InstallHealth, ServiceHealth};
use super::running::examine;

const CHECK: &str = "webhook";
const CERTIFICATE: &str = "certificate";

/// A certificate is renewed after two thirds of its life, by the manager and by cert-manager; with less than this share
/// of it left, it was not.
const LEAST_LEFT: i32 = 6;

/// The gates of the features that have it.
const GATES: &str = "EnablePodProbeMarkerOnServerless or SidecarSetGate";

impl InstallHealth {
    fn injects_pods(&self) -> bool {
        self.install.gates.sidecar_set
    }

    pub(super) fn check_webhooks(&self) -> Vec<Finding> {
        let mut findings = self.check_pod_webhook();
        findings.extend(self.check_set_webhook());
        findings
    }

    fn check_pod_webhook(&self) -> Vec<Finding> {
        let is_on = self.install.config.serverless || self.injects_pods();
        let is_assumed = self.install.assumed.is_some();
        let none = format!("there is no MutatingWebhookConfiguration {CONFIGURATION}");
        vec![match &self.webhook {
            Ok(Some(found)) if is_on => return self.check_configuration(found),
            Ok(Some(_)) => {
                finding!(CHECK, Note => "MutatingWebhookConfiguration {CONFIGURATION} exists, and no gate of {GATES} is known to be on")
            }
            // Whether there should be one is not known.
            Err(Unread(why)) if is_assumed => finding!(CHECK, Unread => "{why}"),
            Ok(None) if is_assumed => {
                finding!(CHECK, Ok => "{none}; whether the gate {GATES} is on is not known")
            }
            Ok(None) | Err(_) if !is_on => {
                finding!(CHECK, Ok => "not in use: the gates {GATES} are off")
            }
            // The manager writes the configuration while there is a valid marker or set, and deletes it otherwise.
            Ok(None) if !self.has_markers_for_providers() => {
                finding!(CHECK, Note => "{none}: without {} none is needed", self.whose_pods())
            }
            Ok(None) => finding!(CHECK, Todo => "{none}: new pods of virtual nodes get no probes")
                .with_command(self.leader_log_command()),
            Err(Unread(why)) => finding!(CHECK, Unread => "{why}"),
        }]
    }

    /// Whether the webhook is there for markers, as it is for pods of sets as long as there are any.
    fn has_markers_for_providers(&self) -> bool {
        let mut markers = self
            .reports
            .as_ref()
            .map(|reports| reports.markers.iter())
            .into_iter()
            .flatten();
        self.install.config.serverless
            && markers.any(|marker| !["InvalidSpec", "Undecodable"].contains(&&*marker.reason))
    }

    /// The objects that the webhook is there for.
    fn whose_pods(&self) -> &'static str {
        match (self.install.config.serverless, self.injects_pods()) {
            (true, true) => "a valid PodProbeMarker or SidecarSet",
            (true, false) => "a valid PodProbeMarker",
            (false, _) => "a valid SidecarSet",
        }
    }

    fn leader_log_command(&self) -> String {
        format!(
            "the leader writes it; its log says why not: kubectl -n {} logs deployment/leadsman-manager",
            self.namespace()
        )
    }

    /// Checks the webhook that refuses invalid sets.
    fn check_set_webhook(&self) -> Vec<Finding> {
        let Some(seen) = &self.set_webhook else {
            return Vec::new();
        };
        examine(CHECK, seen, |found| {
            match found {
            None => vec![
                finding!(CHECK, Todo => "there is no ValidatingWebhookConfiguration {CONFIGURATION}: an invalid SidecarSet is \
                    accepted, and its status says why nothing comes of it")
                    .with_command(self.leader_log_command()),
            ],
            Some(found) => {
                let hooks = found.webhooks.iter().flatten();
                let checked = hooks.map(|it| self.check_bundle(&it.name, it.client_config.ca_bundle.as_ref()));
                checked.collect()
            }
        }
        })
    }

    fn check_configuration(&self, configuration: &MutatingWebhookConfiguration) -> Vec<Finding> {
        let mut all: Vec<_> = self.services.iter().flat_map(check_service).collect();
        let hooks = configuration.webhooks.iter().flatten();
        all.extend(
            hooks.map(|it| self.check_bundle(&it.name, it.client_config.ca_bundle.as_ref())),
        );
        // All calls of the webhook have one certificate.
        all.dedup();
        all
    }

    fn check_bundle(&self, name: &str, bundle: Option<&ByteString>) -> Finding {
        let known = bundle.map_or(Ok(None), |bundle| bundle_validity(&bundle.0));
        let found = match known {
            Err(error) => finding!(CERTIFICATE, Todo => "of webhook {name}: {error}"),
            Ok(None) => {
                finding!(CERTIFICATE, Todo => "webhook {name} has no CA bundle, so the API server cannot call it")
            }
            Ok(Some(known)) => check_validity(name, known, self.now),
        };
        if found.result == CheckResult::Ok {
            return found;
        }
        let namespace = self.namespace();
        found.with_command(format!(
            "the leader's log says why: kubectl -n {namespace} logs deployment/leadsman-manager; with cert-manager: kubectl -n {namespace} describe certificates"
        ))
    }
}

/// The finding on the validity of a CA at this time.
fn check_validity(name: &str, (from, until): (Timestamp, Timestamp), now: Timestamp) -> Finding {
    let (left, life) = (until.duration_since(now), until.duration_since(from));
    if left.is_negative() {
        let age = format_age(until, now);
        return finding!(CERTIFICATE, Todo => "of webhook {name}: the CA expired {age} ago, so the API server cannot call it");
    }
    let left_words = format_age(now, until);
    if left < life / LEAST_LEFT {
        finding!(CERTIFICATE, Todo => "of webhook {name}: the CA expires in {left_words}, at {until}, and was not renewed in time")
    } else {
        finding!(CERTIFICATE, Ok => "of webhook {name}: the CA expires in {left_words}, at {until}")
    }
}

fn check_service(service: &Result<ServiceHealth, Unread>) -> Vec<Finding> {
    examine(
        CHECK,
        service,
        |ServiceHealth {
             name,
             exists,
             ready_endpoints,
         }| {
            let (namespace, short) = name.split_once('/').unwrap_or_default();
            vec![match ready_endpoints {
                _ if !exists => {
                    finding!(CHECK, Todo => "the Service {name} by which the API server calls it does not exist";
                "install leadsman's objects with this gate: helm upgrade, or leadsman manifests --feature-gates=GATES")
                }
                0 => {
                    finding!(CHECK, Todo => "no ready endpoint serves it by the Service {name}: new pods get neither probes nor sidecars by it";
                "kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={short}")
                }
                count => {
                    finding!(CHECK, Ok => "{count} ready endpoints serve it by the Service {name}")
                }
            }]
        },
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // PPM-16
    #[rstest]
    #[case::fresh("2026-12-01T00:00:00Z", CheckResult::Ok, "expires in 334d")]
    #[case::not_renewed("2026-01-05T00:00:00Z", CheckResult::Todo, "was not renewed in time")]
    #[case::expired("2025-12-31T00:00:00Z", CheckResult::Todo, "expired 24h ago")]
    fn a_certificate_is_a_problem_before_it_expires(
        #[case] until: &str,
        #[case] result: CheckResult,
        #[case] words: &str,
    ) {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = time("2026-01-01T00:00:00Z");
        let finding = check_validity("w", (time("2025-12-01T00:00:00Z"), time(until)), now);
        assert_eq!(finding.result, result);
        assert!(finding.message.contains(words), "{}", finding.message);
    }
}
