//! Sets that cannot be on one pod together.
//!
//! An edit that leaves alone what a set claims and selects costs the set alone. Any other compares the set with those that
//! claim something of the same name and do not ask for another namespace or another value of a label; it affects the younger
//! ones of these with which it differs. So many sets that claim different things or select different pods cost as much as they
//! are, and as many that all claim the same of the same pods the pairs of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::SetName;
use crate::sidecarset::overlap::{self, Overlap};
use crate::sidecarset::set::{Namespaces, SidecarSet};

#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// The sets that are acted on, as they were compared last.
    compared: BTreeMap<SetName, Arc<SidecarSet>>,
    /// The sets by what they claim.
    claimants: BTreeMap<Overlap, Claimants>,
    /// The older sets that each set cannot be on a pod with.
    winners: BTreeMap<SetName, BTreeSet<SetName>>,
}

/// The sets that claim the same, by the keys of which each asks for one value.
#[derive(Debug, Default)]
struct Claimants(BTreeMap<Vec<Arc<str>>, OfKeys>);

/// The sets that ask for one value of each of the same keys.
#[derive(Debug, Default)]
struct OfKeys {
    all: BTreeSet<SetName>,
    /// The same sets by each key and value.
    by_value: BTreeMap<(Arc<str>, Arc<str>), BTreeSet<SetName>>,
}

/// The key of a set's namespace among those of its labels, none of which is empty.
const NAMESPACE: &str = "";

/// The labels, and the namespace, of which a set asks for one value.
fn single_values(set: &SidecarSet) -> BTreeMap<Arc<str>, Arc<str>> {
    let named = match &set.namespaces {
        Namespaces::Named(name) => Some((NAMESPACE.into(), name.clone())),
        Namespaces::All | Namespaces::Selected(_) => None,
    };
    let labels = set
        .selector
        .pairs()
        .filter_map(|(key, values)| match values {
            [value] => Some((key.clone(), value.clone())),
            _ => None,
        });
    labels.chain(named).collect()
}

impl Claimants {
    fn insert(&mut self, set: &SidecarSet) {
        let values = single_values(set);
        let of_keys = self.0.entry(values.keys().cloned().collect()).or_default();
        of_keys.all.insert(set.name.clone());
        for value in values {
            let sets = of_keys.by_value.entry(value).or_default();
            sets.insert(set.name.clone());
        }
    }

    fn remove(&mut self, set: &SidecarSet) {
        let values = single_values(set);
        let keys: Vec<_> = values.keys().cloned().collect();
        let Some(of_keys) = self.0.get_mut(&keys) else {
            return;
        };
        of_keys.all.remove(&set.name);
        for value in values {
            if let Some(sets) = of_keys.by_value.get_mut(&value) {
                sets.remove(&set.name);
                if sets.is_empty() {
                    of_keys.by_value.remove(&value);
                }
            }
        }
        if of_keys.all.is_empty() {
            self.0.remove(&keys);
        }
    }

    /// The sets that may select a pod that this one selects, and some that do not.
    fn that_may_meet(&self, set: &SidecarSet) -> impl Iterator<Item = &SetName> {
        let values = single_values(set);
        let none = const { &BTreeSet::new() };
        let of_keys = self.0.iter().map(move |(keys, of_keys)| {
            let common = values.iter().filter(|(key, _)| keys.contains(key));
            let agreeing = common.map(|(key, value)| {
                let value = (key.clone(), value.clone());
                of_keys.by_value.get(&value).unwrap_or(none)
            });
            let fewest = agreeing.min_by_key(|sets| sets.len());
            fewest.unwrap_or(&of_keys.all)
        });
        of_keys.flatten()
    }
}

