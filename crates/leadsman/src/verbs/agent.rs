//! `leadsman agent`

use std::process::ExitCode;

use leadsman_agent::Args;

/// Runs the agent to its end.
pub(crate) fn run(args: &Args) -> ExitCode {
    super::status(&leadsman_agent::run(args))
}
