//! Whether a cluster is ready for leadsman, and what is to be done first.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | what is read of the cluster |
//! | `neighbour` | what is read of `OpenKruise` |
//! | `marks` | what is read of markers and the pods that they match |
//! | `checks` | what follows from all that; pure |
//!
//! Nothing is written but reviews, which the API server does not keep.

mod checks;
mod facts;
mod marks;
mod neighbour;

pub use checks::{Finding, Outcome, checks};
pub use facts::{Crd, Facts, Identity, Lookup, Right, Scope, facts};
pub use marks::{MarkerFact, Markers, Owner};
pub use neighbour::{OpenKruise, Webhook};
