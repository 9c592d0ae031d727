//! `CloneSet` as a system.

use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_api::{CLONE_SET_CRD, CloneSet, crd};
use leadsman_control::{Kind, Reconciled, Rules as _, WatchedKinds};
use leadsman_core::cloneset::CloneSets;

use super::System;

/// The row of `CloneSet`.
pub(super) const SYSTEM: System = System {
    name: Reconciled::<CloneSetKinds>::NAME,
    gate: "CloneSetGate",
    about: "act on CloneSets, which create, update and delete pods",
    crds: || vec![crd::clone_set_crd()],
    crd_texts: &[CLONE_SET_CRD],
    kind: "CloneSet",
    resource: "clonesets",
    children: &[
        ("", "pods"),
        ("", "persistentvolumeclaims"),
        ("apps", "controllerrevisions"),
    ],
    patches_pods: true,
    own_deletion: None,
    own_annotations: &[],
    feature_rights: System::rights_of_kinds::<CloneSetKinds>,
    add: System::add_feature::<CloneSetKinds>,
};

/// The kinds, in pages of about a megabyte of text each.
///
/// A new leader re-lists all of them: it would otherwise create a pod that the last one has created already.
struct CloneSetKinds;

impl WatchedKinds for CloneSetKinds {
    type Feature = CloneSets;

    const KINDS: &'static [Kind<Reconciled<Self>>] = &[
        Kind::new::<CloneSet>(100)
            .relisted_on_takeover()
            .if_undecodable(
                "the last set that could be decoded counts; without one nothing is done with it. Correct the set or delete it",
            ),
        Kind::new::<Pod>(150).relisted_on_takeover().if_undecodable(
            "the last pod that could be decoded counts; without one its place is kept, and no other is created in it. Correct the pod or delete it",
        ),
        Kind::new::<ControllerRevision>(100)
            .relisted_on_takeover()
            .if_undecodable(
                "the last revision that could be decoded counts; without one its pods are not updated in place. Correct the revision or delete it",
            ),
        Kind::new::<PersistentVolumeClaim>(250)
            .relisted_on_takeover()
            .if_undecodable(
                "the last state of it that could be decoded counts; without one it stays, and no pod is created that would have it. Correct the claim or delete it",
            ),
    ];
}
