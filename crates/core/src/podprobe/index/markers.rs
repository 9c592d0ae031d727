//! Markers in the index: which pods they match, what is counted of them, and their status.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::{PodProbeMarker, PodProbeMarkerStatus};

use super::cycles::{Releases, Stop};
use super::{DueWrite, Index, MarkerName, Pass, Sent, Timer};
use crate::cluster::{Invalid, Now, ObjectName, ResourceVersion, Selector, Source};
use crate::podprobe::contest::{Contest, fingerprint};
use crate::podprobe::event::{Kind, Write, WriteTarget};
use crate::podprobe::marker::Marker;
use crate::podprobe::pod::Pod;
use crate::podprobe::status::{self, Circumstances, Tally, Trouble};

/// A marker.
#[derive(Debug)]
pub(super) struct MarkerState {
    pub(super) version: ResourceVersion,
    pub(super) uid: String,
    generation: i64,
    /// The resourceVersion as it is written.
    pub(super) resource_version: Option<String>,
    pub(super) finalizers: Vec<String>,
    /// Being deleted, it is let go then, whatever is left of it.
    pub(super) held_until: Option<Duration>,
    status: PodProbeMarkerStatus,
    pub(super) status_contest: Contest,
    pub(super) finalizer_contest: Contest,
    pub(super) contest_timer: Option<Duration>,
    pub(super) rules: Rules,
    /// The pods that have a share in the tally.
    pub(super) pods: BTreeSet<Arc<ObjectName>>,
    pub(super) tally: Tally,
    pub(super) releases: Releases,
}

/// What a marker asks for.
#[derive(Debug)]
pub(super) enum Rules {
    /// It is acted on.
    Valid(Marker),
    /// It could be acted on, but would never come to rest.
    Stopped(Marker, Stop),
    /// It is not acted on, and says why.
    Refused(Trouble, String),
    /// It is being deleted, and is as good as gone.
    Ending,
}

impl Rules {
    fn selector(&self) -> Option<&Selector> {
        match self {
            Self::Valid(marker) => Some(&marker.selector),
            Self::Stopped(..) | Self::Refused(..) | Self::Ending => None,
        }
    }

    /// The marker, as far as it is part of what markers feed each other, or would be.
    pub(super) fn in_feeds(&self) -> Option<&Marker> {
        match self {
            Self::Valid(marker) | Self::Stopped(marker, Stop::Loop(_)) => Some(marker),
            Self::Stopped(_, Stop::Release(_)) | Self::Refused(..) | Self::Ending => None,
        }
    }
}

/// Markers by a label pair that they require: the one that, when a marker came, the fewest others were under. Markers
/// of a namespace often have a pair in common, and all of them would be matched for each pod that bears it.
#[derive(Debug, Default)]
pub(super) struct Selectors {
    namespaces: HashMap<String, Candidates>,
}

type MarkersByValue = BTreeMap<Arc<str>, BTreeSet<MarkerName>>;

#[derive(Debug, Default)]
struct Candidates {
    by_pair: HashMap<Arc<str>, MarkersByValue>,
    rest: BTreeSet<MarkerName>,
}

impl Candidates {
    /// How many markers are under a label with one of these values.
    fn crowd(&self, key: &str, values: &[Arc<str>]) -> usize {
        let by_value = self.by_pair.get(key);
        let crowd = |value| by_value.and_then(|by_value| by_value.get(value));
        values.iter().filter_map(crowd).map(BTreeSet::len).sum()
    }
}

impl Selectors {
    fn insert(&mut self, marker: &MarkerName, selector: &Selector) {
        let candidates = self.namespaces.entry(marker.namespace.clone()).or_default();
        let least = selector
            .pairs()
            .min_by_key(|(key, values)| (candidates.crowd(key, values), values.len()));
        match least {
            Some((key, values)) => {
                let by_value = candidates.by_pair.entry(key.clone()).or_default();
                for value in values {
                    let markers = by_value.entry(value.clone()).or_default();
                    markers.insert(marker.clone());
                }
            }
            None => {
                candidates.rest.insert(marker.clone());
            }
        }
    }

