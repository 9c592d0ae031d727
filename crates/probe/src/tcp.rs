//! `tcpSocket`: the port accepts a connection. Nothing is sent.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Outcome};

use crate::socket::{dial, part};

/// One run.
pub(crate) async fn run(
    ip: IpAddr,
    port: NonZeroU16,
    timeout: Duration,
) -> Result<Outcome, CannotProbe> {
    let address = SocketAddr::new(ip, port.get());
    let stream = match tokio::time::timeout(timeout, dial(ip, port)).await {
        Ok(dialled) => match dialled? {
            Ok(stream) => stream,
            Err(error) => {
                return Ok(Outcome::Failed(format!("connecting to {address}: {error}")));
            }
        },
        Err(_) => {
            return Ok(Outcome::Failed(format!(
                "connecting to {address}: no answer within {timeout:?}"
            )));
        }
    };
    part(stream).await;
    Ok(Outcome::Succeeded(String::new()))
}
