//! `leadsman preflight`: checks whether a cluster is ready for leadsman.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | reading the cluster |
//! | `openkruise` | reading what there is of `OpenKruise` |
//! | `marks` | reading markers and the pods that they match |
//! | `clone_sets` | reading the `CloneSet`s that would go with a release |
//! | `checks` | the findings that follow; pure |
//! | `finding` | a finding, here and of `doctor` |
//!
//! Nothing is written except reviews, which the API server does not store.

mod checks;
mod clone_sets;
mod facts;
mod finding;
mod marks;
mod openkruise;

pub use checks::evaluate;
pub use clone_sets::CloneSetSurvey;
pub use facts::{
    ClusterFacts, CrdFacts, Identity, InstallFacts, InstallPart, Lookup, NoAnswer, PreflightScope,
    RequiredRight, before_install_rights, read_facts,
};
pub use finding::{CheckResult, Finding, name_first_of};
pub use marks::{MarkOwner, MarkerFacts, MarkerSurvey};
pub use openkruise::{BlockingWebhook, OpenKruiseFacts};
