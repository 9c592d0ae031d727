//! The manager's flags.

use clap::ValueEnum;
use jiff::tz::TimeZone;
use leadsman_core::podprobe::Compatibility;
use leadsman_core::sidecarset::condition::WhenWritten;
use leadsman_core::sidecarset::reconcile as sidecarset;
use leadsman_core::sidecarset::render::{ContainerOrder, RenderOptions};
use leadsman_core::sidecarset::set::FailurePolicy;

use crate::gates::Gates;
use crate::systems::SYSTEMS;

/// Watches markers and pods, plans each node's probes, and marks pods by their verdicts.
///
/// One for the cluster, or more: one of them leads and writes, the others stand by. It needs the CRDs and the rights
/// that `leadsman manifests` prints, and waits for them.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagerArgs {
    /// The defaults that fill timing fields that a probe leaves out. With openkruise the manager also
    /// sets OpenKruise's finalizer on every marker and upgrades pods that were injected with a
    /// pinned revision, and --sidecarset-standing-rule is fail by default
    #[arg(
        long,
        env = "LEADSMAN_COMPATIBILITY",
        value_name = "WITH",
        default_value = "kubernetes"
    )]
    pub compatibility: CompatibleWith,
    /// Features to switch on or off, in Kubernetes' syntax.
    #[arg(
        long,
        env = "LEADSMAN_FEATURE_GATES",
        value_name = "GATES",
        default_value = "",
        help = gates_help()
    )]
    pub feature_gates: Gates,
    /// Namespace of the agents' pods and of this manager. The Lease leadsman-manager is in kube-system, so that of two
    /// installs only one writes
    #[arg(
        long,
        env = "LEADSMAN_NAMESPACE",
        value_name = "NAME",
        default_value = leadsman_api::DEFAULT_NAMESPACE
    )]
    pub namespace: String,
    /// Seconds without a renewal of the Lease after which another manager may lead; at least 3
    #[arg(
        long,
        env = "LEADSMAN_LEASE_DURATION",
        value_name = "SECONDS",
        default_value_t = 15,
        value_parser = clap::value_parser!(u16).range(3..)
    )]
    pub lease_duration: u16,
    /// Whether API servers call the webhook of `SidecarSet`s for all pods.
    #[arg(
        long,
        env = "LEADSMAN_SIDECARSET_STANDING_RULE",
        value_name = "RULE",
        help = "Whether API servers call the webhook of SidecarSets for all pods that are created outside of kube-system and of this \
                manager's namespace, so that a new set is in force as soon as the manager has seen it, or only for pods that a set \
                selects [default: none; with --compatibility=openkruise: fail]"
    )]
    pub sidecarset_standing_rule: Option<StandingRule>,
    /// Namespaces whose pods no SidecarSet and no standing rule refuses while no manager answers, beside kube-system and this
    /// manager's
    #[arg(
        long,
        env = "LEADSMAN_SIDECARSET_PROTECTED_NAMESPACES",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub sidecarset_protected_namespaces: Vec<String>,
    /// Time zone of `AdvancedCronJob`s that name none.
    #[arg(
        long,
        help = "Time zone of AdvancedCronJobs that name none, as Europe/Berlin. OpenKruise's is that of its image",
        env = "LEADSMAN_DEFAULT_TIME_ZONE",
        value_name = "ZONE",
        default_value = "UTC",
        value_parser = leadsman_core::cron::find_zone
    )]
    pub default_time_zone: TimeZone,
    /// Write even if an OpenKruise manager acts on the same objects: each then undoes what the other writes
    #[arg(long, env = "LEADSMAN_IGNORE_OPENKRUISE")]
    pub ignore_openkruise: bool,
    /// The address at which the API server finds the webhooks.
    #[command(flatten)]
    pub admission: leadsman_admission::AdmissionArgs,
    /// The flags that manager and agent share.
    #[command(flatten)]
    pub process: leadsman_process::ProcessArgs,
}

