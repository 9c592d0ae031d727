//! The chart as Helm renders it: equal to `leadsman manifests` and to the kustomize base, and each value does what it says.
//! Needs helm and kubectl, and no cluster.

mod equal;
mod render;
mod security;
mod values;
