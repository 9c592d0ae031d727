//! Markers that would never let the cluster come to rest. They are stopped: no entries, and their marks go.
//!
//! *Loops.* The policies of a marker set a label that another one's selector reads, and so on back to the first. Told from
//! the specs alone, before any verdict: of a namespace's markers, from the oldest to the youngest, the one that closes a loop
//! among those before it is stopped. It goes on when the loop is gone. (A marker that reads its own label is not valid.)
//!
//! *Released pods.* A label that a marker sets is in a workload's selector. The workload's controller lets a pod go whose labels
//! do not match any more (`ReleasePod`, `pkg/controller/controller_ref_manager.go`) and makes another one in its place,
//! which is marked too: pods without end. Told from what is seen: pods with the marker's labels lose their controller, and
//! one of them came only after others had lost the same. It goes on when its spec is edited; what was counted is
//! forgotten with the process, and counted anew.
//!
//! Marks go rather than stay because a pod without them may be one that the workload takes back.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::markers::Rules;
use super::{Index, MarkerName, Pass};
use crate::cluster::ObjectName;
use crate::podprobe::marker::Marker;
use crate::podprobe::pod::Pod;

/// Why a marker is stopped, with the message for its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It and others feed each other's selector.
    Loop(String),
    /// Its labels make a workload let its pods go.
    Release(String),
}

impl Stop {
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Loop(message) | Self::Release(message) => message,
        }
    }
}

/// The label keys that the markers of each namespace set and read.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    namespaces: HashMap<String, Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    set: BTreeMap<Arc<str>, BTreeSet<MarkerName>>,
    read: BTreeMap<Arc<str>, BTreeSet<MarkerName>>,
    /// Those that are stopped for a loop.
    stopped: BTreeSet<MarkerName>,
}

impl Feeds {
    /// Takes note of a marker. Whether a loop may go through it.
    pub(super) fn insert(&mut self, name: &MarkerName, marker: &Marker, stopped: bool) -> bool {
        let keys = self.namespaces.entry(name.namespace.clone()).or_default();
        for (map, own) in [
            (&mut keys.set, labels_set(marker)),
            (&mut keys.read, labels_read(marker)),
        ] {
            for key in own {
                map.entry(key).or_default().insert(name.clone());
            }
        }
        if stopped {
            keys.stopped.insert(name.clone());
        }
        keys.may_loop(marker)
    }

    /// Forgets a marker. Whether a loop may have gone through it.
    pub(super) fn remove(&mut self, name: &MarkerName, marker: &Marker) -> bool {
        let Some(keys) = self.namespaces.get_mut(&name.namespace) else {
            return false;
        };
        let may_loop = keys.may_loop(marker);
        for (map, own) in [
            (&mut keys.set, labels_set(marker)),
            (&mut keys.read, labels_read(marker)),
        ] {
            for key in own {
                if let Some(markers) = map.get_mut(&key) {
                    markers.remove(name);
                    if markers.is_empty() {
                        map.remove(&key);
                    }
                }
            }
        }
        keys.stopped.remove(name);
        if keys.set.is_empty() && keys.read.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
        may_loop
    }

    fn namespaces(&self) -> Vec<String> {
        self.namespaces.keys().cloned().collect()
    }
}

impl Keys {
    /// Whether it sets what is read, and reads what is set.
    fn may_loop(&self, marker: &Marker) -> bool {
        let is_in = |map: &BTreeMap<Arc<str>, _>, own: BTreeSet<Arc<str>>| {
            own.iter().any(|key| map.contains_key(key))
        };
        is_in(&self.read, labels_set(marker)) && is_in(&self.set, labels_read(marker))
    }

    /// The markers that set what is read and read what is set, and those that are stopped.
    fn members(&self) -> BTreeSet<MarkerName> {
        let fed = |from: &BTreeMap<Arc<str>, BTreeSet<MarkerName>>,
                   to: &BTreeMap<Arc<str>, BTreeSet<MarkerName>>| {
            let both = from.iter().filter(|(key, _)| to.contains_key(*key));
            let markers = both.flat_map(|(_, markers)| markers).cloned();
            markers.collect::<BTreeSet<_>>()
        };
        let setters = fed(&self.set, &self.read);
        let mut members: BTreeSet<_> = setters
            .intersection(&fed(&self.read, &self.set))
            .cloned()
            .collect();
        members.extend(self.stopped.iter().cloned());
        members
    }
}

