//! A call of a webhook that stalls in the middle of its body.

use std::sync::Arc;

use anyhow::{Context, Result};
use http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Calls the webhook at this URL, which has a certificate of this authority (PEM), with a timeout of 30 s, sends so many bytes
/// of a body, and then nothing. Ends when the webhook answers or closes the connection.
///
/// # Errors
/// When it cannot be called.
pub async fn stall_body(url: &Uri, authority: &[u8], bytes: usize) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = url.host().context("the URL has no host")?;
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(443))).await?;
    let name = ServerName::try_from(host.to_owned())?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    let (mut answer, mut body) = split(stream);
    let head = format!(
        "POST {}?timeout=30s HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{bytes:x}\r\n",
        url.path()
    );
    let sending = async {
        body.write_all(head.as_bytes()).await?;
        // A webhook that has no room reads no further, and this waits.
        body.write_all(&vec![b' '; bytes]).await?;
        body.flush().await?;
        std::future::pending().await
    };
    tokio::select! {
        ended = sending => ended,
        // An HTTP/1.1 server may keep the connection open after its answer.
        ended = answer.read_u8() => ended.map(|_| ()).map_err(Into::into),
    }
}
