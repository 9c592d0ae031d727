//! `leadsman agent`, and `leadsman agent-history`, which asks one

use std::process::ExitCode;

use leadsman_agent::{Args, history};

/// Runs the agent until it stops.
pub(crate) fn run(args: &Args) -> ExitCode {
    super::exit_status(&leadsman_agent::run_agent(args))
}

/// Prints the recent runs that the agent of this pod keeps.
pub(crate) fn print_history(args: &history::Args) -> ExitCode {
    match history::print_history(args, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leadsman: {error}");
            ExitCode::FAILURE
        }
    }
}
