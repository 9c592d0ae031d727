//! Applying a new plan: workers are added and removed with its entries, and new workers take over known verdicts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use leadsman_api::NodePodProbe;

use super::super::entries::{self, PlannedProbe};
use super::super::key::ProbeKey;
use super::super::previous::{VerdictsByProbe, may_be_about, previous_verdicts};
use super::super::schedule::SLOT;
use super::super::worker::Worker;
use super::{NodeAction, NodeProbes};
use crate::cluster::Now;

impl NodeProbes {
    pub(super) fn apply_plan(
        &mut self,
        object: Option<&NodePodProbe>,
        now: Now,
        actions: &mut Vec<NodeAction>,
    ) {
        let (entries, malformed) = object
            .map(|o| entries::parse_spec(&o.spec, &self.allowed))
            .unwrap_or_default();
        let status = object.map(|o| o.status.clone().unwrap_or_default());
        // Verdicts are taken over with the first plan only: later on, what this agent knows is newer than any status.
        let previous = match &status {
            Some(status) if !self.has_had_plan => previous_verdicts(status, now),
            _ => HashMap::new(),
        };
        self.has_had_plan |= object.is_some();
        // Said once for each change; a plan comes with every write of the status too.
        if self.malformed != malformed {
            self.malformed.clone_from(&malformed);
            actions.push(NodeAction::MalformedEntries(malformed));
        }
        if object.is_none() {
            self.keep_states_of_deleted();
        }
        if self.order.is_empty() || entries.is_empty() {
            // The last list may be hours old when something is probed again.
            self.containers = None;
            self.probing_since = now.monotonic;
        }
        let removed = self.remove_workers(&entries, actions);
        self.order = entries.iter().map(|(key, _)| key.clone()).collect();
        for (key, entry) in entries {
            if self.workers.contains_key(&key) {
                self.update_entry(&key, entry, now, actions);
            } else {
                self.add_worker(key, entry, &previous, &removed, now);
            }
        }
        // Each probe has a smaller share of the bytes if there are more, and nothing else trims the
        // runs of a probe that is not run at present.
        let limits = self.history.share_of_one(self.workers.len());
        #[expect(clippy::iter_over_hash_type, reason = "each is trimmed by itself")]
        for worker in self.workers.values_mut() {
            worker.trim_recent_runs(limits);
        }
        // The share is set after all workers are added and removed, since each of them changes it.
        self.schedule.set_even_share(self.even_execs_per_slot());
        let workers = self.workers.iter();
        self.runs
            .divide_permits(workers.map(|(key, worker)| (&key.pod, worker.weight())));
        self.start_waiting_runs(now, actions);
        // Last, so that the rows which are compared with the status are those of the same object.
        self.reporter.observe_status(status);
    }

    /// Keeps the states of the removed probes. Bounded by the last plan that had entries.
    fn keep_states_of_deleted(&mut self) {
        // A missing object may be observed again, when no workers are left; the states stay those
        // of the first time.
        if !self.workers.is_empty() {
            let workers = self.workers.iter();
            self.states_of_deleted = workers
                .filter_map(|(key, worker)| Some((key.clone(), worker.last_known_state()?)))
                .collect();
        }
    }

    /// Removes the workers whose entries are gone, and returns their verdicts.
    fn remove_workers(
        &mut self,
        entries: &[(Arc<ProbeKey>, PlannedProbe)],
        actions: &mut Vec<NodeAction>,
    ) -> VerdictsByProbe {
        let wanted: HashSet<&Arc<ProbeKey>> = entries.iter().map(|(key, _)| key).collect();
        let gone: Vec<Arc<ProbeKey>> = self
            .order
            .iter()
            .filter(|key| !wanted.contains(key))
            .cloned()
            .collect();
        let mut verdicts = HashMap::new();
        for key in gone {
            self.schedule.cancel(&key);
            self.reporter.forget_entry(&key);
            let Some(worker) = self.workers.remove(&key) else {
                continue;
            };
            if let Some(run) = worker.wanted_run()
                && self.runs.give_up(run)
            {
                actions.push(NodeAction::CancelRun(run));
            }
            if let Some(verdict) = worker.verdict() {
                verdicts.insert((key.pod.clone(), key.id.to_string()), verdict.clone());
            }
        }
        verdicts
    }

    fn update_entry(
        &mut self,
        key: &Arc<ProbeKey>,
        entry: PlannedProbe,
        now: Now,
        actions: &mut Vec<NodeAction>,
    ) {
        // Most plans are echoes of the agent's own status writes, with the entries as they were.
        if self
            .workers
            .get(key)
            .is_none_or(|worker| *worker.planned() == entry)
        {
            return;
        }
        self.update_worker(key, actions, |worker, _| worker.update_entry(entry, now));
        // The last list is applied again: the new entry may judge it otherwise, since its gate may have opened.
        self.observe_container(key, now, actions);
    }

    fn add_worker(
        &mut self,
        key: Arc<ProbeKey>,
        entry: PlannedProbe,
        previous: &VerdictsByProbe,
        removed: &VerdictsByProbe,
        now: Now,
    ) {
        let name = (key.pod.clone(), key.id.to_string());
        let previous = previous.get(&name);
        let fits = previous.is_some_and(|verdict| may_be_about(verdict, &entry));
        // A removed entry of this name was about another container of the pod. Its verdict is on
        // the pod, so it has to become Unknown there and cannot just be absent.
        let verdict = previous.or_else(|| removed.get(&name)).cloned();
        let mut worker = Worker::new(entry, verdict, now.monotonic);
        if !fits {
            worker.invalidate_verdict("the probe has changed", None, now);
        }
        if let Some(state) = self.states_of_deleted.remove(&key) {
            worker.remember_state(state);
        }
        self.workers.insert(key, worker);
        self.added += 1;
        self.has_unobserved_workers = true;
    }

    /// Commands in each slot when all of them are spread evenly, rounded up.
    fn even_execs_per_slot(&self) -> u32 {
        const SLOTS_PER_SECOND: f64 = 1.0 / SLOT.as_secs_f64();
        // The order is that of the spec, since a sum of fractions depends on it.
        let workers = self.order.iter().filter_map(|key| self.workers.get(key));
        let execs = workers.filter(|worker| worker.weight().is_exec());
        let sum: f64 = execs
            .map(|worker| 1.0 / f64::from(worker.planned().probe.period_seconds.get()))
            .sum();
        // A sum of tenths may lie a little above what it should be.
        let per_second = sum - 1e-6;
        let mut even = 1;
        while f64::from(even) * SLOTS_PER_SECOND < per_second {
            even += 1;
        }
        even
    }
}
