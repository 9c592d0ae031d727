//! The feature driven by hand, event by event, and its writes as typed values.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker, PodProbeMarkerStatus};
use leadsman_reconcile::{Reconciler, WriteId};
use serde_json::Value;

use crate::cluster::{Effects, Now, ObjectName, Refusal, ResourceVersion, Source};
pub(super) use crate::podprobe::index::feature::WatchedKind;
use crate::podprobe::index::{Config, Machines, PodProbes};
use crate::podprobe::marker::Marker;
use crate::podprobe::writes;

/// A change in the cluster, or the end of a write.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The state of a marker.
    Marker(Arc<PodProbeMarker>, Source),
    /// The state of a pod.
    Pod(Arc<Pod>, Source),
    /// The state of a node.
    Node(Arc<Node>, Source),
    /// The state of a `NodePodProbe`.
    NodePodProbe(Arc<NodePodProbe>, Source),
    /// An object in a list or a watch event could not be decoded. Its last known state stays in force. Without one,
    /// entries and marks that may follow from it are left as they are until it decodes or is deleted.
    Undecodable(WatchedKind, ObjectName),
    /// The watch reports an object deleted, with the version of its deletion. A write that is answered with 404 must
    /// not send this event: another object may have the name by then, and only the watch has both in order.
    Deleted(WatchedKind, ObjectName, ResourceVersion),
    /// A list of a kind is complete, with all its names. Objects of other names did not exist at the version of the
    /// list.
    Listed(WatchedKind, BTreeSet<ObjectName>, ResourceVersion),
    /// A list of a kind beside its watch is complete, with all its names. The watch may be ahead of it or behind it.
    /// Objects of other names did not exist at the version of the list.
    Relisted(WatchedKind, BTreeSet<ObjectName>, ResourceVersion),
    /// All kinds have been listed, and this process holds the Lease: from now on writes are due. Sent again whenever
    /// the process regains the Lease, after another one may have written.
    Synced,
    /// Whether the API server keeps our optional fields of a kind, by its CRD's schema: those in the status of a
    /// marker, those in the entries of a `NodePodProbe`. The API server prunes fields that a structural schema does not
    /// list. Other kinds have no such fields.
    FieldsKept(WatchedKind, bool),
    /// The API server has carried out the last write of this target; the state in its reply was sent as an event
    /// before. If the object still lacks what was written, another client or an admission webhook undid it.
    Written(WriteTarget),
    /// The object of the last write of this target is gone or was replaced.
    Gone(WriteTarget),
    /// The last write of this target was not carried out for now, or it is not known whether it was (false).
    Unwritten(WriteTarget, bool),
    /// The API server rejected the last write of this target for good, for this reason. It is not repeated until another write
    /// is due, or some minutes have passed. A `NodePodProbe` that is too large gets fewer entries instead.
    Refused(WriteTarget, Refusal),
    /// The deadline of the last [`Effects`](crate::cluster::Effects) has passed.
    Deadline,
}

/// The object of a write, or the part of an object that is written separately.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum WriteTarget {
    /// The marks of a pod.
    PodMarks(ObjectName),
    /// The spec of a node's `NodePodProbe`.
    NodePodProbe(String),
    /// The status of a marker.
    MarkerStatus(ObjectName),
    /// The finalizer of a marker.
    MarkerFinalizer(ObjectName),
}

impl WriteTarget {
    /// The object.
    pub(super) fn object(&self) -> Cow<'_, ObjectName> {
        match self {
            Self::PodMarks(name) | Self::MarkerStatus(name) | Self::MarkerFinalizer(name) => {
                Cow::Borrowed(name)
            }
            Self::NodePodProbe(name) => Cow::Owned(ObjectName {
                namespace: String::new(),
                name: name.clone(),
            }),
        }
    }
}

