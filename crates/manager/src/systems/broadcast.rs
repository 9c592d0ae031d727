//! `BroadcastJob`: how the feature of `leadsman_core::broadcast` is connected to the API server.

use leadsman_api::slim::{Node, Pod};
use leadsman_api::{BROADCAST_JOB_CRD, BroadcastJob, crd};
use leadsman_control::{Kind, Reconciled, Rules as _, WatchedKinds};
use leadsman_core::broadcast::{ACKNOWLEDGED, BroadcastJobs, SUCCEEDED};

use super::System;

/// The row of `BroadcastJob`.
pub(super) const SYSTEM: System = System {
    name: Reconciled::<BroadcastJobKinds>::NAME,
    gate: "BroadcastJobGate",
    about: "act on BroadcastJobs, which run a pod on each node",
    crds: || vec![crd::broadcast_job_crd()],
    crd_texts: &[BROADCAST_JOB_CRD],
    kind: "BroadcastJob",
    resource: "broadcastjobs",
    children: &[("", "pods")],
    patches_pods: true,
    own_deletion: Some("has(oldObject.status) && has(oldObject.status.completionTime)"),
    own_annotations: &[ACKNOWLEDGED, SUCCEEDED],
    feature_rights: System::rights_of_kinds::<BroadcastJobKinds>,
    add: System::add_feature::<BroadcastJobKinds>,
};

/// The kinds, in pages of about a megabyte of text each, as large as the objects commonly are.
///
/// A new leader re-lists jobs and pods: it would otherwise make a pod again that the last one has seen succeed and go.
struct BroadcastJobKinds;

impl WatchedKinds for BroadcastJobKinds {
    type Feature = BroadcastJobs;

    const KINDS: &'static [Kind<Reconciled<Self>>] = &[
        Kind::new::<BroadcastJob>(100)
            .relisted_on_takeover()
            .if_undecodable(
                "the last job that could be decoded counts; without one no pod is created. Correct the job or delete it",
            ),
        Kind::new::<Pod>(150).relisted_on_takeover().if_undecodable(
            "the last pod that could be decoded counts; without one its node is taken for one without. Correct the pod or delete it",
        ),
        Kind::new::<Node>(100),
    ];
}
