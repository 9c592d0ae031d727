//! How long a probe without a verdict may take, and what it waits for.
//!
//! The times are those of the agent's schedule (`node`), as far as they follow from the marker and the container's
//! start. Which slot of its period a probe has, only the agent knows, so the latest moment is given.

use jiff::{SignedDuration, Timestamp};

use super::explanation::Cause;
use super::explanation::CauseReason;
use super::{PodContext, words};
use crate::podprobe::index::InspectedProbe;
use crate::podprobe::marker::{Marker, MarkerProbe};
use crate::podprobe::plan::Entry;
use crate::podprobe::pod::IndexedContainer;
use crate::podprobe::status::Pending;

/// The time that an agent and a manager may take for the rest: lists of containers, writes.
const SLACK: SignedDuration = SignedDuration::from_secs(15);
/// A hung command is reported so much later than its timeout.
const LATE: u32 = 2;

/// The wait of a probe that has an entry, and no verdict yet.
pub(super) enum Waiting {
    /// The manager has not written the entry.
    Entry,
    /// The container does not run.
    Container,
    /// The container has restarted, and its startup probe has not passed again.
    StartupProbe,
    /// The initial delay, which ends then.
    InitialDelay(Timestamp),
    /// A first verdict, which is due until then.
    FirstVerdict(Timestamp),
    /// The first verdict was due then.
    Overdue(Timestamp),
}

