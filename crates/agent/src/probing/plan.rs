//! The watch of the node's plan, its `NodePodProbe`, and the choice of its newest snapshot.

use std::time::Duration;

use futures::{Stream, StreamExt};
use leadsman_api::{Guarded, INSTALL_CRDS, NodePodProbe};
use leadsman_core::cluster::ResourceVersion;
use leadsman_process::ApiServer;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{WatchEvent, list_and_watch};

use crate::health::Health;

/// The resource, as messages name it.
const RESOURCE: &str = "nodepodprobes.apps.kruise.io";

/// An event of the watch, or a reply to a write.
#[derive(Debug)]
pub(crate) enum PlanEvent {
    /// A list begins.
    ListBegan,
    /// The object in a list.
    Listed(Box<NodePodProbe>),
    /// The object in a watch event.
    Changed(Box<NodePodProbe>),
    /// The object in the reply to a write of ours. It may come after the watch has shown the object deleted.
    Replied(Box<NodePodProbe>),
    /// The object exists, but cannot be decoded, for this reason.
    Undecodable(String),
    /// The object does not exist.
    Absent,
    /// A list that contains the object is complete.
    ListComplete,
    /// A watch is established.
    Following,
    /// The list or the watch failed for this reason; it is tried again.
    Failed(String),
}

/// The node's plan.
#[derive(Debug)]
pub(crate) enum NodePlan {
    Object(Box<NodePodProbe>),
    /// The node has no object of its name.
    Absent,
}

/// The object in the list under way, as far as it was received.
#[derive(Clone, Copy, Debug)]
enum ListedObject {
    None,
    Decoded,
    Undecodable,
}

/// Watches the object of this name. The stream never ends.
pub(crate) fn watch_plan(
    server: ApiServer,
    node_name: &str,
    random: fastrand::Rng,
) -> impl Stream<Item = PlanEvent> + use<> {
    // Not by `only_named`, by which a label of metrics would have the node's name.
    let target = ListTarget::all_of::<NodePodProbe>()
        .with_field_selector(format!("metadata.name={node_name}"));
    let mut listed = ListedObject::None;
    // Guarded: an object that cannot be decoded is reported, and does not end the watch.
    list_and_watch(server, target, Guarded::<NodePodProbe>::parse, random)
        .filter_map(move |event| std::future::ready(plan_event(event, &mut listed)))
}

fn plan_event(
    event: WatchEvent<Guarded<NodePodProbe>>,
    listed: &mut ListedObject,
) -> Option<PlanEvent> {
    Some(match event {
        WatchEvent::ListStarted => {
            *listed = ListedObject::None;
            PlanEvent::ListBegan
        }
        WatchEvent::ListPage(_) => return None,
        WatchEvent::ListItem(object) => {
            *listed = match &object {
                Guarded::Decoded(_) => ListedObject::Decoded,
                Guarded::Undecodable { .. } => ListedObject::Undecodable,
            };
            decode_guarded(object, PlanEvent::Listed)
        }
        WatchEvent::Changed(object) => decode_guarded(object, PlanEvent::Changed),
        WatchEvent::Deleted(_) => PlanEvent::Absent,
        WatchEvent::ListComplete(_) => match listed {
            ListedObject::None => PlanEvent::Absent,
            ListedObject::Decoded => PlanEvent::ListComplete,
            // The object was reported with the item. It exists, so what it said before stays in
            // force.
            ListedObject::Undecodable => return None,
        },
        WatchEvent::Following => PlanEvent::Following,
        WatchEvent::Failed(failure) => {
            PlanEvent::Failed(failure.explain_failure(RESOURCE, INSTALL_CRDS))
        }
    })
}

fn decode_guarded(
    object: Guarded<NodePodProbe>,
    event: fn(Box<NodePodProbe>) -> PlanEvent,
) -> PlanEvent {
    match object {
        Guarded::Decoded(object) => event(object),
        Guarded::Undecodable { error, .. } => PlanEvent::Undecodable(error),
    }
}

/// Follows the events: finds the newest plan, and records the health of the watch.
pub(crate) struct PlanFollower {
    node_name: String,
    newest: NewestVersion,
    health: Health,
    /// Whether the object cannot be decoded: then the plan is unknown although the watch is established.
    is_undecodable: bool,
    is_absent: bool,
}

impl PlanFollower {
    pub(crate) fn new(node_name: &str, health: Health) -> Self {
        Self {
            node_name: node_name.to_owned(),
            newest: NewestVersion::default(),
            health,
            is_undecodable: false,
            is_absent: false,
        }
    }

