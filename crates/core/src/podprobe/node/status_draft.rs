//! The status as it should be, compared with the one that the API server shows, and which of the differences are due.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::NodePodProbeStatus;
use leadsman_api::limits::{CANNOT_PROBE, CANNOT_PROBE_MESSAGE, CANNOT_PROBE_NAME};
use leadsman_api::node_pod_probe::{CannotProbeEntry, ContainerProbeState, PodProbeStatus};

use super::key::{PodIdentity, ProbeKey};
use super::message_limits::{MESSAGE_LIMITS, MessageLimits, MessageSizes};
use crate::cluster::go_json::stored_bytes;
use crate::cluster::{Now, truncate};
use crate::podprobe::verdict::Verdict;

/// Maximum size of a status as the API server stores it. etcd takes 1.5 MiB for the whole object (`--max-request-bytes`), the
/// spec included; a write of twice this size takes the API server as much longer, and all verdicts of the node wait for it.
const STATUS_BYTES: usize = 256 * 1024;
/// The bytes that all messages may take however much the verdicts do: there is room for it between this limit, that of the
/// spec and etcd's.
const LEAST_MESSAGE_ROOM: usize = 64 * 1024;
/// The divisor of the bytes of all messages after the API server has refused a status for its size: a quarter is left.
const REFUSED_PART: usize = 4;
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
    /// The verdict, with the time when it was last confirmed.
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
    /// The limits of its messages.
    pub(super) limits: MessageLimits,
    /// The bytes that all messages may take, if the API server has refused a status for its size.
    pub(super) message_room: Option<usize>,
    /// Entries that differ in more than `lastProbeTime`.
    pub(super) changed: Vec<Arc<ProbeKey>>,
    pub(super) is_due: bool,
    /// The time when the differences that are not due yet will be.
    pub(super) due_at: Option<Duration>,
}

/// How an entry differs from the one that the API server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryDifference {
    /// Nothing is due before `until`.
    None { until: Duration },
    /// Nothing but `lastProbeTime` differs, and it is due.
    ProbeTime,
    /// Nothing but the message differs, and it is not due before `until`.
    Message { until: Duration },
    /// Something else differs, or the message does and is due.
    Due,
}

/// Namespace, name and uid of a pod. Not its uid alone: the author of a mirror pod chooses its uid.
type PodRef<'a> = (&'a str, &'a str, &'a str);
/// States by pod and probe.
type StatesByProbe<'a> = HashMap<(PodRef<'a>, &'a str), &'a ContainerProbeState>;

/// The input of a draft.
#[derive(Clone, Copy)]
pub(super) struct DraftInput<'a> {
    pub(super) rows: &'a [StatusRow<'a>],
    pub(super) unprobed: &'a [Unprobed],
    pub(super) observed: &'a NodePodProbeStatus,
    /// Whether the API server keeps the field for what cannot be probed.
    pub(super) keeps_unprobed: bool,
    /// The time when each entry was last sent with more than a new time.
    pub(super) sent_at: &'a HashMap<Arc<ProbeKey>, Duration>,
    /// The limits of the draft before.
    pub(super) limits: &'a MessageLimits,
    /// The bytes that all messages may take, if the API server has refused a status for its size.
    pub(super) message_room: Option<usize>,
    /// Whether it has refused the status before this one for its size.
    pub(super) is_refused: bool,
    pub(super) now: Now,
}

impl StatusDraft {
    /// The status of these rows, with messages as long as fit.
    pub(super) fn new(input: DraftInput<'_>) -> Self {
        let names = input.rows.iter().map(|row| row.key.id.to_string());
        let comparison = Comparison {
            input,
            names: names.collect(),
            observed: ShownStatus::new(input.observed, input.rows.len()),
        };
        let mut draft = comparison.compose_draft(&MessageLimits::default());
        let is_limited =
            !input.limits.is_empty() || input.message_room.is_some() || input.is_refused;
        if is_limited || stored_bytes(&draft.status) > STATUS_BYTES {
            draft = comparison.fit_draft();
        }
        let pods = &draft.status.pod_probe_statuses;
        draft.is_due |= leaves_empty_pod(comparison.observed.pods, pods);
        draft
    }
}