impl Conflicts {
    /// Compares a set, which has changed, or is not acted on any more. Returns the other sets to which it is something else now:
    /// of two sets the younger gives way.
    pub(super) fn compare(
        &mut self,
        name: &SetName,
        now: Option<&Arc<SidecarSet>>,
    ) -> BTreeSet<SetName> {
        let known = self.compared.get(name).zip(now);
        if known.is_some_and(|(known, now)| known.precedence() != now.precedence()) {
            // The set was made anew, and no event showed that it was gone meanwhile.
            let mut others = self.compare(name, None);
            others.extend(self.compare(name, now));
            return others;
        }
        let before = match now {
            Some(now) => self.compared.insert(name.clone(), now.clone()),
            None => self.compared.remove(name),
        };
        if let (Some(before), Some(now)) = (&before, now)
            && before.selector == now.selector
            && before.namespaces == now.namespaces
            && overlap::claim_the_same(&before.template, &now.template)
        {
            if before.is_injection_paused == now.is_injection_paused {
                return BTreeSet::new();
            }
            // Sets that give way to it may be injected now, or not any more.
            let younger = self
                .winners
                .iter()
                .filter(|(_, winners)| winners.contains(name));
            return younger.map(|(younger, _)| younger.clone()).collect();
        }
        let mut others = BTreeSet::new();
        if let Some(before) = &before {
            for claim in overlap::claims(&before.template) {
                if let Some(claimants) = self.claimants.get_mut(&claim) {
                    claimants.remove(before);
                    others.extend(claimants.that_may_meet(before).cloned());
                    if claimants.0.is_empty() {
                        self.claimants.remove(&claim);
                    }
                }
            }
        }
        if let Some(now) = now {
            for claim in overlap::claims(&now.template) {
                let claimants = self.claimants.entry(claim).or_default();
                others.extend(claimants.that_may_meet(now).cloned());
                claimants.insert(now);
            }
        }
        // A claim may be listed twice.
        others.remove(name);
        others.retain(|other| {
            self.compare_two((before.as_ref(), now), other)
                .unwrap_or_default()
        });
        if now.is_none() {
            self.winners.remove(name);
        }
        others
    }

    /// Compares a set as it was and as it is with another one. Returns whether that is to be something else.
    fn compare_two(
        &mut self,
        (before, now): (Option<&Arc<SidecarSet>>, Option<&Arc<SidecarSet>>),
        other: &SetName,
    ) -> Option<bool> {
        let other = self.compared.get(other)?;
        let own = now.or(before)?;
        let is_older = own.precedence() < other.precedence();
        let overlap = |own: &Arc<SidecarSet>| {
            let pair = if is_older { (other, own) } else { (own, other) };
            overlap_of_sets(pair.0, pair.1)
        };
        let (was, is) = (before.and_then(overlap), now.and_then(overlap));
        let (older, newer) = if is_older { (own, other) } else { (other, own) };
        if is.is_some() {
            let winners = self.winners.entry(newer.name.clone()).or_default();
            winners.insert(older.name.clone());
        } else if let Some(winners) = self.winners.get_mut(&newer.name) {
            winners.remove(&older.name);
        }
        Some(is_older && was != is)
    }

    /// The older sets that a set cannot be on a pod with.
    pub(super) fn winners(&self, name: &str) -> impl Iterator<Item = &Arc<SidecarSet>> {
        let winners = self.winners.get(name).into_iter().flatten();
        winners.filter_map(|winner| self.compared.get(winner))
    }

    /// Whether a set is one of the older ones that another cannot be on a pod with.
    pub(super) fn is_winner(&self, older: &str, newer: &str) -> bool {
        let winners = self.winners.get(newer);
        winners.is_some_and(|winners| winners.contains(older))
    }
}

