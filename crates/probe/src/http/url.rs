//! The URL of a request, from a probe's path or a redirect's `Location`. Pure.
//!
//! A path is read as the kubelet's prober reads it (`formatURL`, `pkg/probe/http/request.go`): the field is a URL reference
//! of which only path and query are used; a missing leading slash is added; what a request line cannot hold is
//! percent-encoded. References are resolved by RFC 3986, section 5.2.

use std::net::IpAddr;
use std::num::NonZeroU16;

use leadsman_core::podprobe::{HttpGet, Scheme};

/// A URL at the pod's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpUrl {
    pub(super) scheme: Scheme,
    pub(super) port: NonZeroU16,
    /// Path and query, as in a request line.
    pub(super) path: String,
}

/// The meaning of a `Location`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The host that it came from. `same_scheme`: it names no scheme, so that the probe's `Host` header stays valid.
    SameHost { to: HttpUrl, same_scheme: bool },
    /// Another host, or a URL without one.
    OtherHost(String),
    /// TLS, from a probe that speaks HTTP/2 without.
    ToTls,
    /// No URL reference.
    Malformed,
}

impl HttpUrl {
    /// The URL of a probe.
    pub(super) fn from_probe(get: &HttpGet) -> Self {
        let path = percent_encode(get.path.as_bytes());
        let reference = UriReference::split_reference(&path);
        let path = match reference.authority {
            // `formatURL` puts the pod's address in the place of the authority.
            Some(_) => reference.path,
            // A colon belongs to the path if there is no authority.
            None => without_fragment(&path),
        };
        Self {
            scheme: get.scheme,
            port: get.port,
            path: to_rooted(path),
        }
    }

    /// Resolves a redirect from this URL. `ip` is the host that it came from.
    pub(super) fn resolve_redirect(&self, ip: IpAddr, location: &[u8]) -> Redirect {
        let location = percent_encode(location);
        let reference = UriReference::split_reference(&location);
        let scheme = match reference.scheme {
            None => self.scheme,
            // A probe speaks one version of HTTP without TLS, wherever it is sent.
            Some(name) if name.eq_ignore_ascii_case("http") => match self.scheme {
                Scheme::H2c => Scheme::H2c,
                Scheme::Http | Scheme::Https => Scheme::Http,
            },
            Some(name) if name.eq_ignore_ascii_case("https") => Scheme::Https,
            Some(name) => return Redirect::OtherHost(format!("{name}:")),
        };
        let (port, path) = match reference.authority {
            Some(authority) => match split_authority(authority) {
                None => return Redirect::Malformed,
                // A name is another host, since none is resolved: it could lead anywhere.
                Some((host, _)) if host.parse() != Ok(ip) => {
                    return Redirect::OtherHost(authority.to_owned());
                }
                Some((_, port)) => (
                    port.unwrap_or(default_port(scheme)),
                    to_rooted(reference.path),
                ),
            },
            None if reference.scheme.is_some() => return Redirect::OtherHost(location),
            None => (self.port, self.merge_path(reference.path)),
        };
        if (self.scheme, scheme) == (Scheme::H2c, Scheme::Https) {
            return Redirect::ToTls;
        }
        Redirect::SameHost {
            to: Self {
                scheme,
                port,
                path: without_dots(&path),
            },
            same_scheme: reference.scheme.is_none(),
        }
    }

    /// Resolves a path against this URL's (RFC 3986, section 5.2.3).
    fn merge_path(&self, reference: &str) -> String {
        let (path, _) = split_query(&self.path);
        if reference.is_empty() {
            self.path.clone()
        } else if reference.starts_with('/') {
            reference.to_owned()
        } else if reference.starts_with('?') {
            format!("{path}{reference}")
        } else {
            let folder = path.rfind('/').map_or("/", |slash| &path[..=slash]);
            format!("{folder}{reference}")
        }
    }
}

/// The parts of a URL reference. The fragment, which is never sent, is left out.
struct UriReference<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    /// Path and query.
    path: &'a str,
}

