//! The answer, as it is printed: plain values.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use crate::cluster::{SelectorTerm, closed_list};
use crate::podprobe::history::{RecordedRun, ResultsInARow};
use crate::podprobe::marker::{Marker, MarkerProbe};

/// Why a pod is marked as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The uid by which its node knows it.
    pub uid: String,
    /// Whether the reports of its node's agent could be read: without them something may be in the way that is not told.
    pub complete: bool,
    /// The node it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The causes that keep marks from being what they should be, the first one to look at first. Empty if there are none.
    pub causes: Vec<Cause>,
    /// The markers of its namespace: those that match in order of precedence, then the others by name.
    pub markers: Vec<MarkerExplanation>,
    /// The pod's marks.
    pub marks: Vec<MarkExplanation>,
    /// Everything that could not be read: the rights that are missing, or the API server's answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Something that keeps a pod's marks from being what they should be, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// The cause in one word.
    pub reason: CauseReason,
    /// Whether it resolves by itself.
    pub resolves: bool,
    /// The marker concerned; None if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marker: Option<String>,
    /// The probe concerned; None if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    /// The cause in words, and what to do.
    pub message: String,
}

impl Cause {
    /// A cause that stays until somebody does something.
    pub(super) fn new_problem(reason: CauseReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            resolves: false,
            marker: None,
            probe: None,
            message: message.into(),
        }
    }

    /// A cause that resolves by itself.
    pub(super) fn new_resolving(reason: CauseReason, message: impl Into<String>) -> Self {
        Self {
            resolves: true,
            ..Self::new_problem(reason, message)
        }
    }

    /// The same, of a marker or of one of its probes.
    pub(super) fn with_origin(self, marker: &Marker, probe: Option<&MarkerProbe>) -> Self {
        Self {
            marker: Some(marker.name.name.clone()),
            probe: probe.map(|probe| probe.name.to_string()),
            ..self
        }
    }
}

/// A marker, and whether it matches a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkerExplanation {
    /// The marker's name.
    pub name: String,
    /// Whether it matches, and why not.
    #[serde(flatten)]
    pub fit: MarkerFit,
    /// The problem that the marker's own status reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported: Option<String>,
}

/// Whether a marker matches a pod, and why not.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "fit", rename_all_fields = "camelCase")]
pub enum MarkerFit {
    /// The marker matches.
    Matches {
        /// The marker's probes.
        probes: Vec<ProbeExplanation>,
    },
    /// The selector does not match the pod's labels; or it does, and the pod cannot be probed.
    DoesNotMatch {
        /// The requirements of its selector.
        terms: Vec<SelectorTerm>,
    },
    /// The marker is stopped.
    Stopped {
        /// Why.
        message: String,
    },
    /// The marker breaks a rule.
    Invalid {
        /// The rule that it breaks.
        message: String,
    },
    /// The marker cannot be decoded.
    Undecodable {
        /// Why.
        message: String,
    },
    /// The marker is being deleted.
    Deleting,
}

/// A probe of a pod, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeExplanation {
    /// The probe's name.
    pub name: String,
    /// The container.
    pub container: String,
    /// The probe's action and period, in words.
    pub does: String,
    /// The probe's verdict, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ShownVerdict>,
    /// The equal results that count towards a threshold, as the agent told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_a_row: Option<ResultsInARow>,
    /// The probe's recent runs, as the agent told; the newest one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RecordedRun>,
    /// The next step to a first verdict or to another one, and when.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownVerdict {
    /// `Succeeded`, `Failed` or `Unknown`.
    pub state: &'static str,
    /// The source of the verdict.
    pub source: VerdictSource,
    /// The time of the last change of the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The time of the last run, as of the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// The output of the probe, or why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The source of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VerdictSource {
    /// The report of the node's agent, or of the provider of a virtual node.
    Report,
    /// The condition that the manager wrote: the report could not be read.
    Condition,
}

/// A label, annotation or condition that is a mark, or should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkExplanation {
    /// `label`, `annotation` or `condition`.
    pub kind: &'static str,
    /// The mark's key or type.
    pub key: String,
    /// The mark's value, of a condition its status. None if the mark is not on the pod.
    pub value: Option<String>,
    /// The value that the mark should have, in words.
    pub wanted: String,
    /// Whether it is not as it should be.
    pub differs: bool,
    /// The probe that sets it, as `MARKER#PROBE`; None if no marker names it any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_by: Option<String>,
    /// The field managers that wrote it.
    pub owners: Vec<Owner>,
}

/// A field manager that owns a mark.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The field manager's name.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// The subresource that it wrote to; empty for the pod itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    /// The time when it last wrote one of its fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

closed_list! {
    /// A cause in one word. Those that a marker's status can show too have the same word there.
    pub enum CauseReason {
        /// The namespace has no marker.
        NoMarker,
        /// The namespace has markers, and none of them selects the pod's labels.
        NoMarkerMatches,
        /// A marker of another namespace selects them.
        OtherNamespace,
        /// The pod is bound to no node yet.
        NotScheduled,
        /// The pod's init containers have not all ended.
        NotInitialized,
        /// The pod is being deleted.
        BeingDeleted,
        /// The pod has ended.
        Ended,
        /// The marker breaks a rule.
        InvalidSpec,
        /// The marker cannot be decoded.
        Undecodable,
        /// The marker's verdicts would change which pods it matches.
        Cycle,
        /// The pod has no container of that name.
        ContainerNotFound,
        /// The container has no port of that name.
        PortNotFound,
        /// The container does not run.
        ContainerNotRunning,
        /// The container's startup probe has not passed.
        StartupProbe,
        /// The probe's initial delay has not ended.
        InitialDelay,
        /// Too few results in a row were equal.
        ThresholdNotReached,
        /// A verdict was due.
        NoVerdict,
        /// The container has no such command.
        CommandNotFound,
        /// The command may not be run.
        CommandNotExecutable,
        /// The probe takes too long.
        TimedOut,
        /// Nothing listens there.
        ConnectionRefused,
        /// Another marker sets the same key.
        Conflict,
        /// A value in the output is not valid where a policy uses it.
        InvalidValue,
        /// The verdict has to hold for some time before it counts.
        Held,
        /// Another pod has an exclusive value, or has to lose it first.
        NotHolder,
        /// Another client sets the same key, again and again.
        Contested,
        /// The pod's node does not exist.
        NoNode,
        /// The pod's node is virtual, and the gate for those is off.
        VirtualNode,
        /// The node has no agent.
        NoAgent,
        /// The agent has stopped reporting.
        AgentSilent,
        /// The agent's pod is not ready.
        AgentNotReady,
        /// The agent cannot make the run.
        CannotProbe,
        /// The pod has no address.
        NoAddress,
        /// The node has as many probes as it may, or the pod or its namespace as many markers.
        TooManyProbes,
        /// The API server refused a write.
        Refused,
        /// A virtual node's provider reports by conditions, and the probe has no type of one.
        NoConditionType,
        /// A virtual node's provider has not reported yet.
        AwaitingProvider,
        /// No manager leads.
        ManagerDown,
        /// The manager acts on no marker.
        GateOff,
        /// The write is due.
        NotWrittenYet,
    }
}
