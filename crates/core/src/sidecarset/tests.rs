//! Tests of several modules, and what the tests of each read.

mod goldens;
pub(super) mod recorded;
mod simulation;
