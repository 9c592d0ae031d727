//! The causes in one word each. `docs/kubectl.md` says when each is seen, which a test holds equal to this list.

use crate::cluster::closed_list;
use crate::podprobe::status::Trouble;

closed_list! {
    /// A cause in one word. Those that a marker's status can show too have the same word there.
    pub enum CauseReason {
        /// The namespace has no marker.
        NoMarker,
        /// It has some, of which none selects the pod's labels.
        NoMarkerMatches,
        /// A marker of another namespace selects them.
        OtherNamespace,
        /// The pod is bound to no node yet.
        NotScheduled,
        /// Its init containers have not all ended.
        NotInitialized,
        /// It is being deleted.
        BeingDeleted,
        /// It has ended.
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
        /// Its startup probe has not passed.
        StartupProbe,
        /// The probe's initial delay has not ended.
        InitialDelay,
        /// There were not enough equal results in a row.
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

impl From<&Trouble> for CauseReason {
    fn from(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::InvalidSpec => Self::InvalidSpec,
            Trouble::Cycle => Self::Cycle,
            Trouble::Conflict => Self::Conflict,
            Trouble::ContainerNotFound { .. } => Self::ContainerNotFound,
            Trouble::PortNotFound { .. } => Self::PortNotFound,
            Trouble::NoConditionType { .. } => Self::NoConditionType,
            Trouble::TooManyProbes => Self::TooManyProbes,
            Trouble::Refused => Self::Refused,
            Trouble::NoNode => Self::NoNode,
            Trouble::VirtualNode => Self::VirtualNode,
            Trouble::NoAgent => Self::NoAgent,
            Trouble::AgentSilent => Self::AgentSilent,
            Trouble::CannotProbe => Self::CannotProbe,
            Trouble::NoAddress => Self::NoAddress,
            Trouble::Contested => Self::Contested,
        }
    }
}
