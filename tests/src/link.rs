//! A way to the API server that counts what passes and can be cut, as a network is: what is sent is lost, and nobody is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::io::InspectReader;

/// Forwards connections while it is open. Ends when dropped.
pub struct Link {
    /// Where it listens.
    pub address: SocketAddr,
    open: watch::Sender<bool>,
    /// How many connections come through.
    carried: watch::Sender<usize>,
    passed: Passed,
    task: JoinHandle<()>,
}

/// Bytes that were sent and received.
type Passed = Arc<[AtomicU64; 2]>;

impl Link {
    /// A link to the server of this URL, open.
    ///
    /// # Errors
    /// When nothing can listen.
    pub async fn to(server: &str) -> Result<Self> {
        let server = server.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let open = watch::Sender::new(true);
        let opened = open.subscribe();
        let carried = watch::Sender::new(0);
        let carrying = carried.clone();
        let passed = Passed::default();
        let passing = Arc::clone(&passed);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(forward(
                    near,
                    server.clone(),
                    opened.clone(),
                    carrying.clone(),
                    Arc::clone(&passing),
                ));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            open,
            carried,
            passed,
            task,
        })
    }

    /// Its URL, for a client in the place of the server's.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Bytes sent to and received from the server so far, those of TLS among them.
    pub fn passed(&self) -> [u64; 2] {
        [0, 1].map(|way| self.passed[way].load(Ordering::Relaxed))
    }

    /// Breaks all connections; new ones come through.
    ///
    /// # Errors
    /// None while the link is there.
    pub async fn cut(&self) -> Result<()> {
        self.close();
        self.carried
            .subscribe()
            .wait_for(|count| *count == 0)
            .await?;
        self.open();
        Ok(())
    }

    /// From now on nothing comes through.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    /// From now on new connections come through; old ones break.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    near: TcpStream,
    server: String,
    mut open: watch::Receiver<bool>,
    carried: watch::Sender<usize>,
    passed: Passed,
) {
    // Nothing may wait here for more to come.
    let _ = near.set_nodelay(true);
    let mut near = InspectReader::new(near, |read: &[u8]| count(&passed[0], read));
    if *open.borrow_and_update()
        && let Ok(far) = TcpStream::connect(server).await
    {
        let _ = far.set_nodelay(true);
        let mut far = InspectReader::new(far, |read: &[u8]| count(&passed[1], read));
        carried.send_modify(|count| *count += 1);
        let was_cut = tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
            _ = open.wait_for(|open| !open) => true,
        };
        carried.send_modify(|count| *count -= 1);
        if !was_cut {
            return;
        }
        // The server learns of it no more than the client does, until both are told below.
        let _ = swallow(&mut near, &mut far, open).await;
        return;
    }
    let mut nowhere = tokio::io::empty();
    let _ = swallow(&mut near, &mut nowhere, open).await;
}

fn count(passed: &AtomicU64, read: &[u8]) {
    passed.fetch_add(read.len() as u64, Ordering::Relaxed);
}

/// Takes what is sent, until the link is open again.
async fn swallow(
    near: &mut (impl AsyncRead + Unpin),
    far: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    mut open: watch::Receiver<bool>,
) -> Result<()> {
    let mut lost = [0; 4096];
    let mut said = [0; 4096];
    let (mut near_ended, mut far_ended) = (false, false);
    loop {
        tokio::select! {
            opened = open.wait_for(|open| *open) => {
                opened?;
                return Ok(());
            }
            read = near.read(&mut lost), if !near_ended => near_ended = read? == 0,
            read = far.read(&mut said), if !far_ended => far_ended = read? == 0,
        }
    }
}
