//! `SidecarSet` as a feature of the kernel (`leadsman-reconcile`): what is known of the cluster, and the writes that follow
//! from it.
//!
//! A set is a key, whose run classifies its pods and plans its roll-out, its hashes, its revisions and its status. A pod is
//! one for what it needs by itself: the condition that says whether it can be upgraded, and the end of a hot upgrade. A write
//! that is under way is part of what is known ([`leadsman_reconcile::Store::assumed`]).
//!
//! | module | holds |
//! |---|---|
//! | `world` | the stores, and what follows from several objects |
//! | `revisions` | the revisions of sets as they are stored |
//! | `watches` | which keys a change affects |
//! | `member` | what a pod is to a set that it was injected by, and why it lacks one |
//! | `review` | a set with all of its pods: the roll-out, counts, what is wrong |
//! | `set_writes`, `pod_writes`, `status`, `history` | the writes of a set, of a pod, of a status, of revisions |
//! | `writes` | their kinds and classes |
//! | `in_force` | from which generation on the webhooks inject a set |
//! | `conflicts` | which sets cannot be on one pod together |
//! | `publish` | what webhooks and metrics answer by |
//! | `reason` | what a set's condition may say |
//! | `inspect` | what is known of a pod or a set, for those who explain it |

mod conflicts;
mod history;
mod in_force;
mod inspect;
mod member;
mod pod_writes;
mod publish;
mod reason;
mod review;
mod revisions;
mod set_writes;
mod status;
#[cfg(test)]
mod tests;
mod watches;
mod world;
mod writes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use leadsman_reconcile::{Class, Feature, Key, Plan, WriteKind};

use self::in_force::InForceMemory;
pub use self::inspect::{InspectedMembership, InspectedSet, Inspection, SetByName, Turn};
pub use self::member::{Hold, Lack};
pub use self::publish::{Publisher, REASONS, SetTotals};
pub use self::reason::{READY, Reason, ReasonFacts};
use self::review::Selection;
pub use self::review::SetSums;
pub use self::revisions::StoredRevision;
pub use self::world::{Configuration, SetWorld, StoredNamespace, StoredPod, StoredSet};
use super::condition::WhenWritten;
use super::metadata::AllowedKeys;
use super::render::RenderOptions;
use super::set::{FailurePolicy, SidecarSet};
use crate::cluster::{Interners, PodName};

/// Name of a set.
pub type SetName = Arc<str>;

/// The settings of the feature.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace of the manager: of revisions and of the whitelist.
    pub namespace: String,
    /// Whether sets may patch any annotation where the whitelist has no rule for them.
    pub allows_unlisted_metadata: bool,
    /// The rule by which a pod gets the condition that says whether it can be upgraded.
    pub condition: WhenWritten,
    /// How sets are injected.
    pub render: RenderOptions,
    /// The fate of a pod without an answer, if API servers call for all pods, and not for those of the sets alone.
    pub standing_rule: Option<FailurePolicy>,
    /// The namespaces whose pods are never refused, beside `kube-system` and that of the manager.
    pub protected_namespaces: Vec<String>,
    /// Whether pods that a pin has kept from the newest revision are upgraded like others, as `OpenKruise` does.
    pub upgrades_pinned: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: leadsman_api::DEFAULT_NAMESPACE.to_owned(),
            allows_unlisted_metadata: false,
            condition: WhenWritten::default(),
            render: RenderOptions::default(),
            standing_rule: None,
            protected_namespaces: Vec::new(),
            upgrades_pinned: false,
        }
    }
}

/// The feature.
pub struct SidecarSets {
    config: Config,
    /// Values that many pods have in common, kept once.
    interners: RefCell<Interners>,
    publisher: Box<dyn Publisher>,
}

impl SidecarSets {
    /// The feature with its settings. What webhooks and metrics answer by goes to the publisher.
    pub fn new(config: Config, publisher: impl Publisher) -> Self {
        Self {
            config,
            interners: RefCell::default(),
            publisher: Box::new(publisher),
        }
    }