/// The label keys that its policies name.
fn labels_set(marker: &Marker) -> BTreeSet<Arc<str>> {
    let probes = marker.probes.iter();
    let policies = probes.flat_map(|probe| probe.succeeded.iter().chain(&probe.failed));
    policies
        .flat_map(|policy| policy.labels.keys())
        .cloned()
        .collect()
}

/// The label keys that its selector reads.
fn labels_read(marker: &Marker) -> BTreeSet<Arc<str>> {
    marker.selector.keys().cloned().collect()
}

/// Whether no pod is ever selected by both: they require different values of a label that no marker sets.
fn are_disjoint(one: &Marker, other: &Marker, keys: &Keys) -> bool {
    let of_one = one.selector.pairs();
    let mut fixed = of_one.filter(|(key, _)| !keys.set.contains_key(*key));
    fixed.any(|(key, values)| {
        let mut of_other = other.selector.pairs().filter(|(own, _)| *own == key);
        of_other.any(|(_, others)| !values.iter().any(|value| others.contains(value)))
    })
}

/// The first key that one sets and the other reads on the same pods.
fn feeds(from: &Marker, to: &Marker, keys: &Keys) -> Option<Arc<str>> {
    let read = labels_read(to);
    let key = labels_set(from)
        .into_iter()
        .find(|key| read.contains(key))?;
    (!are_disjoint(from, to, keys)).then_some(key)
}

/// The way from a marker through those in force back to it: each key that is set, and the marker that reads it.
fn closed_loop<'a>(
    in_force: &[&'a Marker],
    new: &'a Marker,
    keys: &Keys,
) -> Option<Vec<(Arc<str>, &'a Marker)>> {
    let mut ways = VecDeque::from([(new, Vec::new())]);
    let mut seen = BTreeSet::new();
    while let Some((at, way)) = ways.pop_front() {
        let reach = |to: &'a Marker| Some([way.clone(), vec![(feeds(at, to, keys)?, to)]].concat());
        // One marker alone feeds itself only where it is not valid.
        if !way.is_empty()
            && let Some(closed) = reach(new)
        {
            return Some(closed);
        }
        for next in in_force {
            if !seen.contains(&next.name)
                && let Some(way) = reach(next)
            {
                seen.insert(&next.name);
                ways.push_back((next, way));
            }
        }
    }
    None
}

fn loop_message(way: &[(Arc<str>, &Marker)]) -> String {
    let steps = way.iter().enumerate().map(|(place, (key, reader))| {
        let reader = &reader.name.name;
        match place {
            0 => format!("it sets label {key}, which marker {reader} selects by"),
            _ if place + 1 == way.len() => format!("which sets {key}, which this one selects by"),
            _ => format!("which sets {key}, which marker {reader} selects by"),
        }
    });
    let steps: Vec<_> = steps.collect();
    format!(
        "it would go round with other markers for ever, and is stopped: {}; choose other labels, or delete one of them",
        steps.join(", ")
    )
}

/// Pods with a marker's labels that lost their controller.
#[derive(Debug, Default)]
pub(super) struct Releases {
    seen: VecDeque<Release>,
}

#[derive(Debug)]
struct Release {
    controller: Arc<str>,
    pod: Arc<ObjectName>,
    keys: BTreeSet<Arc<str>>,
    /// When the pod was first seen, and when it lost its controller; both monotonic.
    pod_since: Duration,
    at: Duration,
}

impl Releases {
    /// So many within [`Releases::WITHIN`] are no accident.
    const ENOUGH: usize = 3;
    const WITHIN: Duration = Duration::from_mins(10);
    const MOST: usize = 64;

