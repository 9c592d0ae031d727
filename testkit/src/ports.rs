//! Ports of 127.0.0.1 for programs that are told where to listen.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;

use anyhow::{Result, bail};

/// Below the range from which the kernel takes ports for outgoing connections (`ip_local_port_range`, from 32768 on): one
/// of those may be taken by any client between this moment and the start of the program that is to listen there.
const LISTEN_PORTS: Range<u16> = 10_000..32_000;

/// Addresses of which nothing listens now at any.
pub fn free_addresses<const COUNT: usize>() -> Result<[SocketAddr; COUNT]> {
    let random = RandomState::new();
    // Held together, so that they differ.
    let mut listeners = Vec::with_capacity(COUNT);
    for attempt in 0..1_000_u32 {
        let span = u64::try_from(LISTEN_PORTS.len())?;
        let port = LISTEN_PORTS.start + u16::try_from(random.hash_one(attempt) % span)?;
        listeners.extend(TcpListener::bind(("127.0.0.1", port)).ok());
        if listeners.len() == COUNT {
            break;
        }
    }
    let addresses: Result<Vec<_>, _> = listeners.iter().map(TcpListener::local_addr).collect();
    if let Ok(addresses) = addresses?.try_into() {
        return Ok(addresses);
    }
    bail!("found no {COUNT} free ports in {LISTEN_PORTS:?} of 127.0.0.1")
}
