//! The status as it should be, compared with the one that the API server shows, and which of the differences are due.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{CannotProbeEntry, ContainerProbeState, PodProbeStatus};
use leadsman_api::{NodePodProbeStatus, limits};

use super::key::{PodIdentity, ProbeKey};
use crate::cluster::{Now, truncate};
use crate::podprobe::verdict::Verdict;

/// Bytes of a message in a status, at most.
pub(in crate::podprobe) const VERDICT_MESSAGE_BYTES: usize = 1024;
/// Limits of the bytes of each message: while the status is too large, all messages of the node get the next limit.
const MESSAGE_LIMITS: [usize; 4] = [VERDICT_MESSAGE_BYTES, 256, 64, 0];
const _: () = assert!(
    MESSAGE_LIMITS[0] > MESSAGE_LIMITS[1]
        && MESSAGE_LIMITS[1] > MESSAGE_LIMITS[2]
        && MESSAGE_LIMITS[2] > MESSAGE_LIMITS[3],
    "each limit makes the status smaller than the one before"
);
/// Maximum size of a status as JSON. etcd takes 1.5 MiB for the whole object (`--max-request-bytes`), the spec
/// included.
const STATUS_BYTES: usize = 512 * 1024;
/// The time between two writes that change only the message of an entry, or what cannot be probed.
pub(super) const MESSAGE_PAUSE: Duration = Duration::from_secs(10);
/// The time between two writes that change only `lastProbeTime`.
const REFRESH: SignedDuration = SignedDuration::from_mins(10);
const _: () = assert!(
    MESSAGE_PAUSE.as_secs() < REFRESH.as_secs().cast_unsigned(),
    "a refresh sends messages, too"
);

/// One verdict to be written.
pub(super) struct StatusRow<'a> {
    pub(super) key: &'a Arc<ProbeKey>,
    /// With the time when it was last confirmed.
    pub(super) verdict: Verdict,
}

/// One probe that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unprobed {
    pub(super) pod: PodIdentity,
    /// `<marker>#<probe>`, or the name of a malformed entry.
    pub(super) probe: String,
    pub(super) why: String,
}

/// A status that could be written.
pub(super) struct StatusDraft {
    pub(super) status: NodePodProbeStatus,
    /// Entries that differ in more than `lastProbeTime`.
    pub(super) changed: Vec<Arc<ProbeKey>>,
    pub(super) is_due: bool,
    /// When the differences that are not due yet will be.
    pub(super) due_at: Option<Duration>,
}

/// How an entry differs from the one that the API server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// Nothing is due before `until`.
    None { until: Duration },
    /// Only `lastProbeTime` differs, and it is due.
    ProbeTime,
    /// Only the message differs, and it is not due before `until`.
    Message { until: Duration },
    /// More differs, or a message that is due.
    Due,
}

/// Namespace, name and uid of a pod. Not its uid alone: the author of a mirror pod chooses its uid.
type PodRef<'a> = (&'a str, &'a str, &'a str);
/// States by pod and probe.
type StatesByProbe<'a> = HashMap<(PodRef<'a>, &'a str), &'a ContainerProbeState>;

impl StatusDraft {
    /// The status of these rows, with messages as long as fit. `keeps_unprobed` is whether the API server keeps the
    /// field for what cannot be probed; `sent_at` is when an entry was last sent with more than a new time.
    pub(super) fn new(
        rows: &[StatusRow<'_>],
        unprobed: &[Unprobed],
        observed: &NodePodProbeStatus,
        keeps_unprobed: bool,
        sent_at: &HashMap<Arc<ProbeKey>, Duration>,
        now: Now,
    ) -> Self {
        let observed = ShownStatus::new(observed, rows.len());
        let names: Vec<String> = rows.iter().map(|row| row.key.id.to_string()).collect();
        let with_limit = |limit: usize| {
            let differences = rows.iter().zip(&names).map(|(row, name)| {
                let Some(state) = observed.shown_state_of(row, name) else {
                    return Difference::Due;
                };
                let sent_at = sent_at.get(row.key).copied();
                compare_row(row, state, limit, observed.keeps_fields, sent_at, now)
            });
            let differences: Vec<Difference> = differences.collect();
            let mut draft = compose_draft(rows, &names, &observed, &differences, limit);
            let pods = &mut draft.status.pod_probe_statuses;
            add_unprobed(pods, unprobed, limit, keeps_unprobed);
            draft
        };
        let mut draft = with_limit(MESSAGE_LIMITS[0]);
        // One limit for all: if messages were cut one by one, which of them are whole would depend on their order.
        for limit in &MESSAGE_LIMITS[1..] {
            if json_bytes(&draft.status) <= STATUS_BYTES {
                break;
            }
            draft = with_limit(*limit);
        }
        draft.is_due |= leaves_empty_pod(observed.pods, &draft.status.pod_probe_statuses);
        draft
    }
}

/// The status that the API server shows.
struct ShownStatus<'a> {
    pods: &'a [PodProbeStatus],
    states: StatesByProbe<'a>,
    /// Whether it has entries without a row.
    has_others: bool,
    /// Whether the API server keeps the fields that its definition of the kind may lack: `revision`, `containerID`.
    keeps_fields: bool,
}

