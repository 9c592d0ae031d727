//! The feature against a small cluster: single cases, and properties of any history.

mod cases;
mod hot;
mod proof;
mod traffic;
mod world;
