//! `leadsman manager`

use std::process::ExitCode;

use leadsman_manager::Args;

/// Runs the manager until it stops.
pub(crate) fn run(args: &Args) -> ExitCode {
    leadsman_process::exit_status("leadsman", &leadsman_manager::run_manager(args))
}