/// Finds what two sets cannot both do to a pod that both select. Where each namespace has a set of its own, all of them may
/// claim the same, and no two of them the same pod.
pub(super) fn overlap_of_sets(newer: &SidecarSet, older: &SidecarSet) -> Option<Overlap> {
    let may_meet = !newer.is_disjoint(older);
    may_meet
        .then(|| overlap::find(&newer.template, &older.template))
        .flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

    fn set(
        name: usize,
        (hour, namespace, selector, container, volume, image): (u8, u8, u8, u8, u8, u8),
    ) -> Value {
        // In an hour the first ones are younger, and two are of one age.
        let minute = (NAMES.len() - name) / 2;
        let created = format!("2026-01-01T0{hour}:0{minute}:00Z");
        let selectors = [
            json!({"matchLabels": {"app": "web"}}),
            json!({"matchLabels": {"app": "db"}}),
            json!({"matchLabels": {"app": "db", "tier": "back"}}),
            json!({"matchLabels": {"tier": "front"}}),
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}),
        ];
        let mut set = json!({
            "metadata": {"name": NAMES[name], "creationTimestamp": created},
            "spec": {
                "selector": selectors[usize::from(selector)],
                "containers": [{"name": format!("c{container}"), "image": format!("i:{image}")}],
                "volumes": [{"name": "v", "hostPath": {"path": format!("/{volume}")}}],
            },
        });
        if namespace > 0 {
            set["spec"]["namespace"] = format!("n{namespace}").into();
        }
        set
    }

    /// What each set gives way to, found by comparing all with all.
    fn naive(sets: &BTreeMap<SetName, Arc<SidecarSet>>) -> BTreeMap<(SetName, SetName), Overlap> {
        let pairs = sets
            .values()
            .flat_map(|newer| sets.values().map(move |older| (newer, older)));
        let pairs = pairs.filter(|(newer, older)| older.precedence() < newer.precedence());
        let overlaps = pairs.filter_map(|(newer, older)| {
            let overlap = overlap_of_sets(newer, older)?;
            Some(((newer.name.clone(), older.name.clone()), overlap))
        });
        overlaps.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        // SCS-78, SDF-18, SDF-28
        #[test]
        fn sets_that_change_one_after_the_other_conflict_as_all_of_them_compared(
            changes in proptest::collection::vec(
                (0..NAMES.len(), proptest::option::weighted(0.8, (0..2_u8, 0..3_u8, 0..5_u8, 0..3_u8, 0..2_u8, 0..2_u8))), 1..30,
            ),
        ) {
            let (mut conflicts, mut sets) = (Conflicts::default(), BTreeMap::new());
            for (number, change) in changes {
                let name: SetName = NAMES[number].into();
                let before = naive(&sets);
                let parsed = change.map(|change| {
                    let wire = serde_json::from_value(set(number, change)).unwrap();
                    Arc::new(SidecarSet::parse(&wire).unwrap())
                });
                let known = sets.get(&name).map(|known: &Arc<SidecarSet>| known.created);
                let is_made_anew = known.zip(parsed.as_ref()).is_some_and(|(known, now)| known != now.created);
                match &parsed {
                    Some(set) => drop(sets.insert(name.clone(), set.clone())),
                    None => drop(sets.remove(&name)),
                }
                let affected = conflicts.compare(&name, parsed.as_ref());
                let after = naive(&sets);
                let mut winners = BTreeSet::new();
                for newer in NAMES.map(SetName::from) {
                    let older = conflicts.winners(&newer).map(|older| (newer.clone(), older.name.clone()));
                    winners.extend(older);
                }
                prop_assert_eq!(&winners, &after.keys().cloned().collect());
                let of = |all: &BTreeMap<(SetName, SetName), Overlap>, newer: &str| -> Vec<_> {
                    let own = all.iter().filter(|((own, _), _)| **own == *newer);
                    own.map(|((_, older), overlap)| (older.clone(), overlap.clone())).collect()
                };
                let changed = NAMES.into_iter().filter(|newer| **newer != *name && of(&before, newer) != of(&after, newer));
                let mut changed: BTreeSet<_> = changed.map(SetName::from).collect();
                if is_made_anew {
                    // Some are affected to which it is what it was.
                    changed.extend(affected.iter().filter(|other| **other != name).cloned());
                }
                prop_assert_eq!(affected, changed);
            }
            for name in NAMES {
                conflicts.compare(&name.into(), None);
            }
            prop_assert!(conflicts.claimants.is_empty() && conflicts.winners.values().all(BTreeSet::is_empty));
        }
    }
}
