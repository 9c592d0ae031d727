//! The one door: which executor a handler goes to.

use std::net::SocketAddr;
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Handler, Outcome};

use crate::exec::{self, Exec};
use crate::target::Target;
use crate::{grpc, http, tcp};

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
    let ip = target.address();
    match handler {
        Handler::Exec { command } => exec::run(command, target, timeout, exec).await,
        Handler::HttpGet(get) => http::run(get, ip?, timeout).await,
        Handler::TcpSocket { port } => tcp::run(SocketAddr::new(ip?, port.get()), timeout).await,
        Handler::Grpc { port, service } => {
            grpc::run(SocketAddr::new(ip?, port.get()), service, timeout).await
        }
    }
}
