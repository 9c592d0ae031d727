//! Verdicts on their way into the status of the node's `NodePodProbe`.
//!
//! What is held is compared with what the API server shows; whatever differs is due, whoever made the difference. Writes
//! are few: a large status costs the API server a good deal, and every watcher of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::{CannotProbe, ContainerProbeState, PodProbeStatus};
use leadsman_api::{NodePodProbeStatus, limits};

use super::verdict::{Verdict, whole_seconds};
use super::{Now, PodName, ProbeKey, cut};

/// Bytes of a message in a status, at most.
pub(super) const MESSAGE_BYTES: usize = 1024;
/// Bytes of a message; all messages of a node are cut shorter together while its status is too large.
const CUTS: [usize; 4] = [MESSAGE_BYTES, 256, 64, 0];
/// Bytes of a status as JSON.
const STATUS_BYTES: usize = 512 * 1024;
/// A message alone is sent no more often, nor what cannot be probed.
const MESSAGE_PAUSE: Duration = Duration::from_secs(10);
/// The time of the last probe alone is sent no more often.
const REFRESH: SignedDuration = SignedDuration::from_mins(10);
/// From the begin of a write to the begin of the next.
const WRITE_PAUSE: Duration = Duration::from_millis(200);
/// The same, in lengths of the write: what costs the API server a good deal comes less often.
const WRITE_SHARE: u32 = 10;
/// The same at most, however long the write took: one that was slow tells little about the next.
const WRITE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// From the begin of a failed write to the begin of the next: the first pause and the longest, less up to half of it.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// What an API server asks for is waited for, up to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
const _: () = assert!(WRITE_PAUSE.as_millis() < WRITE_PAUSE_MAX.as_millis());

/// How a write of the status ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WriteEnd {
    /// Written; what the API server shows now comes as an event of its own.
    Done {
        /// Whether the status in the reply says of anything that it cannot be probed.
        unprobed: bool,
    },
    /// Not written, or not known to be.
    Failed {
        /// What the API server asked for.
        retry_after: Option<Duration>,
        /// At random from 0 to 1, so that the agents of a cluster do not come back together.
        jitter: f64,
    },
}

/// One verdict to be published.
pub(super) struct Row<'a> {
    pub(super) key: &'a Arc<ProbeKey>,
    pub(super) revision: Option<&'a Arc<str>>,
    pub(super) verdict: &'a Verdict,
    /// When the verdict was last seen to hold.
    pub(super) probed: Timestamp,
}

/// One probe that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unprobed {
    pub(super) pod: PodName,
    /// `<marker>#<probe>`, or what stands in its place.
    pub(super) probe: String,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Resting {
        until: Duration,
    },
    Writing {
        since: Duration,
        /// Whether it says of anything that it cannot be probed.
        unprobed: bool,
    },
}

/// What the API server is told of what cannot be probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Telling {
    /// When there was last something new, or what an earlier agent told was first seen.
    sent: Option<Duration>,
    /// It does not keep the field: its definition of the kind is OpenKruise's. What differs is not due by itself then.
    dropped: bool,
}

/// What the API server shows, and when to write it anew.
#[derive(Debug)]
pub(super) struct Report {
    /// `None` while there is no object to write to.
    observed: Option<NodePodProbeStatus>,
    /// Look at the difference again, now or then.
    look_at: Option<Duration>,
    pace: Pace,
    failures: u32,
    /// Since when a write has been due.
    overdue: Option<Duration>,
    /// When the entry was last sent with something new.
    sent: HashMap<Arc<ProbeKey>, Duration>,
    telling: Telling,
}

impl Report {
    pub(super) fn new() -> Self {
        Self {
            observed: None,
            look_at: None,
            pace: Pace::Resting {
                until: Duration::ZERO,
            },
            failures: 0,
            overdue: None,
            sent: HashMap::new(),
            telling: Telling::default(),
        }
    }

    pub(super) fn observe(&mut self, status: Option<NodePodProbeStatus>) {
        self.observed = status;
        if let Some(shown) = &self.observed {
            self.telling.dropped &= !shows_unprobed(shown);
        } else {
            self.overdue = None;
            self.telling = Telling::default();
        }
        self.touch();
    }

    /// Something may have changed.
    pub(super) fn touch(&mut self) {
        self.look_at = Some(Duration::ZERO);
    }