impl<'a> ShownStatus<'a> {
    fn new(shown: &'a NodePodProbeStatus, rows: usize) -> Self {
        let pods = &shown.pod_probe_statuses;
        let states = pods
            .iter()
            .flat_map(|pod| pod.probe_states.iter().map(move |state| (pod, state)));
        let count = states.clone().count();
        Self {
            pods,
            // The counts suffice. If an entry without a row is offset by a row without an entry,
            // that row is due anyway.
            has_others: count != rows,
            // An empty status says nothing about the definition, so the fields count as kept until one is missing.
            keeps_fields: count == 0 || states.clone().any(|(_, s)| s.container_id.is_some()),
            states: states
                .map(|(pod, state)| ((shown_pod(pod), &*state.name), state))
                .collect(),
        }
    }

    fn shown_state_of(&self, row: &StatusRow<'_>, name: &str) -> Option<&'a ContainerProbeState> {
        self.states.get(&(named_pod(&row.key.pod), name)).copied()
    }
}

fn shown_pod(pod: &PodProbeStatus) -> PodRef<'_> {
    (&pod.namespace, &pod.name, &pod.uid)
}

fn named_pod(pod: &PodIdentity) -> PodRef<'_> {
    (&pod.namespace, &pod.name, &pod.uid)
}

/// Whether the API server shows a pod without content that is not in the new status. A pod in the new status may be
/// shown without content where the API server drops what cannot be probed.
fn leaves_empty_pod(shown: &[PodProbeStatus], named: &[PodProbeStatus]) -> bool {
    let is_empty =
        |pod: &&PodProbeStatus| pod.probe_states.is_empty() && pod.cannot_probe.is_empty();
    let mut empty = shown.iter().filter(is_empty).peekable();
    if empty.peek().is_none() {
        return false;
    }
    let named: HashSet<PodRef<'_>> = named.iter().map(shown_pod).collect();
    empty.any(|pod| !named.contains(&shown_pod(pod)))
}

fn compare_row(
    row: &StatusRow<'_>,
    state: &ContainerProbeState,
    limit: usize,
    keeps_fields: bool,
    sent_at: Option<Duration>,
    now: Now,
) -> Difference {
    let verdict = &row.verdict;
    let has_equal_fields = !keeps_fields
        || (state.revision.as_deref() == verdict.revision.as_deref()
            && state.container_id.as_deref() == verdict.container.as_deref());
    let Some(Time(shown)) = state.last_probe_time else {
        return Difference::Due;
    };
    if state.state != verdict.state.as_str()
        || state.last_transition_time != verdict.since.map(Time)
        || !has_equal_fields
    {
        return Difference::Due;
    }
    if state.message.as_deref().unwrap_or_default() != truncate(&verdict.message, limit) {
        let until = sent_at.map_or(Duration::ZERO, |sent_at| sent_at + MESSAGE_PAUSE);
        // A status that is too large is written at once.
        return if limit == VERDICT_MESSAGE_BYTES && until > now.monotonic {
            Difference::Message { until }
        } else {
            Difference::Due
        };
    }
    let probed = verdict.probed.unwrap_or(now.wall);
    // A time that lies ahead is one from before the clock was set back: it would not be refreshed until it has passed.
    if probed.duration_since(shown).abs() >= REFRESH {
        return Difference::ProbeTime;
    }
    let left = REFRESH.saturating_sub(now.wall.duration_since(shown).abs());
    let left = Duration::try_from(left).unwrap_or_default();
    Difference::None {
        // A verdict that is no longer probed has nothing to refresh: it is compared again later.
        until: now.monotonic + left.max(MESSAGE_PAUSE),
    }
}

