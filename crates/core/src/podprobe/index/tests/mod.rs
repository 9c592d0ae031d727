//! The index on a simulated API server: tables for each rule, and the proof that after any sequence of events the
//! world is what a naive model says.

mod cluster;
mod contests;
mod cycles;
mod finalizers;
mod model;
mod nodes;
mod proof;
mod scene;
mod serverless;
mod status;
mod tables;
mod undecodable;
mod verdicts;
mod world;
