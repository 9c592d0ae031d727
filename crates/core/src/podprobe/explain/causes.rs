//! The causes that keep a pod's marks from being what they should be, and what to do about them.
//!
//! A marker's own troubles have the words of its status ([`Trouble`]). Added are those
//! that no status can show: that no marker matches, that a pod cannot be probed, that a verdict is due, that nobody
//! writes, and what a failed probe's message means.

use leadsman_api::limits::EXCLUSIVE_ANNOTATION;

use super::explanation::{Cause, CauseReason};
use super::failures::diagnose_failure;
use super::{ManagerState, PodContext, reported_problem, words};
use crate::cluster::nearest;
use crate::podprobe::exclusive::Ruling;
use crate::podprobe::index::{InspectedFit, InspectedMarker, InspectedProbe};
use crate::podprobe::marker::{Marker, MarkerProbe};
use crate::podprobe::marks::Conflict;
use crate::podprobe::output::ValueText;
use crate::podprobe::plan::Gap;
use crate::podprobe::pod::FIELD_MANAGER;
use crate::podprobe::status::{Pending, Trouble};

/// Reasons of a marker's status that only a running manager knows: objects alone do not show them.
const REMEMBERED: &[CauseReason] = &[
    CauseReason::Contested,
    CauseReason::Cycle,
    CauseReason::InvalidSpec,
    CauseReason::TooManyProbes,
    CauseReason::Refused,
];

/// Reasons that follow from the nodes, their objects and agents.
const OF_NODES: &[CauseReason] = &[
    CauseReason::NoConditionType,
    CauseReason::NoNode,
    CauseReason::VirtualNode,
    CauseReason::NoAgent,
    CauseReason::AgentSilent,
    CauseReason::CannotProbe,
    CauseReason::NoAddress,
];

