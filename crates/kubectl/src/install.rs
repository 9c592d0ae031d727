//! The leader and its settings, which decide what is wanted of a pod. They are read from the manager's Lease and the flags of
//! its pod.

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches, Parser};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Pod};
use leadsman_core::podprobe::Config;
use leadsman_core::podprobe::explain::{ManagerState, Unread};
use leadsman_core::sidecarset::reconcile as sidecarset;
use leadsman_lease::record;
use leadsman_manager::{Gates, LEASE, LEASE_NAMESPACE};
use serde::de::DeserializeOwned;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use leadsman_api::{AGENT_LABELS, DEFAULT_NAMESPACE};

use crate::reader::{ListSelection, Reader};
use crate::resources::{LEASES, PODS};

/// A Lease counts as expired only so long after its end: the manager has written its times by its own clock, which may
/// differ from the API server's.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);
/// The default of `--lease-duration`.
const LEASE_DURATION: std::time::Duration = std::time::Duration::from_secs(15);

/// The known facts about the installation.
#[derive(Debug)]
pub(crate) struct Install {
    pub(crate) manager: Result<ManagerState, Unread>,
    /// The pods of the managers.
    pub(crate) managers: Result<Vec<Pod>, Unread>,
    pub(crate) config: Config,
    /// The manager's gates; the defaults, if its flags are not known.
    pub(crate) gates: Gates,
    /// The manager's settings for `SidecarSet`s.
    pub(crate) sidecar_sets: sidecarset::Config,
    /// The zone of schedules that name none.
    pub(crate) default_time_zone: TimeZone,
    /// Why the manager's flags are not known, and defaults are assumed.
    pub(crate) assumed: Option<Unread>,
}

/// `leadsman manager …`, parsed as the manager parses it.
#[derive(Debug, Parser)]
#[command(name = "leadsman")]
enum Leadsman {
    Manager(leadsman_manager::ManagerArgs),
}

/// The label of leadsman's pods, without their component.
const NAME_LABEL: &str = "app.kubernetes.io/name=leadsman";

impl Reader {
    /// Reads who leads, and the settings.
    pub(crate) async fn read_install(&self, now: Timestamp) -> Install {
        let lease = self
            .get_object::<Lease>(LEASES, Some(LEASE_NAMESPACE), LEASE)
            .await;
        let manager = lease.map(|lease| manager_state(lease.as_ref(), now));
        let holder = match &manager {
            Ok(ManagerState::Leads(holder) | ManagerState::Expired(holder, _)) => Some(&**holder),
            Ok(ManagerState::Absent) | Err(_) => None,
        };
        // A manager's identity begins with the namespace of its installation.
        let identity = holder.and_then(|holder| holder.split_once('/'));
        let namespace = identity
            .map_or(DEFAULT_NAMESPACE, |(namespace, _)| namespace)
            .to_owned();
        let selection = ListSelection {
            labels: Some(format!("{NAME_LABEL},app.kubernetes.io/component=manager")),
            ..ListSelection::of(Some(&namespace), 50)
        };
        let managers = self.list_objects::<Pod>(PODS, &selection).await;
        let pods = managers.as_ref().map_err(Clone::clone);
        // A user who may not read them gets an answer by the defaults, and is told so.
        let settings = pods.and_then(|pods| read_settings(pods, holder.unwrap_or_default()));
        let mut sidecar_sets = sidecarset::Config {
            namespace: namespace.clone(),
            ..sidecarset::Config::default()
        };
        let mut config = Config {
            agent_namespace: namespace,
            ..Config::default()
        };
        let mut gates = Gates::default();
        let mut default_time_zone = TimeZone::UTC;
        let assumed = match settings {
            Ok(Leadsman::Manager(args)) => {
                gates = args.feature_gates;
                default_time_zone = args.default_time_zone.clone();
                sidecar_sets = sidecarset::Config {
                    namespace: sidecar_sets.namespace,
                    ..args.sidecar_set_config()
                };
                config.compatibility = args.compatibility.into();
                config.serverless = args.feature_gates.serverless;
                None
            }
            Err(why) => Some(why),
        };
        Install {
            manager,
            managers,
            config,
            gates,
            sidecar_sets,
            default_time_zone,
            assumed,
        }
    }

    /// The pods of the agents: all, or that of one node.
    pub(crate) async fn read_agents<T: DeserializeOwned>(
        &self,
        namespace: &str,
        node: Option<&str>,
    ) -> Result<Vec<T>, Unread> {
        let selection = ListSelection {
            labels: Some(
                AGENT_LABELS
                    .map(|(key, value)| format!("{key}={value}"))
                    .join(","),
            ),
            fields: node.map(|node| format!("spec.nodeName={node}")),
            ..ListSelection::of(Some(namespace), 500)
        };
        self.list_objects(PODS, &selection).await
    }
}

