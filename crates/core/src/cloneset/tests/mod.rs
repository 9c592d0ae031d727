//! Sets on a little API server: tables by rule, and simulations.

mod cluster;
mod deletion;
mod goldens;
mod hooks;
mod numbers;
mod scale;
mod simulation;
mod update;
