//! The index: the observed state of the cluster, and the writes that follow from it.
//!
//! A state machine without a clock, a client or a task. [`Index::observe`] takes an event and returns the objects that
//! may have to be written; its cost is proportional to the change. [`Index::due`] returns the write of an object when
//! there is room to send it, so that many changes to one object cost one request. Both depend only on the observed
//! state, apart from two things that are remembered: contests with other writers, and writes that were refused for
//! good.
//!
//! Four machines with private fields do the work, and this file only wires them:
//!
//! | machine | owns | takes in | gives out |
//! |---|---|---|---|
//! | `markers` | markers, their selectors and tallies | what each pod adds to the tallies | which match a pod; statuses and finalizers that are due |
//! | `nodes` | nodes, `NodePodProbe`s, agents | which entries each pod should have | what a node and its agent report of a pod; the objects that are due |
//! | `pods` | pods, contests over their marks | the plan of each pod | the marks that are due |
//! | `groups` | who claims and who has exclusive values | what each pod has to do with them | who is to have them |
//!
//! None of them knows another. Beside them:
//!
//! | module | holds |
//! |---|---|
//! | `pod_plan` | the plan of one pod from what the three machines say; the only place that reads verdicts |
//! | `situation` | why a probe has no verdict |
//! | `observe` | events on their way into the machines |
//! | `inspect` | what the machines know of a pod, for those who explain it |
//! | `turns` | whose pods are planned next |
//! | `context` | what the machines share: the time, timers, and the list of what an event affects |
//! | `refusals` | writes that the API server refused |
//! | `undecodable` | objects that do not decode |
//! | `unseen` | entries of pods that the watch of pods has yet to show |
//!
//! Each event takes the same course. First it is taken in by the machines, each of which adds what it affects to
//! `context::Affected`. Then the pods named there are planned and the room in nodes' objects is allocated, which may
//! affect more pods, until none is left. Last, objects, statuses and finalizers are compared with what is wanted. A pod
//! is planned when an input of its plan has changed, and not when it is written: its due marks are kept with it from
//! one plan to the next.

mod context;
mod groups;
mod inspect;
mod markers;
mod nodes;
mod observe;
mod pod_plan;
mod pods;
mod refusals;
mod situation;
#[cfg(test)]
mod tests;
mod turns;
mod undecodable;
mod unseen;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use leadsman_api::DEFAULT_NAMESPACE;

use self::context::{
    Affected, Contributions, DueWrite, IndexContext, MarkerName, PodName, Sent, Timer, pod_key,
};
use self::groups::Groups;
pub use self::inspect::{InspectedFit, InspectedMark, InspectedMarker, InspectedPod};
pub use self::markers::FINALIZER;
use self::markers::{MarkerChange, MarkerReflection, Markers};
pub use self::nodes::AgentState;
use self::nodes::Nodes;
pub use self::pod_plan::InspectedProbe;
use self::pod_plan::{Observations, PlannedEntries, PlannedMarks};
use self::pods::{Planned, PodPlan, Pods};
use self::refusals::RefusedWrites;
use self::turns::PlanningTurns;
use self::undecodable::Undecodable;
use self::unseen::UnseenPods;
use super::compatibility::Compatibility;
use super::event::{Event, WatchedKind, Write, WriteTarget};
use super::marker::{MARKERS_PER_NAMESPACE, MARKERS_PER_POD, Marker};
use super::marks;
use super::pod::IndexedPod;
use super::totals::StatusTotals;
use crate::cluster::{Effects, Now, ObjectName, Watches};

/// Of more markers that are restarted at once, the pods that they match are not looked for one by one.
const RESTARTED_ONE_BY_ONE: usize = 8;

/// The settings of the index.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose defaults fill a probe's timing.
    pub compatibility: Compatibility,
    /// Namespace of the agents' pods.
    pub agent_namespace: String,
    /// Maximum size of the spec of a `NodePodProbe`, in bytes as the API server stores it.
    pub node_bytes: usize,
    /// Markers of a namespace that are acted on, at most: the oldest.
    pub markers_per_namespace: usize,
    /// Whether providers run the probes of pods on virtual nodes.
    pub serverless: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compatibility: Compatibility::default(),
            agent_namespace: DEFAULT_NAMESPACE.to_owned(),
            node_bytes: 512 * 1024,
            markers_per_namespace: MARKERS_PER_NAMESPACE,
            serverless: false,
        }
    }
}

