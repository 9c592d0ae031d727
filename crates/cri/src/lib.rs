//! leadsman: cri.
