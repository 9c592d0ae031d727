//! Why no marker matches a pod.

use super::PodContext;
use super::explanation::Cause;
use super::explanation::CauseReason;
use crate::cluster::{SelectorTerm, edit_distance};
use crate::podprobe::index::{InspectedFit, InspectedMarker};
use crate::podprobe::pod::NoTarget;

impl PodContext<'_> {
    /// A marker that would match, were it or the pod in another state.
    pub(super) fn unmatched_marker_cause(&self, marker: &InspectedMarker<'_>) -> Option<Cause> {
        let labels = &self.inspected.pod.labels;
        let label = |key: &str| labels.get(key).map(|value| &**value);
        let (parsed, cause) = match &marker.fit {
            InspectedFit::DoesNotMatch(parsed) => (parsed, self.no_target_cause()?),
            InspectedFit::Stopped(parsed, trouble, message) => {
                (parsed, Cause::new_problem((*trouble).into(), *message))
            }
            InspectedFit::Matches(..) | InspectedFit::Invalid(_) | InspectedFit::Deleting => {
                return None;
            }
        };
        parsed
            .selector
            .matches(label)
            .then(|| cause.with_origin(parsed, None))
    }

    /// Why the pod cannot be probed, whatever its labels.
    fn no_target_cause(&self) -> Option<Cause> {
        let status = &self.wire.status;
        let condition = |kind: &str| {
            let mut conditions = status.conditions.iter();
            let condition = conditions.find(|one| one.type_ == kind)?;
            let message = condition
                .message
                .as_deref()
                .filter(|message| !message.is_empty())?;
            Some(format!(" ({message})"))
        };
        Some(match self.inspected.pod.why_no_target()? {
            NoTarget::Inactive if self.wire.identity.deletion_timestamp.is_some() => {
                Cause::new_problem(
                    CauseReason::BeingDeleted,
                    "the pod is being deleted, so it is not probed any more; its marks stay as they are",
                )
            }
            NoTarget::Inactive => {
                let phase = status.phase.as_deref().unwrap_or_default();
                Cause::new_problem(
                    CauseReason::Ended,
                    format!(
                        "the pod has ended (phase {phase}), so it is not probed any more; its marks stay as they are"
                    ),
                )
            }
            NoTarget::NotScheduled => Cause::new_resolving(
                CauseReason::NotScheduled,
                format!(
                    "the pod is bound to no node yet{}; it is probed when it is",
                    condition("PodScheduled").unwrap_or_default()
                ),
            ),
            NoTarget::NotInitialized => Cause::new_resolving(
                CauseReason::NotInitialized,
                format!(
                    "the pod is not initialized: its init containers have not all ended{}; it is probed when its condition Initialized is True, so look at the init containers",
                    condition("Initialized").unwrap_or_default()
                ),
            ),
        })
    }

    /// The markers of the namespace that are not acted on, whichever pods they are meant for.
    pub(super) fn unusable_marker_causes(&self) -> Vec<Cause> {
        let of = |name: &str, reason, message: String| Cause {
            marker: Some(name.to_owned()),
            ..Cause::new_problem(reason, message)
        };
        let markers = self.inspected.markers.iter();
        let invalid = markers.filter_map(|marker| {
            let name = &marker.name.name;
            let InspectedFit::Invalid(errors) = &marker.fit else {
                return None;
            };
            let message = format!("marker {name} breaks a rule and is not acted on: {errors}");
            Some(of(name, CauseReason::InvalidSpec, message))
        });
        let namespace = &self.inspected.pod.name.namespace;
        let all = self.cluster.undecodable.iter();
        let own = all.filter(|(marker, _)| marker.namespace == *namespace);
        let undecodable = own.map(|(marker, error)| {
            let name = &marker.name;
            let message =
                format!("marker {name} cannot be decoded: {error}; correct it or delete it");
            of(name, CauseReason::Undecodable, message)
        });
        invalid.chain(undecodable).collect()
    }

    /// The cause if no marker selects the pod: it names the one that comes nearest, or one in another namespace.
    pub(super) fn no_marker_cause(&self) -> Cause {
        let name = &*self.inspected.pod.name;
        let elsewhere = self.cluster.machines().markers_elsewhere(name);
        // A marker elsewhere selects the pod's labels, which none of the namespace does, so it is nearer.
        if let Some(marker) = elsewhere.first() {
            return Cause::new_problem(
                CauseReason::OtherNamespace,
                format!(
                    "marker {marker} selects the pod's labels, but a marker matches pods of its own namespace only; create it in namespace {}",
                    name.namespace
                ),
            );
        }
        let markers = self.inspected.markers.iter();
        let terms = markers.filter_map(|marker| match &marker.fit {
            InspectedFit::DoesNotMatch(parsed) => {
                let terms = self.selector_terms(&parsed.selector);
                let failing: Vec<_> = terms.into_iter().filter(|term| !term.holds).collect();
                Some((marker.name.name.as_str(), failing))
            }
            _ => None,
        });
        // The fewest failing requirements come first, then the value that was most probably meant.
        let misses = |(_, failing): &(_, Vec<SelectorTerm>)| {
            let distances = failing
                .iter()
                .map(|term| edit_distance(&term.term, &term.found));
            (failing.len(), distances.sum::<usize>())
        };
        let Some((marker, terms)) = terms.min_by_key(misses) else {
            return Cause::new_problem(
                CauseReason::NoMarker,
                format!(
                    "namespace {} has no marker that could match the pod; create one",
                    name.namespace
                ),
            );
        };
        let terms: Vec<_> = terms
            .iter()
            .map(|term| format!("{} (the pod has {})", term.term, term.found))
            .collect();
        Cause {
            marker: Some(marker.to_owned()),
            ..Cause::new_problem(
                CauseReason::NoMarkerMatches,
                format!(
                    "no marker of namespace {} matches; {marker} comes nearest and requires {}; correct the pod's labels (in its workload's template) or the selector (in a new marker: it cannot be edited)",
                    name.namespace,
                    terms.join(", ")
                ),
            )
        }
    }
}