    /// The words of an entry alone have changed. Until they may be sent there is no difference to look for: with words
    /// that change at each run, looking at all entries for each would cost the node far more than the probes do.
    pub(super) fn reword(&mut self, key: &Arc<ProbeKey>) {
        let sent = self.sent.get(key);
        let at = sent.map_or(Duration::ZERO, |sent| *sent + MESSAGE_PAUSE);
        self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
    }

    pub(super) fn forget(&mut self, key: &Arc<ProbeKey>) {
        self.sent.remove(key);
    }

    /// Since when a write has been due and not been made.
    pub(super) fn overdue(&self) -> Option<Duration> {
        self.overdue
    }

    /// When to ask for a write again.
    pub(super) fn next(&self) -> Option<Duration> {
        match (self.pace, &self.observed, self.look_at) {
            (Pace::Resting { until }, Some(_), Some(at)) => Some(at.max(until)),
            _ => None,
        }
    }

    /// The status to write, if one is due; then its end is to be told.
    pub(super) fn begin(
        &mut self,
        rows: &[Row<'_>],
        unprobed: &[Unprobed],
        now: Now,
    ) -> Option<NodePodProbeStatus> {
        if self.next()? > now.since_start {
            return None;
        }
        let observed = self.observed.as_ref()?;
        if self.telling.sent.is_none() && shows_unprobed(observed) {
            // Told by an earlier agent: whether it still holds the first runs will show.
            self.telling.sent = Some(now.since_start);
        }
        let telling = self.telling;
        let mut draft = draft(rows, unprobed, observed, telling, &self.sent, now);
        let other = shown_unprobed(&draft.status) != shown_unprobed(observed);
        if other && !telling.dropped {
            let sent = telling.sent;
            let at = sent.map_or(Duration::ZERO, |sent| sent + MESSAGE_PAUSE);
            draft.due |= at <= now.since_start;
            draft.later = Some(draft.later.map_or(at, |later| later.min(at)));
        }
        self.look_at = draft.later;
        if !draft.due {
            self.overdue = None;
            return None;
        }
        for key in draft.changed {
            self.sent.insert(key, now.since_start);
        }
        self.overdue.get_or_insert(now.since_start);
        if other {
            self.telling.sent = Some(now.since_start);
        }
        self.pace = Pace::Writing {
            since: now.since_start,
            unprobed: shows_unprobed(&draft.status),
        };
        Some(draft.status)
    }

    pub(super) fn end(&mut self, end: WriteEnd, now: Now) {
        let Pace::Writing { since, unprobed } = self.pace else {
            return;
        };
        let now = now.since_start;
        let until = match end {
            WriteEnd::Done { unprobed: shown } => {
                self.failures = 0;
                self.overdue = None;
                if unprobed {
                    self.telling.dropped = !shown;
                }
                let took = now.saturating_sub(since);
                since + (took * WRITE_SHARE).clamp(WRITE_PAUSE, WRITE_PAUSE_MAX)
            }
            WriteEnd::Failed {
                retry_after,
                jitter,
            } => {
                let spread = 0.5 + jitter.clamp(0.0, 1.0) / 2.0;
                let doubled = BACKOFF.0 * 2_u32.saturating_pow(self.failures.min(16));
                self.failures = self.failures.saturating_add(1);
                // From its begin: one that timed out has been waited for.
                let again = since + doubled.min(BACKOFF.1).mul_f64(spread);
                let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                again.max(now + asked.max(BACKOFF.0.mul_f64(spread)))
            }
        };
        self.pace = Pace::Resting { until };
        self.touch();
    }
}

/// A status that could be written.
struct Draft {
    status: NodePodProbeStatus,
    /// Entries with more than a new time.
    changed: Vec<Arc<ProbeKey>>,
    due: bool,
    /// When something will be due, if nothing is.
    later: Option<Duration>,
}

/// What sets an entry apart from what the API server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// Not even the time, until then.
    None { until: Duration },
    /// The time alone, and it is due.
    Time,
    /// The message alone, and it is not due until then.
    Held { until: Duration },
    /// It is to be sent.
    Real,
}

/// Namespace, name and uid of a pod. Not its uid alone: that of a pod's mirror is what the pod's author says.
type PodRef<'a> = (&'a str, &'a str, &'a str);
/// By pod and probe.
type Seen<'a> = HashMap<(PodRef<'a>, &'a str), &'a ContainerProbeState>;

fn shown_pod(pod: &PodProbeStatus) -> PodRef<'_> {
    (&pod.namespace, &pod.name, &pod.uid)
}