impl<'a> UriReference<'a> {
    fn split_reference(text: &'a str) -> Self {
        let text = without_fragment(text);
        let (scheme, rest) = match text.split_once(':') {
            Some((name, rest)) if is_scheme(name) => (Some(name), rest),
            _ => (None, text),
        };
        let Some(rest) = rest.strip_prefix("//") else {
            return Self {
                scheme,
                authority: None,
                path: rest,
            };
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        Self {
            scheme,
            authority: Some(&rest[..end]),
            path: &rest[end..],
        }
    }
}

fn is_scheme(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"+-.".contains(&c))
}

fn without_fragment(text: &str) -> &str {
    text.split_once('#').map_or(text, |(before, _)| before)
}

/// Splits off the query, with its question mark.
fn split_query(path: &str) -> (&str, &str) {
    path.split_at(path.find('?').unwrap_or(path.len()))
}

fn to_rooted(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn default_port(scheme: Scheme) -> NonZeroU16 {
    let port = match scheme {
        Scheme::Http | Scheme::H2c => 80,
        Scheme::Https => 443,
    };
    NonZeroU16::new(port).expect("neither is 0")
}

/// The host, without brackets, and the port of an authority; none if the port is malformed.
fn split_authority(authority: &str) -> Option<(&str, Option<NonZeroU16>)> {
    let host_and_port = authority
        .rsplit_once('@')
        .map_or(authority, |(_, rest)| rest);
    let (host, port) = match host_and_port.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':').unwrap_or(rest))
        }
        None => host_and_port.split_once(':').unwrap_or((host_and_port, "")),
    };
    match port {
        "" => Some((host, None)),
        port => Some((host, Some(port.parse().ok()?))),
    }
}

