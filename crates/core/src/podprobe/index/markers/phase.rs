//! Whether a marker is acted on.

use crate::podprobe::marker::Marker;
use crate::podprobe::status::Trouble;

/// Whether a marker is acted on, and why not.
#[derive(Debug)]
pub(in crate::podprobe::index) enum MarkerPhase {
    /// The marker is acted on.
    Active(Marker),
    /// The marker is valid, and not acted on.
    Stopped(Marker, StopReason),
    /// The marker breaks a rule; its status says which.
    Invalid(Trouble, String),
    /// The marker is being deleted, and is to have no entry and no mark any more.
    Deleting,
}

/// Why a marker is stopped, with the message for its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::podprobe::index) enum StopReason {
    /// The marker and others change what each other matches.
    Loop(String),
    /// The marker's labels make a workload give up its pods.
    Release(String),
    /// The namespace has as many older markers as are acted on.
    Surplus(String),
}

impl StopReason {
    pub(in crate::podprobe::index) fn message(&self) -> &str {
        match self {
            Self::Loop(message) | Self::Release(message) | Self::Surplus(message) => message,
        }
    }

    /// The trouble that the marker's status gives as the reason.
    pub(in crate::podprobe::index) fn trouble(&self) -> &'static Trouble {
        match self {
            Self::Loop(_) | Self::Release(_) => &Trouble::Cycle,
            Self::Surplus(_) => &Trouble::TooManyProbes,
        }
    }
}

impl MarkerPhase {
    pub(super) fn as_active(&self) -> Option<&Marker> {
        match self {
            Self::Active(marker) => Some(marker),
            Self::Stopped(..) | Self::Invalid(..) | Self::Deleting => None,
        }
    }

    /// The marker, if it is valid.
    pub(super) fn as_valid(&self) -> Option<&Marker> {
        match self {
            Self::Active(marker) | Self::Stopped(marker, _) => Some(marker),
            Self::Invalid(..) | Self::Deleting => None,
        }
    }

    /// The marker, if it may be part of a loop: one that is stopped for a loop would close it again.
    pub(super) fn loop_member(&self) -> Option<&Marker> {
        match self {
            Self::Active(marker) | Self::Stopped(marker, StopReason::Loop(_)) => Some(marker),
            Self::Stopped(_, StopReason::Release(_) | StopReason::Surplus(_))
            | Self::Invalid(..)
            | Self::Deleting => None,
        }
    }
}
