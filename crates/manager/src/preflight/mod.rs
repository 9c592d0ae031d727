//! `leadsman preflight`: whether a cluster is ready for leadsman, and what to do first.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | what is read of the cluster |
//! | `openkruise` | what is read of `OpenKruise` |
//! | `marks` | what is read of markers and the pods that they match |
//! | `checks` | the findings that follow; pure |
//!
//! Nothing is written but reviews, which the API server does not store.

mod checks;
mod facts;
mod marks;
mod openkruise;

pub use checks::{CheckResult, Finding, evaluate};
pub use facts::{
    ClusterFacts, CrdFacts, Identity, Lookup, PreflightScope, RequiredRight, read_facts,
};
pub use marks::{MarkOwner, MarkerFacts, MarkerSurvey};
pub use openkruise::{BlockingWebhook, OpenKruiseFacts};