    /// The plan in an event, if it is newer than the one before. `now` is since the agent's start.
    pub(crate) fn follow_event(&mut self, event: PlanEvent, now: Duration) -> Option<NodePlan> {
        let plan = match event {
            PlanEvent::Undecodable(error) => {
                self.is_undecodable = true;
                self.report_failure(&format!("it cannot be decoded: {error}"), now);
                return None;
            }
            PlanEvent::Failed(error) => {
                // A reply from before the failure may come from a store that was restored afterwards.
                self.newest.begin_list();
                self.report_failure(&error, now);
                return None;
            }
            PlanEvent::ListBegan => {
                self.newest.begin_list();
                return None;
            }
            PlanEvent::Following => {
                if !self.is_undecodable {
                    self.health.record_success();
                }
                return None;
            }
            PlanEvent::ListComplete => None,
            PlanEvent::Replied(object) => {
                // A reply says nothing about the watch.
                return self
                    .newest
                    .accept_replied(&object)
                    .then_some(NodePlan::Object(object));
            }
            PlanEvent::Listed(object) => self
                .newest
                .accept_listed(&object)
                .then_some(NodePlan::Object(object)),
            PlanEvent::Changed(object) => self
                .newest
                .accept_changed(&object)
                .then_some(NodePlan::Object(object)),
            PlanEvent::Absent => {
                self.newest.forget_version();
                Some(NodePlan::Absent)
            }
        };
        self.is_undecodable = false;
        self.health.record_success();
        if let Some(plan) = &plan {
            self.note_absence(matches!(plan, NodePlan::Absent));
        }
        plan
    }

    fn report_failure(&self, error: &str, now: Duration) {
        if self.health.record_failure(error, now) {
            tracing::warn!(
                node = self.node_name,
                error,
                "reading this node's NodePodProbe failed, probing continues with the last known one; retrying"
            );
        }
    }

    fn note_absence(&mut self, is_absent: bool) {
        if is_absent && !self.is_absent {
            tracing::info!(
                node = self.node_name,
                "no NodePodProbe of this name, so nothing is probed here; if pods on this node match a marker, check --node-name"
            );
        }
        self.is_absent = is_absent;
    }
}

/// The version of the newest snapshot. The reply to a write overtakes the watch, and may overtake a list.
#[derive(Debug, Default)]
struct NewestVersion {
    /// `None` while there is no object.
    known: Option<ResourceVersion>,
    /// Whether a reply has come since the last list began.
    has_reply_since_list: bool,
}

impl NewestVersion {
    fn begin_list(&mut self) {
        self.has_reply_since_list = false;
    }

    /// An older version in a list is accepted, since etcd may have been restored, unless a reply that came during the
    /// list explains it: then the watch after the list shows what the list lacks.
    fn accept_listed(&mut self, object: &NodePodProbe) -> bool {
        let version = version_of(object);
        let is_late = self.has_reply_since_list
            && self.known.is_some_and(|known| known.is_later_than(version));
        if !is_late {
            self.known = Some(version);
        }
        !is_late
    }

    fn accept_changed(&mut self, object: &NodePodProbe) -> bool {
        let version = version_of(object);
        let is_newer = self.known.is_none_or(|known| version.is_newer_than(known));
        if is_newer {
            self.known = Some(version);
        }
        is_newer
    }

    /// Takes in the version of a reply and says whether it is newer. If no object is known, the
    /// reply is about one that was deleted.
    fn accept_replied(&mut self, object: &NodePodProbe) -> bool {
        let version = version_of(object);
        let is_newer = self.known.is_some_and(|known| version.is_later_than(known));
        if is_newer {
            self.known = Some(version);
            self.has_reply_since_list = true;
        }
        is_newer
    }

    fn forget_version(&mut self) {
        *self = Self::default();
    }
}

fn version_of(object: &NodePodProbe) -> ResourceVersion {
    ResourceVersion::parse(object.metadata.resource_version.as_deref())
}

#[cfg(test)]
mod tests {
    use leadsman_process::Readiness;
    use serde_json::json;

    use super::*;
    use crate::health::HealthChecks;

    fn object(version: &str) -> Box<NodePodProbe> {
        let mut object = NodePodProbe::new("node", leadsman_api::NodePodProbeSpec::default());
        object.metadata.resource_version = Some(version.to_owned());
        Box::new(object)
    }

    fn follower() -> (PlanFollower, Readiness) {
        let readiness = Readiness::default();
        let checks = HealthChecks::new(readiness.clone());
        let health = checks.register_check("nodepodprobe", "not read yet");
        (PlanFollower::new("node", health), readiness)
    }

