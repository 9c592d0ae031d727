//! What the engine probes: takes connections, answers a request's head, and closes when the other side has.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use crate::part::{Question, converse};

/// Connections that may wait to be taken.
const BACKLOG: u32 = 4096;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

/// Serves until nobody asks any more. The answer is the port.
pub(crate) async fn serve(addresses: u8) -> Result<()> {
    super::drive::raise_limit()?;
    let first = listen(1, 0)?;
    let port = first.local_addr()?.port();
    tokio::spawn(take(first));
    for last in 2..=addresses {
        tokio::spawn(take(listen(last, port)?));
    }
    let (ask, mut asked) = mpsc::channel::<Question<u16>>(1);
    tokio::spawn(async move {
        while let Some(question) = asked.recv().await {
            let _ = question.send(port);
        }
    });
    converse(ask).await
}

fn listen(last: u8, port: u16) -> Result<TcpListener> {
    let address = (Ipv4Addr::new(127, 0, 1, last), port).into();
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket
        .bind(address)
        .with_context(|| format!("listening at {address}"))?;
    Ok(socket.listen(BACKLOG)?)
}

async fn take(listener: TcpListener) {
    loop {
        if let Ok((peer, _)) = listener.accept().await {
            tokio::spawn(answer(peer));
        }
    }
}

async fn answer(mut peer: TcpStream) -> std::io::Result<()> {
    let mut read = Vec::with_capacity(512);
    while peer.read_buf(&mut read).await? > 0 {
        if read.ends_with(b"\r\n\r\n") {
            peer.write_all(ANSWER).await?;
            peer.shutdown().await?;
        }
    }
    Ok(())
}
