//! The HTTP client, for calls from inside a bed or a container.

use std::io::Write as _;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Failure;

/// Sends one request and prints the answer's body; a status other than 2xx is an error.
pub(crate) async fn print(method: &str, url: &str, timeout: Duration) -> Result<(), Failure> {
    let deadline = tokio::time::timeout(timeout, request(method, url));
    let (status, body) = deadline
        .await
        .map_err(|_| format!("{url}: no answer in {timeout:?}"))??;
    let mut out = std::io::stdout().lock();
    out.write_all(&body)?;
    out.flush()?;
    if (200..300).contains(&status) {
        Ok(())
    } else {
        Err(format!("{url}: status {status}").into())
    }
}

/// Status and body of the answer to a request. An answer that is shorter than it says is an error.
pub(crate) async fn request(method: &str, url: &str) -> Result<(u16, Vec<u8>), Failure> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| format!("{url}: only http:// is known here"))?;
    let slash = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    let path = if path.is_empty() { "/" } else { path };
    let port_given = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let address = if port_given {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let mut stream = TcpStream::connect(&address)
        .await
        .map_err(|error| format!("{address}: {error}"))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: target\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or("the answer has no end of its head")?;
    let head = std::str::from_utf8(&answer[..end])?;
    let status = head.split(' ').nth(1);
    let status = status.ok_or("the answer has no status")?.parse()?;
    let mut lines = head.split("\r\n");
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let length: Option<usize> = length.map(str::parse).transpose()?;
    answer.drain(..end + 4);
    if length.is_some_and(|length| answer.len() < length) {
        return Err(format!("the answer is cut off after {} bytes", answer.len()).into());
    }
    Ok((status, answer))
}
