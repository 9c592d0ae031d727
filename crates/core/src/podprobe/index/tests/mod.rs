//! The index on a simulated API server: tables for each rule, and the proof that after any sequence of events the
//! world is what a naive model says.

mod cluster;
mod contests;
mod cycles;
mod driver;
mod events;
mod exclusive;
mod finalizers;
mod marker_status;
mod marks;
mod matching;
mod model;
mod nodes;
mod outputs;
mod pod;
mod proof;
mod refusals;
mod room;
mod scene;
mod serverless;
mod status;
mod surplus;
mod undecodable;
mod verdicts;
mod world;
