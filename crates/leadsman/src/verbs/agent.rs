//! `leadsman agent`

use std::process::ExitCode;

use leadsman_agent::Args;

/// Runs the agent until it stops.
pub(crate) fn run(args: &Args) -> ExitCode {
    super::status(&leadsman_agent::run(args))
}
