//! A certificate with its key: issuing, parsing and verifying it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_process::watch;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, X509Certificate};

pub(crate) mod directory;
pub(crate) mod publish;
pub(crate) mod renewal;
pub(crate) mod secret;

/// A new certificate is backdated by this, so that a clock that is behind accepts it too.
const SKEW: Duration = Duration::from_hours(1);

/// The CA bundle of the webhook configuration, by which the API server verifies our certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CaBundle {
    /// The bundle is not known yet.
    Unknown,
    /// The CA certificates, as PEM.
    Pem(Vec<u8>),
    /// Somebody else fills it in.
    Elsewhere,
}

/// The bundle that a webhook configuration has, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BundleInForce {
    pub(crate) bundle: CaBundle,
    pub(crate) since: Instant,
}

/// The bundles of all webhook configurations.
pub(crate) struct BundlesInForce(pub(crate) Vec<watch::Receiver<Option<BundleInForce>>>);

impl BundlesInForce {
    /// Returns the time since which all of them have had this bundle.
    pub(crate) fn in_all_since(&mut self, bundle: &CaBundle) -> Option<Instant> {
        let times = self.0.iter_mut().map(|in_force| {
            let in_force = in_force.borrow_and_update();
            let same = in_force.as_ref().filter(|known| known.bundle == *bundle);
            same.map(|known| known.since)
        });
        // Each is asked, so that all changes so far have been seen.
        let each: Vec<_> = times.collect();
        let all: Option<Vec<_>> = each.into_iter().collect();
        all?.into_iter().max()
    }

    /// Waits until one of them changes.
    pub(crate) async fn wait_for_change(&mut self) {
        let each = self.0.iter_mut().map(|in_force| {
            Box::pin(async {
                if in_force.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        futures::future::select_all(each).await;
    }
}

/// A certificate that a TLS server can use.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    /// The chain with its key. The names are those of the first certificate.
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

/// A certificate chain and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pem {
    /// The certificate of the server, then those that it was signed by.
    pub(crate) chain: Vec<u8>,
    /// The private key.
    pub(crate) key: Vec<u8>,
}

/// The key is left out, since debug output may end up in a log.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chain = String::from_utf8_lossy(&self.chain);
        f.debug_struct("Pem")
            .field("chain", &chain)
            .finish_non_exhaustive()
    }
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("{what} is not valid PEM: {source}")]
    Pem {
        what: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    #[error("there is no certificate in it")]
    Empty,
    #[error("it does not parse as X.509: {0}")]
    Malformed(String),
    #[error("its key cannot be used: {0}")]
    Key(rustls::Error),
    #[error("it does not name {name}, by which the API server calls: {source}")]
    Name { name: String, source: rustls::Error },
    #[error("the certificate is not signed by the CA bundle: {0}")]
    Untrusted(rustls::Error),
}

impl Certificate {
    /// Parses a chain and its key, which must match.
    pub(crate) fn from_pem(pem: &Pem) -> Result<Self, CertificateError> {
        let chain = read_chain("the certificate", &pem.chain)?;
        let first = chain.first().ok_or(CertificateError::Empty)?;
        let (not_before, not_after) = validity_of_der(first)?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|source| {
            let what = "the key";
            CertificateError::Pem { what, source }
        })?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(CertificateError::Key)?;
        Ok(Self {
            key: Arc::new(key),
            not_before,
            not_after,
        })
    }

    /// Checks that the certificate is for all of these names.
    pub(crate) fn check_names(&self, names: &[String]) -> Result<(), CertificateError> {
        let parsed = self.parse_leaf()?;
        for name in names {
            let wrong = |source| {
                let name = name.clone();
                CertificateError::Name { name, source }
            };
            let server = ServerName::try_from(name.as_str());
            let server =
                server.map_err(|error| wrong(rustls::Error::General(error.to_string())))?;
            verify_server_name(&parsed, &server).map_err(wrong)?;
        }
        Ok(())
    }

    /// Checks that a client that trusts this bundle accepts the certificate in the middle of its life.
    pub(crate) fn check_trusted_by(&self, bundle: &[u8]) -> Result<(), CertificateError> {
        // Not now: whether it is valid yet, or still, is decided apart from whom it is trusted by.
        let life = self.not_after.duration_since(self.not_before);
        self.check_trusted_at(bundle, self.not_before + life / 2)
    }

