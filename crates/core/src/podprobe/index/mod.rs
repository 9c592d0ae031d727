//! The index: what is observed of the cluster, and what follows from it.
//!
//! A state machine without a clock, a client or a task. [`Index::apply`] takes one event in and says which objects
//! may have to be written; its cost grows with what the event changed. [`Index::write`] makes the request for an
//! object when there is room to send it, so that many changes to one object are one request. Both are functions of
//! what is observed alone, but for two things that are remembered: marks that are fought over, and writes refused for
//! good.
//!
//! | module | holds |
//! |---|---|
//! | `markers` | markers, which pods they match, their tallies |
//! | `finalizers` | when a marker that is being deleted is let go |
//! | `pods` | pods: their entries, their marks |
//! | `cycles` | markers that would never let the cluster come to rest |
//! | `nodes` | nodes, their `NodePodProbe` |
//! | `agents` | whether the agents of nodes do their work |
//! | `pending` | why there is no verdict |
//! | `held` | objects that do not decode |
//! | `slots` | the place of each pod in its node's object |
//! | `room` | who has room in a node's object |

mod agents;
mod cycles;
mod finalizers;
mod held;
mod markers;
mod nodes;
mod pending;
mod pods;
mod room;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use self::cycles::Feeds;
use self::finalizers::Deletions;
pub use self::finalizers::FINALIZER;
use self::held::Held;
use self::markers::{MarkerState, Selectors};
use self::nodes::NodeState;
use self::pods::PodState;
use super::compatibility::Compatibility;
use super::contest::{Contest, Contests, SentValue};
use super::event::{Effects, Event, Kind, Write, WriteTarget};
use super::marks::Mark;
use super::plan::Entries;
use crate::cluster::{Interner, Interners, Now, ObjectName, ResourceVersion, Watches};

/// What the index is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose defaults fill a probe's timing.
    pub compatibility: Compatibility,
    /// Namespace of the agents' pods.
    pub agent_namespace: String,
    /// Labels of the agents' pods.
    pub agent_labels: BTreeMap<String, String>,
    /// For agents without a pod: without a sign of life for so long a node counts as silent.
    pub silent_after: SignedDuration,
    /// How many bytes the spec of a `NodePodProbe` may have.
    pub node_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        let labels = [
            ("app.kubernetes.io/name", "leadsman"),
            ("app.kubernetes.io/component", "agent"),
        ];
        Self {
            compatibility: Compatibility::default(),
            agent_namespace: "leadsman-system".to_owned(),
            agent_labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            silent_after: SignedDuration::from_mins(20),
            node_bytes: 512 * 1024,
        }
    }
}

/// Names of markers by which counts are kept.
type MarkerName = Arc<ObjectName>;

/// All that is observed, and what follows from it.
#[derive(Debug)]
pub struct Index {
    config: Config,
    synced: bool,
    /// Whether the API server keeps our optional fields in a `NodePodProbe`.
    extensions: bool,
    /// Whether it keeps more of a marker's status than two numbers.
    summaries: bool,
    markers: HashMap<MarkerName, MarkerState>,
    selectors: Selectors,
    feeds: Feeds,
    // Not in order: a search by comparisons visits names all over the memory, the more the more there are.
    pods: HashMap<Arc<ObjectName>, Box<PodState>>,
    /// The pods of each namespace.
    namespaces: HashMap<String, HashSet<Arc<ObjectName>>>,
    nodes: HashMap<Arc<str>, Box<NodeState>>,
    /// For each marker, how many pods' entries are not in a `NodePodProbe` as they should be.
    unacknowledged: HashMap<MarkerName, usize>,
    deletions: Deletions,
    held: Held,
    refused: HashMap<WriteTarget, Refusal>,
    watches: Watches<Kind>,
    /// By the monotonic clock.
    timers: BTreeSet<(Duration, Timer)>,
    interners: Interners,
    /// Equal for most pods of a marker.
    entries: Interner<Entries>,
    /// How often a pod was worked out.
    #[cfg(test)]
    plans: usize,
}

/// Something that is looked at again when its time comes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Pod(Arc<ObjectName>),
    Node(Arc<str>),
    /// A `NodePodProbe` that is fought over.
    Spec(Arc<str>),
    /// A marker's status or finalizers that are fought over.
    Marked(MarkerName),
    Marker(MarkerName),
    Refused(WriteTarget),
}

