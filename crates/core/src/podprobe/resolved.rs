//! A probe whose ports are numbers, with the revision by which a verdict names the version of its entry.

use std::sync::Arc;

use super::probe::{Handler, Probe, Scheme};

/// A probe of one container, ready to be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedProbe {
    /// The probe.
    pub probe: Arc<Probe>,
    /// Hash of handler and container; a verdict of another revision is outdated. Timing and thresholds are not part of it.
    pub revision: Arc<str>,
}

impl ResolvedProbe {
    /// The probe in the container of this name.
    pub(super) fn new(probe: Probe, container: &str) -> Self {
        Self {
            revision: revision(&probe.handler, container),
            probe: Arc::new(probe),
        }
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv), over the fields of handler and container, each after its length. It must not change
/// from version to version, or no verdict would match its entry after an upgrade; `DefaultHasher` gives no such promise.
fn revision(handler: &Handler, container: &str) -> Arc<str> {
    let mut hash = Fnv::new();
    hash.text(container);
    match handler {
        Handler::Exec { command } => {
            hash.text("exec");
            for word in command {
                hash.text(word);
            }
        }
        Handler::HttpGet(get) => {
            hash.text("httpGet");
            hash.text(match get.scheme {
                Scheme::Http => "HTTP",
                Scheme::Https => "HTTPS",
            });
            hash.number(u64::from(get.port.get()));
            hash.text(&get.path);
            for (name, value) in &get.headers {
                hash.text(name);
                hash.text(value);
            }
        }
        Handler::TcpSocket { port } => {
            hash.text("tcpSocket");
            hash.number(u64::from(port.get()));
        }
        Handler::Grpc { port, service } => {
            hash.text("grpc");
            hash.number(u64::from(port.get()));
            hash.text(service);
        }
    }
    format!("{:016x}", hash.0).into()
}

/// A running FNV-1a hash.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }
}
