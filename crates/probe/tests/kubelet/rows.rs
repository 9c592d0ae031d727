//! What is compared: servers, a probe of each, and the verdicts.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use http::Request;
use leadsman_core::podprobe::{Handler, HttpGet, Scheme};

use crate::server::{Answer, Reply, Script, Server, Transport, closed};

/// Long enough for a loaded machine. The kubelet's client of gRPC uses all of it up where it cannot connect.
const AMPLE: Duration = Duration::from_secs(5);
/// Where the time is to run out.
const BRIEF: Duration = Duration::from_secs(1);

pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// None where nobody listens.
    pub(crate) server: Option<Server>,
    pub(crate) probe: Probe,
    pub(crate) timeout: Duration,
    pub(crate) verdicts: Verdicts,
}

/// Whether a probe succeeds.
#[derive(Clone, Copy)]
pub(crate) enum Verdicts {
    Both(bool),
    /// On purpose: docs/reference.md says why.
    Differ {
        ours: bool,
        kubelet: bool,
    },
}

#[derive(Clone, Copy)]
pub(crate) enum Probe {
    Get(
        Scheme,
        &'static str,
        &'static [(&'static str, &'static str)],
    ),
    Grpc {
        over_tls: bool,
    },
}

impl Probe {
    pub(crate) fn handler(self, address: SocketAddr) -> Handler {
        let port = NonZeroU16::new(address.port()).unwrap();
        match self {
            Self::Get(scheme, path, headers) => Handler::HttpGet(HttpGet {
                scheme,
                port,
                path: path.to_owned(),
                headers: headers
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            }),
            Self::Grpc { over_tls } => Handler::Grpc {
                port,
                service: "role".to_owned(),
                over_tls,
            },
        }
    }
}

impl Row {
    pub(crate) async fn start(&self) -> SocketAddr {
        match self.server.clone() {
            None => closed().await,
            Some(server) => server.start().await,
        }
    }

    fn first(mut self, script: Script) -> Self {
        self.server.as_mut().unwrap().first.push(script);
        self
    }

    fn brief(mut self) -> Self {
        self.timeout = BRIEF;
        self
    }

    /// The kubelet's verdict is the other one.
    fn differs(mut self) -> Self {
        if let Verdicts::Both(ours) = self.verdicts {
            self.verdicts = Verdicts::Differ {
                ours,
                kubelet: !ours,
            };
        }
        self
    }
}

const H2: &[&str] = &["h2"];
const BOTH: &[&str] = &["h2", "http/1.1"];
const HTTP1: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const HTTP1_REFUSES: &str =
    "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const HTTP1_UPGRADES: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";

fn row(
    name: &'static str,
    transport: Transport,
    script: Script,
    probe: Probe,
    succeeds: bool,
) -> Row {
    let first = Vec::new();
    Row {
        name,
        server: Some(Server {
            transport,
            first,
            script,
        }),
        probe,
        timeout: AMPLE,
        verdicts: Verdicts::Both(succeeds),
    }
}

