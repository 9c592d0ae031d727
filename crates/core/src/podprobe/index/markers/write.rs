//! What is written of a marker: its status, and its finalizers.

use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::PodProbeMarkerStatus;

use super::{MarkerPhase, MarkerReflection, MarkerState, Markers};
use crate::cluster::{Now, ObjectName};
use crate::podprobe::contest::{SentValue, fingerprint};
use crate::podprobe::event::{Write, WriteTarget};
use crate::podprobe::index::context::{DueWrite, IndexContext, MarkerName, Sent, Timer};
use crate::podprobe::status::{self, READY, StatusInputs};

impl Markers {
    /// Compares a marker's status and finalizers with what is wanted, and marks what differs as due.
    pub(in crate::podprobe::index) fn compare_marker(
        &mut self,
        name: &MarkerName,
        reflection: MarkerReflection,
        cx: &mut IndexContext,
    ) {
        #[cfg(test)]
        {
            self.comparisons += 1;
        }
        let Some(marker) = self.by_name.get(name) else {
            return;
        };
        let status = self.wanted_status(marker, reflection, cx.now.wall);
        // Without a difference the observed one is what is wanted: the contest must see the same value.
        let wanted_status = fingerprint_of_status(status.as_ref().unwrap_or(&marker.status));
        let now = cx.now.monotonic;
        let finalizers = self.wanted_finalizers(marker, reflection, now);
        let wanted_finalizers = fingerprint(finalizers.as_ref().unwrap_or(&marker.finalizers));
        let Some(marker) = self.by_name.get_mut(name) else {
            return;
        };
        let contest = &mut marker.status_contest;
        // Also where nothing differs: a contest ends by the value staying as it is wanted.
        contest.observe_value(wanted_status, status.is_some(), now);
        if status.is_some() && !contest.delays_writes(now) {
            let target = WriteTarget::MarkerStatus((**name).clone());
            cx.affected.due.insert(target);
        }
        let contest = &mut marker.finalizer_contest;
        // A contest of its own: who undoes the finalizers need not be who undoes the status.
        contest.observe_value(wanted_finalizers, finalizers.is_some(), now);
        if finalizers.is_some() && !contest.delays_writes(now) {
            let target = WriteTarget::MarkerFinalizer((**name).clone());
            cx.affected.due.insert(target);
        }
        let contests = [marker.status_contest, marker.finalizer_contest];
        let deadlines = contests
            .iter()
            .filter_map(|contest| contest.next_comparison_at(now));
        cx.timers
            .reset(&mut marker.contest_timer, deadlines.min(), || {
                Timer::MarkerContest(name.clone())
            });
    }

    /// The write of a marker's status that is due.
    pub(in crate::podprobe::index) fn due_status(
        &self,
        name: &ObjectName,
        reflection: MarkerReflection,
        now: Now,
    ) -> Option<DueWrite> {
        let marker = self.by_name.get(name)?;
        // It was due when it was noted, and somebody may have undone the write before it since.
        if marker.status_contest.delays_writes(now.monotonic) {
            return None;
        }
        let status = self.wanted_status(marker, reflection, now.wall)?;
        let sent = Sent::of_single_value(fingerprint_of_status(&status), true);
        let write = Write::MarkerStatus {
            marker: name.clone(),
            uid: marker.uid.clone(),
            resource_version: marker.resource_version.clone(),
            status: Box::new(status),
        };
        Some(DueWrite { write, sent })
    }

    /// The status that a marker should have, if it has another.
    fn wanted_status(
        &self,
        marker: &MarkerState,
        reflection: MarkerReflection,
        now: Timestamp,
    ) -> Option<PodProbeMarkerStatus> {
        let refused = match &marker.phase {
            MarkerPhase::Active(_) => None,
            MarkerPhase::Stopped(_, reason) => Some((reason.trouble(), reason.message())),
            MarkerPhase::Invalid(trouble, errors) => Some((trouble, errors.as_str())),
            MarkerPhase::Deleting => return None,
        };
        let inputs = StatusInputs {
            generation: marker.generation,
            acknowledged: reflection.is_acknowledged,
            refused,
            status: &marker.status,
            holders: &marker.holders,
            summaries: self.keeps_summaries,
        };
        status::diff_status(&marker.tally, &inputs, now)
    }

    /// Records that a marker's status is being written.
    pub(in crate::podprobe::index) fn note_status_sent(
        &mut self,
        name: &ObjectName,
        sent: SentValue,
    ) {
        if let Some(marker) = self.by_name.get_mut(name) {
            marker.status_contest.record_send(sent);
        }
    }

    /// Records that a marker's finalizers are being written.
    pub(in crate::podprobe::index) fn note_finalizers_sent(
        &mut self,
        name: &ObjectName,
        sent: SentValue,
    ) {
        if let Some(marker) = self.by_name.get_mut(name) {
            marker.finalizer_contest.record_send(sent);
        }
    }

    /// Records that a write of the status was carried out. Returns whether somebody has undone it.
    pub(in crate::podprobe::index) fn note_status_written(
        &mut self,
        name: &ObjectName,
        now: Duration,
    ) -> bool {
        let marker = self.by_name.get_mut(name);
        marker.is_some_and(|marker| marker.status_contest.record_written(now))
    }

    /// Records that a write of the finalizers was carried out. Returns whether somebody has undone it.
    pub(in crate::podprobe::index) fn note_finalizers_written(
        &mut self,
        name: &ObjectName,
        now: Duration,
    ) -> bool {
        let marker = self.by_name.get_mut(name);
        marker.is_some_and(|marker| marker.finalizer_contest.record_written(now))
    }
}

/// Fingerprint of what we write of a status, without its times. The conditions of other writers are left out: they may
/// change each time that ours is undone.
fn fingerprint_of_status(status: &PodProbeMarkerStatus) -> u64 {
    let probes = status.probes.iter().map(|probe| {
        let counts = [
            probe.succeeded,
            probe.failed,
            probe.unknown,
            probe.pending,
            probe.silent,
        ];
        let holders = probe.holders.iter();
        let holders = holders.map(|one| (&one.group, &one.pod, &one.version));
        (&probe.name, counts, holders.collect::<Vec<_>>())
    });
    let conditions = status.conditions.iter();
    let conditions = conditions.filter(|one| one.type_ == READY);
    let conditions = conditions.map(|one| (&one.type_, &one.status, &one.reason, &one.message));
    fingerprint((
        status.observed_generation,
        status.matched_pods,
        probes.collect::<Vec<_>>(),
        conditions.collect::<Vec<_>>(),
    ))
}
