//! The feature driven by hand, event by event: for those who ask offline what it knows, and for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_reconcile::{Reconciler, WriteId};
use serde_json::Value;

use super::{Config, Machines, PodProbes};
use crate::cluster::{Effects, Now};
#[cfg(test)]
use crate::cluster::{ObjectName, ResourceVersion};
use crate::podprobe::event::{self, Event, PodMarks, WatchedKind, Write, WriteTarget};

/// The machines with the kernel around them.
pub struct Index {
    reconciler: Reconciler<PodProbes>,
    /// The writes that were taken and not answered yet, each with whether its reply shows its object.
    sent: BTreeMap<WriteTarget, (WriteId, bool)>,
}

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
    pub fn new(config: Config) -> Self {
        // Runs cost nothing, so that all keys run in one turn, and none rests.
        Self::with_clock(config, || Duration::ZERO)
    }

    /// The same with the clock that measures what runs cost.
    pub(super) fn with_clock(config: Config, clock: fn() -> Duration) -> Self {
        let feature = PodProbes::new(|_, _| {});
        Self {
            reconciler: Reconciler::with_memory(feature, Machines::new(config), clock),
            sent: BTreeMap::new(),
        }
    }

    /// Takes in what happened at `now`, and plans all that follows from it.
    pub fn observe(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        self.take_in(event, now);
        self.plan(now)
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
    pub fn due(&mut self, target: &WriteTarget, now: Now) -> Option<Write> {
        for id in ids_of(target) {
            if let Some(write) = self.reconciler.take_due(&id, now) {
                let typed = typed_write(&id, write.body().into_owned())?;
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
    pub fn verdict_since(&self, target: &WriteTarget) -> Option<Timestamp> {
        let ids = ids_of(target);
        let mut wanted = self.reconciler.wanted();
        let due = wanted.find(|write| {
            let is_it = |id: &WriteId| event::WRITES[id.kind].label == write.kind().label;
            ids.iter().any(|id| is_it(id) && *id.name == *write.name())
        });
        due?.since()
    }
}

fn place(label: &str) -> usize {
    let place = event::WRITES.iter().position(|kind| kind.label == label);
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
    match event::WRITES[id.kind].label {
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
    Some(match event::WRITES[id.kind].label {
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

#[cfg(test)]
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

    pub(super) fn take_changed_markers(
        &mut self,
    ) -> Vec<(
        Arc<ObjectName>,
        Option<Arc<crate::podprobe::marker::Marker>>,
    )> {
        self.reconciler.memory_mut().take_changed_markers()
    }
}
