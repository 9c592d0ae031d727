//! The request of an HTTP probe: its headers as the kubelet sends them (`NewRequestForHTTPGetAction`,
//! `pkg/probe/http/request.go`, and Go's `net/http` below it). Pure.

use std::net::SocketAddr;

use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, Entry, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    USER_AGENT,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version};
use http_body_util::Empty;
use hyper::body::Bytes;
use leadsman_core::podprobe::Scheme;

use crate::connection::HttpVersions;

/// A probe's `Host` header: the first one, unless it is empty.
pub(super) fn host_header(headers: &[(String, String)]) -> Option<&str> {
    let (_, host) = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("host"))?;
    let host = host.trim();
    // An empty one leaves the address, as `Request.Host` of Go's `net/http` does.
    (!host.is_empty()).then_some(host)
}

/// The versions of HTTP that a probe's headers can be sent in.
pub(super) fn http_versions(headers: &[(String, String)]) -> HttpVersions {
    let mut names = headers.iter().map(|(name, _)| name);
    if names.any(|name| name.eq_ignore_ascii_case("upgrade")) {
        HttpVersions::Http1
    } else {
        HttpVersions::Any
    }
}

/// GET of a path, with a probe's headers. `host` is the request's host if it is not the address.
///
/// # Errors
/// The message for what is malformed.
pub(super) fn build_request(
    path: &str,
    headers: &[(String, String)],
    host: Option<&str>,
    address: SocketAddr,
) -> Result<Request<Empty<Bytes>>, String> {
    let path = PathAndQuery::try_from(path).map_err(|error| format!("malformed path: {error}"))?;
    let host = match host {
        Some(host) => header_value("Host", host)?,
        None => header_value("Host", &address.to_string())?,
    };
    let mut map = HeaderMap::with_capacity(headers.len() + 4);
    map.insert(HOST, host);
    for (name, text) in headers {
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("malformed header name {name:?}"))?;
        // Host is set above; the others would announce a body, and there is none.
        if ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER].contains(&key) {
            map.append(key, header_value(name, text)?);
        }
    }
    set_or_remove(&mut map, USER_AGENT, crate::USER_AGENT);
    set_or_remove(&mut map, ACCEPT, "*/*");
    // Go adds it where connections are not kept, unless the request asks for another protocol
    // (`isProtocolSwitchHeader`, `net/http/transport.go`).
    if !map.contains_key(UPGRADE) {
        map.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = Uri::from(path);
    *request.headers_mut() = map;
    Ok(request)
}

/// The same request for HTTP/2: with the host in the target (RFC 9113, section 8.3.1), and without headers about the
/// connection (section 8.2.2).
///
/// # Errors
/// The message for a host that HTTP/2 cannot name.
pub(super) fn for_http2(
    request: Request<Empty<Bytes>>,
    scheme: Scheme,
) -> Result<Request<()>, String> {
    let (mut parts, _) = request.into_parts();
    let headers = &mut parts.headers;
    let host = headers.remove(HOST);
    for name in CONNECTION_HEADERS {
        headers.remove(name);
    }
    // The only value that is left to it (section 8.2.2).
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
    let host = host.as_ref().map_or(&[][..], HeaderValue::as_bytes);
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let uri = Uri::builder()
        .scheme(if scheme == Scheme::Https {
            "https"
        } else {
            "http"
        })
        .authority(host)
        .path_and_query(path);
    parts.uri = uri
        .build()
        .map_err(|_| "malformed value of header \"Host\"".to_owned())?;
    parts.version = Version::HTTP_2;
    Ok(Request::from_parts(parts, ()))
}

/// Headers about the connection, which HTTP/2 forbids (RFC 9113, section 8.2.2).
const CONNECTION_HEADERS: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

fn header_value(name: &str, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_bytes(text.trim_matches([' ', '\t']).as_bytes())
        .map_err(|_| format!("malformed value of header {name:?}"))
}

/// Sets a header to its default unless the probe sets it; an empty value removes it.
fn set_or_remove(map: &mut HeaderMap, name: HeaderName, default: &'static str) {
    match map.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(HeaderValue::from_static(default));
        }
        Entry::Occupied(entry) if entry.get().is_empty() => {
            entry.remove();
        }
        Entry::Occupied(_) => {}
    }
}
