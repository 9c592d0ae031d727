//! The entry of the crate: which executor runs a handler.

use std::net::SocketAddr;

use leadsman_core::podprobe::{CannotProbe, Handler, Outcome, Scheme};

use crate::dial::{Dial, Direct};
use crate::exec::{self, Exec};
use crate::target::ProbeTarget;
use crate::time_limit::TimeLimit;
use crate::{grpc, http, tcp};

/// Runs a probe once, within its limit: a timeout, or more of a [`TimeLimit`]. Files are not read here, but by
/// [`PodFolders`](crate::PodFolders).
///
/// The future may be dropped at any time. It leaves nothing behind but a command that the runtime has started already.
///
/// # Errors
/// The run says nothing about the container. That the probe failed is an [`Outcome`].
pub async fn run_probe<E: Exec>(
    handler: &Handler,
    target: &ProbeTarget,
    limit: impl Into<TimeLimit<'_>>,
    exec: &E,
) -> Result<Outcome, CannotProbe> {
    run_probe_over(handler, target, limit, exec, &Direct).await
}

/// The same over connections that the caller knows to open.
///
/// # Errors
/// The run says nothing about the container. That the probe failed is an [`Outcome`].
pub async fn run_probe_over<E: Exec, D: Dial>(
    handler: &Handler,
    target: &ProbeTarget,
    limit: impl Into<TimeLimit<'_>>,
    exec: &E,
    dialer: &D,
) -> Result<Outcome, CannotProbe> {
    let limit = limit.into();
    // An error only where a probe connects: a command needs no address.
    let ip = target.address();
    match handler {
        Handler::Exec { command } => exec::run_command(command, target, limit, exec).await,
        Handler::HttpGet(get) => http::run(get, ip?, limit, dialer).await,
        Handler::TcpSocket { port } => {
            tcp::run_tcp(SocketAddr::new(ip?, port.get()), limit, dialer).await
        }
        Handler::Grpc {
            port,
            service,
            over_tls,
        } => {
            let call = grpc::HealthCheck {
                address: SocketAddr::new(ip?, port.get()),
                service,
                scheme: if *over_tls {
                    Scheme::Https
                } else {
                    Scheme::H2c
                },
            };
            grpc::run(call, limit, dialer).await
        }
        Handler::File(_) => {
            let message = "only the agent of the pod's node can read a file of its volumes";
            Err(CannotProbe::File(message.to_owned()))
        }
    }
}