/// A write that the API server does not take.
#[derive(Debug)]
struct Refusal {
    write: Write,
    reason: Arc<str>,
    /// Then it is tried again: what stood in the way may have been a webhook, a quota or the API server's store, and
    /// no watch tells of its end. On the monotonic clock.
    until: Duration,
}

impl Refusal {
    const KEPT: Duration = Duration::from_mins(5);
}

/// A write that is due, and what is remembered of it when it is sent.
struct DueWrite {
    write: Write,
    sent: Sent,
}

/// What a write changes, as [`contest`](super::contest) remembers it.
enum Sent {
    /// Marks of a pod, and what stands for each with what was wanted of it.
    Marks(Box<[(Mark, u64)]>),
    /// Something that is written as a whole.
    Whole(SentValue),
}

impl Sent {
    fn whole(wanted: u64, is_shown: bool) -> Self {
        Self::Whole(SentValue { wanted, is_shown })
    }
}

/// What one event has touched.
struct Pass {
    now: Now,
    /// To be worked out again.
    pods: BTreeSet<Arc<ObjectName>>,
    /// Whose object may differ.
    nodes: BTreeSet<Arc<str>>,
    /// Whose room is to be given away anew: what each changed slot had of it before.
    rooms: BTreeMap<Arc<str>, BTreeMap<slots::SlotKey, usize>>,
    /// Whose status or finalizer may differ.
    markers: BTreeSet<MarkerName>,
    /// Namespaces whose markers may feed each other otherwise than before.
    loops: BTreeSet<String>,
    /// Pods whose marks differ.
    dirty: BTreeSet<WriteTarget>,
}

