//! Feature gates, in `OpenKruise`'s words and the syntax of Kubernetes' `--feature-gates`
//! (`k8s.io/component-base/featuregate`): `Name=true,Other=false`.

use std::fmt;
use std::str::FromStr;

use crate::systems::{ActiveSystems, SYSTEMS};

const POD_PROBE_MARKER: &str = "PodProbeMarkerGate";
const SERVERLESS: &str = "EnablePodProbeMarkerOnServerless";
const SIDECAR_SET: &str = "SidecarSetGate";
const UNLISTED_METADATA: &str = "SidecarSetPatchPodMetadataDefaultsAllowed";

/// The features that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each gate is on or off by itself"
)]
pub struct Gates {
    /// `PodProbeMarkerGate`: whether `PodProbeMarker`s are acted on.
    pub pod_probe_marker: bool,
    /// `EnablePodProbeMarkerOnServerless`: whether providers run the probes of pods on virtual nodes.
    pub serverless: bool,
    /// `SidecarSetGate`: whether `SidecarSet`s are acted on. `OpenKruise` has no such gate.
    pub sidecar_set: bool,
    /// `SidecarSetPatchPodMetadataDefaultsAllowed`: whether a `SidecarSet` may patch any annotation of its pods where no rule
    /// of the whitelist is for it.
    pub unlisted_metadata: bool,
    /// The systems that each have a gate of their own.
    pub systems: ActiveSystems,
}

impl Gates {
    /// Whether no feature is on.
    pub(crate) fn are_all_off(self) -> bool {
        !self.pod_probe_marker && self.ungated().is_empty()
    }

    /// The kinds of the features that are on and for which `OpenKruise` has no gate, each with its gate here.
    pub(crate) fn ungated(self) -> Ungated {
        let sets = self.sidecar_set.then_some(("SidecarSet", SIDECAR_SET));
        let systems = self.systems.iter().map(|system| (system.kind, system.gate));
        Ungated(sets.into_iter().chain(systems).collect())
    }

    /// All gates, and whether each is on.
    pub fn all(self) -> impl Iterator<Item = (&'static str, bool)> {
        let systems = SYSTEMS.iter().map(move |system| {
            let is_on = self.systems.iter().any(|on| on.gate == system.gate);
            (system.gate, is_on)
        });
        [
            (POD_PROBE_MARKER, self.pod_probe_marker),
            (SERVERLESS, self.serverless),
            (SIDECAR_SET, self.sidecar_set),
            (UNLISTED_METADATA, self.unlisted_metadata),
        ]
        .into_iter()
        .chain(systems)
    }

    /// Whether a feature that is on has webhooks.
    pub fn serve_webhooks(self) -> bool {
        self.serverless || self.sidecar_set
    }
}

/// Kinds of objects that are acted on and for which `OpenKruise` has no gate, each with its gate here.
pub(crate) struct Ungated(Vec<(&'static str, &'static str)>);

impl Ungated {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The kinds, for people.
    pub(crate) fn kinds(&self) -> String {
        let kinds: Vec<_> = self.0.iter().map(|(kind, _)| format!("{kind}s")).collect();
        kinds.join(" and ")
    }

    /// The setting that switches all of them off.
    pub(crate) fn gates_off(&self) -> String {
        let gates: Vec<_> = self
            .0
            .iter()
            .map(|(_, gate)| format!("{gate}=false"))
            .collect();
        gates.join(",")
    }
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            pod_probe_marker: true,
            serverless: false,
            sidecar_set: false,
            unlisted_metadata: false,
            systems: ActiveSystems::default(),
        }
    }
}

/// Why a list of gates is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatesError {
    /// No such gate.
    #[error("unknown feature gate {0:?}; the gates are {names}", names = gate_names())]
    Unknown(String),
    /// No `=`.
    #[error("{0:?} is not of the form NAME=true or NAME=false")]
    Malformed(String),
    /// The value is neither true nor false.
    #[error("{name}={value}: the value is neither true nor false")]
    NotBool {
        /// The gate.
        name: String,
        /// The value.
        value: String,
    },
}

fn gate_names() -> String {
    let gates = Gates::default();
    let names: Vec<_> = gates.all().map(|(name, _)| name).collect();
    names.join(", ")
}

impl FromStr for Gates {
    type Err = GatesError;

    fn from_str(text: &str) -> Result<Self, GatesError> {
        let mut gates = Self::default();
        for setting in split_settings(text) {
            let (name, value) = setting.map_err(|text| GatesError::Malformed(text.to_owned()))?;
            let is_on = parse_bool(value).ok_or_else(|| GatesError::NotBool {
                name: name.to_owned(),
                value: value.to_owned(),
            });
            match name {
                POD_PROBE_MARKER => gates.pod_probe_marker = is_on?,
                SERVERLESS => gates.serverless = is_on?,
                SIDECAR_SET => gates.sidecar_set = is_on?,
                UNLISTED_METADATA => gates.unlisted_metadata = is_on?,
                // Kubernetes' components do the same (`unrecognized feature gate`,
                // `k8s.io/component-base/featuregate/feature_gate.go`): a misspelt gate would
                // silently stay at its default.
                _ if SYSTEMS.iter().all(|system| system.gate != name) => {
                    return Err(GatesError::Unknown(name.to_owned()));
                }
                _ => gates.systems.set(name, is_on?),
            }
        }
        // Both gates are parts of other features.
        gates.serverless &= gates.pod_probe_marker;
        gates.unlisted_metadata &= gates.sidecar_set;
        Ok(gates)
    }
}

