//! Every rule of leadsman, pure: no Kubernetes client, no runtime, no clock, no I/O.
//!
//! Each system is a module: `podprobe` is the first. Time comes in as an argument; what follows from an event comes
//! out as data that `leadsman-manager` and `leadsman-agent` carry out.

pub mod cluster;
pub mod podprobe;
