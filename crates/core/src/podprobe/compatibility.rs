//! Defaults for the timing of a probe: those of Kubernetes or those of `OpenKruise`.

use std::num::NonZeroU32;

/// The project whose defaults fill in timing fields of a probe that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compatibility {
    /// Initial delay 0, period 10, timeout 1, success threshold 1, failure threshold 3 (`SetDefaults_Probe`,
    /// `pkg/apis/core/v1/defaults.go`).
    #[default]
    Kubernetes,
    /// All of them 1, as in a cluster that comes from `OpenKruise` (`pkg/daemon/podprobe/worker.go`).
    OpenKruise,
}

/// The value of each field that is left out.
pub(super) struct TimingDefaults {
    pub(super) initial_delay: u32,
    pub(super) period: NonZeroU32,
    pub(super) timeout: NonZeroU32,
    pub(super) success_threshold: NonZeroU32,
    pub(super) failure_threshold: NonZeroU32,
}

impl Compatibility {
    pub(super) fn timing_defaults(self) -> TimingDefaults {
        const ONE: NonZeroU32 = NonZeroU32::MIN;
        const THREE: NonZeroU32 = NonZeroU32::new(3).unwrap();
        const TEN: NonZeroU32 = NonZeroU32::new(10).unwrap();
        match self {
            Self::Kubernetes => TimingDefaults {
                initial_delay: 0,
                period: TEN,
                timeout: ONE,
                success_threshold: ONE,
                failure_threshold: THREE,
            },
            Self::OpenKruise => TimingDefaults {
                initial_delay: 1,
                period: ONE,
                timeout: ONE,
                success_threshold: ONE,
                failure_threshold: ONE,
            },
        }
    }
}
