//! The claims of a set's pods: those that a new pod gets, and those that go.
//!
//! The claims of a pod go with a pod that the set itself deletes, and stay for the next one of its name if others have ended it.
//! Which of both it was is said by the pod, which is `PreparingDelete` before it is deleted, and by a note once the pod is gone.
//! Claims of a pod that is active, or that nobody can tell, are never touched.

use std::collections::BTreeMap;

use leadsman_reconcile::{ObjectName, Store};

use super::claim::{ClaimTemplate, SetClaim, has_missing_volume};
use super::history::CloneSetRevision;
use super::pod::{ClonePod, is_active};
use super::set::PodSet;
use super::state::LifecycleState;
use super::template::read_template;

/// Notes on claims, by the name of their pod: what no object shows any more.
#[derive(Debug, Default)]
pub(super) struct ClaimNotes(BTreeMap<ObjectName, Note>);

#[derive(Debug, PartialEq, Eq)]
enum Note {
    /// A pod comes, for which they are created.
    Begun,
    /// The pod was about to be deleted by its set.
    Going,
}

impl ClaimNotes {
    /// Notes for which pods claims are created. Returns whether claims of others are left that were.
    pub(super) fn begin<'p>(&mut self, pods: impl Iterator<Item = &'p ObjectName>) -> bool {
        let is_begun = |note: &mut Note| *note == Note::Begun;
        let before: Vec<_> = self.0.extract_if(.., |_, note| is_begun(note)).collect();
        self.0.extend(pods.map(|pod| (pod.clone(), Note::Begun)));
        before.iter().any(|(pod, _)| !self.0.contains_key(pod))
    }
}

/// The claims of a set as they are known.
pub(super) struct Claims<'a> {
    store: &'a Store<SetClaim>,
    by_pod: BTreeMap<ObjectName, Vec<&'a SetClaim>>,
    /// Names of pods that have claims already and are free.
    unused: Vec<ObjectName>,
    /// Pods that others have deleted and that still terminate: the next ones get their names and their claims.
    awaited: Vec<ObjectName>,
    /// Claims whose pod the set has deleted.
    pub(super) over: Vec<&'a SetClaim>,
}

/// The next step for a pod that is to be created.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep<'t> {
    /// Claims that are missing.
    Claims(Vec<&'t ClaimTemplate>),
    /// The pod itself.
    Pod,
    /// Nothing: a claim goes.
    None,
}