pub(crate) fn all() -> Vec<Row> {
    [
        statuses(),
        other_servers(),
        broken_exchanges(),
        over_tls(),
        health(),
        calls(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A probe with `protocol: HTTP2`.
const GET: Probe = Probe::Get(Scheme::H2c, "/", &[]);

fn h2c(name: &'static str, reply: Answer, succeeds: bool) -> Row {
    row(name, Transport::Plain, Script::Http2(reply), GET, succeeds)
}

fn status(status: u16) -> Reply {
    Reply {
        status,
        ..Reply::default()
    }
}

fn ok(_: &Request<()>, _: SocketAddr) -> Reply {
    Reply {
        body: b"ok".to_vec(),
        ..status(200)
    }
}

fn moved(code: u16, to: &str) -> Reply {
    Reply {
        headers: vec![("location", to.to_owned())],
        ..status(code)
    }
}

fn statuses() -> Vec<Row> {
    let host = Probe::Get(Scheme::H2c, "/a?b", &[("Host", "a.example")]);
    let named = |request: &Request<()>, _| match request.uri().to_string().as_str() {
        "http://a.example/a?b" => status(200),
        _ => status(421),
    };
    vec![
        h2c("h2c: 200", ok, true),
        h2c("h2c: 204", |_, _| status(204), true),
        h2c("h2c: 301 without Location", |_, _| status(301), true),
        h2c("h2c: 304", |_, _| status(304), true),
        h2c("h2c: 399", |_, _| status(399), true),
        h2c("h2c: 400", |_, _| status(400), false),
        h2c("h2c: 404", |_, _| status(404), false),
        h2c("h2c: 500", |_, _| status(500), false),
        h2c(
            "h2c: 301 to another host",
            |_, _| moved(301, "http://other.example/"),
            true,
        ),
        h2c(
            "h2c: 307 within the host",
            |request, at| match request.uri().path() {
                "/next" => ok(request, at),
                _ => moved(307, "/next"),
            },
            true,
        ),
        h2c(
            "h2c: 302 to a failure",
            |request, _| match request.uri().path() {
                "/next" => status(404),
                _ => moved(302, "/next"),
            },
            false,
        ),
        h2c("h2c: redirects without end", |_, _| moved(302, "/"), false),
        h2c(
            "h2c: a malformed Location",
            |_, _| moved(302, "http://[/"),
            false,
        ),
        row(
            "h2c: 302 to https within the host",
            Transport::Either,
            Script::Http2(|request, at| match request.uri().scheme_str() {
                Some("https") => ok(request, at),
                _ => moved(302, &format!("https://{at}/")),
            }),
            GET,
            false,
        ),
        row(
            "h2c: the probe's host",
            Transport::Plain,
            Script::Http2(named),
            host,
            true,
        ),
        row(
            "h2c: a header about the connection",
            Transport::Plain,
            Script::Http2(ok),
            Probe::Get(Scheme::H2c, "/", &[("Upgrade", "never")]),
            true,
        )
        .differs(),
        h2c(
            "h2c: a long body",
            |_, _| Reply {
                body: vec![b'x'; 60_000],
                ..status(200)
            },
            true,
        ),
        h2c(
            "h2c: no answer",
            |_, _| Reply {
                is_silent: true,
                ..status(200)
            },
            false,
        )
        .brief(),
        h2c(
            "h2c: a body that does not end",
            |request, at| Reply {
                is_endless: true,
                ..ok(request, at)
            },
            false,
        )
        .brief(),
    ]
}

fn other_servers() -> Vec<Row> {
    let plain = |name, script| row(name, Transport::Plain, script, GET, false);
    let nobody = Row {
        server: None,
        ..plain("h2c: nobody listens", Script::Close)
    };
    vec![
        nobody,
        plain("h2c: a server of HTTP/1.1", Script::Bytes(HTTP1)),
        plain("h2c: HTTP/1.1 that refuses", Script::Bytes(HTTP1_REFUSES)),
        plain("h2c: HTTP/1.1 that upgrades", Script::Bytes(HTTP1_UPGRADES)),
        plain("h2c: a server that closes", Script::Close),
        plain("h2c: a server that says nothing", Script::Silent).brief(),
        row(
            "h2c: a server of TLS",
            Transport::Tls(H2),
            Script::Http2(ok),
            GET,
            false,
        ),
        row(
            "HTTP/1.1 of a server of h2c",
            Transport::Plain,
            Script::Http2(ok),
            Probe::Get(Scheme::Http, "/", &[]),
            false,
        ),
        row(
            "HTTP/1.1 of a server of HTTP/1.1",
            Transport::Plain,
            Script::Bytes(HTTP1),
            Probe::Get(Scheme::Http, "/", &[]),
            true,
        ),
    ]
}

/// Codes of errors (RFC 9113, section 7).
const NO_ERROR: u8 = 0;
const PROTOCOL_ERROR: u8 = 1;
const INTERNAL_ERROR: u8 = 2;
const REFUSED_STREAM: u8 = 7;
const CANCEL: u8 = 8;

/// Resets the client's first stream.
fn reset(code: u8) -> Script {
    Script::Frames(vec![0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, code])
}

/// Ends the connection, with no stream processed.
fn go_away(code: u8) -> Script {
    let frame = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code];
    Script::Frames(frame.to_vec())
}

/// Resets the stream in the middle of the body: status 200, a byte, `RST_STREAM`.
fn cut_body() -> Script {
    let head = [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
    let data = [0, 0, 1, 0, 0, 0, 0, 0, 1, b'o'];
    let reset = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, INTERNAL_ERROR];
    Script::Frames([&head[..], &data, &reset].concat())
}

fn broken_exchanges() -> Vec<Row> {
    let always = |name, script| row(name, Transport::Plain, script, GET, false);
    let once = |name, script, succeeds| h2c(name, ok, succeeds).first(script);
    vec![
        always("h2c: GOAWAY each time", go_away(NO_ERROR)).brief(),
        once("h2c: GOAWAY once", go_away(NO_ERROR), true),
        once(
            "h2c: GOAWAY with an error once",
            go_away(INTERNAL_ERROR),
            false,
        ),
        always("h2c: a stream refused each time", reset(REFUSED_STREAM)).brief(),
        once("h2c: a stream refused once", reset(REFUSED_STREAM), true),
        once("h2c: PROTOCOL_ERROR once", reset(PROTOCOL_ERROR), true),
        once("h2c: INTERNAL_ERROR once", reset(INTERNAL_ERROR), false),
        once("h2c: CANCEL once", reset(CANCEL), false),
        once("h2c: a body cut once", cut_body(), true),
        always("h2c: a body cut each time", cut_body()),
        h2c(
            "h2c: a body shorter than said",
            |request, at| Reply {
                headers: vec![("content-length", "5".to_owned())],
                ..ok(request, at)
            },
            false,
        ),
        once("h2c: closed once", Script::Close, false),
    ]
}

fn over_tls() -> Vec<Row> {
    let get = |name, protocols, script, succeeds| {
        let probe = Probe::Get(Scheme::Https, "/", &[]);
        row(name, Transport::Tls(protocols), script, probe, succeeds)
    };
    let upgrade = Probe::Get(Scheme::Https, "/", &[("Upgrade", "never")]);
    // The agent asks in HTTP/1.1 what HTTP/2 cannot ask.
    let either = || {
        row(
            "https: an upgrade, of a server with HTTP/2",
            Transport::Tls(BOTH),
            Script::Bytes(HTTP1),
            upgrade,
            true,
        )
    };
    vec![
        get("https: HTTP/2", H2, Script::Http2(ok), true),
        get("https: HTTP/2 preferred", BOTH, Script::Http2(ok), true),
        get("https: HTTP/1.1", &["http/1.1"], Script::Bytes(HTTP1), true),
        get("https: without ALPN", &[], Script::Bytes(HTTP1), true),
        get(
            "https: another protocol",
            &["other"],
            Script::Bytes(HTTP1),
            false,
        ),
        get("https: a stream refused once", H2, Script::Http2(ok), true)
            .first(reset(REFUSED_STREAM)),
        row(
            "https: a plaintext server",
            Transport::Plain,
            Script::Bytes(HTTP1_REFUSES),
            Probe::Get(Scheme::Https, "/", &[]),
            false,
        ),
        either().differs(),
        row(
            "https: an upgrade that is none of WebSocket's",
            Transport::Tls(&["http/1.1"]),
            Script::Bytes(HTTP1),
            upgrade,
            true,
        ),
    ]
}

const CALL: Probe = Probe::Grpc { over_tls: false };
const CALL_OVER_TLS: Probe = Probe::Grpc { over_tls: true };

/// A reply of gRPC with a serving status.
fn serving(status_code: u8) -> Reply {
    Reply {
        headers: vec![("content-type", "application/grpc".to_owned())],
        body: vec![0, 0, 0, 0, 2, 8, status_code],
        trailers: vec![("grpc-status", "0")],
        ..status(200)
    }
}

fn healthy(_: &Request<()>, _: SocketAddr) -> Reply {
    serving(1)
}

fn code(trailers: Vec<(&'static str, &'static str)>) -> Reply {
    Reply {
        body: Vec::new(),
        trailers,
        ..serving(1)
    }
}

/// What a server answers, over TLS as without.
#[expect(clippy::too_many_lines, reason = "a table")]
fn health() -> Vec<Row> {
    let replies: [(_, Answer, _); 16] = [
        ("grpc: SERVING", healthy, true),
        ("grpc: UNKNOWN", |_, _| serving(0), false),
        ("grpc: NOT_SERVING", |_, _| serving(2), false),
        ("grpc: SERVICE_UNKNOWN", |_, _| serving(3), false),
        (
            "grpc: UNIMPLEMENTED",
            |_, _| code(vec![("grpc-status", "12")]),
            false,
        ),
        (
            "grpc: NOT_FOUND",
            |_, _| code(vec![("grpc-status", "5"), ("grpc-message", "role")]),
            false,
        ),
        (
            "grpc: SERVING with an error",
            |_, _| Reply {
                trailers: vec![("grpc-status", "2")],
                ..serving(1)
            },
            false,
        ),
        (
            "grpc: no message",
            |_, _| code(vec![("grpc-status", "0")]),
            false,
        ),
        (
            "grpc: no trailers",
            |_, _| Reply {
                trailers: Vec::new(),
                ..serving(1)
            },
            false,
        ),
        (
            "grpc: two messages",
            |_, _| Reply {
                body: [0, 0, 0, 0, 2, 8, 1].repeat(2),
                ..serving(1)
            },
            false,
        ),
        (
            "grpc: a compressed message",
            |_, _| Reply {
                body: vec![1, 0, 0, 0, 2, 8, 1],
                ..serving(1)
            },
            false,
        ),
        (
            "grpc: without a content type",
            |_, _| Reply {
                headers: Vec::new(),
                ..serving(1)
            },
            false,
        ),
        (
            "grpc: content type JSON",
            |_, _| Reply {
                headers: vec![("content-type", "application/json".to_owned())],
                ..serving(1)
            },
            false,
        ),
        (
            "grpc: content type with a subtype",
            |_, _| Reply {
                headers: vec![("content-type", "application/grpc+proto".to_owned())],
                ..serving(1)
            },
            true,
        ),
        (
            "grpc: HTTP status 404",
            |_, _| Reply {
                status: 404,
                ..serving(1)
            },
            true,
        ),
        (
            "grpc: another service",
            |request, _| match request.uri().path() {
                "/grpc.health.v1.Health/Check" => serving(1),
                _ => serving(2),
            },
            true,
        ),
    ];
    let rows = replies.into_iter().flat_map(|(name, reply, succeeds)| {
        let script = Script::Http2(reply);
        let tls = Transport::Tls(H2);
        [
            row(name, Transport::Plain, script.clone(), CALL, succeeds),
            row(name, tls, script, CALL_OVER_TLS, succeeds),
        ]
    });
    rows.collect()
}

/// Servers that no call reaches, or that do not answer it.
fn calls() -> Vec<Row> {
    let healthy = || Script::Http2(healthy);
    let tls = |name, protocols, script, succeeds| {
        let transport = Transport::Tls(protocols);
        row(name, transport, script, CALL_OVER_TLS, succeeds)
    };
    let silent = Script::Http2(|_, _| Reply {
        is_silent: true,
        ..serving(1)
    });
    let refusing = Script::Http2(|_, _| Reply {
        is_refused_first: true,
        ..serving(1)
    });
    let plain = |name, script, succeeds| row(name, Transport::Plain, script, CALL, succeeds);
    let nobody = Row {
        server: None,
        ..tls("grpc over TLS: nobody listens", H2, healthy(), false)
    };
    vec![
        nobody.brief(),
        tls("grpc over TLS: several protocols", BOTH, healthy(), true),
        tls("grpc over TLS: without ALPN", &[], healthy(), false).brief(),
        tls(
            "grpc over TLS: ALPN http/1.1",
            &["http/1.1"],
            healthy(),
            false,
        )
        .brief(),
        row(
            "grpc over TLS: a plaintext server",
            Transport::Plain,
            healthy(),
            CALL_OVER_TLS,
            false,
        )
        .brief(),
        row(
            "grpc without TLS: a server of TLS",
            Transport::Tls(H2),
            healthy(),
            CALL,
            false,
        )
        .brief(),
        tls("grpc over TLS: no answer", H2, silent.clone(), false).brief(),
        plain("grpc: no answer", silent, false).brief(),
        plain("grpc: a server that says nothing", Script::Silent, false).brief(),
        plain("grpc: a server of HTTP/1.1", Script::Bytes(HTTP1), false).brief(),
        plain(
            "grpc: a stream refused each time",
            reset(REFUSED_STREAM),
            false,
        )
        .brief(),
        plain("grpc: a stream refused once", refusing, false).differs(),
        plain("grpc: GOAWAY once", healthy(), false)
            .first(go_away(NO_ERROR))
            .differs(),
        plain("grpc: INTERNAL_ERROR once", healthy(), false).first(reset(INTERNAL_ERROR)),
        plain("grpc: closed once", healthy(), false)
            .first(Script::Close)
            .differs(),
    ]
}
