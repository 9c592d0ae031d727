//! One verb of the command line in each module.

pub(crate) mod agent;
pub(crate) mod manager;
pub(crate) mod manifests;
pub(crate) mod preflight;

use std::error::Error;
use std::process::ExitCode;

use leadsman_process::RunError;

/// The exit status of a process. What went wrong is in its log already, unless there is no log.
fn status<E: Error>(ended: &Result<(), RunError<E>>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(RunError::Log(error)) => {
            eprintln!("leadsman: {error}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}