impl<'a> Claims<'a> {
    /// Finds the claims of a set.
    pub(super) fn survey(
        set: &'a PodSet,
        pods: &Store<ClonePod>,
        store: &'a Store<SetClaim>,
        notes: &mut ClaimNotes,
    ) -> Self {
        let mut by_pod = BTreeMap::<_, Vec<&SetClaim>>::new();
        let asked = store.find_created_in(&set.name.namespace, &set.uid);
        for claim in store.find_in(&set.name.namespace, &set.uid).chain(asked) {
            let pod = claim
                .pod()
                .filter(|_| claim.set().as_ref() == Some(&set.name));
            if let Some(pod) = pod {
                by_pod.entry(pod).or_default().push(claim);
            }
        }
        notes.0.retain(|pod, note| {
            let is_true = |known: &ClonePod| *note == Note::Going && is_going(known);
            by_pod.contains_key(pod) && pods.observed(pod).is_none_or(|known| is_true(known))
        });
        let (mut unused, mut awaited, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for (pod, claims) in &by_pod {
            let is_coming = pods.is_coming(pod);
            let is_known = !is_coming && !pods.is_asked(pod) && !pods.undecodable().contains(pod);
            let is_over = match pods.observed(pod) {
                Some(known) => {
                    let is_ours = known.owner.as_deref() == Some(&*set.uid);
                    if is_ours && is_going(known) {
                        notes.0.insert(pod.clone(), Note::Going);
                    }
                    is_ours && !is_active(known) && is_going(known) && !is_coming
                }
                None => {
                    is_known
                        && match notes.0.get(pod) {
                            Some(Note::Going) => true,
                            Some(Note::Begun) => false,
                            None => !set.spec.reuses_claims,
                        }
                }
            };
            if is_over {
                let there = claims.iter().filter(|claim| !claim.uid.is_empty());
                over.extend(there.filter(|claim| !claim.is_going));
                continue;
            }
            match pods.observed(pod) {
                None if is_known => unused.push(pod.clone()),
                Some(known) if known.observed.is_terminating && !is_going(known) => {
                    awaited.push(pod.clone());
                }
                // The pod is there, or has its place already.
                _ => {}
            }
        }
        Self {
            store,
            by_pod,
            unused,
            awaited,
            over,
        }
    }

    /// Whether a pod of this name has claims of the set.
    pub(super) fn has(&self, pod: &ObjectName) -> bool {
        self.by_pod.contains_key(pod)
    }

    /// The names of pods that come first, since their claims are there: all templates are met or can be.
    pub(super) fn unused(&self, templates: &[&ClaimTemplate]) -> impl Iterator<Item = ObjectName> {
        let is_used = !templates.is_empty();
        let names = self.unused.iter().filter(move |_| is_used);
        names.filter(|pod| self.are_fit(pod, templates)).cloned()
    }

    /// How many further pods wait for others to go, whose claims they get.
    pub(super) fn count_awaited(&self, set: &PodSet, templates: &[&ClaimTemplate]) -> usize {
        if templates.is_empty() || !set.spec.reuses_claims {
            return 0;
        }
        let awaited = self.awaited.iter();
        awaited.filter(|pod| self.are_fit(pod, templates)).count()
    }

    /// Whether no claims of a pod of this name are there, and it can have some of all templates.
    pub(super) fn are_free(&self, pod: &ObjectName, templates: &[&ClaimTemplate]) -> bool {
        !self.has(pod) && self.are_fit(pod, templates)
    }

    fn are_fit(&self, pod: &ObjectName, templates: &[&ClaimTemplate]) -> bool {
        let of_pod = self.by_pod.get(pod).map_or(&[][..], |claims| claims);
        let mut names = templates.iter().map(|template| template.claim_name(pod));
        // A deletion that is under way may be carried out after the pod is created.
        let is_asked_to_go = |claim: &SetClaim| self.store.assumed(&claim.name).is_none();
        of_pod
            .iter()
            .all(|claim| !claim.is_going && !is_asked_to_go(claim))
            && names.all(|name| {
                // Somebody else may have a claim of this name, and a pod must not get it.
                let is_theirs = self.store.observed(&name).is_some()
                    && of_pod.iter().all(|claim| claim.name != name);
                !is_theirs && !self.store.undecodable().contains(&name)
            })
    }

    /// The next step for a pod with these claims: the pod itself once all of them have been seen.
    pub(super) fn next_step<'t>(
        &self,
        pod: &ObjectName,
        templates: &[&'t ClaimTemplate],
    ) -> NextStep<'t> {
        if !templates.is_empty() && !self.are_fit(pod, templates) {
            return NextStep::None;
        }
        let is_missing = |template: &&ClaimTemplate| {
            let name = template.claim_name(pod);
            self.store.observed(&name).is_none()
        };
        let missing: Vec<_> = templates.iter().copied().filter(is_missing).collect();
        if missing.is_empty() {
            NextStep::Pod
        } else {
            NextStep::Claims(missing)
        }
    }
}

/// Whether a set has begun to delete a pod.
fn is_going(pod: &ClonePod) -> bool {
    pod.state() == LifecycleState::PreparingDelete
}

/// The templates of the claims that a new pod of a revision gets: those of the set, and those that the set no longer has and that
/// an earlier template mounts.
pub(super) fn templates_of<'s>(
    set: &'s PodSet,
    revision: &'s CloneSetRevision,
    newest: &str,
) -> Vec<&'s ClaimTemplate> {
    let present = &set.spec.claims;
    let mut templates: Vec<_> = present.iter().collect();
    if *revision.revision_name() == *newest || revision.claims.is_empty() {
        return templates;
    }
    let template = revision.data.template();
    let pod = read_template(&template).spec.cloned().unwrap_or_default();
    let earlier = revision
        .claims
        .iter()
        .filter(|one| present.iter().all(|other| other.name != one.name));
    templates.extend(earlier.filter(|one| has_missing_volume(&pod, &one.name)));
    templates
}
