//! The HTTP/1.1 side. Requests' bodies are skipped; connections are kept alive as asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;
use crate::state::State;

const LARGEST_HEAD: usize = 64 * 1024;

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) -> Result<(), Failure> {
    loop {
        let (peer, _) = listener.accept().await?;
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            // A peer that goes away in the middle is a prober's right.
            let _ = converse(peer, &state).await;
        });
    }
}

struct Request {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    headers: BTreeMap<String, String>,
    keep_alive: bool,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type", "text/plain; charset=utf-8".into())],
            body: body.into(),
        }
    }

    fn json(value: &serde_json::Value) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", "application/json".into())],
            body: value.to_string().into(),
        }
    }

    fn head(&self, keep_alive: bool) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let _ = write!(
            head,
            "content-length: {}\r\nconnection: {connection}\r\n\r\n",
            self.body.len()
        );
        head
    }
}

/// Answers the requests of one connection.
pub(crate) async fn converse(mut peer: TcpStream, state: &State) -> std::io::Result<()> {
    let mut read = Vec::new();
    while let Some(request) = next_request(&mut peer, &mut read).await? {
        state.count_http(&request.path);
        if request.path == "/hang" {
            // Until the peer gives up.
            while peer.read(&mut [0; 256]).await? > 0 {}
            return Ok(());
        }
        if request.path == "/endless-head" {
            let line = format!("x-filler: {}\r\n", "x".repeat(1024 - 12));
            let head = format!("HTTP/1.1 200 OK\r\n{}", line.repeat(63));
            peer.write_all(head.as_bytes()).await?;
            while peer.read(&mut [0; 256]).await? > 0 {}
            return Ok(());
        }
        let answer = answer(&request, state).await;
        peer.write_all(answer.head(request.keep_alive).as_bytes())
            .await?;
        if request.method != "HEAD" {
            peer.write_all(&answer.body).await?;
        }
        if !request.keep_alive {
            return peer.shutdown().await;
        }
    }
    Ok(())
}

async fn next_request(
    peer: &mut TcpStream,
    read: &mut Vec<u8>,
) -> std::io::Result<Option<Request>> {
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if read.len() > LARGEST_HEAD || peer.read_buf(read).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let Some(request) = parse(&head) else {
        peer.write_all(
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        )
        .await?;
        return Ok(None);
    };
    let length = request
        .headers
        .get("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    let whole = end + 4 + length;
    while read.len() < whole {
        if peer.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
    read.drain(..whole);
    Ok(Some(request))
}

fn parse(head: &str) -> Option<Request> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let mut headers = BTreeMap::<String, String>::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        headers
            .entry(name.to_ascii_lowercase())
            .and_modify(|all| all.extend([", ", value]))
            .or_insert_with(|| value.into());
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)));
    let connection = headers
        .get("connection")
        .map(|value| value.to_ascii_lowercase());
    let keep_alive = version == "HTTP/1.1" && connection.as_deref() != Some("close");
    Some(Request {
        method: method.into(),
        path: path.into(),
        query: query.collect(),
        headers,
        keep_alive,
    })
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = bytes
            .get(at + 1..at + 3)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        if byte == b'%'
            && let Some(coded) = code.and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            plain.push(coded);
            at += 3;
        } else {
            plain.push(if byte == b'+' { b' ' } else { byte });
            at += 1;
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

async fn answer(request: &Request, state: &State) -> Answer {
    let argument = |key: &str| {
        request
            .query
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    };
    let number = |key: &str| {
        argument(key)
            .and_then(|value| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    match request.path.as_str() {
        "/healthz" => {
            let answers = state.answers();
            Answer::text(answers.healthz, answers.body)
        }
        "/role" => {
            let role = state.answers().role;
            Answer::text(if role == "main" { 200 } else { 503 }, role)
        }
        "/name" => Answer::text(
            200,
            std::fs::read("/proc/sys/kernel/hostname")
                .unwrap_or_default()
                .trim_ascii(),
        ),
        "/headers" => Answer::json(&json!(request.headers)),
        "/counts" => Answer::json(&state.counts()),
        "/redirect" => {
            let place = argument("to").unwrap_or("/healthz").to_owned();
            Answer {
                status: 302,
                headers: vec![("location", place)],
                body: Vec::new(),
            }
        }
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(number("ms"))).await;
            Answer::text(200, "slow")
        }
        "/large" => Answer::text(
            200,
            vec![b'x'; usize::try_from(number("bytes")).unwrap_or(0)],
        ),
        "/set" if matches!(request.method.as_str(), "PUT" | "POST") => set(request, state),
        "/set" => Answer::text(405, "PUT or POST it"),
        path => match path
            .strip_prefix("/status/")
            .and_then(|status| status.parse().ok())
        {
            // These two have no body by their meaning.
            Some(status @ (204 | 304)) => Answer::text(status, ""),
            Some(status @ 200..=999) => Answer::text(status, format!("{status}")),
            _ => Answer::text(404, "no such path"),
        },
    }
}

fn set(request: &Request, state: &State) -> Answer {
    for (key, value) in &request.query {
        if let Err(reason) = state.set(key, value) {
            return Answer::text(400, reason);
        }
    }
    Answer::text(200, "set")
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        302 => "Found",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