    fn check_trusted_at(&self, bundle: &[u8], at: Timestamp) -> Result<(), CertificateError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(read_chain("the CA bundle", bundle)?);
        let at = u64::try_from(at.as_second()).unwrap_or_default();
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        verify_server_cert_signed_by_trust_anchor(
            &self.parse_leaf()?,
            &roots,
            self.key.cert.get(1..).unwrap_or_default(),
            UnixTime::since_unix_epoch(Duration::from_secs(at)),
            algorithms.all,
        )
        .map_err(CertificateError::Untrusted)
    }

    fn parse_leaf(&self) -> Result<ParsedCertificate<'_>, CertificateError> {
        let first = self.key.cert.first().ok_or(CertificateError::Empty)?;
        ParsedCertificate::try_from(first)
            .map_err(|error| CertificateError::Malformed(error.to_string()))
    }
}

/// Checks a served certificate as a client does that trusts this bundle, calls by this name, and has this time of day.
#[cfg(feature = "sim")]
pub(crate) fn check_server(
    key: &Arc<CertifiedKey>,
    name: &str,
    bundle: &[u8],
    now: Timestamp,
) -> Result<(), BundleError> {
    let check = || {
        let first = key.cert.first().ok_or(CertificateError::Empty)?;
        let (not_before, not_after) = validity_of_der(first)?;
        let key = Arc::clone(key);
        let certificate = Certificate {
            key,
            not_before,
            not_after,
        };
        certificate.check_names(&[name.to_owned()])?;
        certificate.check_trusted_at(bundle, now)
    };
    check().map_err(BundleError)
}

pub(crate) fn read_chain(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let certificates = CertificateDer::pem_slice_iter(pem);
    certificates
        .collect::<Result<_, _>>()
        .map_err(|source| CertificateError::Pem { what, source })
}

fn validity_of_der(der: &CertificateDer<'_>) -> Result<(Timestamp, Timestamp), CertificateError> {
    let malformed = |error: &dyn std::fmt::Display| CertificateError::Malformed(error.to_string());
    let (_, parsed) = X509Certificate::from_der(der).map_err(|error| malformed(&error))?;
    let time = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).map_err(|error| malformed(&error))
    };
    let validity = parsed.validity();
    Ok((time(validity.not_before)?, time(validity.not_after)?))
}

/// The time in which a CA bundle of a webhook configuration is worth anything: the validity of the
/// certificate in it that expires last. `None` means that the bundle has no certificate.
pub fn bundle_validity(pem: &[u8]) -> Result<Option<(Timestamp, Timestamp)>, BundleError> {
    let chain = read_chain("the CA bundle", pem).map_err(BundleError)?;
    let all: Vec<_> = chain
        .iter()
        .map(validity_of_der)
        .collect::<Result<_, _>>()
        .map_err(BundleError)?;
    Ok(all.into_iter().max_by_key(|(_, not_after)| *not_after))
}

/// Why a CA bundle cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BundleError(CertificateError);

/// The source of the keys of new certificates.
#[derive(Debug)]
pub(crate) enum KeySource {
    /// The random numbers of the operating system.
    System,
    /// A seed that whoever knows it can guess the keys by. A simulation is to be the same each time.
    #[cfg(feature = "sim")]
    Seeded(fastrand::Rng),
}

impl KeySource {
    fn next_key(&mut self) -> Result<KeyPair, rcgen::Error> {
        match self {
            Self::System => KeyPair::generate(),
            #[cfg(feature = "sim")]
            Self::Seeded(random) => seeded_key(random),
        }
    }
}

/// An Ed25519 key, whose signatures need no random numbers either (RFC 8032, section 5.1.6).
#[cfg(feature = "sim")]
fn seeded_key(random: &mut fastrand::Rng) -> Result<KeyPair, rcgen::Error> {
    // A PKCS#8 key of version 1 (RFC 8410, section 7): all but the 32 bytes of the key is the same in each.
    const HEAD: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let mut key = HEAD.to_vec();
    key.extend(std::iter::repeat_with(|| random.u8(..)).take(32));
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key);
    KeyPair::from_pkcs8_der_and_sign_algo(&key, &rcgen::PKCS_ED25519)
}

/// A new certificate, and the CA that signed it.
pub(crate) struct Issued {
    pub(crate) pem: Pem,
    pub(crate) ca: Vec<u8>,
}