impl PodContext<'_> {
    /// All causes, the first one to look at first.
    pub(super) fn all_causes(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        causes.extend(self.no_leader_cause());
        causes.extend(self.agent_cause());
        let markers = &self.inspected.markers;
        for (place, marker) in markers.iter().enumerate() {
            if let InspectedFit::Matches(parsed, probes) = &marker.fit {
                let pairs = parsed.probes.iter().zip(probes);
                let pairs =
                    pairs.filter_map(|(probe, known)| self.probe_cause(parsed, probe, known));
                // Causes that the manager knows come before those that its silence suggests.
                let remembered = self.remembered_refusal_cause(marker);
                if !self.cluster.knows_nodes {
                    causes.extend(remembered.clone());
                }
                causes.extend(pairs);
                let lost = self
                    .inspected
                    .conflicts
                    .iter()
                    .filter(|conflict| conflict.loser.0 == place);
                causes.extend(lost.filter_map(|conflict| self.conflict_cause(parsed, conflict)));
                causes.extend(self.output_and_hold_causes(place, parsed));
                causes.extend(self.exclusive_causes(place, parsed));
                causes.extend(remembered);
            } else {
                causes.extend(self.unmatched_marker_cause(marker));
            }
        }
        let is_matched =
            |marker: &InspectedMarker<'_>| matches!(marker.fit, InspectedFit::Matches(..));
        if !markers.iter().any(is_matched) {
            causes.extend(self.unusable_marker_causes());
            if causes.is_empty() {
                causes.push(self.no_marker_cause());
            }
        }
        causes.extend(self.unwritten_marks_cause());
        // A label that both policies set is lost twice.
        let mut known = Vec::new();
        causes.retain(|cause| {
            !known.contains(cause) && {
                known.push(cause.clone());
                true
            }
        });
        // Stable: of equals the first found is the first shown.
        causes.sort_by_key(|cause| cause.resolves);
        causes
    }

    /// Whether anything is to be written of this pod.
    fn is_anything_due(&self) -> bool {
        self.inspected.entries_differ && self.cluster.knows_nodes
            || self.inspected.marks.iter().any(|mark| mark.differs)
    }

    /// The cause if no manager acts on markers.
    fn no_leader_cause(&self) -> Option<Cause> {
        if !self.cluster.gate {
            return Some(Cause::new_problem(
                CauseReason::GateOff,
                "the manager runs with PodProbeMarkerGate=false and acts on no marker: remove it from --feature-gates",
            ));
        }
        // An unreadable Lease is told beside the causes; it does not follow that nobody leads.
        let what = match self.cluster.manager.as_ref().ok()? {
            ManagerState::Leads(_) => return None,
            ManagerState::Expired(holder, renewed) => {
                let age = words::format_age(*renewed, self.cluster.now.wall);
                format!("{holder} last renewed the Lease leadsman-manager in kube-system {age} ago")
            }
            ManagerState::Absent => {
                "nobody holds the Lease leadsman-manager in kube-system".to_owned()
            }
        };
        Some(Cause::new_problem(
            CauseReason::ManagerDown,
            format!(
                "no manager leads, so nothing is written: {what}; look at its pods and their logs (kubectl get pods -A -l app.kubernetes.io/name=leadsman,app.kubernetes.io/component=manager)"
            ),
        ))
    }

    fn probe_cause(
        &self,
        marker: &Marker,
        probe: &MarkerProbe,
        known: &InspectedProbe,
    ) -> Option<Cause> {
        // The pod is the next witness where the objects of the nodes cannot be read: the manager
        // has written a condition there, or the keys of a policy.
        let cause = if self.is_known(known) {
            let failed = || diagnose_failure(probe, known.verdict.as_ref()?);
            self.pending_cause(marker, probe, known).or_else(failed)
        } else if let Some(verdict) = self.verdict_in_condition(probe) {
            diagnose_failure(probe, &verdict)
        } else if self.shows_marks(probe) {
            None
        } else {
            self.waiting_cause(marker, probe, known)
        };
        cause.map(|cause| cause.with_origin(marker, Some(probe)))
    }

    /// Whether a verdict shows on the pod though the probe has no condition: as a label or an annotation of its policies.
    fn shows_marks(&self, probe: &MarkerProbe) -> bool {
        let has = |pairs: &[(String, String)], key: &str, value: &ValueText| {
            // Values taken from an output are not known, so any fits.
            let fits = |is: &str| !matches!(value, ValueText::Fixed(text) if **text != *is);
            pairs.iter().any(|(own, is)| own == key && fits(is))
        };
        let mut pairs = probe.all_pairs();
        pairs.any(|pairs| {
            let mut labels = pairs.labels.iter();
            let mut annotations = pairs.annotations.iter();
            labels.any(|(key, value)| has(&self.wire.labels, key, value))
                || annotations.any(|(key, value)| has(&self.wire.annotations, key, value))
        })
    }

    /// Whether the state of a probe is known: without the objects of the nodes, only what follows from pod and marker is.
    fn is_known(&self, probe: &InspectedProbe) -> bool {
        let follows = [
            Pending::Conflict,
            Pending::ContainerNotFound,
            Pending::PortNotFound,
            Pending::StartupProbe,
        ];
        // The node's object may be full too, which has the same cause, and does not follow.
        self.cluster.knows_nodes
            || matches!(probe.entry, Err(Gap::TooManyMarkers))
            || probe.cause.is_some_and(|cause| follows.contains(&cause))
    }

    fn pending_cause(
        &self,
        marker: &Marker,
        probe: &MarkerProbe,
        known: &InspectedProbe,
    ) -> Option<Cause> {
        let pending = known.cause?;
        if let Some((trouble, subject)) = &known.trouble {
            let mut message = trouble.to_message(subject);
            message.push_str(&self.list_alternatives(pending, probe));
            return Some(Cause::new_problem(trouble.into(), message));
        }
        match pending {
            Pending::Starting => self.waiting_cause(marker, probe, known),
            Pending::StartupProbe => Some(Self::startup_probe_cause(probe)),
            Pending::AwaitingProvider => Some(Cause::new_resolving(
                CauseReason::AwaitingProvider,
                format!(
                    "probe {}: the provider of the virtual node has not reported the condition {} yet; if it never does, check that it reads the annotation kruise.io/podprobe",
                    probe.name,
                    probe.condition_type.as_deref().unwrap_or_default()
                ),
            )),
            // The others have a trouble; the conflict's is told by its mark.
            _ => None,
        }
    }

    /// Lists what the pod has in place of a container or port that it lacks, as the end of a message.
    fn list_alternatives(&self, pending: Pending, probe: &MarkerProbe) -> String {
        let containers = &self.inspected.pod.containers;
        let (wanted, names): (_, Vec<&str>) = match pending {
            Pending::ContainerNotFound => {
                let names = containers.iter().map(|container| &*container.name);
                (&*probe.container, names.collect())
            }
            Pending::PortNotFound => {
                let own = containers.iter().filter(|one| one.name == probe.container);
                let ports = own.flat_map(|container| container.ports.iter());
                ("", ports.map(|(name, _)| &**name).collect())
            }
            _ => return String::new(),
        };
        if names.is_empty() {
            return "; it has none".to_owned();
        }
        match nearest(wanted, names.iter().copied()) {
            Some(near) => format!("; did you mean {near}?"),
            None => format!("; it has {}", names.join(", ")),
        }
    }

    /// A mark that another probe sets.
    fn conflict_cause(&self, marker: &Marker, conflict: &Conflict) -> Option<Cause> {
        let winner = self.probe_name(conflict.winner)?;
        let probe = marker.probes.get(conflict.loser.1)?;
        let cause = Cause::new_problem(
            CauseReason::Conflict,
            format!(
                "probe {}: {} is set by {winner}, which has precedence (of two markers the older one, within a marker the earlier probe); rename it in one of them or delete one",
                probe.name, conflict.mark
            ),
        );
        Some(cause.with_origin(marker, Some(probe)))
    }

    /// The values that a marker's policies cannot use, and the verdicts that have yet to hold for some time.
    fn output_and_hold_causes(&self, place: usize, marker: &Marker) -> Vec<Cause> {
        let mut causes = Vec::new();
        for value in self
            .inspected
            .refused
            .iter()
            .filter(|one| one.probe.0 == place)
        {
            let Some(probe) = marker.probes.get(value.probe.1) else {
                continue;
            };
            let name = probe.name.clone();
            let trouble = Trouble::InvalidValue { probe: name };
            let message = trouble.to_message(&format!("{}: {}", value.mark, value.why));
            let cause = Cause::new_problem((&trouble).into(), message);
            causes.push(cause.with_origin(marker, Some(probe)));
        }
        for held in self
            .inspected
            .held
            .iter()
            .filter(|one| one.probe.0 == place)
        {
            let Some(probe) = marker.probes.get(held.probe.1) else {
                continue;
            };
            let (name, state) = (&probe.name, held.state.as_str());
            let cause = match (held.since, held.until) {
                (Some(since), Some(until)) => Cause::new_resolving(
                    CauseReason::Held,
                    format!(
                        "probe {name}: {state} since {since} has to hold until {until} before it counts (holdSeconds); until then the marks stay as they are"
                    ),
                ),
                _ => Cause::new_problem(
                    CauseReason::Held,
                    format!(
                        "probe {name}: {state} has to hold for some time (holdSeconds), and nobody said since when it does; whoever reports it has to set lastTransitionTime"
                    ),
                ),
            };
            causes.push(cause.with_origin(marker, Some(probe)));
        }
        causes
    }

    /// Why the pod does not have the exclusive values that it claims.
    fn exclusive_causes(&self, place: usize, marker: &Marker) -> Vec<Cause> {
        let mut causes = Vec::new();
        let rulings = self.inspected.rulings.iter();
        for ((_, second), ruling) in rulings.filter(|((first, _), _)| *first == place) {
            let Some(probe) = marker.probes.get(*second) else {
                continue;
            };
            let Some(exclusive) = &probe.exclusive else {
                continue;
            };
            let value = format!(
                "probe {}: label {}={} is exclusive",
                probe.name, exclusive.label, exclusive.value
            );
            let cause = match ruling {
                Ruling::Stays | Ruling::Has | Ruling::Declines => continue,
                Ruling::Lost(other) => Cause::new_problem(
                    CauseReason::NotHolder,
                    format!(
                        "{value}, and pod {} has a better claim or has it already: {}; if that pod is not the one, look at what its probe prints",
                        other.name,
                        if exclusive.version.is_some() {
                            "the higher version wins, and of equal ones the pod that has it"
                        } else {
                            "the later transition of the verdict wins"
                        }
                    ),
                ),
                Ruling::Outdated(floor) => Cause::new_problem(
                    CauseReason::NotHolder,
                    format!(
                        "{value}, and its version is lower than {floor}, which was proved before; if versions began anew, remove the annotation {EXCLUSIVE_ANNOTATION} from all pods of the marker"
                    ),
                ),
                Ruling::Awaits(others) => {
                    let names: Vec<_> = others
                        .iter()
                        .map(|name| name.name.as_str())
                        .take(3)
                        .collect();
                    Cause::new_resolving(
                        CauseReason::NotHolder,
                        format!(
                            "{value}, and the pod gets it when pods {} have lost it",
                            names.join(", ")
                        ),
                    )
                }
                Ruling::Announced => Cause::new_resolving(
                    CauseReason::NotHolder,
                    format!(
                        "{value}, and the pod gets it when the manager has seen its annotation {EXCLUSIVE_ANNOTATION}"
                    ),
                ),
            };
            causes.push(cause.with_origin(marker, Some(probe)));
        }
        causes
    }

    /// The cause that the marker's status tells and objects do not show.
    fn remembered_refusal_cause(&self, marker: &InspectedMarker<'_>) -> Option<Cause> {
        let (reason, message) = reported_problem(marker)?;
        // A user who may not read the objects of the nodes has the manager's word for what they show.
        let of_nodes = OF_NODES.iter().filter(|_| !self.cluster.knows_nodes);
        let mut told = REMEMBERED.iter().chain(of_nodes).copied();
        let reason = told.find(|known| known.as_str() == reason)?;
        let pod = &self.inspected.pod.name.name;
        // A stopped marker marks nothing; the others name up to three pods.
        if reason != CauseReason::Cycle && !mentions_pod(message, pod) && !message.contains(" more")
        {
            return None;
        }
        let mut message = message.to_owned();
        if reason == CauseReason::Contested {
            message.push_str(&self.other_writers_of_differing_marks());
        }
        let cause = Cause::new_problem(reason, message);
        let InspectedFit::Matches(parsed, _) = &marker.fit else {
            return None;
        };
        Some(cause.with_origin(parsed, None))
    }

    /// The other field managers of the marks that are not as they should be.
    fn other_writers_of_differing_marks(&self) -> String {
        let marks = self.inspected.marks.iter().filter(|mark| mark.differs);
        let writers: Vec<_> = marks
            .filter_map(|differing| {
                let owners = self.owners_of(&differing.mark);
                let others = owners.iter().filter(|owner| owner.manager != FIELD_MANAGER);
                let names: Vec<_> = others.map(|owner| owner.manager.as_str()).collect();
                (!names.is_empty())
                    .then(|| format!("{} is written by {}", differing.mark, names.join(", ")))
            })
            .collect();
        if writers.is_empty() {
            return String::new();
        }
        format!(
            "; {}: configure that client not to write it, or choose another key",
            writers.join("; ")
        )
    }

    /// The cause if the manager has yet to write something of the pod.
    fn unwritten_marks_cause(&self) -> Option<Cause> {
        if !self.is_anything_due() {
            return None;
        }
        let marks: Vec<_> = self
            .inspected
            .marks
            .iter()
            .filter(|mark| mark.differs)
            .map(|mark| mark.mark.to_string())
            .collect();
        let node = self.inspected.pod.node.as_deref().unwrap_or_default();
        let what = if marks.is_empty() {
            format!("the pod's entries in NodePodProbe {node} are")
        } else {
            format!(
                "{} of the pod {}",
                marks.join(", "),
                if marks.len() == 1 { "is" } else { "are" }
            )
        };
        Some(Cause::new_resolving(
            CauseReason::NotWrittenYet,
            format!(
                "{what} not as the verdicts and markers say; the manager writes that within seconds, else its log says why not{}",
                self.other_writers_of_differing_marks()
            ),
        ))
    }
}

/// Whether a message names a pod.
fn mentions_pod(message: &str, pod: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    message.split(|c| !is_part(c)).any(|word| word == pod)
}

impl From<&Trouble> for CauseReason {
    fn from(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::InvalidSpec => Self::InvalidSpec,
            Trouble::Cycle => Self::Cycle,
            Trouble::Conflict => Self::Conflict,
            Trouble::InvalidValue { .. } => Self::InvalidValue,
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