/// A write that is due.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    /// Creates a `NodePodProbe` (POST).
    CreateNodePodProbe(Box<NodePodProbe>),
    /// Replaces the spec of a `NodePodProbe` (PUT), with the resourceVersion from which it was computed.
    ReplaceNodePodProbe(Box<NodePodProbe>),
    /// Deletes a `NodePodProbe`, with its uid as a precondition.
    DeleteNodePodProbe {
        /// Name of the node and the object.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Writes the marks of a pod by a request on `pods/status`: a patch that removes some, or an apply of all.
    PodMarks(Box<PodMarks>),
    /// Writes a marker's status by a JSON merge patch. As that replaces the whole list of conditions, those of other clients
    /// too, it carries the resourceVersion with which they were read.
    MarkerStatus {
        /// The marker.
        marker: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// The resourceVersion with which its status was read, a precondition.
        resource_version: Option<String>,
        /// The whole status.
        status: Box<PodProbeMarkerStatus>,
    },
    /// Writes a marker's finalizers by a JSON merge patch. As that replaces the whole list (RFC 7396), it carries the
    /// resourceVersion with which the list was read, so that it conflicts (409) instead of undoing another client's
    /// change.
    MarkerFinalizers {
        /// The marker.
        marker: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// The resourceVersion with which its finalizers were read, a precondition.
        resource_version: Option<String>,
        /// The whole list.
        finalizers: Vec<String>,
    },
}

/// The bodies that write the marks of one pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodMarks {
    /// The pod.
    pub pod: ObjectName,
    /// Its uid, in both bodies as a precondition.
    pub uid: String,
    /// A strategic merge patch that removes marks that others co-own.
    pub remove: Option<serde_json::Value>,
    /// A forced server-side apply of all our marks.
    pub apply: Option<serde_json::Value>,
}

/// The machines with the kernel around them.
pub(super) struct Index {
    reconciler: Reconciler<PodProbes>,
    /// The writes that were taken and not answered yet, each with whether its reply shows its object.
    sent: BTreeMap<WriteTarget, (WriteId, bool)>,
    changed: Arc<Mutex<ChangedMarkers>>,
}

type ChangedMarkers = BTreeMap<Arc<ObjectName>, Option<Arc<Marker>>>;

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Deref for Index {
    type Target = Machines;

    fn deref(&self) -> &Machines {
        self.reconciler.memory()
    }
}

/// Calls a method of the reconciler for one of the kinds.
macro_rules! of_kind {
    ($kind:expr, $reconciler:ident . $method:ident ( $($argument:expr),* )) => {
        match $kind {
            WatchedKind::Marker => $reconciler.$method::<PodProbeMarker>($($argument),*),
            WatchedKind::Pod => $reconciler.$method::<Pod>($($argument),*),
            WatchedKind::Node => $reconciler.$method::<Node>($($argument),*),
            WatchedKind::NodePodProbe => $reconciler.$method::<NodePodProbe>($($argument),*),
        }
    };
}

impl Index {
    /// An index that has observed nothing yet.
    pub(super) fn new(config: Config) -> Self {
        // Runs cost nothing, so that all keys run in one turn, and none rests.
        Self::with_clock(config, || Duration::ZERO)
    }

    /// The same with the clock that measures what runs cost.
    pub(super) fn with_clock(config: Config, clock: fn() -> Duration) -> Self {
        let changed = Arc::<Mutex<ChangedMarkers>>::default();
        let published = changed.clone();
        let feature = PodProbes::new(move |machines, _| {
            let changed = machines.take_changed_markers();
            published.lock().unwrap().extend(changed);
        });
        Self {
            reconciler: Reconciler::with_memory(feature, Machines::new(config), clock),
            sent: BTreeMap::new(),
            changed,
        }
    }

    /// Takes in what happened at `now`, and plans all that follows from it.
    pub(super) fn observe(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        self.take_in(event, now);
        self.plan(now)
    }