fn named_pod(pod: &PodName) -> PodRef<'_> {
    (&pod.namespace, &pod.name, &pod.uid)
}

fn draft(
    rows: &[Row<'_>],
    unprobed: &[Unprobed],
    observed: &NodePodProbeStatus,
    telling: Telling,
    sent: &HashMap<Arc<ProbeKey>, Duration>,
    now: Now,
) -> Draft {
    let pods = &observed.pod_probe_statuses;
    let states = pods
        .iter()
        .flat_map(|pod| pod.probe_states.iter().map(move |state| (pod, state)));
    let seen: Seen = states
        .clone()
        .map(|(pod, state)| ((shown_pod(pod), &*state.name), state))
        .collect();
    let count = states.clone().count();
    // An API server with another definition of the kind drops the fields that ours has beyond it.
    let keeps_fields = count == 0 || states.clone().any(|(_, s)| s.container_id.is_some());
    let names: Vec<String> = rows.iter().map(|row| row.key.id.to_string()).collect();
    let left_over = count != rows.len();
    let cut_at = |limit: usize| {
        let differences: Vec<Difference> = rows
            .iter()
            .zip(&names)
            .map(
                |(row, name)| match seen.get(&(named_pod(&row.key.pod), name.as_str())) {
                    Some(state) => {
                        let sent = sent.get(row.key).copied();
                        difference(row, state, limit, keeps_fields, sent, now)
                    }
                    None => Difference::Real,
                },
            )
            .collect();
        let mut draft = compose(rows, &names, &seen, &differences, limit, left_over);
        let drafted = &mut draft.status.pod_probe_statuses;
        add_unprobed(drafted, unprobed, limit, !telling.dropped);
        draft
    };
    let mut draft = cut_at(CUTS[0]);
    for limit in &CUTS[1..] {
        if json_bytes(&draft.status) <= STATUS_BYTES {
            break;
        }
        draft = cut_at(*limit);
    }
    draft.due |= leaves_empty(pods, &draft.status.pod_probe_statuses);
    draft
}

/// Whether there is a pod without anything that is not named any more. One that is named may show nothing where the API
/// server drops what cannot be probed.
fn leaves_empty(shown: &[PodProbeStatus], named: &[PodProbeStatus]) -> bool {
    let is_empty =
        |pod: &&PodProbeStatus| pod.probe_states.is_empty() && pod.cannot_probe.is_empty();
    let mut empty = shown.iter().filter(is_empty).peekable();
    if empty.peek().is_none() {
        return false;
    }
    let named: HashSet<PodRef<'_>> = named.iter().map(shown_pod).collect();
    empty.any(|pod| !named.contains(&shown_pod(pod)))
}

fn difference(
    row: &Row<'_>,
    state: &ContainerProbeState,
    limit: usize,
    keeps_fields: bool,
    sent: Option<Duration>,
    now: Now,
) -> Difference {
    let verdict = row.verdict;
    let fields_equal = !keeps_fields
        || (state.revision.as_deref() == row.revision.map(|r| &**r)
            && state.container_id.as_deref() == verdict.container.as_deref());
    let Some(Time(shown)) = state.last_probe_time else {
        return Difference::Real;
    };
    if state.state != verdict.state.as_str()
        || state.last_transition_time != Some(Time(verdict.since))
        || !fields_equal
    {
        return Difference::Real;
    }
    if state.message.as_deref().unwrap_or_default() != cut(&verdict.message, limit) {
        let until = sent.map_or(Duration::ZERO, |sent| sent + MESSAGE_PAUSE);
        // A status that is too large does not wait.
        return if limit == CUTS[0] && until > now.since_start {
            Difference::Held { until }
        } else {
            Difference::Real
        };
    }
    if row.probed.duration_since(shown) >= REFRESH {
        return Difference::Time;
    }
    let left = REFRESH.saturating_sub(now.wall.duration_since(shown));
    let left = Duration::try_from(left).unwrap_or_default();
    Difference::None {
        // When nothing is probed any more there is nothing to refresh; look again, but not all the time.
        until: now.since_start + left.max(MESSAGE_PAUSE),
    }
}

fn compose(
    rows: &[Row<'_>],
    names: &[String],
    seen: &Seen<'_>,
    differences: &[Difference],
    limit: usize,
    left_over: bool,
) -> Draft {
    // Together, so that later ones come due together too.
    let refresh = differences.contains(&Difference::Time);
    let mut draft = Draft {
        status: NodePodProbeStatus::default(),
        changed: Vec::new(),
        due: left_over || refresh,
        later: None,
    };
    for ((row, name), difference) in rows.iter().zip(names).zip(differences) {
        let mut state = wire(row, name, limit);
        if let Some(shown) = seen.get(&(named_pod(&row.key.pod), name.as_str())) {
            if *difference != Difference::Real && !refresh {
                state.last_probe_time.clone_from(&shown.last_probe_time);
            }
            if matches!(difference, Difference::Held { .. }) {
                state.message.clone_from(&shown.message);
            }
        }
        match difference {
            Difference::Real => {
                draft.due = true;
                draft.changed.push(row.key.clone());
            }
            Difference::None { until } | Difference::Held { until } => {
                draft.later = Some(draft.later.map_or(*until, |later| later.min(*until)));
            }
            Difference::Time => {}
        }
        add(&mut draft.status.pod_probe_statuses, row.key, state);
    }
    draft
}

fn wire(row: &Row<'_>, name: &str, limit: usize) -> ContainerProbeState {
    let verdict = row.verdict;
    let message = cut(&verdict.message, limit);
    ContainerProbeState {
        name: name.to_owned(),
        state: verdict.state.as_str().to_owned(),
        last_probe_time: Some(Time(whole_seconds(row.probed))),
        last_transition_time: Some(Time(verdict.since)),
        message: (!message.is_empty()).then(|| message.to_owned()),
        revision: row.revision.map(ToString::to_string),
        container_id: verdict.container.as_ref().map(ToString::to_string),
    }
}

/// Rows of a pod follow one another.
fn add(pods: &mut Vec<PodProbeStatus>, key: &ProbeKey, state: ContainerProbeState) {
    match pods.last_mut() {
        Some(pod) if shown_pod(pod) == named_pod(&key.pod) => pod.probe_states.push(state),
        _ => {
            let mut pod = of_pod(&key.pod);
            pod.probe_states.push(state);
            pods.push(pod);
        }
    }
}

/// After the verdicts, each with its pod; `further` pods, without verdicts, after those.
fn add_unprobed(
    pods: &mut Vec<PodProbeStatus>,
    unprobed: &[Unprobed],
    limit: usize,
    further: bool,
) {
    if unprobed.is_empty() {
        return;
    }
    let mut places: HashMap<PodName, usize> = HashMap::new();
    for (place, pod) in pods.iter().enumerate() {
        places.insert(read_pod(pod), place);
    }
    for one in unprobed {
        let place = match places.get(&one.pod) {
            Some(place) => *place,
            None if further => {
                pods.push(of_pod(&one.pod));
                places.insert(one.pod.clone(), pods.len() - 1);
                pods.len() - 1
            }
            None => continue,
        };
        let told = &mut pods[place].cannot_probe;
        if told.len() < limits::CANNOT_PROBE {
            told.push(CannotProbe {
                name: one.probe.chars().take(limits::CANNOT_PROBE_NAME).collect(),
                message: cut(&one.why, limit.min(limits::CANNOT_PROBE_MESSAGE)).to_owned(),
            });
        }
    }
}

/// Which pod a status is of.
pub(super) fn read_pod(pod: &PodProbeStatus) -> PodName {
    PodName {
        namespace: pod.namespace.as_str().into(),
        name: pod.name.as_str().into(),
        uid: pod.uid.as_str().into(),
    }
}

fn of_pod(pod: &PodName) -> PodProbeStatus {
    PodProbeStatus {
        name: pod.name.to_string(),
        namespace: pod.namespace.to_string(),
        uid: pod.uid.to_string(),
        ..PodProbeStatus::default()
    }
}

fn shows_unprobed(status: &NodePodProbeStatus) -> bool {
    let mut pods = status.pod_probe_statuses.iter();
    pods.any(|pod| !pod.cannot_probe.is_empty())
}

/// Pod, probe and why, whatever their order.
fn shown_unprobed(status: &NodePodProbeStatus) -> BTreeSet<(PodRef<'_>, &str, &str)> {
    let pods = status.pod_probe_statuses.iter();
    pods.flat_map(|pod| pod.cannot_probe.iter().map(move |one| (pod, one)))
        .map(|(pod, one)| (shown_pod(pod), &*one.name, &*one.message))
        .collect()
}

/// How many bytes of JSON it makes.
fn json_bytes(status: &NodePodProbeStatus) -> usize {
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