impl Index {
    /// Knows nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            synced: false,
            extensions: true,
            summaries: true,
            markers: HashMap::new(),
            selectors: Selectors::default(),
            feeds: Feeds::default(),
            pods: HashMap::new(),
            namespaces: HashMap::new(),
            nodes: HashMap::new(),
            unacknowledged: HashMap::new(),
            deletions: Deletions::default(),
            held: Held::default(),
            refused: HashMap::new(),
            watches: Watches::default(),
            timers: BTreeSet::new(),
            interners: Interners::default(),
            entries: Interner::default(),
            #[cfg(test)]
            plans: 0,
        }
    }

    /// Takes in what happened at `now`.
    pub fn apply(&mut self, event: Event, now: Now) -> Effects {
        let mut pass = Pass {
            now,
            pods: BTreeSet::new(),
            nodes: BTreeSet::new(),
            rooms: BTreeMap::new(),
            markers: BTreeSet::new(),
            loops: BTreeSet::new(),
            dirty: BTreeSet::new(),
        };
        self.note_progress(&event);
        match event {
            Event::Marker(marker, source) => self.see_marker(&marker, source, &mut pass),
            Event::Pod(pod, source) => self.see_pod(&pod, source, &mut pass),
            Event::Node(node, source) => self.see_node(&node, source, &mut pass),
            Event::NodePodProbe(object, source) => {
                self.see_node_pod_probe(*object, source, &mut pass);
            }
            Event::Undecodable(kind, name) => self.hold(kind, name, &mut pass),
            Event::Written(object) => self.note_written(&object, &mut pass),
            Event::Gone(kind, name, version) => {
                // The watch may be behind the reply to a write that made a new object of this name.
                let known = self.version(kind, &name);
                if !known.is_some_and(|known| known.is_later_than(version)) {
                    self.lose(kind, &name, version, &mut pass);
                }
            }
            Event::Listed(kind, names, version) => {
                self.complete_list(kind, &names, version, &mut pass);
            }
            Event::Synced => {
                self.synced = true;
                // While another one writes, its marks may be seen before the verdicts that they follow from: that was
                // no fight over marks of ours.
                for pod in self.pods.values_mut() {
                    pod.contests = Contests::default();
                }
                for node in self.nodes.values_mut() {
                    node.contest = Contest::default();
                }
                for marker in self.markers.values_mut() {
                    marker.status_contest = Contest::default();
                    marker.finalizer_contest = Contest::default();
                }
                self.break_all_loops(&mut pass);
                self.work_out_all(&mut pass);
            }
            Event::FieldsKept(Kind::Marker, kept) => self.set_summaries(kept, &mut pass),
            Event::FieldsKept(Kind::NodePodProbe, kept) => self.set_extensions(kept, &mut pass),
            Event::Refused(object, write, reason) => {
                self.refuse(object, *write, &reason, &mut pass);
            }
            Event::FieldsKept(Kind::Pod | Kind::Node, _) | Event::Deadline => {}
        }
        self.settle(&mut pass)
    }

    /// What is due for an object now, if anything is.
    pub fn write(&mut self, object: &WriteTarget, now: Now) -> Option<Write> {
        if !self.synced {
            return None;
        }
        let DueWrite { write, sent } = self.due(object, now)?;
        if let Some(refusal) = self.refused.get(object)
            && refusal.write == without_times_and_versions(write.clone())
        {
            return None;
        }
        self.remember(object, sent);
        Some(write)
    }

    fn due(&self, target: &WriteTarget, now: Now) -> Option<DueWrite> {
        match target {
            WriteTarget::PodMarks(name) => self.marks_due(name, now),
            WriteTarget::NodePodProbe(name) => self.node_pod_probe_due(name, now),
            WriteTarget::MarkerStatus(name) => self.status_due(name, now),
            WriteTarget::MarkerFinalizer(name) => self.finalizers_due(name, now),
        }
    }

    /// Takes note of what is being written, so that what becomes of it can be told from what others do.
    fn remember(&mut self, target: &WriteTarget, sent: Sent) {
        let whole = match sent {
            Sent::Marks(marks) => {
                if let WriteTarget::PodMarks(name) = target {
                    self.send_marks(name, marks);
                }
                return;
            }
            Sent::Whole(whole) => whole,
        };
        let contest = match target {
            WriteTarget::PodMarks(_) => None,
            WriteTarget::NodePodProbe(name) => {
                let node = self.nodes.get_mut(name.as_str());
                node.map(|node| &mut node.contest)
            }
            WriteTarget::MarkerStatus(name) => {
                let marker = self.markers.get_mut(name);
                marker.map(|marker| &mut marker.status_contest)
            }
            WriteTarget::MarkerFinalizer(name) => {
                let marker = self.markers.get_mut(name);
                marker.map(|marker| &mut marker.finalizer_contest)
            }
        };
        if let Some(contest) = contest {
            contest.send(whole);
        }
    }

    /// Works out everything, which is not done before it is needed: while the kinds are being listed each object would
    /// be worked out with every list that it occurs in.
    fn work_out_all(&mut self, pass: &mut Pass) {
        pass.markers.extend(self.markers.keys().cloned());
        self.limit_all_deletions(pass.now);
        let held = self.held.pods.iter().cloned();
        let pods: Vec<_> = self.pods.keys().cloned().chain(held).collect();
        for pod in pods {
            self.work_out(&pod, pass);
        }
        // What no pod wants is not seen from the pods.
        let nodes: Vec<_> = self.nodes.keys().cloned().collect();
        for node in nodes {
            self.check_all(&node, pass);
        }
    }

    /// Works out what follows, until nothing more does.
    fn settle(&mut self, pass: &mut Pass) -> Effects {
        self.take_due_timers(pass);
        if !self.synced {
            return Effects {
                dirty: Vec::new(),
                deadline: self.timers.first().map(|(time, _)| *time),
            };
        }
        self.break_loops(pass);
        loop {
            while let Some(pod) = pass.pods.pop_first() {
                self.work_out(&pod, pass);
            }
            // Only now: room is given to the pods of an event together, not to the first of them.
            let Some((node, changed)) = pass.rooms.pop_first() else {
                break;
            };
            self.make_room(&node, &changed, pass);
        }
        let mut dirty = std::mem::take(&mut pass.dirty);
        for name in std::mem::take(&mut pass.nodes) {
            if self.observe_node_pod_probe(&name, pass.now) {
                dirty.insert(WriteTarget::NodePodProbe(name.to_string()));
            }
        }
        for name in std::mem::take(&mut pass.markers) {
            dirty.extend(self.observe_marker(&name, pass.now));
        }
        Effects {
            dirty: dirty.into_iter().collect(),
            deadline: self.timers.first().map(|(time, _)| *time),
        }
    }

    /// Takes the timers that are due.
    fn take_due_timers(&mut self, pass: &mut Pass) {
        while let Some((time, timer)) = self.timers.pop_first() {
            if time > pass.now.monotonic {
                self.timers.insert((time, timer));
                break;
            }
            match timer {
                Timer::Pod(name) => {
                    if let Some(pod) = self.pods.get_mut(&name) {
                        pod.timer = None;
                        pass.pods.insert(name);
                    }
                }
                Timer::Node(name) => {
                    if let Some(node) = self.nodes.get_mut(&name) {
                        node.timer = None;
                        self.listen(&name, pass);
                    }
                }
                Timer::Marker(name) => {
                    pass.markers.insert(name);
                }
                Timer::Spec(name) => {
                    if let Some(node) = self.nodes.get_mut(&name) {
                        node.contest_timer = None;
                        pass.nodes.insert(name);
                    }
                }
                Timer::Marked(name) => {
                    if let Some(marker) = self.markers.get_mut(&name) {
                        marker.contest_timer = None;
                        pass.markers.insert(name);
                    }
                }
                Timer::Refused(object) => {
                    let refusal = self.refused.get(&object);
                    if refusal.is_some_and(|refusal| refusal.until <= pass.now.monotonic) {
                        self.refused.remove(&object);
                        self.look_at(&object, pass);
                    }
                }
            }
        }
    }

    /// Whether nothing is put off.
    #[cfg(test)]
    fn waits_for_nothing(&self) -> bool {
        let mut pods = self.pods.values();
        let mut nodes = self.nodes.values();
        let mut markers = self.markers.values();
        self.refused.is_empty()
            && pods.all(|pod| pod.contests.deadline(Duration::ZERO).is_none())
            && nodes.all(|node| node.contest_timer.is_none())
            && markers.all(|marker| marker.contest_timer.is_none())
    }

    /// Takes note of how far the watch of a kind has come.
    fn note_progress(&mut self, event: &Event) {
        let (kind, source, version) = match event {
            Event::Marker(marker, source) => (Kind::Marker, source, &marker.metadata),
            Event::Pod(pod, source) => (Kind::Pod, source, &pod.identity),
            Event::Node(node, source) => (Kind::Node, source, &node.identity),
            Event::NodePodProbe(object, source) => (Kind::NodePodProbe, source, &object.metadata),
            _ => return,
        };
        let version = ResourceVersion::parse(version.resource_version.as_deref());
        self.watches.observe(kind, *source, version);
    }

    /// Takes away what a complete list of a kind does not name, unless it is newer than the list: made since, and shown
    /// by the reply to the write that made it.
    fn complete_list(
        &mut self,
        kind: Kind,
        names: &BTreeSet<ObjectName>,
        version: ResourceVersion,
        pass: &mut Pass,
    ) {
        let list = self.watches.complete_list(kind, version);
        let held = self.held.missing(kind, names);
        for name in self.missing(kind, names).into_iter().chain(held) {
            if list.proves_deletion(self.version(kind, &name)) {
                self.lose(kind, &name, version, pass);
            }
        }
    }

    /// Takes an object away that does not exist at `version`.
    fn lose(&mut self, kind: Kind, name: &ObjectName, version: ResourceVersion, pass: &mut Pass) {
        self.let_go(kind, name, pass);
        let known = match kind {
            Kind::Marker => self.lose_marker(name, pass),
            Kind::Pod => self.lose_pod(name, pass),
            Kind::Node => self.lose_node(name, pass),
            Kind::NodePodProbe => self.lose_node_pod_probe(name, pass),
        };
        let version = if version == ResourceVersion::UNKNOWN {
            known.unwrap_or(version)
        } else {
            version
        };
        self.watches
            .note_deletion(kind, name, version, pass.now.monotonic);
    }

    /// The version in which an object is known.
    fn version(&self, kind: Kind, name: &ObjectName) -> Option<ResourceVersion> {
        let node = || self.nodes.get(name.name.as_str());
        match kind {
            Kind::Marker => Some(self.markers.get(name)?.version),
            Kind::Pod => Some(self.pods.get(name)?.seen.version),
            Kind::Node => Some(node()?.seen.as_ref()?.version),
            Kind::NodePodProbe => Some(node()?.object.as_ref()?.version),
        }
    }

    /// The objects known of a kind that a complete list does not name.
    fn missing(&self, kind: Kind, listed: &BTreeSet<ObjectName>) -> Vec<ObjectName> {
        let gone = |name: &ObjectName| (!listed.contains(name)).then(|| name.clone());
        let of_node = |name: &Arc<str>| ObjectName {
            namespace: String::new(),
            name: name.to_string(),
        };
        match kind {
            Kind::Marker => self.markers.keys().filter_map(|name| gone(name)).collect(),
            Kind::Pod => self.pods.keys().filter_map(|name| gone(name)).collect(),
            Kind::Node => {
                let nodes = self.nodes.iter().filter(|(_, node)| node.seen.is_some());
                nodes.filter_map(|(name, _)| gone(&of_node(name))).collect()
            }
            Kind::NodePodProbe => {
                let nodes = self.nodes.iter().filter(|(_, node)| node.object.is_some());
                nodes.filter_map(|(name, _)| gone(&of_node(name))).collect()
            }
        }
    }

    /// Remembers the refusal of a write. If another one is due by now, that one is tried.
    fn refuse(&mut self, object: WriteTarget, write: Write, reason: &str, pass: &mut Pass) {
        let write = without_times_and_versions(write);
        let due = self
            .due(&object, pass.now)
            .map(|due| without_times_and_versions(due.write));
        if due.as_ref() != Some(&write) {
            return;
        }
        self.look_at(&object, pass);
        let reason = reason.into();
        let until = pass.now.monotonic.saturating_add(Refusal::KEPT);
        self.timers.insert((until, Timer::Refused(object.clone())));
        let refusal = Refusal {
            write,
            reason,
            until,
        };
        self.refused.insert(object, refusal);
    }

    /// Has what was written compared with what it led to.
    fn note_written(&mut self, object: &WriteTarget, pass: &mut Pass) {
        let now = pass.now.monotonic;
        let is_undone = match object {
            WriteTarget::PodMarks(name) => {
                let pod = self.pods.get_mut(name);
                pod.is_some_and(|pod| pod.contests.written(now))
            }
            WriteTarget::NodePodProbe(name) => {
                let node = self.nodes.get_mut(name.as_str());
                node.is_some_and(|node| node.contest.written(now))
            }
            WriteTarget::MarkerStatus(name) => {
                let marker = self.markers.get_mut(name);
                marker.is_some_and(|marker| marker.status_contest.written(now))
            }
            WriteTarget::MarkerFinalizer(name) => {
                let marker = self.markers.get_mut(name);
                marker.is_some_and(|marker| marker.finalizer_contest.written(now))
            }
        };
        if is_undone {
            self.look_at(object, pass);
        }
    }

    /// Has an object that is known worked out again.
    fn look_at(&self, object: &WriteTarget, pass: &mut Pass) {
        match object {
            WriteTarget::PodMarks(name) => {
                let known = self.pods.get_key_value(name);
                pass.pods.extend(known.map(|(name, _)| name.clone()));
            }
            WriteTarget::NodePodProbe(name) => {
                let known = self.nodes.get_key_value(name.as_str());
                pass.nodes.extend(known.map(|(name, _)| name.clone()));
                // Their markers say whether it is refused.
                let pods = known.into_iter().flat_map(|(_, node)| node.pods());
                pass.pods.extend(pods.cloned());
            }
            WriteTarget::MarkerStatus(name) | WriteTarget::MarkerFinalizer(name) => {
                let known = self.markers.get_key_value(name);
                pass.markers.extend(known.map(|(name, _)| name.clone()));
            }
        }
    }
}

/// A write without its times and versions: one that differs in nothing else is refused for the same reason.
fn without_times_and_versions(mut write: Write) -> Write {
    match &mut write {
        Write::PodMarks(marks) => {
            let conditions = marks
                .apply
                .as_mut()
                .and_then(|body| body.pointer_mut("/status/conditions"))
                .and_then(|conditions| conditions.as_array_mut());
            for condition in conditions.into_iter().flatten() {
                if let Some(condition) = condition.as_object_mut() {
                    condition.remove("lastTransitionTime");
                    condition.remove("lastProbeTime");
                }
            }
        }
        Write::MarkerStatus { status, .. } => {
            for condition in &mut status.conditions {
                condition.last_transition_time.0 = Timestamp::UNIX_EPOCH;
            }
        }
        // It moves with each verdict that the agent reports.
        Write::ReplaceNodePodProbe(object) => object.metadata.resource_version = None,
        _ => {}
    }
    write
}
