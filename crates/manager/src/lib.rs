//! leadsman: manager.