    /// Takes in what happened at `now`. Returns whether a key has to run for it.
    pub(super) fn has_key_run(&mut self, event: Event, now: Now) -> bool {
        self.take_in(event, now);
        let deadline = self.reconciler.take_effects(now).deadline;
        deadline.is_some_and(|deadline| deadline <= now.monotonic)
    }

    fn take_in(&mut self, event: Event, now: Now) {
        let reconciler = &mut self.reconciler;
        reconciler.set_now(now);
        match event {
            Event::Marker(object, source) => reconciler.observe_object(object, source),
            Event::Pod(object, source) => reconciler.observe_object(object, source),
            Event::Node(object, source) => reconciler.observe_object(object, source),
            Event::NodePodProbe(object, source) => reconciler.observe_object(object, source),
            Event::Undecodable(kind, name) => of_kind!(kind, reconciler.observe_undecodable(&name)),
            Event::Deleted(kind, name, version) => {
                of_kind!(kind, reconciler.observe_deletion(&name, version, now));
            }
            Event::Listed(kind, names, version) => {
                of_kind!(kind, reconciler.observe_list(&names, version, false, now));
            }
            Event::Relisted(kind, names, version) => {
                of_kind!(kind, reconciler.observe_list(&names, version, true, now));
            }
            Event::FieldsKept(kind, kept) => of_kind!(kind, reconciler.note_fields_kept(kept)),
            Event::Synced => {
                self.sent.clear();
                reconciler.begin_term();
            }
            Event::Written(target) => {
                if let Some((id, has_reply)) = self.sent.remove(&target) {
                    reconciler.note_done(&id, has_reply, now);
                }
            }
            Event::Gone(target) => {
                if let Some((id, _)) = self.sent.remove(&target) {
                    reconciler.note_gone(&id, now);
                }
            }
            Event::Unwritten(target, is_surely_not_done) => {
                if let Some((id, _)) = self.sent.remove(&target) {
                    reconciler.note_failed(&id, is_surely_not_done);
                }
            }
            Event::Refused(target, refusal) => {
                if let Some((id, _)) = self.sent.remove(&target) {
                    reconciler.note_refused(&id, refusal, now);
                }
            }
            Event::Deadline => {}
        }
        self.reconciler.publish();
    }

    fn plan(&mut self, now: Now) -> Effects<WriteTarget> {
        let mut dirty = BTreeSet::new();
        loop {
            self.reconciler.run_keys(now);
            let effects = self.reconciler.take_effects(now);
            dirty.extend(effects.dirty.iter().map(target_of));
            if effects.deadline.is_none_or(|at| at > now.monotonic) {
                return Effects {
                    dirty: dirty.into_iter().collect(),
                    deadline: effects.deadline,
                };
            }
        }
    }

    /// The write that is due for a target, if there is one. It counts as sent until it is answered.
    pub(super) fn due(&mut self, target: &WriteTarget, now: Now) -> Option<Write> {
        for id in ids_of(target) {
            if let Some(write) = self.reconciler.take_due(&id, now) {
                let typed = typed_write(&id, write.body())?;
                let is_deletion = matches!(typed, Write::DeleteNodePodProbe { .. });
                let has_reply = !is_deletion && !write.may_end_object();
                self.sent.insert(target.clone(), (id, has_reply));
                return Some(typed);
            }
        }
        None
    }

    /// When the verdict changed that makes a write of a pod's marks due. None if something else does, such as an edited
    /// marker, another client, or a restart of the manager.
    pub(super) fn verdict_since(&self, target: &WriteTarget) -> Option<Timestamp> {
        let ids = ids_of(target);
        let mut wanted = self.reconciler.wanted();
        let due = wanted.find(|write| {
            let is_it = |id: &WriteId| writes::WRITES[id.kind].label == write.kind().label;
            ids.iter().any(|id| is_it(id) && *id.name == *write.name())
        });
        due?.since()
    }
}

fn place(label: &str) -> usize {
    let place = writes::WRITES.iter().position(|kind| kind.label == label);
    place.unwrap_or_default()
}

