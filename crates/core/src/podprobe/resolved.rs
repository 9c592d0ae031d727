//! A probe whose ports are numbers, with the revision by which a verdict names the version of its entry.

use std::num::NonZeroU32;
use std::sync::Arc;

use leadsman_api::marker as wire;

use super::output::ExpectedOutput;
use super::probe::{Handler, Probe, Scheme};

/// A probe of one container, ready to be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedProbe {
    /// The probe.
    pub probe: Arc<Probe>,
    /// Hash of handler, container and expected output; a verdict of another revision is outdated. Timing and thresholds are not
    /// part of it.
    pub revision: Arc<str>,
    /// The expected output.
    pub output: Option<Arc<wire::ExpectedOutput>>,
}

impl ResolvedProbe {
    /// The probe in the container of this name.
    pub(super) fn new(probe: Probe, container: &str, output: Option<&ExpectedOutput>) -> Self {
        let output = output.map(ExpectedOutput::to_wire);
        Self {
            revision: revision_of(&probe.handler, container, output.as_ref()),
            output: output.map(Arc::new),
            probe: Arc::new(probe),
        }
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv), over the fields of handler and container, each after its length. It must not change
/// from version to version, or no verdict would match its entry after an upgrade; `DefaultHasher` gives no such promise.
fn revision_of(
    handler: &Handler,
    container: &str,
    output: Option<&wire::ExpectedOutput>,
) -> Arc<str> {
    let mut hash = Fnv::new();
    hash.add_text(container);
    match handler {
        Handler::Exec { command } => {
            hash.add_text("exec");
            for word in command {
                hash.add_text(word);
            }
        }
        Handler::HttpGet(get) => {
            hash.add_text("httpGet");
            hash.add_text(match get.scheme {
                Scheme::Http => "HTTP",
                Scheme::H2c => "HTTP2",
                Scheme::Https => "HTTPS",
            });
            hash.add_number(u64::from(get.port.get()));
            hash.add_text(&get.path);
            for (name, value) in &get.headers {
                hash.add_text(name);
                hash.add_text(value);
            }
        }
        Handler::TcpSocket { port } => {
            hash.add_text("tcpSocket");
            hash.add_number(u64::from(port.get()));
        }
        Handler::Grpc {
            port,
            service,
            over_tls,
        } => {
            hash.add_text("grpc");
            hash.add_number(u64::from(port.get()));
            hash.add_text(service);
            if *over_tls {
                hash.add_text("TLS");
            }
        }
        Handler::File(file) => {
            hash.add_text("file");
            hash.add_text(&file.volume);
            hash.add_text(&file.path);
            let age = file.not_older_than_seconds.map_or(0, NonZeroU32::get);
            hash.add_number(age.into());
        }
    }
    if let Some(output) = output {
        hash.add_text("output");
        hash.add_text(&output.matches);
        hash.add_text(output.mismatch.as_deref().unwrap_or_default());
    }
    format!("{:016x}", hash.0).into()
}

/// A running FNV-1a hash.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn add_number(&mut self, number: u64) {
        // The byte order is the same on all architectures: the next leader may run on another.
        self.add_bytes(&number.to_le_bytes());
    }

    fn add_text(&mut self, text: &str) {
        // The length tells the commands `["a", "bc"]` and `["ab", "c"]` apart.
        self.add_number(text.len() as u64);
        self.add_bytes(text.as_bytes());
    }
}
