//! Every rule of leadsman, pure: no Kubernetes client, no runtime, no clock, no I/O.
//!
//! Each feature is a module: `broadcast`, `cloneset`, `cron`, `podprobe` and `sidecarset`. Time is an argument. What follows from an event is returned as
//! data, which `leadsman-manager` and `leadsman-agent` carry out.

pub mod broadcast;
pub mod cloneset;
pub mod cluster;
pub mod cron;
pub mod podprobe;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod sidecarset;
#[cfg(test)]
mod test_server;
pub mod workload;