    /// Counts one more. The message, if they have no end: there are enough of one controller, and one of the pods was
    /// made after another had been released. Where somebody orphans the pods of a workload, none is.
    fn count(&mut self, release: Release) -> Option<String> {
        let (now, controller) = (release.at, release.controller.clone());
        self.seen.push_back(release);
        while let Some(first) = self.seen.front()
            && (now.saturating_sub(first.at) > Self::WITHIN || self.seen.len() > Self::MOST)
        {
            self.seen.pop_front();
        }
        let same = || {
            let seen = self.seen.iter();
            seen.filter(|release| release.controller == controller)
        };
        let first = same().map(|release| release.at).min()?;
        let replaced = same().any(|release| release.pod_since > first);
        if !replaced || same().count() < Self::ENOUGH {
            return None;
        }
        let pods: Vec<_> = same().map(|release| release.pod.name.as_str()).collect();
        let pods = &pods[pods.len() - Self::ENOUGH..];
        let keys: BTreeSet<_> = same().flat_map(|release| &release.keys).collect();
        let keys: Vec<_> = keys.iter().map(|key| &***key).collect();
        Some(format!(
            "with label {} set, pods {} left their workload, whose selector reads it, and which makes new pods without end; this marker is stopped: take the label out of its policies",
            keys.join(" or "),
            pods.join(", "),
        ))
    }
}

impl Index {
    /// Looks for loops in all namespaces.
    pub(super) fn break_all_loops(&mut self, pass: &mut Pass) {
        pass.loops = self.feeds.namespaces().into_iter().collect();
        self.break_loops(pass);
    }

    /// Looks for loops in the namespaces where there may be other ones than before.
    pub(super) fn break_loops(&mut self, pass: &mut Pass) {
        for namespace in std::mem::take(&mut pass.loops) {
            for (marker, stop) in self.loops(&namespace) {
                self.stop(&marker, stop, pass);
            }
        }
        // Those that were entered anew.
        pass.loops.clear();
    }

    /// The markers of a namespace that may be in a loop, and why they are stopped, if they are.
    fn loops(&self, namespace: &str) -> Vec<(MarkerName, Option<Stop>)> {
        let Some(keys) = self.feeds.namespaces.get(namespace) else {
            return Vec::new();
        };
        let members = keys.members().into_iter();
        let known = members.filter_map(|name| {
            let rules = &self.markers.get_key_value(&name)?.1.rules;
            Some((rules.in_feeds()?, name))
        });
        let mut members: Vec<(&Marker, MarkerName)> = known.collect();
        let age = |marker: &Marker, name: &MarkerName| -> (Timestamp, MarkerName) {
            (marker.created, name.clone())
        };
        members.sort_by_key(|(marker, name)| age(marker, name));
        let (mut in_force, mut judged) = (Vec::new(), Vec::new());
        for (marker, name) in members {
            let closed = closed_loop(&in_force, marker, keys);
            if closed.is_none() {
                in_force.push(marker);
            }
            judged.push((name, closed.map(|way| Stop::Loop(loop_message(&way)))));
        }
        judged
    }

    /// Stops a marker, or lets it go on.
    fn stop(&mut self, name: &MarkerName, stop: Option<Stop>, pass: &mut Pass) {
        let Some(known) = self.markers.get(name).map(|marker| &marker.rules) else {
            return;
        };
        let rules = match (known, stop) {
            (Rules::Stopped(_, known), Some(stop)) if *known == stop => return,
            (Rules::Valid(marker) | Rules::Stopped(marker, _), Some(stop)) => {
                Rules::Stopped(marker.clone(), stop)
            }
            (Rules::Stopped(marker, _), None) => Rules::Valid(marker.clone()),
            (Rules::Valid(_) | Rules::Refused(..) | Rules::Ending, _) => return,
        };
        self.replace_rules(name, rules, pass);
    }

    /// Counts a pod that has lost its controller against the markers whose labels it has.
    pub(super) fn count_release(&mut self, controller: &Arc<str>, pod: &Pod, pass: &mut Pass) {
        let Some(state) = self.pods.get(&pod.name) else {
            return;
        };
        let pod_since = state.since;
        let markers: Vec<_> = state
            .shares
            .iter()
            .map(|(marker, _)| marker.clone())
            .collect();
        for name in markers {
            let Some(marker) = self.markers.get_mut(&name) else {
                continue;
            };
            let Rules::Valid(rules) = &marker.rules else {
                continue;
            };
            let mut keys = labels_set(rules);
            keys.retain(|key| pod.ours.labels.contains_key(key));
            if keys.is_empty() {
                continue;
            }
            let endless = marker.releases.count(Release {
                controller: controller.clone(),
                pod: pod.name.clone(),
                keys,
                pod_since,
                at: pass.now.monotonic,
            });
            if let Some(message) = endless {
                self.stop(&name, Some(Stop::Release(message)), pass);
            }
        }
    }
}
