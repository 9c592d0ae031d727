//! The kinds that `SidecarSet` observes.

use leadsman_api::SidecarSet;
use leadsman_api::slim::Namespace;
use leadsman_api::slim::Pod;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_control::{Kind, OptionalFields, Reconciled, WatchedKinds};
use leadsman_core::sidecarset::metadata::CONFIGURATION;
use leadsman_core::sidecarset::reconcile::SidecarSets;
use leadsman_core::sidecarset::revision::SET_LABEL;

/// Fields of a set's status that `OpenKruise`'s CRD lacks.
const SET_FIELDS: OptionalFields = OptionalFields {
    paths: &["status.conditions[].type", "status.inForce.generation"],
    content: "why a set is not in force (status.conditions, status.inForce)",
    later: &[],
};

/// The kinds, in pages of about a megabyte of text each, as large as the objects commonly are.
///
/// Sets and revisions are re-listed by a new leader, which would otherwise undo what the last one
/// wrote; and pods, of which it would otherwise not count those that the last one has just taken
/// down.
const KINDS: &[Kind<SidecarSetRules>] = &[
    Kind::new::<SidecarSet>(50)
        .reviewed_by()
        .relisted_on_takeover()
        .with_optional_fields(SET_FIELDS)
        .if_undecodable(
            "the last set that could be decoded stays in force; without one no pod gets anything. Correct the set or delete it",
        ),
    Kind::new::<Pod>(150).relisted_on_takeover().if_undecodable(
        "the last pod that could be decoded counts; without one it is not upgraded. Correct the pod or delete it",
    ),
    Kind::new::<Namespace>(250).reviewed_by(),
    Kind::new::<ControllerRevision>(50)
        .only_labelled(SET_LABEL)
        .reviewed_by()
        .relisted_on_takeover()
        .if_undecodable("its set has one revision less that new pods can be pinned to. Delete the revision"),
    Kind::new::<ConfigMap>(1)
        .only_named(CONFIGURATION)
        .reviewed_by(),
];

/// `SidecarSet` as the control loop runs it.
pub(crate) type SidecarSetRules = Reconciled<SidecarSetKinds>;

/// The kinds of `SidecarSet`.
pub(crate) struct SidecarSetKinds;

impl WatchedKinds for SidecarSetKinds {
    type Feature = SidecarSets;

    const KINDS: &'static [Kind<SidecarSetRules>] = KINDS;
}

#[cfg(test)]
mod tests {
    use leadsman_api::crd::sidecar_set_crd;
    use leadsman_api::slim::crd::CustomResourceDefinition;

    use super::*;

    #[test]
    fn our_own_crd_keeps_the_optional_fields_in_each_version() {
        let crd = serde_json::to_value(sidecar_set_crd()).unwrap();
        let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
        for version in ["v1alpha1", "v1beta1"] {
            assert!(SET_FIELDS.are_kept(&crd, version), "{version}");
        }
        assert!(!SET_FIELDS.are_kept(&crd, "v1"));
    }
}
