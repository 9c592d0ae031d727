//! The bare loop: the agent's exchanges at the same rate on the same grid, one task each, on one thread, with the libraries
//! of the executors and none of their rules: no verdict, no threshold, no deadline, no bound.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::{Either, select};
use http::Request;
use http::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leadsman_core::podprobe::node::SLOT;
use leadsman_cri::wire::runtime_service_client::RuntimeServiceClient;
use leadsman_cri::wire::{ExecSyncRequest, ListContainersRequest};
use leadsman_process::clock;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep_until;
use tonic::transport::{Channel, Endpoint};

use super::Questions;

/// From one list of all containers to the next.
const LIST: Duration = Duration::from_secs(1);

/// What is exchanged with whom, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Each of these once in a period, in this slot of it.
    pub(crate) exchanges: Vec<(Exchange, u64)>,
    /// Slots of a period.
    pub(crate) period: u64,
    /// The container runtime, to be asked for all containers once a second.
    pub(crate) runtime: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exchange {
    /// A connection.
    Tcp(SocketAddr),
    /// A GET of `/healthz`.
    Http(SocketAddr),
    /// A command in a container of this id, through the runtime.
    Exec(String, Vec<String>),
}

/// How many exchanges there were so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) failed: u64,
}

static DONE: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Exchanges until nobody asks any more.
pub(super) async fn run(order: Order, questions: Questions) -> Result<()> {
    let runtime = order.runtime.clone().map(client).transpose()?;
    let tally = async || {
        Ok(Tally {
            done: DONE.load(Ordering::Relaxed),
            failed: FAILED.load(Ordering::Relaxed),
        })
    };
    tokio::select! {
        ended = questions.answer(tally) => ended,
        () = exchange_all(&order, runtime) => Ok(()),
    }
}

async fn exchange_all(order: &Order, runtime: Option<Runtime>) {
    let mut slots: BTreeMap<u64, Vec<&Exchange>> = BTreeMap::new();
    for (exchange, slot) in &order.exchanges {
        slots.entry(slot % order.period).or_default().push(exchange);
    }
    let a_list = u64::try_from(LIST.as_millis() / SLOT.as_millis()).unwrap_or(1);
    let begun = clock::monotonic();
    for (number, slot) in (0_u32..).zip(0_u64..) {
        let lists = runtime.as_ref().filter(|_| slot.is_multiple_of(a_list));
        let due = slots.get(&(slot % order.period));
        if lists.is_none() && due.is_none() {
            // Nobody is woken where nothing is due.
            continue;
        }
        sleep_until(begun + SLOT * number).await;
        if let Some(mut runtime) = lists.cloned() {
            begin(0, async move {
                runtime.list_containers(ListContainersRequest {}).await?;
                Ok(())
            });
        }
        for exchange in due.into_iter().flatten() {
            begin(1, one((*exchange).clone(), runtime.clone()));
        }
    }
}

async fn one(exchange: Exchange, runtime: Option<Runtime>) -> Result<()> {
    match exchange {
        Exchange::Tcp(address) => close(TcpStream::connect(address).await?).await,
        Exchange::Http(address) => http(address).await,
        Exchange::Exec(container, command) => {
            exec(runtime.context("no runtime")?, container, command).await
        }
    }
}

/// Begins an exchange that counts so much when it is done.
fn begin(counts: u64, exchange: impl Future<Output = Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        match exchange.await {
            Ok(()) => DONE.fetch_add(counts, Ordering::Relaxed),
            Err(_) => FAILED.fetch_add(1, Ordering::Relaxed),
        }
    });
}

/// One GET of `/healthz` over a connection of its own.
async fn http(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(&mut stream))
        .await?;
    let request = Request::get("/healthz")
        .header(HOST, address.to_string())
        .header(USER_AGENT, "kube-probe/1.34")
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let work = pin!(async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        ensure!(status.is_success(), "{address}: {status}");
        response.into_body().collect().await?;
        Ok(())
    });
    match select(connection, work).await {
        Either::Left((_, work)) => work.await?,
        Either::Right((done, _)) => done?,
    }
    close(stream).await
}

/// Closes a connection in order, as a TCP probe does.
async fn close(mut stream: TcpStream) -> Result<()> {
    stream.shutdown().await?;
    while stream.read(&mut [0; 2 * 1024]).await? > 0 {}
    Ok(())
}

/// The container runtime's client as it is generated.
type Runtime = RuntimeServiceClient<Channel>;

/// Nothing is dialled yet.
fn client(endpoint: String) -> Result<Runtime> {
    let channel = Endpoint::from_shared(endpoint)?.connect_lazy();
    Ok(RuntimeServiceClient::new(channel).max_decoding_message_size(16 * 1024 * 1024))
}

/// One command.
async fn exec(mut runtime: Runtime, container_id: String, cmd: Vec<String>) -> Result<()> {
    let request = ExecSyncRequest {
        container_id,
        cmd,
        timeout: 5,
    };
    let answer = runtime.exec_sync(request).await?.into_inner();
    ensure!(answer.exit_code == 0, "a command failed: {answer:?}");
    Ok(())
}
