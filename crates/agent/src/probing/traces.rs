//! The agent's part of the trace of a verdict: the run that changed it, and the write of the status that says so.
//!
//! Nothing is kept without a tracer, and with one at most one change for each probe of the node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::NodePodProbeStatus;
use leadsman_core::cluster::whole_seconds;
use leadsman_core::podprobe::node::{NodeEvent, ProbeKey, VerdictChange};
use leadsman_core::podprobe::{State, VerdictTrace};
use leadsman_process::traces::{Attribute, Span, SpanId, SpanKind, TraceId, Tracer};

use super::metrics::result_label;

/// A run that has ended.
pub(super) struct TracedRun {
    began: Timestamp,
    result: &'static str,
}

/// A change of a verdict that is not known to be written.
#[derive(Debug)]
struct TracedChange {
    trace: VerdictTrace,
    state: State,
    since: Timestamp,
    began: Timestamp,
    attributes: Vec<Attribute>,
}

/// The changes whose traces are sent.
#[derive(Debug)]
pub(super) struct VerdictTraces {
    tracer: Tracer,
    node: Arc<str>,
    /// Not in any write so far.
    changes: BTreeMap<Arc<ProbeKey>, TracedChange>,
    /// Those of the write under way.
    writing: BTreeMap<Arc<ProbeKey>, TracedChange>,
    write_began: Timestamp,
}

impl VerdictTraces {
    pub(super) fn new(tracer: Tracer, node: Arc<str>) -> Self {
        Self {
            tracer,
            node,
            changes: BTreeMap::new(),
            writing: BTreeMap::new(),
            write_began: Timestamp::UNIX_EPOCH,
        }
    }

    /// The run whose end this event is.
    pub(super) fn run_of(&self, event: &NodeEvent<'_>, now: Timestamp) -> Option<TracedRun> {
        match event {
            NodeEvent::RunFinished { result, took, .. } if self.tracer.is_enabled() => {
                Some(TracedRun {
                    began: time_before(now, *took),
                    result: result_label(result),
                })
            }
            _ => None,
        }
    }

    /// Notes a change of a verdict. It follows from the run, or, without one, from what the runtime says of the container.
    pub(super) fn note_change(
        &mut self,
        change: &VerdictChange,
        run: Option<&TracedRun>,
        now: Timestamp,
    ) {
        let Some(since) = change.since.filter(|_| self.tracer.is_enabled()) else {
            return;
        };
        let entry = change.key.id.to_string();
        let trace = VerdictTrace::new(&change.key.pod.uid, &entry, change.to, since);
        if !self.tracer.is_sampled(TraceId(trace.id)) {
            return;
        }
        let began = run.map_or(now, |run| run.began);
        if let Some(run) = run {
            self.tracer.record_span(TraceId(trace.id), |id| Span {
                trace: TraceId(trace.id),
                id,
                parent: Some(SpanId(trace.change)),
                name: "run probe",
                kind: SpanKind::Internal,
                began,
                ended: now,
                attributes: vec![("leadsman.result", run.result.to_owned())],
                error: None,
            });
        }
        let noted = TracedChange {
            trace,
            state: change.to,
            // As the status has it, by which `shows_change` finds it there.
            since: whole_seconds(since),
            began,
            attributes: self.change_attributes(change),
        };
        self.changes.insert(change.key.clone(), noted);
    }

    fn change_attributes(&self, change: &VerdictChange) -> Vec<Attribute> {
        let ProbeKey { pod, container, id } = &*change.key;
        let from = change.from.map_or("none", State::as_str);
        let attributes: [(_, &str); 9] = [
            ("k8s.node.name", &self.node),
            ("k8s.namespace.name", &pod.namespace),
            ("k8s.pod.name", &pod.name),
            ("k8s.pod.uid", &pod.uid),
            ("k8s.container.name", container),
            ("leadsman.marker", &id.marker),
            ("leadsman.probe", &id.probe),
            ("leadsman.verdict.before", from),
            ("leadsman.verdict", change.to.as_str()),
        ];
        attributes
            .map(|(key, value)| (key, value.to_owned()))
            .into()
    }

    /// A write of the whole status begins. A change that it does not show will not be written any more: the verdict has
    /// changed again, or its probe has left the plan.
    pub(super) fn begin_write(&mut self, status: &NodePodProbeStatus, now: Timestamp) {
        self.write_began = now;
        self.writing = std::mem::take(&mut self.changes);
        self.writing
            .retain(|key, change| shows_change(status, key, change));
    }

    /// The write has ended, with an error or without.
    pub(super) fn end_write(&mut self, error: Option<&str>, now: Timestamp) {
        for (key, change) in std::mem::take(&mut self.writing) {
            let trace = TraceId(change.trace.id);
            let write_began = self.write_began;
            self.tracer.record_span(trace, |id| Span {
                trace,
                id,
                parent: Some(SpanId(change.trace.change)),
                name: "write status",
                kind: SpanKind::Client,
                began: write_began,
                ended: now,
                attributes: Vec::new(),
                error: error.map(str::to_owned),
            });
            if error.is_some() {
                // The next write has it again, unless the verdict has changed meanwhile.
                self.changes.entry(key).or_insert(change);
                continue;
            }
            self.tracer.record_span(trace, |_| Span {
                trace,
                id: SpanId(change.trace.change),
                parent: None,
                name: "change verdict",
                kind: SpanKind::Internal,
                began: change.began,
                ended: now,
                attributes: change.attributes,
                error: None,
            });
        }
    }
}

fn shows_change(status: &NodePodProbeStatus, key: &ProbeKey, change: &TracedChange) -> bool {
    let entry = key.id.to_string();
    let mut pods = status.pod_probe_statuses.iter();
    let pod = pods.find(|pod| *pod.uid == *key.pod.uid);
    pod.is_some_and(|pod| {
        pod.probe_states.iter().any(|verdict| {
            let since = verdict.last_transition_time.as_ref();
            verdict.name == entry
                && verdict.state == change.state.as_str()
                && since.is_some_and(|since| since.0 == change.since)
        })
    })
}

fn time_before(now: Timestamp, took: Duration) -> Timestamp {
    let took = SignedDuration::try_from(took).unwrap_or(SignedDuration::ZERO);
    now.checked_sub(took).unwrap_or(now)
}
