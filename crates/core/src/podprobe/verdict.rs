//! A verdict on one probe of one container, and its form on the wire.
//!
//! The agent's workers reach it, its status reporter writes it, the manager's index reads it and marks the pod accordingly.
//! The pod and the name of the entry are beside it on the wire.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::limits;
use leadsman_api::node_pod_probe::ContainerProbeState;

use super::output::OutputValues;
use super::probe::State;
use crate::cluster::{Interner, truncate, whole_seconds};

/// Bytes of the message of a verdict, at most.
pub(in crate::podprobe) const VERDICT_MESSAGE_BYTES: usize = 1024;

/// The state of one probe of one container, after thresholds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Whether the probe succeeds.
    pub state: State,
    /// Why; empty if there is nothing to say. At most [`VERDICT_MESSAGE_BYTES`], whoever wrote it.
    pub message: Arc<str>,
    /// The time of the last change of state or values. None if another agent left it out.
    pub since: Option<Timestamp>,
    /// The time at which the probe last ran.
    pub probed: Option<Timestamp>,
    /// The revision of the entry that it is about. None if the API server does not keep the field.
    pub revision: Option<Arc<str>>,
    /// The id of the container that it is about. None if the API server does not keep the field.
    pub container: Option<Arc<str>>,
    /// The values in the output. None if nobody has judged it, and where it does not succeed.
    pub values: Option<Arc<OutputValues>>,
}

impl Verdict {
    /// A verdict of which no more is known.
    pub fn new(state: State, message: impl Into<Arc<str>>) -> Self {
        Self {
            state,
            message: message.into(),
            since: None,
            probed: None,
            revision: None,
            container: None,
            values: None,
        }
    }

    /// Reads a verdict; None if its state is none of ours. `known` is one that is likely to have the same strings: at
    /// 100,000 pods, to look a node's strings up among those of all nodes takes four times as long as to compare them.
    pub fn from_wire(
        wire: &ContainerProbeState,
        known: Option<&Self>,
        strings: &mut Interner<str>,
    ) -> Option<Self> {
        let message = wire.message.as_deref().unwrap_or_default();
        // The schema has no maximum: it would refuse the status of the whole node where `OpenKruise`'s daemon writes it. But the
        // message goes into the pod, which must stay small enough for the kubelet to write its status.
        let message = truncate(message, VERDICT_MESSAGE_BYTES);
        let revision = known.and_then(|known| known.revision.as_ref());
        let container = known.and_then(|known| known.container.as_ref());
        Some(Self {
            state: wire.state.parse().ok()?,
            message: strings.share_like(known.map(|known| &known.message), message),
            since: wire.last_transition_time.as_ref().map(|time| time.0),
            probed: wire.last_probe_time.as_ref().map(|time| time.0),
            revision: (wire.revision.as_deref()).map(|it| strings.share_like(revision, it)),
            container: (wire.container_id.as_deref()).map(|it| strings.share_like(container, it)),
            values: read_values(wire, known),
        })
    }

    /// The form on the wire, under the name of its entry, with this message.
    pub fn to_wire(&self, name: &str, message: &str) -> ContainerProbeState {
        // A time that is read back has whole seconds (`metav1.Time`); one with a fraction would differ for ever.
        let time = |time: Option<Timestamp>| time.map(|time| Time(whole_seconds(time)));
        ContainerProbeState {
            name: name.to_owned(),
            state: self.state.as_str().to_owned(),
            last_probe_time: time(self.probed),
            last_transition_time: time(self.since),
            message: (!message.is_empty()).then(|| message.to_owned()),
            revision: self.revision.as_ref().map(ToString::to_string),
            container_id: self.container.as_ref().map(ToString::to_string),
            values: self.values.as_ref().map(|values| {
                let values = values.iter();
                values
                    .map(|(name, value)| (name.to_string(), value.to_string()))
                    .collect()
            }),
        }
    }
}

/// The values of a verdict, the known ones if they are equal. None also where they are more than any output has, whoever wrote
/// them.
fn read_values(wire: &ContainerProbeState, known: Option<&Verdict>) -> Option<Arc<OutputValues>> {
    let values = wire.values.as_ref()?;
    let bytes: usize = values.values().map(String::len).sum();
    if values.len() > limits::OUTPUT_VALUES || bytes > limits::OUTPUT_VALUES_BYTES {
        return None;
    }
    let read: OutputValues = values
        .iter()
        .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
        .collect();
    let former = known.and_then(|known| known.values.as_ref());
    let same = former.filter(|former| ***former == read);
    Some(same.cloned().unwrap_or_else(|| Arc::new(read)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_that_is_written_is_read_with_its_message_truncated_and_its_times_in_seconds() {
        let time = |text: &str| Some(text.parse().unwrap());
        let verdict = Verdict {
            state: State::Failed,
            message: "état".into(),
            since: time("2026-01-02T03:04:05.6Z"),
            probed: time("2026-01-02T03:04:06Z"),
            revision: Some("r".into()),
            container: Some("c".into()),
            values: Some(Arc::new([("role".into(), "primary".into())].into())),
        };
        let wire = verdict.to_wire("m#p", truncate(&verdict.message, 4));
        assert_eq!(wire.name, "m#p");
        let expected = Verdict {
            message: "éta".into(),
            since: time("2026-01-02T03:04:05Z"),
            ..verdict
        };
        let strings = &mut Interner::default();
        assert_eq!(Verdict::from_wire(&wire, None, strings), Some(expected));
        let other = ContainerProbeState {
            state: "True".to_owned(),
            ..wire
        };
        assert_eq!(Verdict::from_wire(&other, None, strings), None);
    }

    // PRB-17, DEF-23
    #[test]
    fn a_message_is_read_up_to_its_limit_whoever_wrote_it() {
        let wire = ContainerProbeState {
            message: Some("é".repeat(600_000)),
            ..ContainerProbeState::new("m#p", "Failed")
        };
        let strings = &mut Interner::default();
        let verdict = Verdict::from_wire(&wire, None, strings).unwrap();
        assert_eq!(*verdict.message, *"é".repeat(512));
        let known = Verdict::from_wire(&wire, Some(&verdict), strings).unwrap();
        assert!(Arc::ptr_eq(&known.message, &verdict.message));
    }

    // DEF-23
    #[test]
    fn as_many_values_are_read_as_an_output_has_and_none_of_more() {
        let bytes = limits::OUTPUT_VALUES_BYTES / limits::OUTPUT_VALUES;
        for (count, more, is_read) in [(0, 0, true), (1, 0, false), (0, 1, false)] {
            let value = |n: usize| "x".repeat(bytes + usize::from(n == 0) * more);
            let values = (0..limits::OUTPUT_VALUES + count).map(|n| (format!("v{n}"), value(n)));
            let wire = ContainerProbeState {
                values: Some(values.collect()),
                ..ContainerProbeState::new("m#p", "Succeeded")
            };
            let values = read_values(&wire, None);
            assert_eq!(values.is_some(), is_read, "{count} {more}");
        }
    }
}
