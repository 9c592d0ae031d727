//! The TCP side: accepts, reads until the peer is done, and can close its port.

use std::sync::Arc;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;
use crate::state::State;

/// Serves for ever. While the port is closed, connections are refused.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) -> Result<(), Failure> {
    let address = listener.local_addr()?;
    let mut open = state.tcp_open.subscribe();
    let mut first = Some(listener).filter(|_| *open.borrow());
    loop {
        open.wait_for(|open| *open).await?;
        let listener = match first.take() {
            Some(listener) => listener,
            None => TcpListener::bind(address).await?,
        };
        loop {
            tokio::select! {
                closed = open.wait_for(|open| !*open) => {
                    closed?;
                    break;
                }
                accepted = listener.accept() => {
                    let (peer, _) = accepted?;
                    state.count_tcp();
                    tokio::spawn(drain(peer));
                }
            }
        }
    }
}

async fn drain(mut peer: TcpStream) {
    let mut buffer = [0; 1024];
    while matches!(peer.read(&mut buffer).await, Ok(1..)) {}
}
