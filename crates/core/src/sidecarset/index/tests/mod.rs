//! The index against a small cluster: properties of any history.

mod proof;
mod world;
