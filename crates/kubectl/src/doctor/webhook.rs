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
use leadsman_manager::preflight::Finding;

use super::facts::{InstallHealth, ServiceHealth};
use super::running::{note_finding, ok_finding, problem_finding, unread_finding};

const CHECK: &str = "webhook";
const CERTIFICATE: &str = "certificate";

/// A certificate is renewed after two thirds of its life, by the manager and by cert-manager; with less than this share
/// of it left, it was not.
const LEAST_LEFT: i32 = 6;

/// The gates of the features that have it.
const GATES: &str = "EnablePodProbeMarkerOnServerless or SidecarSetGate";

impl InstallHealth {
    fn injects_pods(&self) -> bool {
        self.install.sidecar_set_gate == Some(true)
    }

    pub(super) fn check_webhooks(&self) -> Vec<Finding> {
        let mut findings = self.check_pod_webhook();
        findings.extend(self.check_set_webhook());
        findings
    }

    fn check_pod_webhook(&self) -> Vec<Finding> {
        let is_on = self.install.config.serverless || self.injects_pods();
        match &self.webhook {
            Ok(Some(found)) if is_on => self.check_configuration(found),
            Ok(Some(_)) => vec![note_finding(
                CHECK,
                format!("MutatingWebhookConfiguration {CONFIGURATION} exists, and no gate of {GATES} is known to be on"),
            )],
            // Whether there should be one is not known.
            Err(why) if self.install.assumed.is_some() => vec![unread_finding(CHECK, why)],
            Ok(None) if self.install.assumed.is_some() => vec![ok_finding(
                CHECK,
                format!("there is no MutatingWebhookConfiguration {CONFIGURATION}; whether the gate {GATES} is on is not known"),
            )],
            Ok(None) | Err(_) if !is_on => vec![ok_finding(
                CHECK,
                format!("not in use: the gates {GATES} are off"),
            )],
            // The manager writes the configuration while there is a valid marker or set, and deletes it otherwise.
            Ok(None) if !self.has_markers_for_providers() => vec![note_finding(
                CHECK,
                format!("there is no MutatingWebhookConfiguration {CONFIGURATION}: without {} none is needed", self.whose_pods()),
            )],
            Ok(None) => vec![
                problem_finding(CHECK, format!("there is no MutatingWebhookConfiguration {CONFIGURATION}: new pods of virtual nodes get no probes"))
                    .with_command(self.leader_log_command()),
            ],
            Err(why) => vec![unread_finding(CHECK, why)],
        }
    }

    /// Whether the webhook is there for markers, as it is for pods of sets as long as there are any.
    fn has_markers_for_providers(&self) -> bool {
        let markers = self.reports.as_ref().map(|reports| reports.markers.iter());
        let mut markers = markers.into_iter().flatten();
        self.install.config.serverless
            && markers.any(|marker| !["InvalidSpec", "Undecodable"].contains(&&*marker.reason))
    }

    /// What the webhook serves.
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

    /// Of the webhook that refuses invalid sets.
    fn check_set_webhook(&self) -> Vec<Finding> {
        match &self.set_webhook {
            None => Vec::new(),
            Some(Err(why)) => vec![unread_finding(CHECK, why)],
            Some(Ok(None)) => vec![
                problem_finding(
                    CHECK,
                    format!(
                        "there is no ValidatingWebhookConfiguration {CONFIGURATION}: an invalid SidecarSet is accepted, and \
                         its status says why nothing comes of it"
                    ),
                )
                .with_command(self.leader_log_command()),
            ],
            Some(Ok(Some(found))) => {
                let hooks = found.webhooks.iter().flatten();
                let certificates = hooks
                    .map(|hook| self.check_ca_bundle(&hook.name, hook.client_config.ca_bundle.as_ref()));
                certificates.collect()
            }
        }
    }

    fn check_configuration(&self, configuration: &MutatingWebhookConfiguration) -> Vec<Finding> {
        let hooks = configuration.webhooks.as_deref().unwrap_or_default();
        let mut findings: Vec<_> = self.services.iter().map(check_service).collect();
        let certificates = hooks
            .iter()
            .map(|hook| self.check_ca_bundle(&hook.name, hook.client_config.ca_bundle.as_ref()));
        findings.extend(certificates);
        // All calls of the webhook have one certificate.
        findings.dedup();
        findings
    }

    fn check_ca_bundle(&self, name: &str, bundle: Option<&ByteString>) -> Finding {
        let look = || {
            let namespace = self.namespace();
            format!(
                "the leader's log says why: kubectl -n {namespace} logs deployment/leadsman-manager; with cert-manager: kubectl -n {namespace} describe certificates"
            )
        };
        let known = match bundle.map(|bundle| bundle_validity(&bundle.0)) {
            None => Ok(None),
            Some(validity) => validity,
        };
        match known {
            Err(error) => problem_finding(CERTIFICATE, format!("of webhook {name}: {error}"))
                .with_command(look()),
            Ok(None) => problem_finding(
                CERTIFICATE,
                format!("webhook {name} has no CA bundle, so the API server cannot call it"),
            )
            .with_command(look()),
            Ok(Some(known)) => check_validity(name, known, self.now, look),
        }
    }
}

/// What the validity of a CA means at this time.
fn check_validity(
    name: &str,
    (from, until): (Timestamp, Timestamp),
    now: Timestamp,
    look: impl Fn() -> String,
) -> Finding {
    let (left, life) = (until.duration_since(now), until.duration_since(from));
    if left.is_negative() {
        let age = format_age(until, now);
        let message = format!(
            "of webhook {name}: the CA expired {age} ago, so the API server cannot call it"
        );
        return problem_finding(CERTIFICATE, message).with_command(look());
    }
    let message = format!(
        "of webhook {name}: the CA expires in {}, at {until}",
        format_age(now, until)
    );
    if left < life / LEAST_LEFT {
        return problem_finding(
            CERTIFICATE,
            format!("{message}, and was not renewed in time"),
        )
        .with_command(look());
    }
    ok_finding(CERTIFICATE, message)
}

fn check_service(service: &Result<ServiceHealth, Unread>) -> Finding {
    let service = match service {
        Ok(service) => service,
        Err(why) => return unread_finding(CHECK, why),
    };
    let (name, (namespace, short)) = (
        &service.name,
        service.name.split_once('/').unwrap_or_default(),
    );
    match service.ready_endpoints {
        _ if !service.exists => problem_finding(CHECK, format!("the Service {name} by which the API server calls it does not exist"))
            .with_command("install leadsman's objects with this gate: helm upgrade, or leadsman manifests --feature-gates=GATES"),
        0 => problem_finding(CHECK, format!("no ready endpoint serves it by the Service {name}: new pods get neither probes nor sidecars by it"))
            .with_command(format!("kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={short}")),
        count => ok_finding(CHECK, format!("{count} ready endpoints serve it by the Service {name}")),
    }
}

#[cfg(test)]
mod tests {
    use leadsman_manager::preflight::CheckResult;
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
        let finding = check_validity(
            "w",
            (time("2025-12-01T00:00:00Z"), time(until)),
            now,
            String::new,
        );
        assert_eq!(finding.result, result);
        assert!(finding.message.contains(words), "{}", finding.message);
    }
}
