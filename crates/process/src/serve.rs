//! `/healthz`, `/readyz` and `/metrics`, over plain HTTP.
//!
//! `/healthz` says only that the event loop runs: a liveness probe that depended on the API server would restart the
//! process in each outage of it.

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
pub struct Args {
    /// Address of /metrics, /healthz and /readyz: `IP:PORT`, `:PORT` for every address, or 0 for none
    #[arg(
        long,
        env = "LEADSMAN_METRICS_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = ":8080"
    )]
    pub metrics_bind_address: BindAddress,
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
#[error("cannot listen on {address} (--metrics-bind-address): {source}")]
pub struct ListenError {
    /// The address.
    pub address: BindAddress,
    /// The error of the operating system.
    pub source: std::io::Error,
}

/// Listens, and logs the address. `None` for [`BindAddress::Nowhere`].
pub async fn listen_and_log(address: BindAddress) -> Result<Option<TcpListener>, ListenError> {
    let listener = address
        .listen()
        .await
        .map_err(|source| ListenError { address, source })?;
    if let Some(listener) = &listener {
        let address = listener
            .local_addr()
            .map_err(|source| ListenError { address, source })?;
        tracing::info!(%address, "serving /metrics, /healthz, /readyz");
    }
    Ok(listener)
}

/// Serves until dropped. Open connections are dropped too: no shutdown waits for a scrape.
pub async fn serve_endpoints(
    listener: TcpListener,
    readiness: Readiness,
    metrics: Metrics,
) -> std::io::Result<()> {
    let listener = BoundedListener::new(listener, CONNECTIONS);
    axum::serve(listener, endpoints_router(readiness, metrics)).await
}

fn endpoints_router(readiness: Readiness, metrics: Metrics) -> Router {
    let ready = async move || readyz_response(&readiness);
    let scraped = async move || metrics_response(&metrics);
    Router::new()
        .route("/healthz", get(async || Ok::<_, Infallible>("ok\n")))
        .route("/readyz", get(ready))
        .route("/metrics", get(scraped))
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
    use tokio::net::TcpStream;

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
        let listen_on = "127.0.0.1:0".parse().unwrap();
        let listener = listen_and_log(listen_on).await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Readiness::default();
        let pods = readiness.add_check("pods", "not listed yet");
        let served = tokio::spawn(serve_endpoints(listener, readiness, Metrics::default()));

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
    async fn idle_connections_make_room_for_others_the_oldest_first() {
        let listen_on = "127.0.0.1:0".parse().unwrap();
        let listener = listen_and_log(listen_on).await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(serve_endpoints(
            listener,
            Readiness::default(),
            Metrics::default(),
        ));
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
