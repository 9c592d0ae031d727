//! The test bed.
