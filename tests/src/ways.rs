//! The fifteen ways in which a marker most often fails to work, and the answer of `kubectl leadsman explain` to each.
//!
//! Each is raised on a live cluster, by the case in the file that is named here; `leadsman_core` has the same and more on
//! objects (`podprobe/explain/tests.rs`).

use anyhow::{Result, ensure};
use serde_json::Value;

/// A way in which a marker can fail to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The pod lacks a label that the selector names.
    WrongLabel,
    /// The marker is in another namespace.
    WrongNamespace,
    /// The pod has no container of the name.
    WrongContainer,
    /// The container has no port of the name.
    UnknownPort,
    /// Init containers have not ended.
    NotInitialized,
    /// No agent runs on the node.
    NoAgent,
    /// The agent does not reach the container runtime.
    BrokenSocket,
    /// The node is virtual, and the gate for those is off.
    VirtualNode,
    /// An older marker sets the same condition.
    Conflict,
    /// Another client keeps changing a mark.
    ContestedKey,
    /// The container's startup probe has not passed.
    StartupGate,
    /// The results do not suffice for a verdict yet.
    Threshold,
    /// The container has no such command.
    MissingCommand,
    /// The command does not end in time.
    HangingCommand,
    /// No manager leads.
    NoManager,
}

/// What is told of a way.
struct Answer {
    /// The cause.
    reason: &'static str,
    /// What to do.
    action: &'static str,
    /// The file of the case that raises it.
    raised_in: &'static str,
}

const API: &str = "tests/api/explain.rs";
const NODE: &str = "tests/node/explain.rs";
const INSTALL: &str = "tests/install/failures.rs";

impl Way {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::WrongLabel,
        Self::WrongNamespace,
        Self::WrongContainer,
        Self::UnknownPort,
        Self::NotInitialized,
        Self::NoAgent,
        Self::BrokenSocket,
        Self::VirtualNode,
        Self::Conflict,
        Self::ContestedKey,
        Self::StartupGate,
        Self::Threshold,
        Self::MissingCommand,
        Self::HangingCommand,
        Self::NoManager,
    ];

    #[rustfmt::skip]
    fn answer(self) -> Answer {
        let (reason, action, raised_in) = match self {
            Self::WrongLabel => ("NoMarkerMatches", "correct the pod's labels", API),
            Self::WrongNamespace => ("OtherNamespace", "create it in namespace", API),
            Self::WrongContainer => ("ContainerNotFound", "did you mean main?", API),
            Self::UnknownPort => ("PortNotFound", "it has web", API),
            Self::NotInitialized => ("NotInitialized", "look at the init containers", API),
            Self::NoAgent => ("NoAgent", "check that the DaemonSet leadsman-agent tolerates the node's taints", API),
            Self::BrokenSocket => ("AgentNotReady", "a container runtime that cannot be reached: kubectl -n leadsman-system describe pod", INSTALL),
            Self::VirtualNode => ("VirtualNode", "EnablePodProbeMarkerOnServerless; enable it", API),
            Self::Conflict => ("Conflict", "rename it in one of them or delete one", API),
            Self::ContestedKey => ("Contested", "configure that client not to write it, or choose another key", API),
            Self::StartupGate => ("StartupProbe", "correct that startup probe", API),
            Self::Threshold => ("ThresholdNotReached", "it is due within", API),
            Self::MissingCommand => ("CommandNotFound", "correct exec.command", NODE),
            Self::HangingCommand => ("TimedOut", "raise timeoutSeconds", NODE),
            Self::NoManager => ("ManagerDown", "look at its pods and their logs", API),
        };
        Answer { reason, action, raised_in }
    }

    /// The cause that is told.
    pub fn reason(self) -> &'static str {
        self.answer().reason
    }

    /// Fails unless a cause says that it is this, and what to do.
    ///
    /// # Errors
    /// What it says instead.
    pub fn is_told(self, cause: &Value) -> Result<()> {
        let Answer {
            reason,
            action,
            raised_in,
        } = self.answer();
        let message = cause["message"].as_str().unwrap_or_default();
        ensure!(
            cause["reason"] == reason && message.contains(action),
            "{self:?} of {raised_in} is told as {cause:#}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_raised_where_it_is_said_to_be() -> Result<()> {
        for way in Way::ALL {
            let file = way.answer().raised_in;
            let text = std::fs::read_to_string(crate::document::root().join(file))?;
            let used = format!("Way::{way:?}");
            ensure!(text.contains(&used), "{file} does not raise {used}");
        }
        Ok(())
    }
}
