//! Notices of a feature about its objects, for people: events of the API server (`events.k8s.io/v1`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::feature::Feature;
use crate::object::ObjectName;
use crate::plan::{Purpose, Write, WriteId};
use crate::timers::Timers;

/// The notices about one object in a row, and the time after which it may have one more (`maxBurst` and `qps` in
/// `k8s.io/client-go/tools/record/events_cache.go`).
const BURST: u8 = 25;
const REFILL: Duration = Duration::from_mins(5);
/// The notices that wait in one namespace. What comes beyond them is not told: events are lost without harm.
const MOST_WAITING: usize = 250;

/// The object that a notice is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// `apps.kruise.io/v1beta1`, say.
    pub api_version: &'static str,
    /// The object's kind.
    pub kind: &'static str,
    /// The object's name.
    pub name: ObjectName,
    /// The object's uid.
    pub uid: String,
}

/// A message to people about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The object.
    pub regarding: Regarding,
    /// Whether somebody has to act.
    pub is_warning: bool,
    /// Why it is told, one word in capitals: `SuccessfulCreate`.
    pub reason: &'static str,
    /// The action that was done or tried: `Create`.
    pub action: &'static str,
    /// The message itself.
    pub note: String,
}

impl Notice {
    /// The purpose that equal notices share: a second one is not told while the first one stands.
    fn purpose(&self) -> Purpose {
        Purpose::of((&self.regarding.uid, self.reason, &self.note))
    }

    /// The event at this time, from this controller.
    fn event(&self, controller: &str, now: Timestamp) -> Value {
        let ObjectName { namespace, name } = &self.regarding.name;
        let mut regarding = json!({
            "apiVersion": self.regarding.api_version,
            "kind": self.regarding.kind,
            "name": name,
            "uid": self.regarding.uid,
        });
        if !namespace.is_empty() {
            regarding["namespace"] = json!(namespace);
        }
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            // The API server accepts a dash as the last character (`maskTrailingDash` in
            // `k8s.io/apimachinery/pkg/api/validation/generic.go`).
            "metadata": {"generateName": format!("{name}-"), "namespace": self.namespace()},
            // Go parses exactly six digits (`RFC3339Micro`, `k8s.io/apimachinery/pkg/apis/meta/v1/micro_time.go`). This
            // and the next two are required of a new event (`ValidateEventCreate`, `pkg/apis/core/validation/events.go`).
            "eventTime": format!("{now:.6}"),
            "reportingController": controller,
            "reportingInstance": "leadsman-manager",
            "action": self.action,
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "note": truncate(&self.note),
            "regarding": regarding,
        })
    }

    /// An event about an object without a namespace is in `default` (`makeEvent` in
    /// `k8s.io/client-go/tools/events/event_recorder.go`).
    fn namespace(&self) -> &str {
        match &*self.regarding.name.namespace {
            "" => "default",
            namespace => namespace,
        }
    }
}

/// Cuts a note to at most 1,024 bytes (`NoteLengthLimit` in `pkg/apis/core/validation/events.go`).
fn truncate(note: &str) -> &str {
    &note[..note.floor_char_boundary(1024)]
}

/// The notices that wait to be told, and which ones stand.
pub(crate) struct Notices<F: Feature> {
    waiting: BTreeMap<WriteId, VecDeque<Arc<Write<F>>>>,
    waiting_of: BTreeMap<String, usize>,
    budgets: BTreeMap<WriteId, u8>,
    refills: Timers<WriteId>,
    /// The notices that the last run of each key has told of the state that it saw.
    standing: BTreeMap<F::Key, BTreeSet<Purpose>>,
}

impl<F: Feature> Default for Notices<F> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            waiting_of: BTreeMap::new(),
            budgets: BTreeMap::new(),
            refills: Timers::default(),
            standing: BTreeMap::new(),
        }
    }
}

impl<F: Feature> Notices<F> {
    /// The identity under which notices about an object are sent, one after the other. None if the feature sends no events.
    fn id(notice: &Notice) -> Option<WriteId> {
        let is_event = |kind: &&crate::WriteKind| kind.resource == "events";
        let kind = F::WRITES.iter().position(|kind| is_event(&kind))?;
        let name = ObjectName {
            namespace: notice.namespace().to_owned(),
            name: notice.regarding.name.name.clone(),
        };
        Some(WriteId {
            kind,
            name: Arc::new(name),
        })
    }

    /// Has a notice told. Returns the identity of its write, unless there are too many.
    pub(crate) fn push(
        &mut self,
        notice: &Notice,
        wall: Timestamp,
        now: Duration,
    ) -> Option<WriteId> {
        let id = Self::id(notice)?;
        while let Some(refilled) = self.refills.pop_due(now) {
            self.refill(refilled, now);
        }
        let waiting = self
            .waiting_of
            .get(&id.name.namespace)
            .copied()
            .unwrap_or_default();
        let told = self.budgets.get(&id).copied().unwrap_or_default();
        if told >= BURST || waiting >= MOST_WAITING {
            return None;
        }
        if told == 0 {
            self.refills.set(now.saturating_add(REFILL), id.clone());
        }
        self.budgets.insert(id.clone(), told + 1);
        self.waiting_of
            .insert(id.name.namespace.clone(), waiting + 1);
        let body = notice.event(F::EVENTS_FROM, wall);
        let write = Write::new(id.clone(), &body);
        self.waiting
            .entry(id.clone())
            .or_default()
            .push_back(Arc::new(write));
        Some(id)
    }

    fn refill(&mut self, id: WriteId, now: Duration) {
        if let Some(told) = self.budgets.get_mut(&id) {
            *told -= 1;
            if *told == 0 {
                self.budgets.remove(&id);
            } else {
                self.refills.set(now.saturating_add(REFILL), id);
            }
        }
    }

    /// Takes in what a run of a key tells of the state that it saw. Returns what was not told yet.
    pub(crate) fn take_standing(&mut self, key: &F::Key, notices: Vec<Notice>) -> Vec<Notice> {
        if notices.is_empty() {
            self.standing.remove(key);
            return notices;
        }
        let stand = notices.iter().map(Notice::purpose).collect();
        let stood = self.standing.insert(key.clone(), stand).unwrap_or_default();
        let is_new = |notice: &Notice| !stood.contains(&notice.purpose());
        notices.into_iter().filter(is_new).collect()
    }

    /// The next notice about an object. It is told once, whatever the answer is.
    pub(crate) fn pop(&mut self, id: &WriteId) -> Option<Arc<Write<F>>> {
        let queue = self.waiting.get_mut(id)?;
        let write = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(id);
        }
        let namespace = &id.name.namespace;
        if let Some(waiting) = self.waiting_of.get_mut(namespace) {
            *waiting -= 1;
            if *waiting == 0 {
                self.waiting_of.remove(namespace);
            }
        }
        write
    }

    /// Whether there are more notices about an object.
    pub(crate) fn is_waiting(&self, id: &WriteId) -> bool {
        self.waiting.contains_key(id)
    }

    /// Forgets what waits and what stands: another process may have told other things since.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.waiting_of.clear();
        self.standing.clear();
    }
}
