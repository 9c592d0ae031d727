//! The one door: which executor a handler goes to.

use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Handler, Outcome};

use crate::exec::{self, Exec};
use crate::target::Target;
use crate::tcp;

/// Runs a probe once. `timeout` is the probe's own, for the whole run.
///
/// The future may be dropped at any time and leaves nothing behind, save a command the runtime already started.
///
/// # Errors
/// The run told us nothing about the container. That the probe does not hold is an [`Outcome`].
pub async fn run<E: Exec>(
    handler: &Handler,
    target: &Target,
    timeout: Duration,
    exec: &E,
) -> Result<Outcome, CannotProbe> {
    if let Handler::Exec { command } = handler {
        return exec::run(command, target, timeout, exec).await;
    }
    let ip = target.address().ok_or(CannotProbe::NoAddress)?;
    match handler {
        Handler::Exec { command } => exec::run(command, target, timeout, exec).await,
        Handler::TcpSocket { port } => tcp::run(ip, *port, timeout).await,
        Handler::HttpGet(_) | Handler::Grpc { .. } => Err(CannotProbe::Runtime("not yet".into())),
    }
}