/// Prints the gates that are not at their defaults, as the flag takes them.
impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.all().zip(Self::default().all());
        let changed = pairs.filter(|(gate, default)| gate != default);
        let settings = changed.map(|((name, on), _)| format!("{name}={on}"));
        f.write_str(&settings.collect::<Vec<_>>().join(","))
    }
}

/// Whether these `--feature-gates` of an `OpenKruise` make it act on `PodProbeMarker`s. A gate that is not named is on.
/// Without its daemon it switches the feature off (`pkg/features/kruise_features.go`, `SetDefaultFeatureGates`), and
/// `AllBeta` stands for each beta gate that is not named itself.
pub fn openkruise_acts_on_markers(text: &str) -> bool {
    let (mut daemon, mut marker, mut beta) = (None, None, None);
    for (name, value) in split_settings(text).flatten() {
        let gate = match name {
            "KruiseDaemon" => &mut daemon,
            "PodProbeMarkerGate" => &mut marker,
            "AllBeta" => &mut beta,
            _ => continue,
        };
        // OpenKruise does not start with any other value, so it counts as a gate that is not named.
        *gate = parse_bool(value);
    }
    let is_on = |gate: Option<bool>| gate.or(beta).unwrap_or(true);
    is_on(daemon) && is_on(marker)
}

/// The settings of a list, trimmed and without empty ones: name and value, or an error with the text if there is no
/// `=`.
fn split_settings(text: &str) -> impl Iterator<Item = Result<(&str, &str), &str>> {
    let settings = text
        .split(',')
        .map(str::trim)
        .filter(|setting| !setting.is_empty());
    settings.map(|setting| {
        let (name, value) = setting.split_once('=').ok_or(setting)?;
        Ok((name.trim(), value.trim()))
    })
}

/// Parses as Go's `strconv.ParseBool`, which Kubernetes' flag uses.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PPM-17, SCS-80
    #[test]
    fn gates_are_read_as_kubernetes_reads_them() {
        let on = Gates::default();
        let off = Gates {
            pod_probe_marker: false,
            ..on
        };
        let serverless = Gates {
            serverless: true,
            ..on
        };
        for (text, expected) in [
            ("", on),
            (" , ", on),
            ("PodProbeMarkerGate=true", on),
            ("PodProbeMarkerGate=false", off),
            (
                "PodProbeMarkerGate=0, EnablePodProbeMarkerOnServerless=F",
                off,
            ),
            ("PodProbeMarkerGate=false,PodProbeMarkerGate=T", on),
            ("EnablePodProbeMarkerOnServerless=true", serverless),
            (
                "EnablePodProbeMarkerOnServerless=true,PodProbeMarkerGate=false",
                off,
            ),
            (
                "SidecarSetGate=true",
                Gates {
                    sidecar_set: true,
                    ..on
                },
            ),
            (
                "PodProbeMarkerGate=false,SidecarSetGate=true",
                Gates {
                    sidecar_set: true,
                    ..off
                },
            ),
            (
                "SidecarSetPatchPodMetadataDefaultsAllowed=true,SidecarSetGate=true",
                Gates {
                    sidecar_set: true,
                    unlisted_metadata: true,
                    ..on
                },
            ),
            ("SidecarSetPatchPodMetadataDefaultsAllowed=true", on),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text:?}");
            assert_eq!(expected.to_string().parse(), Ok(expected), "{expected}");
        }
        assert_eq!(on.to_string(), "");
        assert_eq!(
            serverless.to_string(),
            "EnablePodProbeMarkerOnServerless=true"
        );
    }

    // PPM-17
    #[test]
    fn a_bad_gate_is_refused_with_what_is_wrong() {
        for (text, expected) in [
            (
                "PodProbeMarker=true",
                "unknown feature gate \"PodProbeMarker\"",
            ),
            ("AllAlpha=true", "the gates are PodProbeMarkerGate, Enable"),
            ("PodProbeMarkerGate", "form NAME=true"),
            (
                "PodProbeMarkerGate=yes",
                "PodProbeMarkerGate=yes: the value is neither",
            ),
        ] {
            let error = text.parse::<Gates>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    // PPM-19
    #[test]
    fn openkruises_gates_say_whether_it_probes() {
        for (text, expected) in [
            ("", true),
            ("CloneSetShortHash=true", true),
            ("PodProbeMarkerGate=true", true),
            ("PodWebhook=false, PodProbeMarkerGate=false", false),
            ("KruiseDaemon=false", false),
            ("KruiseDaemon=false,PodProbeMarkerGate=true", false),
            ("AllBeta=false", false),
            (
                "AllBeta=false,PodProbeMarkerGate=true,KruiseDaemon=true",
                true,
            ),
            ("nonsense,PodProbeMarkerGate=perhaps", true),
        ] {
            assert_eq!(openkruise_acts_on_markers(text), expected, "{text:?}");
        }
    }
}