fn compose_draft(
    rows: &[StatusRow<'_>],
    names: &[String],
    observed: &ShownStatus<'_>,
    differences: &[Difference],
    limit: usize,
) -> StatusDraft {
    // All times are refreshed together, so that they become due together again.
    let refresh = differences.contains(&Difference::ProbeTime);
    let mut draft = StatusDraft {
        status: NodePodProbeStatus::default(),
        changed: Vec::new(),
        is_due: observed.has_others || refresh,
        due_at: None,
    };
    for ((row, name), difference) in rows.iter().zip(names).zip(differences) {
        let mut state = row.verdict.to_wire(name, limit);
        if let Some(shown) = observed.shown_state_of(row, name) {
            if *difference != Difference::Due && !refresh {
                state.last_probe_time.clone_from(&shown.last_probe_time);
            }
            // Its pause holds although the write is due for others: a message is sent at most once
            // in it.
            if matches!(difference, Difference::Message { .. }) {
                state.message.clone_from(&shown.message);
            }
        }
        match difference {
            Difference::Due => {
                draft.is_due = true;
                draft.changed.push(row.key.clone());
            }
            Difference::None { until } | Difference::Message { until } => {
                draft.due_at = Some(draft.due_at.map_or(*until, |due_at| due_at.min(*until)));
            }
            Difference::ProbeTime => {}
        }
        add_state(&mut draft.status.pod_probe_statuses, row.key, state);
    }
    draft
}

/// The rows of a pod are adjacent, so only the last pod is compared.
fn add_state(pods: &mut Vec<PodProbeStatus>, key: &ProbeKey, state: ContainerProbeState) {
    match pods.last_mut() {
        Some(pod) if shown_pod(pod) == named_pod(&key.pod) => pod.probe_states.push(state),
        _ => {
            let mut pod = write_pod(&key.pod);
            pod.probe_states.push(state);
            pods.push(pod);
        }
    }
}

/// Adds what cannot be probed to the pods that have verdicts, and the other pods after those, if `adds_pods`.
fn add_unprobed(
    pods: &mut Vec<PodProbeStatus>,
    unprobed: &[Unprobed],
    limit: usize,
    adds_pods: bool,
) {
    if unprobed.is_empty() {
        return;
    }
    let mut indices: HashMap<PodIdentity, usize> = HashMap::new();
    for (index, pod) in pods.iter().enumerate() {
        indices.insert(read_pod(pod), index);
    }
    for one in unprobed {
        let index = match indices.get(&one.pod) {
            Some(index) => *index,
            None if adds_pods => {
                pods.push(write_pod(&one.pod));
                indices.insert(one.pod.clone(), pods.len() - 1);
                pods.len() - 1
            }
            // Where the definition drops the field, such a pod would come back empty and differ for ever.
            None => continue,
        };
        let of_pod = &mut pods[index].cannot_probe;
        // The limits are those of the CRD: beyond them the API server refuses the whole status, the
        // verdicts of all pods included.
        if of_pod.len() < limits::CANNOT_PROBE {
            of_pod.push(CannotProbeEntry {
                name: one.probe.chars().take(limits::CANNOT_PROBE_NAME).collect(),
                message: truncate(&one.why, limit.min(limits::CANNOT_PROBE_MESSAGE)).to_owned(),
            });
        }
    }
}

pub(super) fn read_pod(pod: &PodProbeStatus) -> PodIdentity {
    PodIdentity {
        namespace: pod.namespace.as_str().into(),
        name: pod.name.as_str().into(),
        uid: pod.uid.as_str().into(),
    }
}

fn write_pod(pod: &PodIdentity) -> PodProbeStatus {
    PodProbeStatus {
        name: pod.name.to_string(),
        namespace: pod.namespace.to_string(),
        uid: pod.uid.to_string(),
        ..PodProbeStatus::default()
    }
}

/// Whether a status names anything that cannot be probed.
pub(super) fn shows_unprobed(status: &NodePodProbeStatus) -> bool {
    let mut pods = status.pod_probe_statuses.iter();
    pods.any(|pod| !pod.cannot_probe.is_empty())
}

/// Whether two statuses name the same probes as ones that cannot be run, for the same reasons.
pub(super) fn has_same_unprobed(one: &NodePodProbeStatus, other: &NodePodProbeStatus) -> bool {
    unprobed_of(one) == unprobed_of(other)
}

/// Pod, probe and reason, whatever their order.
fn unprobed_of(status: &NodePodProbeStatus) -> BTreeSet<(PodRef<'_>, &str, &str)> {
    let pods = status.pod_probe_statuses.iter();
    pods.flat_map(|pod| pod.cannot_probe.iter().map(move |one| (pod, one)))
        .map(|(pod, one)| (shown_pod(pod), &*one.name, &*one.message))
        .collect()
}

fn json_bytes(status: &NodePodProbeStatus) -> usize {
    // A status of hundreds of kilobytes is measured up to four times for a write, so it is counted
    // and not built.
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, status).expect("strings and times always serialise");
    count.0
}