/// A comparison of the status to be shown with the one that is shown.
struct Comparison<'a> {
    input: DraftInput<'a>,
    /// The names of the rows' entries.
    names: Vec<String>,
    observed: ShownStatus<'a>,
}

impl<'a> Comparison<'a> {
    /// The draft with the limits by which it fits.
    fn fit_draft(&self) -> StatusDraft {
        let DraftInput {
            limits,
            mut message_room,
            ..
        } = self.input;
        let sizes = self.measure_messages();
        if self.input.is_refused {
            message_room = Some(sizes.total(limits) / REFUSED_PART);
        }
        let without = self.compose_draft(&MessageLimits::none_for(&sizes));
        let left = STATUS_BYTES.saturating_sub(stored_bytes(&without.status));
        let free = left.max(LEAST_MESSAGE_ROOM);
        let room = message_room.map_or(free, |most| most.min(free));
        StatusDraft {
            message_room,
            ..self.compose_draft(&limits.fit_room(&sizes, room))
        }
    }

    /// The bytes of all messages for each limit. Of one that pauses the longer of what is shown and what follows it counts:
    /// by what is shown alone, a cut would seem to be needed no more.
    fn measure_messages(&self) -> MessageSizes<'a> {
        let mut sizes = MessageSizes::default();
        for (row, name) in self.input.rows.iter().zip(&self.names) {
            let bytes = MESSAGE_LIMITS.map(|limit| {
                let (_, message) = self.compare_row(row, name, limit);
                let next = truncate(&row.verdict.message, limit);
                message_bytes(message).max(message_bytes(next))
            });
            sizes.add_message(&row.key.pod.namespace, bytes);
        }
        for one in self.input.unprobed {
            let bytes = MESSAGE_LIMITS.map(|limit| message_bytes(obstacle_message(one, limit)));
            sizes.add_message(&one.pod.namespace, bytes);
        }
        sizes
    }

    /// How a row differs from what is shown, and the message to be written with it.
    fn compare_row<'b>(
        &'b self,
        row: &'b StatusRow<'_>,
        name: &str,
        limit: usize,
    ) -> (EntryDifference, &'b str) {
        let message = truncate(&row.verdict.message, limit);
        let Some(state) = self.observed.shown_state_of(row, name) else {
            return (EntryDifference::Due, message);
        };
        let difference = compare_row(row, state, limit, self.observed.keeps_fields, &self.input);
        match difference {
            // The message's pause holds although the write is due for others: a message is sent at most once in it.
            EntryDifference::Message { .. } => {
                (difference, state.message.as_deref().unwrap_or_default())
            }
            _ => (difference, message),
        }
    }

    fn compose_draft(&self, limits: &MessageLimits) -> StatusDraft {
        let rows: Vec<_> = self
            .input
            .rows
            .iter()
            .zip(&self.names)
            .map(|(row, name)| {
                let limit = limits.limit_of(&row.key.pod.namespace);
                (row, name, self.compare_row(row, name, limit))
            })
            .collect();
        // All times are refreshed together, so that they become due together again.
        let refresh = rows
            .iter()
            .any(|(.., (difference, _))| *difference == EntryDifference::ProbeTime);
        let mut draft = StatusDraft {
            status: NodePodProbeStatus::default(),
            limits: limits.clone(),
            message_room: None,
            changed: Vec::new(),
            is_due: self.observed.has_others || refresh,
            due_at: None,
        };
        for (row, name, (difference, message)) in rows {
            let mut state = row.verdict.to_wire(name, message);
            if let Some(shown) = self.observed.shown_state_of(row, name)
                && difference != EntryDifference::Due
                && !refresh
            {
                state.last_probe_time.clone_from(&shown.last_probe_time);
            }
            match difference {
                EntryDifference::Due => {
                    draft.is_due = true;
                    draft.changed.push(row.key.clone());
                }
                EntryDifference::None { until } | EntryDifference::Message { until } => {
                    draft.due_at = Some(draft.due_at.map_or(until, |due_at| due_at.min(until)));
                }
                EntryDifference::ProbeTime => {}
            }
            add_state(&mut draft.status.pod_probe_statuses, row.key, state);
        }
        let pods = &mut draft.status.pod_probe_statuses;
        add_unprobed(pods, &self.input, limits);
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
    input: &DraftInput<'_>,
) -> EntryDifference {
    let (verdict, now) = (&row.verdict, input.now);
    let has_equal_fields = (!keeps_fields
        || (state.revision.as_deref() == verdict.revision.as_deref()
            && state.container_id.as_deref() == verdict.container.as_deref()))
        && shows_values(state, verdict);
    let Some(Time(shown)) = state.last_probe_time else {
        return EntryDifference::Due;
    };
    if state.state != verdict.state.as_str()
        || state.last_transition_time != verdict.since.map(Time)
        || !has_equal_fields
    {
        return EntryDifference::Due;
    }
    let message = state.message.as_deref().unwrap_or_default();
    if message != truncate(&verdict.message, limit) {
        let sent_at = input.sent_at.get(row.key);
        let until = sent_at.map_or(Duration::ZERO, |sent_at| *sent_at + MESSAGE_PAUSE);
        // A message that is longer than it may be is cut at once.
        return if message.len() <= limit && until > now.monotonic {
            EntryDifference::Message { until }
        } else {
            EntryDifference::Due
        };
    }
    let probed = verdict.probed.unwrap_or(now.wall);
    // A time that lies ahead is one from before the clock was set back: it would not be refreshed until it has passed.
    if probed.duration_since(shown).abs() >= REFRESH {
        return EntryDifference::ProbeTime;
    }
    let left = REFRESH.saturating_sub(now.wall.duration_since(shown).abs());
    let left = Duration::try_from(left).unwrap_or_default();
    EntryDifference::None {
        // A verdict that is no longer probed has nothing to refresh: it is compared again later.
        until: now.monotonic + left.max(MESSAGE_PAUSE),
    }
}