impl PodContext<'_> {
    /// Tells what a probe waits for, if it has an entry and nothing else is wrong.
    pub(super) fn waiting_for(
        &self,
        marker: &Marker,
        probe: &MarkerProbe,
        inspected: &InspectedProbe,
    ) -> Option<Waiting> {
        let entry = inspected.entry.as_ref().ok()?;
        // Whether the nodes have the entry is not known without their objects.
        if self.cluster.knows_nodes {
            if inspected.cause != Some(Pending::Starting) {
                return None;
            }
            if self.inspected.entries_differ {
                return Some(Waiting::Entry);
            }
        }
        let container = self.container_of_entry(entry)?;
        if container.startup_probe && !container.started {
            return Some(Waiting::StartupProbe);
        }
        let Some(since) = container.running_since else {
            return Some(Waiting::Container);
        };
        let now = self.cluster.now.wall;
        let delay = saturating_add(
            since.into(),
            seconds_duration(probe.template.initial_delay_seconds),
        );
        // Earlier than both there was no entry, so nothing was run.
        let asked = self.initialized_at().max(marker.created);
        let verdict = saturating_add(
            saturating_add(delay.max(asked), longest_time_to_verdict(probe)),
            SLACK,
        );
        Some(match () {
            () if now < delay => Waiting::InitialDelay(delay),
            () if now < verdict => Waiting::FirstVerdict(verdict),
            () => Waiting::Overdue(verdict),
        })
    }

    /// The time when the pod was initialized: its entries are not written before.
    fn initialized_at(&self) -> Timestamp {
        let conditions = self.wire.status.conditions.iter();
        let initialized = conditions.filter(|one| one.type_ == "Initialized");
        let times = initialized.filter_map(|one| one.last_transition_time.as_ref());
        times
            .map(|time| time.0)
            .max()
            .unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(super) fn container_of_entry(&self, entry: &Entry) -> Option<&IndexedContainer> {
        let mut containers = self.inspected.pod.containers.iter();
        containers.find(|container| container.name == entry.container)
    }

    /// Describes the next step to the first verdict of a probe. None if the probe has no entry, something else is wrong, or
    /// the verdict is overdue.
    pub(super) fn describe_first_verdict(
        &self,
        marker: &Marker,
        probe: &MarkerProbe,
        inspected: &InspectedProbe,
    ) -> Option<String> {
        let now = self.cluster.now.wall;
        let until = |time: Timestamp| words::format_duration(time.duration_since(now));
        Some(match self.waiting_for(marker, probe, inspected)? {
            Waiting::Entry => "the manager writes its entry first".to_owned(),
            Waiting::Container => "its container has to start first".to_owned(),
            Waiting::StartupProbe => "its container's startup probe has to pass first".to_owned(),
            Waiting::InitialDelay(end) => format!("first run in {}", until(end)),
            Waiting::FirstVerdict(end) => format!("first verdict within {}", until(end)),
            Waiting::Overdue(_) => return None,
        })
    }

    /// The wait of a probe that has an entry and no verdict yet, as a cause.
    pub(super) fn waiting_cause(
        &self,
        marker: &Marker,
        probe: &MarkerProbe,
        known: &InspectedProbe,
    ) -> Option<Cause> {
        let (name, container) = (&probe.name, &probe.container);
        let node = self.inspected.pod.node.as_deref().unwrap_or_default();
        let until = |time| words::format_age(self.cluster.now.wall, time);
        Some(match self.waiting_for(marker, probe, known)? {
            // Told for all probes at once.
            Waiting::Entry => return None,
            Waiting::Container => self.container_not_running_cause(probe),
            Waiting::StartupProbe => Self::startup_probe_cause(probe),
            Waiting::InitialDelay(end) => Cause::new_resolving(
                CauseReason::InitialDelay,
                format!(
                    "probe {name}: its first run is due in {}, initialDelaySeconds after the start of container {container}",
                    until(end)
                ),
            ),
            Waiting::FirstVerdict(end) => Cause::new_resolving(
                CauseReason::ThresholdNotReached,
                format!(
                    "probe {name}: no verdict yet, which takes {} or {}, one run every {} s; it is due within {}",
                    success_threshold_words(probe),
                    failure_threshold_words(probe),
                    probe.template.period_seconds,
                    until(end)
                ),
            ),
            Waiting::Overdue(since) => Cause::new_problem(
                CauseReason::NoVerdict,
                format!(
                    "probe {name}: no verdict, which was due {} ago: either its results alternate, so that neither {} nor {} follow each other, or the agent on node {node} does not probe{}; look at that agent's log",
                    words::format_age(since, self.cluster.now.wall),
                    success_threshold_words(probe),
                    failure_threshold_words(probe),
                    if self.cluster.knows_agents && !self.inspected.has_agent_pod {
                        " (no agent's pod is there)"
                    } else {
                        ""
                    }
                ),
            ),
        })
    }

    /// The cause if the kubelet's startup probe holds a probe back.
    pub(super) fn startup_probe_cause(probe: &MarkerProbe) -> Cause {
        Cause::new_resolving(
            CauseReason::StartupProbe,
            format!(
                "probe {}: the startup probe of container {} has not passed yet; probing begins when it has. If it never does, correct that startup probe or what it asks",
                probe.name, probe.container
            ),
        )
    }

    /// The cause if a probe waits for its container.
    pub(super) fn container_not_running_cause(&self, probe: &MarkerProbe) -> Cause {
        let (name, container) = (&probe.name, &probe.container);
        Cause::new_resolving(
            CauseReason::ContainerNotRunning,
            format!(
                "probe {name}: container {container} does not run{}; probing begins when it does",
                self.describe_container_state(container)
            ),
        )
    }

    /// Why a container does not run, in the kubelet's word.
    fn describe_container_state(&self, name: &str) -> String {
        let status = &self.wire.status;
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let mut own = all.filter(|status| status.name == name);
        let state = own.next().map(|status| &status.state);
        let detail = state.and_then(|state| state.waiting.as_ref().or(state.terminated.as_ref()));
        let reason = detail.and_then(|detail| detail.reason.as_ref());
        reason
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default()
    }
}

/// The longest time from the first due run to a verdict, if all results are equal.
fn longest_time_to_verdict(probe: &MarkerProbe) -> SignedDuration {
    let template = &probe.template;
    let run = template
        .period_seconds
        .get()
        // A probe has one run at a time: what takes longer than the period holds back the next.
        .max(template.timeout_seconds.get().saturating_add(LATE));
    let most = template.success_threshold.max(template.failure_threshold);
    // The first run may come a period late, as runs are spread.
    let runs = most.get().saturating_add(1);
    SignedDuration::from_secs(i64::from(run).saturating_mul(i64::from(runs)))
}

/// A marker may name a time that no calendar has.
fn saturating_add(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn seconds_duration(seconds: u32) -> SignedDuration {
    SignedDuration::from_secs(seconds.into())
}

fn success_threshold_words(probe: &MarkerProbe) -> String {
    count_in_a_row(
        probe.template.success_threshold.get(),
        "success",
        "successes",
    )
}

fn failure_threshold_words(probe: &MarkerProbe) -> String {
    count_in_a_row(
        probe.template.failure_threshold.get(),
        "failure",
        "failures",
    )
}

fn count_in_a_row(count: u32, one: &str, many: &str) -> String {
    match count {
        1 => format!("one {one}"),
        count => format!("{count} {many} in a row"),
    }
}
