//! Who leads, and with which settings: those decide what is wanted of a pod. They are read from the manager's Lease and
//! the flags of its pod.

use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use leadsman_core::podprobe::Config;
use leadsman_core::podprobe::explain::{ManagerState, Unread};
use leadsman_lease::record;
use leadsman_manager::{LEASE, LEASE_NAMESPACE};
use serde::de::DeserializeOwned;

use jiff::{SignedDuration, Timestamp};

use crate::reader::{Reader, Selection};
use crate::resources::{LEASES, PODS};

/// The labels of leadsman's pods, without their component.
const NAME_LABEL: &str = "app.kubernetes.io/name=leadsman";
/// Where leadsman is, if its Lease does not say so.
const NAMESPACE: &str = "leadsman-system";
/// A Lease counts as expired only so long after its end: the clock of this machine may differ from the manager's.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);
/// As `--lease-duration` has it by default.
const LEASE_DURATION: std::time::Duration = std::time::Duration::from_secs(15);

/// What is known of the install.
#[derive(Debug)]
pub(crate) struct Install {
    pub(crate) manager: Result<ManagerState, Unread>,
    /// The pods of the managers.
    pub(crate) managers: Result<Vec<Pod>, Unread>,
    pub(crate) config: Config,
    /// Whether the manager acts on markers.
    pub(crate) gate: bool,
}

/// `leadsman manager …`, parsed as the manager parses it.
#[derive(Debug, Parser)]
#[command(name = "leadsman")]
enum Leadsman {
    Manager(leadsman_manager::Args),
}

impl Reader {
    /// Reads who leads, and the settings.
    pub(crate) async fn install(&self, now: Timestamp) -> Install {
        let lease = self
            .get::<Lease>(LEASES, Some(LEASE_NAMESPACE), LEASE)
            .await;
        let manager = lease.map(|lease| manager_state(lease.as_ref(), now));
        let holder = match &manager {
            Ok(ManagerState::Leads(holder) | ManagerState::Expired(holder, _)) => Some(&**holder),
            Ok(ManagerState::Absent) | Err(_) => None,
        };
        let namespace = holder.and_then(|holder| holder.split_once('/'));
        let namespace = namespace
            .map_or(NAMESPACE, |(namespace, _)| namespace)
            .to_owned();
        let selection = Selection {
            namespace: Some(&namespace),
            labels: Some(format!("{NAME_LABEL},app.kubernetes.io/component=manager")),
            fields: None,
            page: 50,
        };
        let managers = self.list::<Pod>(PODS, &selection).await;
        let settings = settings(
            managers.as_deref().unwrap_or_default(),
            holder.unwrap_or_default(),
        );
        let mut config = Config {
            agent_namespace: namespace,
            ..Config::default()
        };
        let mut gate = true;
        if let Some(Leadsman::Manager(args)) = settings {
            gate = args.feature_gates.pod_probe_marker;
            config.compatibility = args.compatibility.into();
            config.serverless = args.feature_gates.serverless;
            config.former_field_managers = args.former_field_managers;
        }
        Install {
            manager,
            managers,
            config,
            gate,
        }
    }

    /// The pods of the agents: all, or that of one node.
    pub(crate) async fn agents<T: DeserializeOwned>(
        &self,
        namespace: &str,
        node: Option<&str>,
    ) -> Result<Vec<T>, Unread> {
        let selection = Selection {
            namespace: Some(namespace),
            labels: Some(format!("{NAME_LABEL},app.kubernetes.io/component=agent")),
            fields: node.map(|node| format!("spec.nodeName={node}")),
            page: 500,
        };
        self.list(PODS, &selection).await
    }
}

fn manager_state(lease: Option<&Lease>, now: Timestamp) -> ManagerState {
    let Some(lease) = lease else {
        return ManagerState::Absent;
    };
    let Some(holder) = record::holder(lease) else {
        return ManagerState::Absent;
    };
    let renewed = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref());
    let duration = record::duration(lease, LEASE_DURATION);
    let term = SignedDuration::try_from(duration).unwrap_or_default() + CLOCK_SKEW;
    match renewed {
        Some(renewed) if now.duration_since(renewed.0) > term => {
            ManagerState::Expired(holder.to_owned(), renewed.0)
        }
        _ => ManagerState::Leads(holder.to_owned()),
    }
}

/// The name of the pod that holds the Lease, if it is held by a pod. An identity is `NAMESPACE/POD_RANDOM`.
pub(crate) fn pod_of(holder: &str) -> &str {
    let host = holder.split_once('/').map_or("", |(_, host)| host);
    host.rsplit_once('_').map_or(host, |(host, _)| host)
}

/// The flags of the manager that leads, or of any if that one is not a pod.
fn settings(pods: &[Pod], holder: &str) -> Option<Leadsman> {
    let leader = pods
        .iter()
        .find(|pod| pod.metadata.name.as_deref() == Some(pod_of(holder)));
    let pod = leader.or_else(|| pods.first())?;
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let words = containers.find_map(|one| one.args.as_ref().filter(|words| is_manager(words)))?;
    let words = std::iter::once("leadsman").chain(words.iter().map(String::as_str));
    Leadsman::try_parse_from(words).ok()
}

fn is_manager(words: &[String]) -> bool {
    words.first().is_some_and(|verb| verb == "manager")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, flags: &[&str]) -> Pod {
        let args: Vec<_> = std::iter::once("manager")
            .chain(flags.iter().copied())
            .collect();
        let pod = json!({ "metadata": { "name": name }, "spec": { "containers": [
            { "name": "x", "args": ["x"] }, { "name": "manager", "args": args }] } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_settings_are_those_of_the_leader() {
        let pods = [
            pod("old", &[]),
            pod(
                "new",
                &[
                    "--compatibility=openkruise",
                    "--feature-gates=EnablePodProbeMarkerOnServerless=true",
                ],
            ),
        ];
        let serverless = |holder| {
            let Some(Leadsman::Manager(args)) = settings(&pods, holder) else {
                panic!("no settings");
            };
            args.feature_gates.serverless
        };
        assert!(serverless("leadsman-system/new_0123"));
        assert!(
            !serverless("leadsman-system/old_0123") && !serverless("leadsman-system/laptop_0123")
        );
        assert!(settings(&[], "x").is_none());
    }

    #[test]
    fn a_lease_that_was_not_renewed_for_long_leads_nobody() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str| {
            let lease = json!({ "metadata": {}, "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed } });
            serde_json::from_value::<Lease>(lease).unwrap()
        };
        let state = |holder, renewed| manager_state(Some(&lease(holder, renewed)), now);
        let fresh = "2026-01-01T00:59:00.000000Z";
        let old = "2026-01-01T00:50:00.000000Z";
        assert_eq!(
            state("ns/m_1", fresh),
            ManagerState::Leads("ns/m_1".to_owned())
        );
        let expired = ManagerState::Expired("ns/m_1".to_owned(), old.parse().unwrap());
        assert_eq!(state("ns/m_1", old), expired);
        assert_eq!(state("", fresh), ManagerState::Absent);
        assert_eq!(manager_state(None, now), ManagerState::Absent);
    }
}