    /// The annotations that a set may patch.
    fn allowed_keys<'a>(&self, set: &'a SidecarSet, world: &'a SetWorld) -> AllowedKeys<'a> {
        let label = |key: &str| set.labels.get(key).map(String::as_str);
        world
            .rules()
            .allowed_keys(label, self.config.allows_unlisted_metadata)
    }
}

/// An object that is looked at by itself. A pod comes before the sets, as its run changes what they count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetKey {
    /// A pod.
    Pod(PodName),
    /// A set.
    Set(SetName),
}

impl Key for SetKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(name) => &name.namespace,
            Self::Set(_) => "",
        }
    }
}

/// The memory of each set.
type Sets = BTreeMap<SetName, SetMemory>;

/// Facts about a set that no object shows, or that are found again only by looking at many.
#[derive(Default)]
pub struct SetMemory {
    in_force: InForceMemory,
    /// The facts by which the pods that lack it were found.
    selection: Option<Selection>,
    /// The pods that it selects and that lack it.
    lacking: BTreeMap<PodName, Lack>,
    /// The differences of the set from each revision that pods were injected with, as far as they are in no hash.
    drift: Drift,
    sums: SetSums,
}

/// Parts of a set that differ in each revision that pods were injected with, and the set of that.
#[derive(Default)]
struct Drift {
    of: Option<Arc<SidecarSet>>,
    parts: BTreeMap<Arc<str>, Vec<&'static str>>,
}

/// Whether a set's hashes are about to be written: its status may have to wait for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenHashes {
    /// The hashes are as they are to be, or are not waited for.
    Over,
    /// The hashes are about to be written.
    Awaited,
}

impl Feature for SidecarSets {
    const NAME: &'static str = "sidecarset";
    // The name in `OpenKruise`'s events.
    const EVENTS_FROM: &'static str = "sidecarset-controller";
    const WRITES: &'static [WriteKind] = writes::WRITES;
    const CLASSES: &'static [Class] = writes::CLASSES;

    type Key = SetKey;
    type World = SetWorld;
    type Memory = Sets;

    fn keys(&self, world: &SetWorld) -> Vec<SetKey> {
        let pods = world
            .pods
            .iter()
            .filter(|(_, pod)| pod.has_writes())
            .map(|(_, pod)| SetKey::Pod(pod.name().clone()));
        let sets = world.known.keys().cloned().map(SetKey::Set);
        pods.chain(sets).collect()
    }

    fn reconcile(
        &self,
        key: &SetKey,
        world: &SetWorld,
        memory: &mut Sets,
        plan: &mut Plan<'_, Self>,
    ) {
        match key {
            SetKey::Pod(name) => {
                self.plan_pod(name, world, plan);
                note_lacks(name, world, memory, plan);
            }
            SetKey::Set(name) => match world.set(name) {
                Some((stored, _)) if !stored.is_deleting() => {
                    let memory = memory.entry(name.clone()).or_default();
                    self.plan_set(name, world, memory, plan);
                }
                _ => {
                    memory.remove(name);
                }
            },
        }
    }

    fn publish(&mut self, world: &mut SetWorld, memory: &mut Sets) {
        self.publish_changes(world, memory);
    }
}

/// Notes which sets a pod lacks. A set looks at all pods by itself where something of the set has changed.
fn note_lacks(
    name: &PodName,
    world: &SetWorld,
    memory: &mut Sets,
    plan: &mut Plan<'_, SidecarSets>,
) {
    let pod = world.pods.observed(name);
    for (set, memory) in memory {
        let Some(Selection { set: of, since, .. }) = &memory.selection else {
            continue;
        };
        let lack = pod.and_then(|pod| member::lack(of, *since, pod, world));
        if memory.lacking.get(name) == lack.as_ref() {
            continue;
        }
        match lack {
            Some(lack) => drop(memory.lacking.insert(name.clone(), lack)),
            None => drop(memory.lacking.remove(name)),
        }
        plan.mark(SetKey::Set(set.clone()));
    }
}
