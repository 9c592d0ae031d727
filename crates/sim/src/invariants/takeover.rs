//! A new leader knows what was stored when it took the Lease from another one: as long as nothing changes that its writes follow
//! from, they make nothing worse. Pods and nodes are known by watches alone, and only where these are not behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leadsman_api_model::{ApiServer, StoredChange};
use serde_json::Value;

use crate::ground::Ground;
use crate::kubelet::text;
use crate::oracle::Oracle;
use crate::process::is_manager;
use crate::resources::TENANT;
use crate::story::Story;

/// The kinds that marks and entries follow from.
const KINDS: [&str; 4] = ["pods", "nodes", "podprobemarkers", "nodepodprobes"];

/// The kind that a pod on a node has in [`Takeover::touched`].
const ON_NODE: &str = "pods on";
/// How long an event takes at most that no fault delays.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// The objects as they are, and what has changed in the present term.
#[derive(Default)]
pub(super) struct Takeover {
    /// The objects by plural, namespace and name.
    objects: BTreeMap<[String; 3], Arc<Value>>,
    /// The leader, if it took the Lease from another one, and when.
    leader: Option<(String, Duration)>,
    /// The identity that was in the Lease last.
    holder: String,
    /// The time of the last change by others, by plural and name.
    touched: BTreeMap<(&'static str, String), Duration>,
    /// The kinds of which the leader's watches were behind when it took the Lease.
    behind: BTreeSet<String>,
}

impl Takeover {
    /// The Lease has another holder, by identity and user, whose watches of these kinds are behind.
    pub(super) fn note_holder(
        &mut self,
        (identity, user): (&str, &str),
        now: Duration,
        behind: BTreeSet<String>,
    ) {
        self.leader = None;
        if identity.is_empty() {
            return;
        }
        let before = std::mem::replace(&mut self.holder, identity.to_owned());
        // The first one needs to know of nobody, and who takes the Lease again of nobody else.
        if is_manager(user) && !before.is_empty() && before != identity {
            self.leader = Some((user.to_owned(), now));
        }
        self.behind = behind;
    }

    /// Judges nothing before the next one.
    pub(super) fn forget_leader(&mut self) {
        self.leader = None;
    }

    /// etcd was restored: nobody knows what there is.
    pub(super) fn note_restore(&mut self, server: &ApiServer) {
        self.leader = None;
        self.objects.clear();
        for plural in KINDS {
            let objects = server
                .objects(plural)
                .into_iter()
                .map(|it| (key_of(plural, &it), it));
            self.objects.extend(objects);
        }
    }

    /// Forgets what was changed before a time, and that a leader of before then was new.
    pub(super) fn forget_before(&mut self, time: Duration) {
        self.leader.take_if(|(_, since)| *since < time + ON_ITS_WAY);
        self.touched.retain(|_, at| *at >= time);
    }

    /// Judges a change.
    pub(super) fn observe(&mut self, change: &StoredChange, ground: &Ground, story: &Story) {
        let Some(plural) = KINDS.into_iter().find(|kind| *kind == change.resource) else {
            return;
        };
        let Some(object) = change.after.as_ref().or(change.before.as_ref()) else {
            return;
        };
        let leader = self
            .leader
            .as_ref()
            .filter(|(user, _)| *user == change.user);
        let is_leaders = leader.is_some();
        let leads_since = leader.map(|(_, since)| *since);
        let since = leads_since.filter(|since| self.is_undisturbed(plural, object, *since));
        let before = since.map(|_| self.faults_of(plural, object, ground));
        match &change.after {
            Some(after) => self
                .objects
                .insert(key_of(plural, after), Arc::clone(after)),
            None => self.objects.remove(&key_of(plural, object)),
        };
        if !is_leaders {
            self.touch(plural, object, ground.elapsed());
        }
        let Some(before) = before else { return };
        let after = self.faults_of(plural, object, ground);
        if after.len() > before.len() {
            let (user, name) = (&change.user, &change.name);
            let what = format_args!("{user}: {plural} {name}: {before:?} became {after:?}");
            story.violate("a new leader knows what there is", what);
        }
    }

    fn touch(&mut self, plural: &'static str, object: &Value, now: Duration) {
        // Any marker may be the one that selects.
        let name = if plural == "podprobemarkers" {
            ""
        } else {
            text(object, "name")
        };
        self.touched.insert((plural, name.to_owned()), now);
        if plural == "pods" {
            self.touched.insert((ON_NODE, node_of(object)), now);
        }
    }

    /// Whether all is as it was when the leader began that decides on this object, which is a pod of the tenant or of a node.
    fn is_undisturbed(&self, plural: &'static str, object: &Value, since: Duration) -> bool {
        let name = text(object, "name").to_owned();
        let causes = match plural {
            "pods" if text(object, "namespace") == TENANT => {
                let node = node_of(object);
                vec![
                    ("pods", name),
                    ("nodes", node.clone()),
                    ("nodepodprobes", node),
                ]
            }
            "nodepodprobes" => vec![(ON_NODE, name.clone()), ("nodes", name)],
            _ => return false,
        };
        let markers = ("podprobemarkers", String::new());
        let mut causes = causes.iter().chain([&markers]);
        let since = since.saturating_sub(ON_ITS_WAY);
        let is_as_it_was =
            |cause: &(&'static str, String)| self.touched.get(cause).is_none_or(|at| *at < since);
        let is_known = ["pods", "nodes"]
            .iter()
            .all(|kind| !self.behind.contains(*kind));
        is_known && causes.all(is_as_it_was)
    }

    fn faults_of(&self, plural: &str, object: &Value, ground: &Ground) -> Vec<String> {
        let find = |plural: &str| {
            let is_it = |(key, _): &(&[String; 3], &Arc<Value>)| key[0] == plural;
            let objects = self.objects.iter().filter(is_it);
            objects
                .map(|(_, object)| Arc::clone(object))
                .collect::<Vec<_>>()
        };
        let nodes = find("nodes")
            .iter()
            .map(|node| text(node, "name").to_owned())
            .collect();
        Oracle::read(find, ground, nodes).faults_of(plural, text(object, "name"))
    }
}

fn key_of(plural: &str, object: &Value) -> [String; 3] {
    [plural, text(object, "namespace"), text(object, "name")].map(str::to_owned)
}

fn node_of(pod: &Value) -> String {
    pod["spec"]["nodeName"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