    fn remove(&mut self, marker: &MarkerName, selector: &Selector) {
        let Some(candidates) = self.namespaces.get_mut(&marker.namespace) else {
            return;
        };
        candidates.rest.remove(marker);
        // It is under one of them.
        for (key, values) in selector.pairs() {
            let Some(by_value) = candidates.by_pair.get_mut(key) else {
                continue;
            };
            for value in values {
                if let Some(markers) = by_value.get_mut(value)
                    && markers.remove(marker)
                    && markers.is_empty()
                {
                    by_value.remove(value);
                }
            }
            if by_value.is_empty() {
                candidates.by_pair.remove(key);
            }
        }
        if candidates.rest.is_empty() && candidates.by_pair.is_empty() {
            self.namespaces.remove(&marker.namespace);
        }
    }

    /// Markers that may match, each once; all that do are among them.
    fn candidates<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a MarkerName> {
        let candidates = self.namespaces.get(&pod.name.namespace);
        candidates.into_iter().flat_map(|candidates| {
            let pairs = pod.labels.iter();
            let by_pair = pairs
                .filter_map(|(key, value)| candidates.by_pair.get(key)?.get(value))
                .flatten();
            by_pair.chain(&candidates.rest)
        })
    }
}

impl Index {
    /// The markers that match a pod, the one that goes first in front: the older, then by name.
    pub(super) fn matching(&self, pod: &Pod) -> Vec<MarkerName> {
        if !pod.is_target() {
            return Vec::new();
        }
        let label = |key: &str| pod.labels.get(key).map(|value| &**value);
        let mut found: Vec<_> = self
            .selectors
            .candidates(pod)
            .filter_map(|name| Some((self.marker(name)?.created, name)))
            .filter(|(_, name)| {
                self.marker(name)
                    .is_some_and(|marker| marker.selector.matches(label))
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// A marker that is acted on.
    pub(super) fn marker(&self, name: &ObjectName) -> Option<&Marker> {
        match &self.markers.get(name)?.rules {
            Rules::Valid(marker) => Some(marker),
            Rules::Stopped(..) | Rules::Refused(..) | Rules::Ending => None,
        }
    }

    pub(super) fn see_marker(&mut self, wire: &PodProbeMarker, source: Source, pass: &mut Pass) {
        let meta = &wire.metadata;
        let name = Arc::new(ObjectName::of(meta));
        let version = ResourceVersion::parse(meta.resource_version.as_deref());
        let status = wire.status.clone().unwrap_or_default();
        let known = self.markers.get(&name).map(|marker| marker.version);
        if self
            .watches
            .is_stale(source, Kind::Marker, &name, version, known)
        {
            return;
        }
        self.let_go(Kind::Marker, &name, pass);
        let rules = self.stay_stopped(&name, self.rules(wire));
        let uid = meta.uid.clone().unwrap_or_default();
        let generation = meta.generation.unwrap_or_default();
        self.refused
            .remove(&WriteTarget::MarkerStatus((*name).clone()));
        self.refused
            .remove(&WriteTarget::MarkerFinalizer((*name).clone()));
        pass.markers.insert(name.clone());
        let resource_version = meta.resource_version.clone();
        let finalizers = meta.finalizers.clone().unwrap_or_default();
        if let Some(known) = self.markers.get_mut(&name)
            && known.uid == uid
            && is_same(&known.rules, &rules)
        {
            if known.generation != generation {
                known.releases = Releases::default();
            }
            known.version = version;
            known.generation = generation;
            known.resource_version = resource_version;
            known.finalizers = finalizers;
            known.status = status;
            known.rules = rules;
            return;
        }
        let before = self.withdraw(&name, pass);
        let names = wire.spec.probes.iter().map(|probe| probe.name.as_str());
        let tally = Tally::new(names);
        let same = before.as_ref().filter(|before| before.uid == uid);
        let contest = |of: fn(&MarkerState) -> Contest| same.map(of).unwrap_or_default();
        let state = MarkerState {
            version,
            uid,
            generation,
            resource_version,
            finalizers,
            held_until: None,
            status,
            status_contest: contest(|marker| marker.status_contest),
            finalizer_contest: contest(|marker| marker.finalizer_contest),
            contest_timer: same.and_then(|before| before.contest_timer),
            rules,
            pods: BTreeSet::new(),
            tally,
            releases: Releases::default(),
        };
        let before = before.as_ref().and_then(|before| before.rules.selector());
        self.enter(&name, state, before, pass);
        self.limit_deletion(&name, pass.now);
    }

    /// Lets a marker in that is not there. Pods that it selects are worked out again, unless it selected them `before`: then
    /// they are to be already.
    fn enter(
        &mut self,
        name: &MarkerName,
        state: MarkerState,
        before: Option<&Selector>,
        pass: &mut Pass,
    ) {
        if let Some(marker) = state.rules.in_feeds() {
            let stopped = matches!(state.rules, Rules::Stopped(..));
            if self.feeds.insert(name, marker, stopped) {
                pass.loops.insert(name.namespace.clone());
            }
        }
        if let Some(selector) = state.rules.selector() {
            self.selectors.insert(name, selector);
        }
        if let Some(selector) = state.rules.selector()
            && self.synced
            && before != Some(selector)
        {
            let pods = self.namespaces.get(&name.namespace);
            for pod in pods.into_iter().flatten() {
                let seen = self.pods.get(pod).map(|known| &known.seen);
                let label = |key: &str| seen?.labels.get(key).map(|value| &**value);
                if selector.matches(label) {
                    pass.pods.insert(pod.clone());
                }
            }
        }
        self.markers.insert(name.clone(), state);
    }

    /// A marker that is stopped goes on otherwise than by being seen again: see `cycles`.
    fn stay_stopped(&self, name: &ObjectName, rules: Rules) -> Rules {
        let known = self.markers.get(name).map(|known| &known.rules);
        match (known, rules) {
            (Some(Rules::Stopped(known, stop)), Rules::Valid(new))
                if known.uid == new.uid
                    && asks_the_same(known, &new)
                    && (matches!(stop, Stop::Loop(_)) || known.generation == new.generation) =>
            {
                Rules::Stopped(new, stop.clone())
            }
            (_, rules) => rules,
        }
    }

    /// Acts on a marker otherwise than before, though it was not edited.
    pub(super) fn replace_rules(&mut self, name: &MarkerName, rules: Rules, pass: &mut Pass) {
        let Some(mut state) = self.withdraw(name, pass) else {
            return;
        };
        if let Rules::Valid(marker) | Rules::Stopped(marker, _) = &rules {
            state.tally = Tally::new(marker.probes.iter().map(|probe| &*probe.name));
        }
        state.pods = BTreeSet::new();
        state.rules = rules;
        pass.markers.insert(name.clone());
        self.enter(name, state, None, pass);
    }

    /// Takes note of whether the API server keeps more of a marker's status than two numbers.
    pub(super) fn set_summaries(&mut self, summaries: bool, pass: &mut Pass) {
        if std::mem::replace(&mut self.summaries, summaries) != summaries {
            pass.markers.extend(self.markers.keys().cloned());
        }
    }

    /// Takes note of how a marker's status and finalizers differ from what is wanted, and returns what of them is to be
    /// written now.
    pub(super) fn observe_marker(&mut self, name: &MarkerName, now: Now) -> Vec<WriteTarget> {
        let Some(marker) = self.markers.get(name) else {
            return Vec::new();
        };
        let status = self.status_wanted(name, marker, now);
        let wanted_status = fingerprint_of_status(status.as_ref().unwrap_or(&marker.status));
        let finalizers = self.finalizers_wanted(name, marker, now);
        let wanted_finalizers = fingerprint(finalizers.as_ref().unwrap_or(&marker.finalizers));
        let Some(marker) = self.markers.get_mut(name) else {
            return Vec::new();
        };
        let now = now.monotonic;
        let contest = &mut marker.status_contest;
        contest.observe(wanted_status, status.is_some(), now);
        let status = status.filter(|_| !contest.holds(now));
        let contest = &mut marker.finalizer_contest;
        contest.observe(wanted_finalizers, finalizers.is_some(), now);
        let finalizers = finalizers.filter(|_| !contest.holds(now));
        let contests = [marker.status_contest, marker.finalizer_contest];
        let next = contests
            .iter()
            .filter_map(|contest| contest.deadline(now))
            .min();
        let before = std::mem::replace(&mut marker.contest_timer, next);
        if before != next {
            let timer = |time| (time, Timer::Marked(name.clone()));
            before.map(|time| self.timers.remove(&timer(time)));
            self.timers.extend(next.map(timer));
        }
        let status = status.map(|_| WriteTarget::MarkerStatus((**name).clone()));
        let finalizers = finalizers.map(|_| WriteTarget::MarkerFinalizer((**name).clone()));
        status.into_iter().chain(finalizers).collect()
    }

    fn rules(&self, wire: &PodProbeMarker) -> Rules {
        if wire.metadata.deletion_timestamp.is_some() {
            return Rules::Ending;
        }
        match Marker::parse(wire, self.config.compatibility) {
            Ok(marker) => Rules::Valid(marker),
            Err(errors) => {
                let trouble = if reads_what_it_writes(wire) {
                    Trouble::Cycle
                } else {
                    Trouble::InvalidSpec
                };
                let errors: Vec<_> = errors.iter().map(Invalid::to_string).collect();
                Rules::Refused(trouble, errors.join("; "))
            }
        }
    }

    /// Takes a marker's share back from all its pods, which are to be worked out again.
    fn withdraw(&mut self, name: &ObjectName, pass: &mut Pass) -> Option<MarkerState> {
        let (name, _) = self.markers.get_key_value(name)?;
        let name = name.clone();
        self.unlimit_deletion(&name);
        let state = self.markers.remove(&name)?;
        if let Some(selector) = state.rules.selector() {
            self.selectors.remove(&name, selector);
        }
        if let Some(marker) = state.rules.in_feeds()
            && self.feeds.remove(&name, marker)
        {
            pass.loops.insert(name.namespace.clone());
        }
        for pod in &state.pods {
            if let Some(pod) = self.pods.get_mut(pod) {
                pod.shares.retain(|(marker, _)| *marker != name);
            }
            pass.pods.insert(pod.clone());
        }
        Some(state)
    }

    pub(super) fn lose_marker(
        &mut self,
        name: &ObjectName,
        pass: &mut Pass,
    ) -> Option<ResourceVersion> {
        let state = self.withdraw(name, pass)?;
        self.refused
            .remove(&WriteTarget::MarkerStatus(name.clone()));
        self.refused
            .remove(&WriteTarget::MarkerFinalizer(name.clone()));
        Some(state.version)
    }

    pub(super) fn status_due(&self, name: &ObjectName, now: Now) -> Option<DueWrite> {
        let marker = self.markers.get(name)?;
        if marker.status_contest.holds(now.monotonic) {
            return None;
        }
        let status = self.status_wanted(name, marker, now)?;
        let wanted = fingerprint_of_status(&status);
        Some(DueWrite {
            write: Write::MarkerStatus {
                marker: name.clone(),
                uid: marker.uid.clone(),
                status: Box::new(status),
            },
            sent: Sent::whole(wanted, true),
        })
    }

    /// The status that a marker should have, if it has another.
    fn status_wanted(
        &self,
        name: &ObjectName,
        marker: &MarkerState,
        now: Now,
    ) -> Option<PodProbeMarkerStatus> {
        let refused = match &marker.rules {
            Rules::Valid(_) => None,
            Rules::Stopped(_, stop) => Some((&Trouble::Cycle, stop.message())),
            Rules::Refused(trouble, errors) => Some((trouble, errors.as_str())),
            Rules::Ending => return None,
        };
        let circumstances = Circumstances {
            generation: marker.generation,
            acknowledged: !self.unacknowledged.contains_key(name),
            refused,
            status: &marker.status,
            summaries: self.summaries,
        };
        status::difference(&marker.tally, &circumstances, now.wall)
    }
}

/// Stands for a status, whatever its times are.
fn fingerprint_of_status(status: &PodProbeMarkerStatus) -> u64 {
    let probes = status.probes.iter().map(|probe| {
        let counts = [
            probe.succeeded,
            probe.failed,
            probe.unknown,
            probe.pending,
            probe.silent,
        ];
        (&probe.name, counts)
    });
    let conditions = status.conditions.iter();
    let conditions = conditions.map(|one| (&one.type_, &one.status, &one.reason, &one.message));
    fingerprint((
        status.observed_generation,
        status.matched_pods,
        probes.collect::<Vec<_>>(),
        conditions.collect::<Vec<_>>(),
    ))
}

/// Whether nothing needs to be worked out again; a generation alone changes nothing.
fn is_same(known: &Rules, new: &Rules) -> bool {
    match (known, new) {
        (Rules::Valid(known), Rules::Valid(new)) => asks_the_same(known, new),
        (Rules::Stopped(known, stop), Rules::Stopped(new, same)) => {
            stop == same && asks_the_same(known, new)
        }
        (Rules::Ending, Rules::Ending) => true,
        // The names of the probes may have changed too.
        _ => false,
    }
}

fn asks_the_same(known: &Marker, new: &Marker) -> bool {
    known.selector == new.selector && known.probes == new.probes && known.created == new.created
}

/// Whether a marker writes a label that its own selector reads.
fn reads_what_it_writes(wire: &PodProbeMarker) -> bool {
    let selector = &wire.spec.selector;
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    let keys: BTreeSet<_> = labels
        .map(|(key, _)| key)
        .chain(expressions.map(|expression| &expression.key))
        .collect();
    let policies = wire
        .spec
        .probes
        .iter()
        .flat_map(|probe| &probe.marker_policy);
    let mut written = policies.flat_map(|policy| policy.labels.keys());
    written.any(|key| keys.contains(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::Interners;

    #[test]
    fn markers_are_not_looked_up_by_a_pair_that_all_of_them_have() {
        let mut selectors = Selectors::default();
        let markers: Vec<_> = (0..100)
            .map(|number| {
                let wire = json!({ "matchLabels": { "app": "game", "shard": number.to_string() } });
                let selector = Selector::parse(&serde_json::from_value(wire).unwrap()).unwrap();
                let name = ObjectName {
                    namespace: "a".to_owned(),
                    name: format!("m{number}"),
                };
                (Arc::new(name), selector)
            })
            .collect();
        for (marker, selector) in &markers {
            selectors.insert(marker, selector);
        }
        let pod =
            json!({ "metadata": { "namespace": "a", "labels": { "app": "game", "shard": "7" } } });
        let pod = Pod::new(
            &serde_json::from_value(pod).unwrap(),
            None,
            &mut Interners::default(),
        );
        let candidates: Vec<_> = selectors.candidates(&pod).collect();
        assert!(candidates.contains(&&markers[7].0));
        assert!(candidates.len() <= 2, "{candidates:?}");
        for (marker, selector) in &markers {
            selectors.remove(marker, selector);
        }
        assert!(selectors.namespaces.is_empty());
    }
}
