//! `/healthz`, `/readyz` and `/metrics`, over plain HTTP.
//!
//! `/healthz` says only that the event loop runs: a liveness probe that depended on the API server would restart the
//! process in each outage of it.
//!
//! The kubelet's own probes may have a listener of their own: whoever reaches the port of `/metrics` may fill its queue of
//! connections, and the kubelet restarts a process that does not answer it in time.

mod connections;

use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use self::connections::BoundedListener;
use crate::metrics::{self, Metrics};
use crate::readiness::Readiness;

/// The limit of open connections: scrapers keep theirs, the kubelet's probes open one each.
const CONNECTIONS: usize = 128;

/// Flags of the HTTP server.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Serving")]
pub struct ServeArgs {
    /// Address of /metrics, /healthz and /readyz: `IP:PORT`, `:PORT` for every address, or 0 for none
    #[arg(
        long,
        env = "LEADSMAN_METRICS_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = ":8080"
    )]
    pub metrics_bind_address: BindAddress,
    /// Address of /healthz and /readyz alone, for the kubelet's probes, which a flood of connections at the other address
    /// does not reach: `IP:PORT`, `:PORT` for every address, or 0 for none
    #[arg(
        long,
        env = "LEADSMAN_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0"
    )]
    pub health_probe_bind_address: BindAddress,
}

impl ServeArgs {
    pub(crate) async fn listen_for_metrics(&self) -> Result<Option<TcpListener>, ListenError> {
        let serves = "/metrics, /healthz, /readyz";
        listen_and_log(self.metrics_bind_address, "--metrics-bind-address", serves).await
    }

    pub(crate) async fn listen_for_health(&self) -> Result<Option<TcpListener>, ListenError> {
        let flag = "--health-probe-bind-address";
        listen_and_log(self.health_probe_bind_address, flag, "/healthz, /readyz").await
    }
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// No address: nothing is served.
    Nowhere,
    /// All addresses of both families, or of IPv4 where there is no IPv6.
    Every {
        /// The port; 0 takes a free one.
        port: u16,
    },
    /// One address.
    One(SocketAddr),
}

/// A text that is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither IP:PORT, :PORT nor 0")]
pub struct MalformedAddress(String);

impl BindAddress {
    /// Listens; `None` for [`BindAddress::Nowhere`].
    pub async fn listen(self) -> std::io::Result<Option<TcpListener>> {
        let listener = match self {
            Self::Nowhere => return Ok(None),
            Self::One(address) => TcpListener::bind(address).await?,
            // One socket for both families, as `::` accepts IPv4 as well (man 7 ipv6, `IPV6_V6ONLY`, off by default
            // on Linux).
            Self::Every { port } => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
                Ok(listener) => listener,
                // The kernel has no IPv6.
                // Any other error, as that of a port in use, occurs here again and is reported.
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?,
            },
        };
        Ok(Some(listener))
    }
}

impl FromStr for BindAddress {
    type Err = MalformedAddress;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let malformed = || MalformedAddress(s.to_owned());
        if s == "0" {
            return Ok(Self::Nowhere);
        }
        match s.strip_prefix(':') {
            Some(port) => {
                let port = port.parse().map_err(|_| malformed())?;
                Ok(Self::Every { port })
            }
            None => s.parse().map(Self::One).map_err(|_| malformed()),
        }
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("0"),
            Self::Every { port } => write!(f, ":{port}"),
            Self::One(address) => address.fmt(f),
        }
    }
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({flag}): {source}")]
pub struct ListenError {
    /// The address.
    pub address: BindAddress,
    /// The flag that names it.
    pub flag: &'static str,
    /// The error of the operating system.
    pub source: std::io::Error,
}

/// Listens, and logs the address. `None` for [`BindAddress::Nowhere`].
async fn listen_and_log(
    address: BindAddress,
    flag: &'static str,
    serves: &str,
) -> Result<Option<TcpListener>, ListenError> {
    let failed = |source| ListenError {
        address,
        flag,
        source,
    };
    let listener = address.listen().await.map_err(failed)?;
    if let Some(listener) = &listener {
        let address = listener.local_addr().map_err(failed)?;
        tracing::info!(%address, "serving {serves}");
    }
    Ok(listener)
}

/// Serves until dropped or failed, for ever without a listener. Open connections are dropped too: no shutdown waits for a
/// scrape.
pub(crate) async fn serve_if_any(listener: Option<TcpListener>, router: Router) -> std::io::Error {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    let listener = BoundedListener::new(listener, CONNECTIONS);
    match axum::serve(listener, router).await {
        Ok(()) => std::io::Error::other("the listener closed"),
        Err(error) => error,
    }
}