impl ManagerArgs {
    /// The configuration of `SidecarSet`s that the flags describe.
    pub fn sidecar_set_config(&self) -> sidecarset::Config {
        sidecarset::Config {
            namespace: self.namespace.clone(),
            allows_unlisted_metadata: self.feature_gates.unlisted_metadata,
            condition: match self.compatibility {
                CompatibleWith::Kubernetes => WhenWritten::OnceNotUpgradable,
                CompatibleWith::Openkruise => WhenWritten::Always,
            },
            render: self.compatibility.into(),
            standing_rule: self.standing_rule(),
            protected_namespaces: self.sidecarset_protected_namespaces.clone(),
            upgrades_pinned: self.compatibility == CompatibleWith::Openkruise,
        }
    }
}

/// The product whose defaults hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompatibleWith {
    /// Defaults of a container's probes: initial delay 0 s, period 10 s, failure threshold 3
    Kubernetes,
    /// Defaults of OpenKruise: initial delay 1 s, period 1 s, failure threshold 1
    Openkruise,
}

/// Whether there is a rule for all pods, and what becomes of them while no webhook answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StandingRule {
    /// Calls only for pods that a set could select
    None,
    /// Calls for all pods; while no webhook answers, they are created
    Ignore,
    /// Calls for all pods; while no webhook answers, they are refused, as by OpenKruise
    Fail,
}

impl ManagerArgs {
    /// The fate of a pod without an answer, if API servers call for all pods.
    pub(crate) fn standing_rule(&self) -> Option<FailurePolicy> {
        // OpenKruise has one rule for all pods, with `Fail` since 1.5 (`pkg/webhook/pod/mutating/webhooks.go`).
        let of_openkruise =
            (self.compatibility == CompatibleWith::Openkruise).then_some(StandingRule::Fail);
        self.sidecarset_standing_rule.or(of_openkruise)?.policy()
    }
}

impl StandingRule {
    /// The fate of a pod without an answer, if there is a rule.
    pub fn policy(self) -> Option<FailurePolicy> {
        match self {
            Self::None => None,
            Self::Ignore => Some(FailurePolicy::Ignore),
            Self::Fail => Some(FailurePolicy::Fail),
        }
    }
}

impl From<CompatibleWith> for Compatibility {
    fn from(with: CompatibleWith) -> Self {
        match with {
            CompatibleWith::Kubernetes => Self::Kubernetes,
            CompatibleWith::Openkruise => Self::OpenKruise,
        }
    }
}

/// The help of the gates: what each one does.
fn gates_help() -> String {
    let systems = SYSTEMS
        .iter()
        .map(|system| format!(" {} (false): {}.", system.gate, system.about));
    format!(
        "Features to switch on or off, as NAME=true,NAME=false. PodProbeMarkerGate (true): act on PodProbeMarkers; without it \
         the manager leaves everything as it is. EnablePodProbeMarkerOnServerless (false): let the providers of \
         virtual-kubelet nodes run the probes of their pods, and mark pods by what they report. SidecarSetGate (false): act \
         on SidecarSets. SidecarSetPatchPodMetadataDefaultsAllowed (false): a SidecarSet to which no rule of the whitelist \
         applies may patch any annotation.{} A feature that is on needs what `leadsman manifests --feature-gates` prints; no \
         other one than the first is to be used beside an OpenKruise, which has no gate for them",
        systems.collect::<String>()
    )
}

/// How `SidecarSet`s are injected: OpenKruise sorts init containers by name.
impl From<CompatibleWith> for RenderOptions {
    fn from(with: CompatibleWith) -> Self {
        Self {
            init_containers: match with {
                CompatibleWith::Kubernetes => ContainerOrder::BySet,
                CompatibleWith::Openkruise => ContainerOrder::ByName,
            },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ManagerArgs,
    }

    // SDF-61
    #[rstest]
    #[case(&[], None)]
    #[case(&["--compatibility=openkruise"], Some(FailurePolicy::Fail))]
    #[case(&["--compatibility=openkruise", "--sidecarset-standing-rule=none"], None)]
    #[case(&["--compatibility=openkruise", "--sidecarset-standing-rule=ignore"], Some(FailurePolicy::Ignore))]
    #[case(&["--sidecarset-standing-rule=fail"], Some(FailurePolicy::Fail))]
    fn there_is_a_standing_rule_as_by_openkruise_unless_the_flag_says_otherwise(
        #[case] flags: &[&str],
        #[case] expected: Option<FailurePolicy>,
    ) {
        let flags = ["manager"].iter().chain(flags);
        assert_eq!(Line::parse_from(flags).args.standing_rule(), expected);
    }
}
