//! The connection of an HTTP exchange, of which a call of gRPC is one, plain or TLS, over any stream.
//!
//! A server certificate is not verified, as with the kubelet (`InsecureSkipVerify` in `pkg/probe/http/http.go`), nor a
//! signature made with it, which Go verifies all the same. HTTP/2 and HTTP/1.1 are offered over TLS, in this order, as the kubelet's client does
//! (`SetTransportDefaults` in `k8s.io/apimachinery/pkg/util/net/http.go`); the server chooses. For a request that asks for an
//! upgrade nothing is offered: HTTP/2 has no upgrade (RFC 9113, section 8.6).

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use leadsman_core::podprobe::Scheme;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::metered_stream::MeteredStream;
use crate::socket::{CLOSE_TIMEOUT, close_gracefully};

/// A connection.
pub(crate) enum HttpConnection<S> {
    Plain(MeteredStream<S>),
    // Below TLS, whose records are work as well.
    Tls(Box<TlsStream<MeteredStream<S>>>),
}

/// The versions of HTTP that a request can be sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersions {
    /// HTTP/1.1, and over TLS HTTP/2 if the server prefers it.
    Any,
    /// HTTP/1.1 alone: the request asks for an upgrade.
    Http1,
    /// HTTP/2 alone.
    Http2,
}

impl<S: AsyncRead + AsyncWrite + Unpin> HttpConnection<S> {
    /// Performs the TLS handshake if the scheme asks for one. No server name is sent, since an address has none (RFC 6066,
    /// section 3).
    pub(crate) async fn new(
        stream: S,
        scheme: Scheme,
        versions: HttpVersions,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let stream = MeteredStream::new(stream);
        let connector = match (scheme, versions) {
            (Scheme::Http | Scheme::H2c, _) => return Ok(Self::Plain(stream)),
            (Scheme::Https, HttpVersions::Any) => &CONNECTOR,
            (Scheme::Https, HttpVersions::Http1) => &HTTP1_CONNECTOR,
            (Scheme::Https, HttpVersions::Http2) => &HTTP2_CONNECTOR,
        };
        let name = ServerName::IpAddress(address.ip().into());
        let stream = connector.connect(name, stream).await?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Whether the server chose HTTP/2 in the handshake of TLS.
    pub(crate) fn has_chosen_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(HTTP2),
        }
    }

    /// Whether the server has sent anything.
    pub(crate) fn has_received(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.has_received(),
            Self::Tls(stream) => stream.get_ref().0.has_received(),
        }
    }

    /// Closes the connection without a reset.
    pub(crate) async fn close(self) {
        match self {
            Self::Plain(stream) => close_gracefully(stream.into_stream()).await,
            Self::Tls(mut stream) => {
                // TLS ends by close_notify (RFC 8446, 6.1). Whatever the other side still sends
                // need not be decrypted.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
                close_gracefully(stream.into_inner().0.into_stream()).await;
            }
        }
    }
}

/// The names of the versions in ALPN (RFC 7301; RFC 9113, section 3.1).
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

static CONNECTOR: LazyLock<TlsConnector> = LazyLock::new(|| tls_connector(&[HTTP2, HTTP1]));
static HTTP1_CONNECTOR: LazyLock<TlsConnector> = LazyLock::new(|| tls_connector(&[]));
static HTTP2_CONNECTOR: LazyLock<TlsConnector> = LazyLock::new(|| tls_connector(&[HTTP2]));

fn tls_connector(protocols: &[&[u8]]) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has suites for TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // Each run shows that a full handshake works, and nothing is kept for each server.
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// Accepts every server, also one whose certificate cannot be parsed.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        // All schemes, outdated ones too, since no signature is verified.
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP521_SHA512,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::ECDSA_SHA1_Legacy,
            SignatureScheme::RSA_PKCS1_SHA1,
        ]
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for HttpConnection<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => match Pin::new(stream.as_mut()).poll_read(cx, buf) {
                // Servers often close without a close_notify. HTTP says whether the response is complete.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Ok(()))
                }
                other => other,
            },
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HttpConnection<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