/// The router for the kubelet's health checks.
pub(crate) fn health_router(readiness: Readiness) -> Router {
    let ready = async move || readyz_response(&readiness);
    Router::new()
        .route("/healthz", get(async || Ok::<_, Infallible>("ok\n")))
        .route("/readyz", get(ready))
}

/// All endpoints.
pub(crate) fn metrics_router(readiness: Readiness, metrics: Metrics) -> Router {
    let scraped = async move || metrics_response(&metrics);
    health_router(readiness).route("/metrics", get(scraped))
}

fn readyz_response(readiness: &Readiness) -> Response {
    let status = if readiness.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, readiness.to_text()).into_response()
}

fn metrics_response(metrics: &Metrics) -> Response {
    match metrics.text() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    #[test]
    fn addresses_parse() {
        let one = BindAddress::One(SocketAddr::from(([127, 0, 0, 1], 0)));
        let table = [
            ("0", Some(BindAddress::Nowhere)),
            (":8080", Some(BindAddress::Every { port: 8080 })),
            ("127.0.0.1:0", Some(one)),
            ("8080", None),
            (":http", None),
            ("localhost:80", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<BindAddress>().ok(), expected, "{text:?}");
            if let Some(address) = expected {
                assert_eq!(address.to_string(), text);
            }
        }
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let on = "127.0.0.1:0".parse().unwrap();
        let listening = listen_and_log(on, "--a", "/a").await;
        let listener = listening.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn readyz_names_each_check_that_fails() {
        let (listener, address) = listen().await;
        let readiness = Readiness::default();
        let pods = readiness.add_check("pods", "not listed yet");
        let router = metrics_router(readiness, Metrics::default());
        let served = tokio::spawn(serve_if_any(Some(listener), router));

        assert!(
            get(address, "/healthz")
                .await
                .starts_with("HTTP/1.0 200 OK")
        );
        let unready = get(address, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.0 503"), "{unready}");
        assert!(unready.ends_with("[-] pods: not listed yet\n"), "{unready}");
        pods.set_ready();
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.0 200 OK"));
        let scraped = get(address, "/metrics").await;
        assert!(scraped.contains("leadsman_build_info"), "{scraped}");

        served.abort();
    }

    #[tokio::test]
    async fn the_kubelet_is_answered_while_the_other_listener_accepts_nobody() {
        let queue = TcpSocket::new_v4().unwrap();
        queue.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let flooded = queue.listen(0).unwrap();
        let flooded_at = flooded.local_addr().unwrap();
        let brief = Duration::from_millis(300);
        let mut queued = Vec::new();
        // Until its queue is full, and the kernel drops what comes.
        while let Ok(stream) = tokio::time::timeout(brief, TcpStream::connect(flooded_at)).await {
            queued.push(stream.unwrap());
        }
        let (listener, address) = listen().await;
        let router = health_router(Readiness::default());
        let served = tokio::spawn(serve_if_any(Some(listener), router));
        let alive = get(address, "/healthz").await;
        assert!(alive.starts_with("HTTP/1.0 200 OK"), "{alive}");
        let unready = get(address, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.0 503"), "{unready}");
        let scraped = get(address, "/metrics").await;
        assert!(scraped.starts_with("HTTP/1.0 404"), "{scraped}");
        served.abort();
    }

    #[tokio::test]
    async fn idle_connections_make_room_for_others_the_oldest_first() {
        let (listener, address) = listen().await;
        let router = metrics_router(Readiness::default(), Metrics::default());
        let served = tokio::spawn(serve_if_any(Some(listener), router));
        let mut idle = Vec::new();
        for _ in 0..=CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // A head that never ends.
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\n")
                .await
                .unwrap();
            idle.push(stream);
        }
        assert!(
            get(address, "/healthz")
                .await
                .starts_with("HTTP/1.0 200 OK")
        );
        for closed in &mut idle[..2] {
            let mut reply = [0; 64];
            let end = tokio::time::timeout(Duration::from_secs(10), closed.read(&mut reply));
            let end = end.await.expect("it is closed for another one");
            assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        }
        let newest = idle.last_mut().unwrap();
        newest.write_all(b"Host: a\r\n\r\n").await.unwrap();
        let mut reply = [0; 12];
        newest.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"HTTP/1.1 200");

        served.abort();
    }
}