/// Issues a CA and a certificate for these names. The key of the CA signs this one certificate and is dropped, so that
/// a stolen Secret is worth nothing after the certificate has expired.
pub(crate) fn issue_certificate(
    names: &[String],
    now: Timestamp,
    life: Duration,
    keys: &mut KeySource,
) -> Result<Issued, rcgen::Error> {
    let valid = |params: &mut CertificateParams| {
        let since_1970 = |time: Timestamp| {
            let seconds = u64::try_from(time.as_second()).unwrap_or_default();
            date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        params.not_before = since_1970(now - SKEW);
        params.not_after = since_1970(now + life);
    };
    let mut ca = CertificateParams::default();
    // The name contains the time, so that logs tell one CA from another.
    let name = format!("leadsman webhook CA of {now:.0}");
    ca.distinguished_name = rcgen::DistinguishedName::new();
    ca.distinguished_name.push(DnType::CommonName, name);
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    valid(&mut ca);
    let ca_key = keys.next_key()?;
    let ca_certificate = ca.self_signed(&ca_key)?;
    let issuer = Issuer::new(ca, ca_key);

    let mut server = CertificateParams::new(names)?;
    server.distinguished_name = rcgen::DistinguishedName::new();
    let first_name = names.first().map_or("leadsman", String::as_str);
    // A common name has at most 64 characters (RFC 5280, appendix A.1); the names that count are beside it.
    let name: String = first_name.chars().take(64).collect();
    server.distinguished_name.push(DnType::CommonName, name);
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    valid(&mut server);
    let key = keys.next_key()?;
    let certificate = server.signed_by(&key, &issuer)?;
    // The CA follows, so that a renewal finds the CA of what is served (`ca_of_served`).
    let chain = certificate.pem() + &ca_certificate.pem();
    Ok(Issued {
        pem: Pem {
            chain: chain.into_bytes(),
            key: key.serialize_pem().into_bytes(),
        },
        ca: ca_certificate.pem().into_bytes(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const YEAR: Duration = Duration::from_hours(365 * 24);

    pub(crate) fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_issued_serves_its_names_and_no_others() {
        let now = time("2026-01-01T00:00:00Z");
        let names_of = names(&["hook.ns.svc", "127.0.0.1", "::1"]);
        let issued = issue_certificate(&names_of, now, YEAR, &mut KeySource::System).unwrap();
        let certificate = Certificate::from_pem(&issued.pem).unwrap();
        certificate.check_names(&names_of).unwrap();
        certificate.check_trusted_by(&issued.ca).unwrap();
        assert_eq!(certificate.not_before, time("2025-12-31T23:00:00Z"));
        assert_eq!(certificate.not_after, time("2027-01-01T00:00:00Z"));
        for other in ["hook.other.svc", "127.0.0.2"] {
            let error = certificate.check_names(&names(&[other])).unwrap_err();
            assert!(error.to_string().contains(other), "{error}");
        }
        let another =
            issue_certificate(&names_of, now + YEAR, YEAR, &mut KeySource::System).unwrap();
        let bundle = [another.ca.clone(), issued.ca].concat();
        let validity = bundle_validity(&bundle).unwrap();
        let expected = ["2026-12-31T23:00:00Z", "2028-01-01T00:00:00Z"].map(time);
        assert_eq!(validity, Some(expected.into()));
        assert_eq!(bundle_validity(b"").unwrap(), None);
        let error = certificate.check_trusted_by(&another.ca).unwrap_err();
        assert!(matches!(error, CertificateError::Untrusted(_)), "{error}");
    }

    #[test]
    fn a_certificate_with_another_key_or_none_is_refused() {
        let now = time("2026-01-01T00:00:00Z");
        let one = issue_certificate(&names(&["a.b.svc"]), now, YEAR, &mut KeySource::System)
            .unwrap()
            .pem;
        let other = issue_certificate(&names(&["a.b.svc"]), now, YEAR, &mut KeySource::System)
            .unwrap()
            .pem;
        let mixed = Pem {
            key: other.key,
            ..one.clone()
        };
        assert!(matches!(
            Certificate::from_pem(&mixed),
            Err(CertificateError::Key(_))
        ));
        let keyless = Pem {
            key: Vec::new(),
            ..one.clone()
        };
        assert!(matches!(
            Certificate::from_pem(&keyless),
            Err(CertificateError::Pem { .. })
        ));
        let empty = Pem {
            chain: Vec::new(),
            ..one
        };
        assert!(matches!(
            Certificate::from_pem(&empty),
            Err(CertificateError::Empty)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_is_in_force_once_every_configuration_has_it() {
        let bundle = CaBundle::Pem(b"CA".to_vec());
        let (one, other) = (watch::Sender::new(None), watch::Sender::new(None));
        let mut all = BundlesInForce(vec![one.subscribe(), other.subscribe()]);
        let begin = leadsman_process::clock::monotonic();
        let put = |configuration: &watch::Sender<_>, bundle: &CaBundle, seconds| {
            let bundle = bundle.clone();
            let since = begin + Duration::from_secs(seconds);
            configuration.send_replace(Some(BundleInForce { bundle, since }));
        };
        put(&one, &bundle, 1);
        assert_eq!(all.in_all_since(&bundle), None);
        put(&other, &CaBundle::Elsewhere, 2);
        all.wait_for_change().await;
        assert_eq!(all.in_all_since(&bundle), None);
        put(&other, &bundle, 3);
        all.wait_for_change().await;
        let since = all.in_all_since(&bundle).map(|since| since - begin);
        assert_eq!(since, Some(Duration::from_secs(3)));
    }
}