/// The observed state of the cluster, and the writes that follow from it.
#[derive(Debug)]
pub struct Index {
    config: Config,
    markers: Markers,
    nodes: Nodes,
    pods: Pods,
    groups: Groups,
    turns: PlanningTurns,
    undecodable: Undecodable,
    unseen: UnseenPods,
    refusals: RefusedWrites,
    watches: Watches<WatchedKind>,
    /// Whether all markers have been listed, so that loops among them can be found.
    markers_listed: bool,
    cx: IndexContext,
}

impl Index {
    /// An index that has observed nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            markers: Markers::new(
                config.compatibility,
                config.markers_per_namespace,
                config.serverless,
            ),
            nodes: Nodes::new(config.node_bytes),
            pods: Pods::default(),
            groups: Groups::default(),
            turns: PlanningTurns::default(),
            undecodable: Undecodable::default(),
            unseen: UnseenPods::default(),
            refusals: RefusedWrites::default(),
            watches: Watches::default(),
            markers_listed: false,
            cx: IndexContext::default(),
            config,
        }
    }

    /// Takes in what happened at `now`, and all that follows from it.
    pub fn observe(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        let mut effects = self.observe_in_turns(event, now);
        while !self.turns.are_over() {
            let more = self.observe_in_turns(Event::Deadline, now);
            effects.dirty.extend(more.dirty);
            effects.deadline = more.deadline;
        }
        effects
    }

    /// Takes in what happened at `now`, in a time that no namespace decides. If more follows from it, the deadline has
    /// passed already, and each [`Event::Deadline`] is another turn.
    pub fn observe_in_turns(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        self.cx.now = now;
        let is_turn = matches!(event, Event::Deadline);
        if is_turn {
            self.turns.begin_turn();
        }
        // Before the timers: one that the event cancels or moves must not fire.
        self.dispatch_event(event);
        while let Some(timer) = self.cx.timers.pop_due(now.monotonic) {
            self.handle_timer(timer);
        }
        if self.cx.synced {
            self.recompute_affected(is_turn);
        } else {
            // A standby answers the webhook too: it must know which markers are stopped.
            if self.markers_listed {
                self.judge_markers();
            }
            // `Synced` affects everything anyway.
            self.cx.affected = Affected::default();
        }
        if self.turns.is_first_round() {
            return Effects {
                dirty: Vec::new(),
                deadline: Some(now.monotonic),
            };
        }
        let due = std::mem::take(&mut self.cx.affected.due);
        let deadline = self.cx.timers.deadline();
        Effects {
            dirty: due.into_iter().collect(),
            deadline: if self.turns.are_over() {
                deadline
            } else {
                Some(now.monotonic)
            },
        }
    }

    /// The write that is due for a target, if there is one. It counts as sent.
    pub fn due(&mut self, target: &WriteTarget, now: Now) -> Option<Write> {
        if !self.cx.synced || self.turns.is_first_round() {
            return None;
        }
        // A node that waits for pods is compared before what was due of it is sent. It is not put off again: while a namespace
        // keeps pods waiting, those that are taken last would never be written.
        if let WriteTarget::NodePodProbe(name) = target
            && let Some(name) = self.cx.affected.nodes.take(name.as_str())
        {
            self.cx.now = now;
            self.nodes.compare_object(&name, &mut self.cx);
        }
        // What was due of a pod that waits may follow from less than is known: the first pods of a node are planned before
        // its room is allocated, and those that get none then are not marked by what an old verdict says.
        if let WriteTarget::PodMarks(name) = target {
            self.cx.now = now;
            self.plan_waiting_pod(name);
        }
        self.hold_waiting_marker(target);
        // Built when there is room to send it and not when an event came: a target that changed ten times meanwhile is
        // written once.
        let DueWrite { write, sent } = self.due_write(target, now)?;
        if self.refusals.is_refused(target, &write) {
            return None;
        }
        // Kept until the reply is observed: what differs then has been undone by somebody else.
        match (target, sent) {
            (WriteTarget::PodMarks(name), Sent::Marks(sent)) => self.pods.note_sent(name, sent),
            (WriteTarget::NodePodProbe(name), Sent::Whole(sent)) => {
                self.nodes.note_sent(name, sent);
            }
            (WriteTarget::MarkerStatus(name), Sent::Whole(sent)) => {
                self.markers.note_status_sent(name, sent);
            }
            (WriteTarget::MarkerFinalizer(name), Sent::Whole(sent)) => {
                self.markers.note_finalizers_sent(name, sent);
            }
            (_, Sent::Marks(_)) | (WriteTarget::PodMarks(_), Sent::Whole(_)) => {}
        }
        Some(write)
    }

    /// The statuses of all markers, added up.
    pub fn status_totals(&self) -> StatusTotals {
        self.markers.totals()
    }

    /// When the verdict changed that makes a write of a pod's marks due. None if something else does, such as an edited
    /// marker, another client, or a restart of the manager.
    pub fn verdict_since(&self, target: &WriteTarget) -> Option<Timestamp> {
        match target {
            WriteTarget::PodMarks(name) => self.pods.verdict_since(name),
            _ => None,
        }
    }

    /// The markers that have changed since the last call: each as it is acted on now, None if it is not acted on. They
    /// are recorded only with [`Config::serverless`].
    pub fn take_changed_markers(&mut self) -> Vec<(Arc<ObjectName>, Option<Arc<Marker>>)> {
        self.markers.take_changed()
    }

    fn due_write(&self, target: &WriteTarget, now: Now) -> Option<DueWrite> {
        match target {
            WriteTarget::PodMarks(name) => {
                let due = self.pods.due_write(name, now)?;
                // Other pods may have been planned since, and this one waits to be planned again.
                let (pod, mut gives) = self.pods.given_values(name)?;
                gives
                    .all(|group| self.groups.may_give(group, pod))
                    .then_some(due)
            }
            WriteTarget::NodePodProbe(name) => self.nodes.due_write(name, now.monotonic),
            // While pods wait for their turn, the marker is not compared either ([`Index::compare_markers`]).
            WriteTarget::MarkerStatus(name) | WriteTarget::MarkerFinalizer(name)
                if self.turns.is_waiting(&name.namespace) =>
            {
                None
            }
            WriteTarget::MarkerStatus(name) => {
                self.markers.due_status(name, self.reflection_of(name), now)
            }
            WriteTarget::MarkerFinalizer(name) => {
                let reflection = self.reflection_of(name);
                self.markers.due_finalizers(name, reflection, now.monotonic)
            }
        }
    }

    /// Holds a marker that is not written because pods wait: nothing else may affect it until none does.
    fn hold_waiting_marker(&mut self, target: &WriteTarget) {
        if let WriteTarget::MarkerStatus(name) | WriteTarget::MarkerFinalizer(name) = target
            && self.turns.is_waiting(&name.namespace)
        {
            self.turns.may_compare(&Arc::new(name.clone()));
        }
    }

    /// How far the cluster reflects a marker.
    fn reflection_of(&self, marker: &ObjectName) -> MarkerReflection {
        MarkerReflection {
            is_acknowledged: self.nodes.is_acknowledged(marker),
            leaves_marks: self.pods.has_unclaimed_in(&marker.namespace),
        }
    }

    /// Stops the markers that are too many or close a loop, and restarts others.
    fn judge_markers(&mut self) {
        // First, since a marker that is one too many is part of no loop.
        let mut changes = self.markers.judge_ages(&mut self.cx);
        changes.extend(self.markers.break_loops(&mut self.cx));
        let restarted = changes.iter_mut().filter(|change| change.selects_others);
        let restarted: Vec<_> = restarted.collect();
        // An edit may restart many markers, each of which would look at all pods of its namespace.
        if restarted.len() > RESTARTED_ONE_BY_ONE {
            let mut namespaces = BTreeSet::new();
            for change in restarted {
                change.selects_others = false;
                namespaces.insert(change.name.namespace.clone());
            }
            for namespace in namespaces {
                self.affect_namespace(&namespace);
                self.update_recorded_memberships(&namespace);
            }
        }
        for change in &changes {
            self.plan_pods_of(change);
            if change.selects_others {
                self.update_memberships_of_marker(change);
            }
        }
    }

    /// Recomputes everything affected until nothing new is, or what is left has to wait.
    fn recompute_affected(&mut self, is_turn: bool) {
        // Before any pod is planned, since a stopped marker matches none.
        self.judge_markers();
        while let Some(pod) = self.turns.next_of_first_round() {
            self.plan_pod(&pod);
        }
        if self.turns.is_first_round() {
            return;
        }
        loop {
            while let Some(pod) = self.cx.affected.pods.pop_first() {
                if self.turns.may_plan(&pod) {
                    self.plan_pod(&pod);
                }
            }
            while is_turn && let Some(pod) = self.turns.next_waiting() {
                self.plan_pod(&pod);
            }
            // Room before comparison: a pod that gets none has no entries in the object, and is planned again to say
            // so.
            if self.nodes.allocate_room(&mut self.cx) {
                continue;
            }
            if self.turns.hold_nodes(self.cx.now.monotonic) {
                break;
            }
            for name in std::mem::take(&mut self.cx.affected.nodes) {
                if self.nodes.compare_object(&name, &mut self.cx) {
                    let target = WriteTarget::NodePodProbe(name.to_string());
                    self.cx.affected.due.insert(target);
                }
            }
            // Pods of a node whose object is contested are planned once more.
            if self.cx.affected.pods.is_empty() {
                break;
            }
        }
        self.compare_markers();
    }

    /// Compares the affected markers. Last, because a status counts what all pods of the marker have added: where some
    /// wait for their turn, it is compared after the last one.
    fn compare_markers(&mut self) {
        let held = self.turns.take_held_markers();
        self.cx.affected.markers.extend(held);
        for name in std::mem::take(&mut self.cx.affected.markers) {
            if self.turns.may_compare(&name) {
                self.compare_marker(&name);
            }
        }
    }

    fn compare_marker(&mut self, name: &MarkerName) {
        let holders = self.groups.holders_of(name);
        self.markers.set_holders(name, holders);
        let reflection = self.reflection_of(name);
        self.markers.compare_marker(name, reflection, &mut self.cx);
    }

    /// Marks everything as affected. Deferred until every kind is listed: otherwise each object would be recomputed
    /// once per list that concerns it.
    fn affect_all(&mut self) {
        let affected = &mut self.cx.affected;
        affected
            .markers
            .extend(self.markers.marker_names().cloned());
        affected.pods.extend(self.pods.names().cloned());
        // Their entries stay as they are, and would be removed if nothing wanted them.
        affected.pods.extend(self.undecodable.pod_names().cloned());
        self.markers.recheck_loops();
        self.markers.restart_deletion_limits(&mut self.cx);
        // Entries that no pod wants are found from the objects only.
        self.nodes.compare_all(&mut self.cx);
    }

    /// Marks the pods for planning that a change of a marker affects.
    fn plan_pods_of(&mut self, change: &MarkerChange) {
        for pod in &change.uncounted {
            self.pods.forget_contribution(pod, &change.name);
            self.cx.affected.pods.insert(pod.clone());
        }
        if change.selects_others
            && self.cx.synced
            && let Some(selector) = self.markers.selector_of(&change.name)
        {
            let selected = self.pods.selected_by(&change.name.namespace, selector);
            self.cx.affected.pods.extend(selected.cloned());
        }
    }

    /// Plans a pod from what is observed, and gives each machine its part of the plan.
    fn plan_pod(&mut self, name: &PodName) {
        let cx = &mut self.cx;
        let Some(pod) = self.pods.get(name) else {
            if self.undecodable.contains_pod(name) {
                self.nodes.set_wanted_as_observed(name, true, cx);
            }
            return;
        };
        let (mut matching, work) = self.markers.match_markers(pod);
        let surplus = matching.split_off(matching.len().min(MARKERS_PER_POD));
        let surplus = surplus.into_iter().map(|(name, _)| name.clone());
        let surplus: Vec<_> = surplus.collect();
        self.turns.count_work(name, turns::POD + work);
        // What the object has now is an input: an entry remembers for which container the startup probe has passed.
        let observed = self.nodes.view_of_pod(pod).observed_entries();
        let entries = PlannedEntries::new(pod, &matching, observed);
        let members = self.observations_of(pod, self.cx.now).plan_memberships(
            &matching,
            &entries,
            &self.groups,
        );
        let cx = &mut self.cx;
        self.groups
            .set_memberships(name, pod.version.number(), members, cx);
        let undecodable = self.undecodable.entries_of_markers(pod, observed);
        let wanted = entries.to_pod_entries(pod, undecodable, cx);
        let on_node = wanted.as_ref().and_then(|_| pod_key(pod));
        let was_on_node = self.pods.on_node(name);
        // Another pod of this name may run elsewhere by now, as one of a StatefulSet does: the node of the earlier one
        // loses its entries.
        if let Some((node, key)) = was_on_node.filter(|before| Some(*before) != on_node.as_ref()) {
            self.nodes.set_wanted(node, key, None, cx);
        }
        if let Some((node, key)) = &on_node {
            self.nodes.set_wanted(node, key, wanted, cx);
        }
        let PlannedMarks {
            wants,
            contributions: of_pod,
            last_transition,
            counts_from,
            exclusive,
        } = self
            .observations_of(pod, self.cx.now)
            .plan_marks(&matching, &entries, &self.groups);
        // A pod that has ended is not written any more, so the deletion of a marker must not wait for its marks.
        let leaves_marks = pod.active && marks::has_unclaimed(pod, &wants);
        let cx = &mut self.cx;
        if self.pods.set_unclaimed(name, leaves_marks) {
            self.markers.mark_held_as_affected(&name.namespace, cx);
        }
        let plan = PodPlan {
            on_node,
            wants,
            contributions: Contributions { of_pod, surplus },
            last_transition,
            counts_from,
            exclusive,
        };
        let Some(planned) = self.pods.set_plan(name, plan, cx) else {
            return;
        };
        let Planned {
            contributions_before,
            contributions,
            is_outdated,
        } = planned;
        self.markers
            .count_contributions(name, &contributions_before, contributions, cx);
        let is_accepted = self.forget_refusal_of_another_write(name);
        if is_outdated || is_accepted {
            // The plan was made from outdated contests or refusals.
            self.cx.affected.pods.insert(name.clone());
        }
    }

    /// Plans a pod that waits for its turn.
    fn plan_waiting_pod(&mut self, name: &ObjectName) {
        let name = self.pods.get(name).map(|pod| pod.name.clone());
        if let Some(name) = name.filter(|name| self.turns.take_waiting(name)) {
            self.plan_pod(&name);
        }
    }

    /// What a pod's marks follow from, besides its markers and entries.
    fn observations_of<'a>(&'a self, pod: &'a IndexedPod, now: Now) -> Observations<'a> {
        let node = self.nodes.view_of_pod(pod);
        Observations {
            pod,
            node,
            has_provider: if self.config.serverless && pod.is_target() {
                node.is_virtual()
            } else {
                Some(false)
            },
            refused_object: self.refusals.reason_of_object(pod),
            refused_marks: self.refusals.reason_of_marks(&pod.name),
            contested: self.pods.contested_marks(&pod.name).collect(),
            keeps_unclaimed: self.undecodable.has_marker_in(&pod.name.namespace),
            now: now.wall,
            markers: &self.markers,
        }
    }

    /// Forgets the refusal of a pod's marks unless the refused write is still the one that is due. Returns whether it
    /// did.
    fn forget_refusal_of_another_write(&mut self, name: &ObjectName) -> bool {
        // Hardly any pod has a refusal, and the comparison below builds a request.
        if self.refusals.reason_of_marks(name).is_none() {
            return false;
        }
        let target = WriteTarget::PodMarks(name.clone());
        let due = self.due_write(&target, self.cx.now);
        let is_same = due.is_some_and(|due| self.refusals.is_refused(&target, &due.write));
        !is_same && self.refusals.forget_refusal(&target)
    }

    /// Handles a timer that has expired.
    fn handle_timer(&mut self, timer: Timer) {
        let cx = &mut self.cx;
        match timer {
            Timer::PodContest(name) => self.pods.end_contest_wait(name, cx),
            Timer::Hold(name) => self.pods.end_hold(name, cx),
            Timer::SpecContest(name) => self.nodes.end_contest_wait(name, cx),
            Timer::MarkerContest(name) => self.markers.end_contest_wait(name, cx),
            Timer::Room(name) => self.nodes.restore_room(&name),
            Timer::Agent(name) => self.nodes.judge_agent_in_time(&name, cx),
            Timer::Deletion(name) => {
                cx.affected.markers.insert(name);
            }
            Timer::Refusal(target) => {
                // A later refusal of the same target has a timer of its own.
                if self.refusals.expire_refusal(&target, cx.now.monotonic) {
                    self.mark_for_recomputing(&target);
                }
            }
            Timer::UnseenPods(version) => self.release_unseen(version),
        }
    }

    /// Marks the target of a write as affected.
    fn mark_for_recomputing(&mut self, target: &WriteTarget) {
        let cx = &mut self.cx;
        match target {
            WriteTarget::PodMarks(name) => self.pods.mark_for_planning(name, cx),
            WriteTarget::NodePodProbe(name) => self.nodes.mark_for_comparison(name, cx),
            WriteTarget::MarkerStatus(name) | WriteTarget::MarkerFinalizer(name) => {
                self.markers.mark_for_comparison(name, cx);
            }
        }
    }

    /// Whether no timer is set.
    #[cfg(test)]
    fn waits_for_nothing(&self) -> bool {
        self.refusals.is_empty()
            && self.turns.are_over()
            && self.unseen.is_empty()
            && self.pods.waits_for_nothing()
            && self.nodes.waits_for_nothing()
            && self.markers.waits_for_nothing()
    }
}
