//! A door between a process and the API server that counts the bytes which pass it, TLS and all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Read at once.
const CHUNK: usize = 64 * 1024;

/// A door; closed when dropped.
pub(super) struct Door {
    address: SocketAddr,
    passed: Arc<Passed>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Passed {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Door {
    /// Opens one to `server`, a URL with host and port.
    pub(super) async fn open(server: &str) -> Result<Self> {
        let server = server.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let passed = Arc::new(Passed::default());
        let counts = Arc::clone(&passed);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(connect(near, server.clone(), Arc::clone(&counts)));
            }
        });
        Ok(Self {
            address,
            passed,
            task,
        })
    }

    /// Its URL.
    pub(super) fn server(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Bytes sent to and received from the server since it was opened.
    pub(super) fn passed(&self) -> (u64, u64) {
        let Passed { sent, received } = &*self.passed;
        (
            sent.load(Ordering::Relaxed),
            received.load(Ordering::Relaxed),
        )
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(near: TcpStream, server: String, passed: Arc<Passed>) -> Result<()> {
    let far = TcpStream::connect(&server).await.context(server)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (from_near, to_near) = near.into_split();
    let (from_far, to_far) = far.into_split();
    tokio::try_join!(
        carry(from_near, to_far, &passed.sent),
        carry(from_far, to_near, &passed.received),
    )?;
    Ok(())
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, count: &AtomicU64) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = from.read(&mut chunk).await?;
        if read == 0 {
            to.shutdown().await?;
            return Ok(());
        }
        count.fetch_add(read as u64, Ordering::Relaxed);
        to.write_all(&chunk[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_passes_is_counted_both_ways() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let door = Door::open(&format!("https://{address}")).await.unwrap();
        let mut near = TcpStream::connect(door.address).await.unwrap();
        let (mut far, _) = server.accept().await.unwrap();
        near.write_all(b"12345").await.unwrap();
        let mut five = [0; 5];
        far.read_exact(&mut five).await.unwrap();
        far.write_all(b"123").await.unwrap();
        drop(far);
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        assert_eq!((answer.as_str(), door.passed()), ("123", (5, 3)));
    }
}
