//! `leadsman manager`

use std::process::ExitCode;

use leadsman_manager::ManagerArgs;

/// Runs the manager until it stops.
pub(crate) fn run(args: &ManagerArgs) -> ExitCode {
    leadsman_process::exit_status("leadsman", &leadsman_manager::run_manager(args))
}
