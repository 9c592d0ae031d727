//! leadsman: probe.