/// Whether the values in the output are those that are shown. An older definition drops them, and the manager then reads the
/// message.
fn shows_values(shown: &ContainerProbeState, verdict: &Verdict) -> bool {
    let Some(shown) = &shown.values else {
        return true;
    };
    let own = verdict
        .values
        .iter()
        .flat_map(|values| values.iter())
        .map(|(name, value)| (&**name, &**value));
    own.eq(shown.iter().map(|(name, value)| (&**name, &**value)))
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

/// Adds what cannot be probed to the pods that have verdicts, and the other pods after those, if the API server keeps it.
fn add_unprobed(pods: &mut Vec<PodProbeStatus>, input: &DraftInput<'_>, limits: &MessageLimits) {
    if input.unprobed.is_empty() {
        return;
    }
    let mut indices: HashMap<PodIdentity, usize> = HashMap::new();
    for (index, pod) in pods.iter().enumerate() {
        indices.insert(read_pod(pod), index);
    }
    for one in input.unprobed {
        let index = match indices.get(&one.pod) {
            Some(index) => *index,
            None if input.keeps_unprobed => {
                pods.push(write_pod(&one.pod));
                indices.insert(one.pod.clone(), pods.len() - 1);
                pods.len() - 1
            }
            // A pod without verdicts would come back empty where the definition drops the field, and differ for ever.
            None => continue,
        };
        let of_pod = &mut pods[index].cannot_probe;
        // The limits are those of the CRD: beyond them the API server refuses the whole status, the
        // verdicts of all pods included.
        if of_pod.len() < CANNOT_PROBE {
            let limit = limits.limit_of(&one.pod.namespace);
            of_pod.push(CannotProbeEntry {
                name: one.probe.chars().take(CANNOT_PROBE_NAME).collect(),
                message: obstacle_message(one, limit).to_owned(),
            });
        }
    }
}

fn obstacle_message(unprobed: &Unprobed, limit: usize) -> &str {
    truncate(&unprobed.why, limit.min(CANNOT_PROBE_MESSAGE))
}

/// The bytes that a message adds to a status.
fn message_bytes(message: &str) -> usize {
    if message.is_empty() {
        return 0;
    }
    r#","message":"#.len() + stored_bytes(message)
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

#[cfg(test)]
mod tests;
