//! Sets on a little API server: tables by rule, and simulations.

mod claims;
mod cluster;
mod cost;
mod deletion;
mod explain;
mod goldens;
mod hooks;
mod not_ready;
mod numbers;
mod progress;
mod roll_out;
mod scale;
mod simulation;
mod status;
mod under_way;
mod update;
mod versions;
