//! One exchange with a target, with the libraries of the executors and none of their rules: no deadline, no bound, no
//! verdict.

use std::net::SocketAddr;
use std::pin::pin;

use anyhow::{Result, ensure};
use futures::future::{Either, select};
use http::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leadsman_cri::wire::runtime_service_client::RuntimeServiceClient;
use leadsman_cri::wire::{ExecSyncRequest, ListContainersRequest};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

/// A connection, closed in order: what a TCP probe is.
pub(super) async fn tcp(address: SocketAddr) -> Result<()> {
    close(TcpStream::connect(address).await?).await
}

/// One GET over a connection of its own.
pub(super) async fn http(address: SocketAddr, path: &'static str) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(&mut stream))
        .await?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = path.parse()?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::try_from(address.to_string())?);
    headers.insert(USER_AGENT, HeaderValue::from_static("kube-probe/1.34"));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
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

async fn close(mut stream: TcpStream) -> Result<()> {
    stream.shutdown().await?;
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0; 2 * 1024]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The container runtime's client as it is generated.
pub(super) type Runtime = RuntimeServiceClient<Channel>;

/// Nothing is dialled yet.
pub(super) fn runtime(endpoint: String) -> Result<Runtime> {
    let channel = Endpoint::from_shared(endpoint)?.connect_lazy();
    Ok(RuntimeServiceClient::new(channel).max_decoding_message_size(16 * 1024 * 1024))
}

/// One command.
pub(super) async fn exec(
    mut runtime: Runtime,
    container_id: String,
    cmd: Vec<String>,
) -> Result<()> {
    let request = ExecSyncRequest {
        container_id,
        cmd,
        timeout: 5,
    };
    let answer = runtime.exec_sync(request).await?.into_inner();
    ensure!(answer.exit_code == 0, "a command failed: {answer:?}");
    Ok(())
}

/// The list of all containers.
pub(super) async fn list(mut runtime: Runtime) -> Result<()> {
    runtime.list_containers(ListContainersRequest {}).await?;
    Ok(())
}
