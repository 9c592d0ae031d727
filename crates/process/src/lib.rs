//! leadsman: process.