/// Removes `.` and `..` segments (RFC 3986, section 5.2.4); the query is kept.
fn without_dots(path: &str) -> String {
    let (path, query) = split_query(path);
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                // A dot segment at the end names a directory.
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

/// Percent-encodes what a request line cannot hold. What is encoded already is kept.
fn percent_encode(raw: &[u8]) -> String {
    let mut text = String::with_capacity(raw.len());
    for (at, &byte) in raw.iter().enumerate() {
        let encoded = byte == b'%'
            && raw[at + 1..].len() >= 2
            && raw[at + 1..at + 3].iter().all(u8::is_ascii_hexdigit);
        if encoded || byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?#[]".contains(&byte) {
            text.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn url(scheme: Scheme, port: u16, path: &str) -> HttpUrl {
        HttpUrl {
            scheme,
            port: NonZeroU16::new(port).unwrap(),
            path: path.to_owned(),
        }
    }

    fn of_path(path: &str) -> String {
        HttpUrl::from_probe(&HttpGet {
            scheme: Scheme::Http,
            port: NonZeroU16::MIN,
            path: path.to_owned(),
            headers: Vec::new(),
        })
        .path
    }

    #[rstest]
    #[case("/", "/")]
    #[case("", "/")]
    #[case("healthz", "/healthz")]
    #[case("/healthz?full=1&x=%20", "/healthz?full=1&x=%20")]
    #[case("?full=1", "/?full=1")]
    #[case("/a#fragment", "/a")]
    #[case("/a?b#fragment", "/a?b")]
    #[case("/a b/ß", "/a%20b/%C3%9F")]
    #[case("/100%", "/100%25")]
    #[case("/%zz%2f", "/%25zz%2f")]
    #[case("/a?b c", "/a?b%20c")]
    #[case("/a\r\nX: y", "/a%0D%0AX:%20y")]
    #[case("/a/../b", "/a/../b")]
    #[case("a:b", "/a:b")]
    #[case("http://other:1/a?b", "/a?b")]
    #[case("//other/a", "/a")]
    #[case("//other", "/")]
    fn a_path_is_read_as_the_kubelet_reads_it(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(of_path(path), expected);
    }

    #[rstest]
    #[case("/b", true, Scheme::Http, 8080, "/b")]
    #[case("b", true, Scheme::Http, 8080, "/x/b")]
    #[case("../b?c", true, Scheme::Http, 8080, "/b?c")]
    #[case("../../..", true, Scheme::Http, 8080, "/")]
    #[case("./", true, Scheme::Http, 8080, "/x/")]
    #[case("?c=d", true, Scheme::Http, 8080, "/x/y?c=d")]
    #[case("#top", true, Scheme::Http, 8080, "/x/y?q")]
    #[case("/b/./c/../d#e", true, Scheme::Http, 8080, "/b/d")]
    #[case("//10.0.0.1/b", true, Scheme::Http, 80, "/b")]
    #[case("//10.0.0.1:81", true, Scheme::Http, 81, "/")]
    #[case("http://10.0.0.1/b", false, Scheme::Http, 80, "/b")]
    #[case("HTTPS://10.0.0.1/b", false, Scheme::Https, 443, "/b")]
    #[case("https://user:pw@10.0.0.1:8443?b", false, Scheme::Https, 8443, "/?b")]
    #[case("http://10.0.0.1:/b c", false, Scheme::Http, 80, "/b%20c")]
    fn a_redirect_to_the_same_host_is_resolved(
        #[case] location: &str,
        #[case] same_scheme: bool,
        #[case] scheme: Scheme,
        #[case] port: u16,
        #[case] path: &str,
    ) {
        let from = url(Scheme::Http, 8080, "/x/y?q");
        let expected = Redirect::SameHost {
            to: url(scheme, port, path),
            same_scheme,
        };
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!(from.resolve_redirect(ip, location.as_bytes()), expected);
    }

    #[rstest]
    #[case("http://other/b", Redirect::OtherHost("other".into()))]
    #[case("http://10.0.0.2:8080/b", Redirect::OtherHost("10.0.0.2:8080".into()))]
    #[case("//other:1", Redirect::OtherHost("other:1".into()))]
    #[case("http://10.0.0.1@other/", Redirect::OtherHost("10.0.0.1@other".into()))]
    #[case("http://10.0.0.1.nip.io/", Redirect::OtherHost("10.0.0.1.nip.io".into()))]
    #[case("http:///b", Redirect::OtherHost(String::new()))]
    #[case("http:b", Redirect::OtherHost("http:b".into()))]
    #[case("ftp://10.0.0.1/", Redirect::OtherHost("ftp:".into()))]
    #[case("mailto:a@b", Redirect::OtherHost("mailto:".into()))]
    #[case("http://10.0.0.1:0/", Redirect::Malformed)]
    #[case("http://10.0.0.1:99999/", Redirect::Malformed)]
    #[case("http://[::1/", Redirect::Malformed)]
    fn a_redirect_to_another_host_is_not_followed(
        #[case] location: &str,
        #[case] expected: Redirect,
    ) {
        let from = url(Scheme::Http, 8080, "/");
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!(from.resolve_redirect(ip, location.as_bytes()), expected);
    }

    #[test]
    fn an_address_of_ipv6_is_compared_as_an_address() {
        let from = url(Scheme::Http, 8080, "/");
        let to = from.resolve_redirect("fd00::1".parse().unwrap(), b"http://[FD00:0::1]:81/b");
        let expected = Redirect::SameHost {
            to: url(Scheme::Http, 81, "/b"),
            same_scheme: false,
        };
        assert_eq!(to, expected);
    }

    proptest! {
        #[test]
        fn whatever_a_path_or_location_holds_fits_a_request_line(
            path in any::<String>(), location in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            let from = url(Scheme::Http, 80, &of_path(&path));
            let fits = |path: &str| path.starts_with('/') && path.parse::<http::uri::PathAndQuery>().is_ok();
            prop_assert!(fits(&from.path), "{}", from.path);
            if let Redirect::SameHost { to, .. } = from.resolve_redirect("10.0.0.1".parse().unwrap(), &location) {
                prop_assert!(fits(&to.path), "{}", to.path);
            }
        }
    }
}