    #[test]
    fn a_list_without_the_object_says_that_it_is_absent() {
        let mut listed = ListedObject::None;
        let mut read = |event| plan_event(event, &mut listed);
        assert!(matches!(
            read(WatchEvent::ListStarted),
            Some(PlanEvent::ListBegan)
        ));
        let complete = || WatchEvent::ListComplete("7".to_owned());
        assert!(matches!(read(complete()), Some(PlanEvent::Absent)));
        read(WatchEvent::ListStarted);
        assert!(matches!(
            read(WatchEvent::ListItem(Guarded::Decoded(object("1")))),
            Some(PlanEvent::Listed(_))
        ));
        assert!(matches!(read(complete()), Some(PlanEvent::ListComplete)));
    }

    #[test]
    fn an_object_that_cannot_be_decoded_is_neither_absent_nor_healthy() {
        let read = |spec| {
            let object = json!({"metadata": {"name": "node"}, "spec": spec});
            serde_json::from_str::<Guarded<NodePodProbe>>(&object.to_string()).unwrap()
        };
        let (good, bad) = (json!({}), json!({"podProbes": 7}));
        let events = [
            (WatchEvent::ListStarted, false),
            (WatchEvent::ListItem(read(bad.clone())), false),
            (WatchEvent::ListComplete("7".to_owned()), false),
            (WatchEvent::Following, false),
            (WatchEvent::Changed(read(good)), true),
            (WatchEvent::Following, true),
        ];
        let (mut follower, readiness) = follower();
        let mut listed = ListedObject::None;
        for (event, is_ready) in events {
            let text = format!("{event:?}");
            let event = plan_event(event, &mut listed);
            let absent = event.and_then(|event| follower.follow_event(event, Duration::ZERO));
            assert!(!matches!(absent, Some(NodePlan::Absent)), "{text}");
            assert_eq!(readiness.is_ready(), is_ready, "{text}");
        }
        let undecodable = plan_event(WatchEvent::Changed(read(bad.clone())), &mut listed);
        assert!(
            matches!(undecodable, Some(PlanEvent::Undecodable(why)) if why.contains("integer"))
        );
        let deleted = plan_event(WatchEvent::Deleted(read(bad)), &mut listed);
        assert!(matches!(deleted, Some(PlanEvent::Absent)));
    }

    /// Which of these events show something new.
    fn news(events: impl IntoIterator<Item = PlanEvent>) -> Vec<bool> {
        let (mut follower, _) = follower();
        events
            .into_iter()
            .map(|event| follower.follow_event(event, Duration::ZERO).is_some())
            .collect()
    }

    #[test]
    fn older_snapshots_are_dropped_unless_listed() {
        let changed = |version| PlanEvent::Changed(object(version));
        let replied = |version| PlanEvent::Replied(object(version));
        let table = [
            (changed("9"), true),
            (changed("10"), true),
            (changed("10"), false),
            (changed("9"), false),
            (PlanEvent::Listed(object("5")), true),
            (changed("6"), true),
            (replied("6"), false),
            (replied("7"), true),
            (PlanEvent::Absent, true),
            (replied("8"), false),
            (changed("2"), true),
            (PlanEvent::ListComplete, false),
            (changed("odd"), true),
        ];
        let (events, expected): (Vec<_>, Vec<bool>) = table.into_iter().unzip();
        assert_eq!(news(events), expected);
    }

    #[test]
    fn a_list_that_a_reply_has_overtaken_is_dropped_and_one_after_a_restore_is_not() {
        let listed = |version| PlanEvent::Listed(object(version));
        let overtaken = [
            listed("5"),
            PlanEvent::ListBegan,
            PlanEvent::Replied(object("9")),
            listed("8"),
            PlanEvent::Changed(object("9")),
            PlanEvent::Changed(object("10")),
        ];
        assert_eq!(news(overtaken), [true, false, true, false, false, true]);
        let restored = [
            listed("5"),
            PlanEvent::Replied(object("9")),
            PlanEvent::ListBegan,
            listed("8"),
        ];
        assert_eq!(news(restored), [true, true, false, true]);
        // The API server was away between the reply and the list.
        let restored_in_between = [
            listed("5"),
            PlanEvent::ListBegan,
            PlanEvent::Replied(object("9")),
            PlanEvent::Failed("no answer".to_owned()),
            listed("8"),
        ];
        assert_eq!(news(restored_in_between), [true, false, true, false, true]);
    }
}
