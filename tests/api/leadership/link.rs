//! A way to the API server that can be cut, as a network is: what is sent is lost, and nobody is told.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Forwards connections while it is open. Ends when dropped.
pub(crate) struct Link {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    open: watch::Sender<bool>,
    /// How many connections come through.
    carried: watch::Sender<usize>,
    task: JoinHandle<()>,
}

impl Link {
    /// A link to this address, open.
    pub(crate) async fn to(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let open = watch::Sender::new(true);
        let opened = open.subscribe();
        let carried = watch::Sender::new(0);
        let carrying = carried.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(forward(
                    near,
                    server.clone(),
                    opened.clone(),
                    carrying.clone(),
                ));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            open,
            carried,
            task,
        })
    }

    /// Breaks all connections; new ones come through.
    pub(crate) async fn cut(&self) -> Result<()> {
        self.close();
        self.carried
            .subscribe()
            .wait_for(|count| *count == 0)
            .await?;
        self.open();
        Ok(())
    }

    /// From now on nothing comes through.
    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    /// From now on new connections come through; old ones break.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut near: TcpStream,
    server: String,
    mut open: watch::Receiver<bool>,
    carried: watch::Sender<usize>,
) {
    if *open.borrow_and_update()
        && let Ok(mut far) = TcpStream::connect(server).await
    {
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

/// Takes what is sent, until the link is open again.
async fn swallow(
    near: &mut TcpStream,
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
