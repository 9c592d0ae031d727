//! Servers by script, on the loopback interface.

use std::net::SocketAddr;
use std::sync::Arc;

use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response, StatusCode};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

type Bytes = hyper::body::Bytes;

/// What lies below HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Plain,
    /// TLS with a certificate of the server's own making, and the protocols of ALPN.
    Tls(&'static [&'static str]),
    /// Whichever the client begins with; over TLS in HTTP/2.
    Either,
}

/// The reply to a request, of the server at this address.
pub(crate) type Answer = fn(&Request<()>, SocketAddr) -> Reply;

/// What is done on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// Answers each request of HTTP/2.
    Http2(Answer),
    /// Speaks HTTP/2 by hand: settings, the client's request, these frames. The connection stays open.
    Frames(Vec<u8>),
    /// Answers the first bytes, whatever they are, with others.
    Bytes(&'static str),
    /// Reads, and says nothing.
    Silent,
    /// Closes at once.
    Close,
}

/// A response of HTTP/2.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(&'static str, &'static str)>,
    /// The body does not end.
    pub(crate) is_endless: bool,
    /// Nothing is sent.
    pub(crate) is_silent: bool,
    /// The stream is refused if it is the connection's first.
    pub(crate) is_refused_first: bool,
}

/// A server: the scripts of its first connections, and that of all others.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) transport: Transport,
    pub(crate) first: Vec<Script>,
    pub(crate) script: Script,
}

impl Server {
    /// Serves until the runtime ends.
    pub(crate) async fn start(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = match self.transport {
            Transport::Plain => None,
            Transport::Tls(protocols) => Some(acceptor(protocols)),
            Transport::Either => Some(acceptor(&["h2"])),
        };
        tokio::spawn(async move {
            let mut scripts = self.first.into_iter();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let script = scripts.next().unwrap_or_else(|| self.script.clone());
                let acceptor = acceptor.clone();
                let is_either = matches!(self.transport, Transport::Either);
                tokio::spawn(serve(stream, acceptor, is_either, script, address));
            }
        });
        address
    }
}

/// An address at which nobody listens.
pub(crate) async fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

fn acceptor(protocols: &[&str]) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["other.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    is_either: bool,
    script: Script,
    address: SocketAddr,
) {
    let mut first = [0];
    // 22 is the type of a handshake's record (RFC 8446, 5.1).
    let is_tls = !is_either || (stream.peek(&mut first).await.is_ok() && first == [22]);
    match acceptor.filter(|_| is_tls) {
        None => script.run(stream, address).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                script.run(stream, address).await;
            }
        }
    }
}

impl Script {
    async fn run(self, mut stream: impl AsyncRead + AsyncWrite + Unpin, address: SocketAddr) {
        match self {
            Self::Http2(reply) => serve_http2(stream, reply, address).await,
            Self::Frames(frames) => serve_frames(&mut stream, &frames).await.unwrap_or(()),
            Self::Bytes(bytes) => {
                let mut read = [0; 1024];
                if stream.read(&mut read).await.is_ok() {
                    // The client may be gone already.
                    let _ = stream.write_all(bytes.as_bytes()).await;
                    let _ = stream.shutdown().await;
                    let _ = copy(&mut stream, &mut sink()).await;
                }
            }
            Self::Silent => {
                let _ = copy(&mut stream, &mut sink()).await;
            }
            Self::Close => {}
        }
    }
}

async fn serve_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    reply: Answer,
    address: SocketAddr,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut held = Vec::new();
    while let Some(Ok((request, to))) = connection.accept().await {
        let (parts, body) = request.into_parts();
        let sent = reply(&Request::from_parts(parts, ()), address).send(to);
        // An end that is not wanted would be sent when these are dropped.
        held.push((sent, body));
    }
}

/// What is left of a response: its sender, or the stream whose body has not ended.
enum Sent {
    Nothing(#[expect(dead_code, reason = "held, so that no reset is sent")] SendResponse<Bytes>),
    Endless(#[expect(dead_code, reason = "held, so that no reset is sent")] h2::SendStream<Bytes>),
    Whole,
}

impl Reply {
    /// Sends headers, body, and trailers if there are some.
    fn send(self, mut to: SendResponse<Bytes>) -> Sent {
        if self.is_silent {
            return Sent::Nothing(to);
        }
        if self.is_refused_first && to.stream_id().as_u32() == 1 {
            to.send_reset(Reason::REFUSED_STREAM);
            return Sent::Whole;
        }
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap();
        for (name, value) in &self.headers {
            response.headers_mut().append(*name, value.parse().unwrap());
        }
        let Ok(mut stream) = to.send_response(response, false) else {
            return Sent::Whole;
        };
        let ends = self.trailers.is_empty() && !self.is_endless;
        let _ = stream.send_data(Bytes::from(self.body), ends);
        if self.is_endless {
            return Sent::Endless(stream);
        }
        if !ends {
            let trailers = self.trailers.into_iter();
            let trailers: HeaderMap = trailers
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
                .collect();
            let _ = stream.send_trailers(trailers);
        }
        Sent::Whole
    }
}

/// The preface of a client (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// The type of HEADERS (RFC 9113, 6.2).
const HEADERS: u8 = 1;

async fn serve_frames(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    frames: &[u8],
) -> std::io::Result<()> {
    stream.read_exact(&mut [0; PREFACE]).await?;
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream
            .read_exact(&mut vec![0; usize::try_from(length).unwrap()])
            .await?;
        if head[3] == HEADERS {
            break;
        }
    }
    stream.write_all(frames).await?;
    copy(stream, &mut sink()).await?;
    Ok(())
}