fn manager_state(lease: Option<&Lease>, now: Timestamp) -> ManagerState {
    let Some(lease) = lease else {
        return ManagerState::Absent;
    };
    let Some(holder) = record::holder_of(lease) else {
        return ManagerState::Absent;
    };
    let renewed = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref());
    let duration = record::duration_of(lease, LEASE_DURATION);
    let term = SignedDuration::try_from(duration).unwrap_or_default() + CLOCK_SKEW;
    match renewed {
        Some(renewed) if now.duration_since(renewed.0) > term => {
            ManagerState::Expired(holder.to_owned(), renewed.0)
        }
        _ => ManagerState::Leads(holder.to_owned()),
    }
}

/// The name of the pod that holds the Lease, if it is held by a pod. An identity is `NAMESPACE/POD_RANDOM`.
pub(crate) fn pod_of_holder(holder: &str) -> &str {
    let host = holder.split_once('/').map_or("", |(_, host)| host);
    host.rsplit_once('_').map_or(host, |(host, _)| host)
}

/// The flags of the manager that leads, or of any if that one is not a pod; why they are not known.
fn read_settings(pods: &[Pod], holder: &str) -> Result<Leadsman, Unread> {
    let leader = pods
        .iter()
        .find(|pod| pod.metadata.name.as_deref() == Some(pod_of_holder(holder)));
    let unread = |why: &str| Unread(format!("{why}: its flags are taken for the defaults"));
    // All pods of a Deployment have the same flags, unless it is being rolled out.
    let pod = leader
        .or_else(|| pods.first())
        .ok_or_else(|| unread("no pod of a manager was found"))?;
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    // A service mesh may have added containers.
    let container = containers
        .find(|one| one.args.as_deref().is_some_and(is_manager))
        .ok_or_else(|| unread("no manager runs in its pod"))?;
    let words = command_line_words(container);
    let parsed = manager_command()
        .try_get_matches_from(words)
        .and_then(|matches| Leadsman::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        unread(&format!(
            "the manager's flags are not those of this version ({first})"
        ))
    })
}

/// The command line of a manager. The environment that counts is that of its container, and not of this machine.
fn manager_command() -> clap::Command {
    let without_env = |manager: clap::Command| manager.mut_args(|arg| arg.env(Resettable::Reset));
    Leadsman::command().mut_subcommand("manager", without_env)
}

/// The words of a manager's command line, with those that its environment stands for (`LEADSMAN_FLAG`).
fn command_line_words(container: &Container) -> Vec<String> {
    let args = container.args.clone().unwrap_or_default();
    let mut words = vec!["leadsman".to_owned()];
    words.extend(args.iter().cloned());
    for variable in container.env.iter().flatten() {
        // A value that is taken from elsewhere (`valueFrom`) is in no field of the pod.
        let (Some(name), Some(value)) = (variable.name.strip_prefix("LEADSMAN_"), &variable.value)
        else {
            continue;
        };
        let flag = format!("--{}", name.to_lowercase().replace('_', "-"));
        // Flags go before the environment. Not all variables are flags.
        let is_given = args
            .iter()
            .any(|word| word.split('=').next() == Some(&flag));
        if !is_given && is_flag(&flag) {
            words.push(format!("{flag}={value}"));
        }
    }
    words
}

fn is_flag(flag: &str) -> bool {
    let command = manager_command();
    let manager = command.find_subcommand("manager");
    let mut known = manager.into_iter().flat_map(clap::Command::get_arguments);
    known.any(|arg| arg.get_long() == flag.strip_prefix("--"))
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
            let Ok(Leadsman::Manager(args)) = read_settings(&pods, holder) else {
                panic!("no settings");
            };
            args.feature_gates.serverless
        };
        assert!(serverless("leadsman-system/new_0123"));
        assert!(
            !serverless("leadsman-system/old_0123") && !serverless("leadsman-system/laptop_0123")
        );
        assert!(read_settings(&[], "x").is_err());
    }

    #[test]
    fn the_environment_of_the_container_counts_and_unknown_flags_are_told() {
        let gates = "PodProbeMarkerGate=false";
        let mut by_env = pod("m", &[]);
        let containers = &mut by_env.spec.as_mut().unwrap().containers;
        let env = json!([{ "name": "LEADSMAN_FEATURE_GATES", "value": gates }, { "name": "LEADSMAN_NO_FLAG", "value": "x" },
            { "name": "LEADSMAN_NAMESPACE", "valueFrom": {} }]);
        containers[1].env = serde_json::from_value(env).unwrap();
        let Ok(Leadsman::Manager(args)) = read_settings(&[by_env.clone()], "") else {
            panic!("no settings");
        };
        assert!(!args.feature_gates.pod_probe_marker);
        let containers = &mut by_env.spec.as_mut().unwrap().containers;
        containers[1].args = Some(vec!["manager".into(), "--feature-gates=".into()]);
        let Ok(Leadsman::Manager(args)) = read_settings(&[by_env], "") else {
            panic!("no settings");
        };
        assert!(args.feature_gates.pod_probe_marker, "a flag goes before");
        let Err(why) = read_settings(&[pod("m", &["--of-tomorrow"])], "") else {
            panic!("it is known");
        };
        assert!(why.0.contains("--of-tomorrow"), "{}", why.0);
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