fn ids_of(target: &WriteTarget) -> Vec<WriteId> {
    let labels: &[&str] = match target {
        WriteTarget::PodMarks(_) => &["pod_mark_removal", "pod_marks"],
        WriteTarget::NodePodProbe(_) => &[
            "create_nodepodprobe",
            "replace_nodepodprobe",
            "delete_nodepodprobe",
        ],
        WriteTarget::MarkerStatus(_) => &["marker_status"],
        WriteTarget::MarkerFinalizer(_) => &["marker_finalizers"],
    };
    let name = Arc::new(target.object().into_owned());
    let ids = labels.iter().map(|label| WriteId {
        kind: place(label),
        name: name.clone(),
    });
    ids.collect()
}

fn target_of(id: &WriteId) -> WriteTarget {
    let name = (*id.name).clone();
    match writes::WRITES[id.kind].label {
        "pod_mark_removal" | "pod_marks" => WriteTarget::PodMarks(name),
        "marker_status" => WriteTarget::MarkerStatus(name),
        "marker_finalizers" => WriteTarget::MarkerFinalizer(name),
        _ => WriteTarget::NodePodProbe(name.name),
    }
}

fn typed_write(id: &WriteId, body: Value) -> Option<Write> {
    let name = (*id.name).clone();
    let text = |place: &str| Some(body.pointer(place)?.as_str()?.to_owned());
    let marks = |remove, apply| {
        Write::PodMarks(Box::new(PodMarks {
            pod: name.clone(),
            uid: text("/metadata/uid").unwrap_or_default(),
            remove,
            apply,
        }))
    };
    let (uid, resource_version) = (text("/metadata/uid"), text("/metadata/resourceVersion"));
    Some(match writes::WRITES[id.kind].label {
        "create_nodepodprobe" => Write::CreateNodePodProbe(serde_json::from_value(body).ok()?),
        "replace_nodepodprobe" => Write::ReplaceNodePodProbe(serde_json::from_value(body).ok()?),
        "delete_nodepodprobe" => Write::DeleteNodePodProbe {
            name: name.name,
            uid: text("/preconditions/uid")?,
        },
        "pod_mark_removal" => marks(Some(body.clone()), None),
        "pod_marks" => marks(None, Some(body.clone())),
        "marker_status" => Write::MarkerStatus {
            marker: name,
            uid: uid?,
            resource_version,
            status: serde_json::from_value(body.get("status")?.clone()).ok()?,
        },
        _ => Write::MarkerFinalizers {
            marker: name,
            uid: uid?,
            resource_version,
            finalizers: serde_json::from_value(body.pointer("/metadata/finalizers")?.clone())
                .ok()?,
        },
    })
}

impl Index {
    /// Takes in what happened at `now`, as a manager does: keys run for one turn after each deadline, and wait meanwhile.
    pub(super) fn observe_in_turns(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        let runs = matches!(event, Event::Deadline);
        self.take_in(event, now);
        if runs {
            self.reconciler.run_keys(now);
        }
        let effects = self.reconciler.take_effects(now);
        let dirty: BTreeSet<_> = effects.dirty.iter().map(target_of).collect();
        Effects {
            dirty: dirty.into_iter().collect(),
            deadline: effects.deadline,
        }
    }

    /// The version in which an object is known.
    pub(super) fn known_version(
        &self,
        kind: WatchedKind,
        name: &ObjectName,
    ) -> Option<ResourceVersion> {
        self.reconciler.world().version(kind, name)
    }

    /// All objects known of a kind.
    pub(super) fn known_names(&self, kind: WatchedKind) -> Vec<ObjectName> {
        self.reconciler.world().names(kind)
    }

    /// The markers that have changed since the last call, as a manager passes them on.
    pub(super) fn take_changed_markers(&mut self) -> Vec<(Arc<ObjectName>, Option<Arc<Marker>>)> {
        let changed = std::mem::take(&mut *self.changed.lock().unwrap());
        changed.into_iter().collect()
    }
}
