//! The subcommands, each in a module.

pub(crate) mod agent;
mod install;
pub(crate) mod manager;
pub(crate) mod manifests;
pub(crate) mod preflight;

use std::error::Error;
use std::process::ExitCode;

use leadsman_process::RunError;

/// The exit status of a process. Its error is in the log already, unless the log could not be set up.
fn exit_status<E: Error>(ended: &Result<(), RunError<E>>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(RunError::Log(error)) => {
            eprintln!("leadsman: {error}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}
