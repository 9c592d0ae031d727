//! The manager's part of the trace of a verdict: from its observation until the pod has the marks that follow from it.

use leadsman_core::cluster::ObjectName;
use leadsman_core::podprobe::VerdictTrace;
use leadsman_core::podprobe::index::ObservedTransition;
use leadsman_process::traces::{OpenSpan, SpanId, TraceId, Tracer};

/// The work that a write of a pod's marks completes, for each change whose trace is sent.
pub(super) fn open_spans(
    tracer: &Tracer,
    pod: &ObjectName,
    transitions: &[ObservedTransition],
) -> Vec<OpenSpan> {
    let spans = transitions
        .iter()
        .map(|transition| open_span_of_transition(pod, transition));
    spans.filter(|span| tracer.is_sampled(span.trace)).collect()
}

fn open_span_of_transition(pod: &ObjectName, transition: &ObservedTransition) -> OpenSpan {
    let ObservedTransition {
        pod_uid,
        entry,
        state,
        since,
        observed,
    } = transition;
    let trace = VerdictTrace::new(pod_uid, entry, *state, *since);
    let (marker, probe) = entry.split_once('#').unwrap_or((entry, ""));
    OpenSpan {
        trace: TraceId(trace.id),
        id: SpanId(trace.marking),
        parent: SpanId(trace.change),
        name: "mark pod",
        began: *observed,
        attributes: vec![
            ("k8s.namespace.name", pod.namespace.clone()),
            ("k8s.pod.name", pod.name.clone()),
            ("k8s.pod.uid", pod_uid.to_string()),
            ("leadsman.marker", marker.to_owned()),
            ("leadsman.probe", probe.to_owned()),
            ("leadsman.verdict", state.as_str().to_owned()),
        ],
    }
}
