//! The chart as Helm renders it: equal to `leadsman manifests` and to the kustomize base, and each value does what it says.
//! Needs helm and kubectl, and no cluster.

#[cfg(test)]
mod equal;
#[cfg(test)]
mod monitoring;
#[cfg(test)]
mod notes;
#[cfg(test)]
mod render;
#[cfg(test)]
mod security;
#[cfg(test)]
mod values;
