//! A pod on a virtual node: the annotations that it should have, and the verdicts that its provider reports.
//!
//! The conditions belong to the provider; they are read and never written. Conditions that were written before the node
//! became virtual are given up, since nobody keeps them up to date. The annotations are written again when the matching
//! markers or their probes have changed since the pod was created, so that a pod follows its markers as on other nodes.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::{Annotations, MARKERS, NotInjected, PROBES, ProviderProbes};
use crate::podprobe::injected::fingerprint_of;
use crate::podprobe::marker::{Marker, MarkerProbe};
use crate::podprobe::marks::{ProbePosition, Want, Wants};
use crate::podprobe::pod::{CoOwner, IndexedPod};
use crate::podprobe::probe::State;
use crate::podprobe::verdict::Verdict;

/// The probes of a pod's markers, as far as its provider runs them.
#[derive(Debug)]
pub struct Provided {
    /// The verdict on each probe of each marker, None before the first one; or why the probe is not run.
    probes: Vec<Vec<Result<Option<Verdict>, NotInjected>>>,
    wanted: Option<Annotations>,
}

impl Provided {
    /// The probes of a pod. `markers` are the matching ones in order of precedence.
    pub fn new(markers: &[&Marker], pod: &IndexedPod) -> Self {
        let injection = ProviderProbes::plan_probes(markers, pod);
        let plans = markers.iter().zip(injection.plans);
        let probes = plans.map(|(marker, plans)| {
            let plans = marker.probes.iter().zip(plans);
            let probes = plans.map(|(probe, plan)| plan.map(|()| read_verdict(pod, probe)));
            probes.collect()
        });
        Self {
            probes: probes.collect(),
            wanted: injection.annotations,
        }
    }

    /// The verdict of a probe.
    pub fn verdict_of(&self, (marker, probe): ProbePosition) -> Option<&Verdict> {
        let probe = self.probes.get(marker)?.get(probe)?;
        probe.as_ref().ok()?.as_ref()
    }

    /// Why a probe is not run.
    pub fn obstacle_of(&self, (marker, probe): ProbePosition) -> Option<&NotInjected> {
        self.probes.get(marker)?.get(probe)?.as_ref().err()
    }

    /// Leaves the conditions of a pod to its provider, including those of ours that no marker names any more.
    pub fn leave_conditions(&self, pod: &IndexedPod, wants: &mut Wants) {
        for want in wants.conditions.values_mut() {
            *want = Want::Leave;
        }
        let ours = pod
            .ours
            .conditions
            .iter()
            .map(|(kind, _)| (kind.clone(), Want::Leave));
        wants.conditions.extend(ours);
    }

    /// Adds the two annotations to what is wanted.
    ///
    /// Annotations that have the wanted values already are not taken over: that would cost a write of each pod after
    /// its creation.
    pub fn govern_annotations(&self, pod: &IndexedPod, wants: &mut Wants) {
        let is_ours = |key| pod.ours.annotations.contains_key(key);
        let is_any_ours = is_ours(PROBES) || is_ours(MARKERS);
        let values = match &self.wanted {
            Some(wanted) if !is_any_ours && pod.injected == wanted.wanted_fingerprint() => return,
            Some(wanted) => {
                [&wanted.probes, &wanted.markers].map(|value| Want::Value(value.clone()))
            }
            // `PROBES` alone is somebody else's.
            None if is_any_ours || pod.annotations.contains_key(MARKERS) => {
                [Want::Absent, Want::Absent]
            }
            None => return,
        };
        let keys = [PROBES, MARKERS].map(Arc::from);
        wants.annotations.extend(keys.into_iter().zip(values));
    }
}

impl Annotations {
    fn wanted_fingerprint(&self) -> Option<NonZeroU64> {
        fingerprint_of(Some(&self.probes), Some(&self.markers))
    }
}

/// The verdict that a provider reports by the probe's condition. A condition that we alone own is the last one of the
/// agent that the node had before.
fn read_verdict(pod: &IndexedPod, probe: &MarkerProbe) -> Option<Verdict> {
    let kind = probe.condition_type.as_ref()?;
    if pod.ours.conditions.get(kind) == Some(&CoOwner::Nobody) {
        return None;
    }
    let condition = pod.conditions.get(kind)?;
    let state = match &*condition.status {
        "True" => State::Succeeded,
        "False" => State::Failed,
        "Unknown" => State::Unknown,
        _ => return None,
    };
    Some(Verdict {
        since: condition.last_transition_time.map(Into::into),
        probed: condition.last_probe_time.map(Into::into),
        ..Verdict::new(state, condition.message.clone())
    })
}
