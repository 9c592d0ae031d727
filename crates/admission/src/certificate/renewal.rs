//! The times when a certificate is issued and served: a function of the contents of the Secret and of the time.
//!
//! A certificate and its CA expire together. After two thirds of their life a successor with a CA of its own is stored
//! beside them, and the CA bundle of the webhook configuration gets both CAs. The successor is served only when that
//! bundle has been in force for [`SPREAD`], so every API server trusts the certificate that it meets. The old CA stays
//! in the bundle until the next renewal, for replicas that have not read the change yet.
//!
//! | key of the Secret | holds |
//! |---|---|
//! | `tls.crt`, `tls.key` | the served certificate, with its CA |
//! | `next.crt`, `next.key` | the successor, until API servers know its CA |
//! | `ca.crt` | the CA bundle |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Certificate, CertificateError, Issued, KeySource, Pem, SKEW, issue_certificate};

/// How long a bundle has to be in force before a certificate relies on it. Each API server watches the configurations
/// (`k8s.io/apiserver/pkg/admission/configuration`), most within milliseconds.
pub(crate) const SPREAD: Duration = Duration::from_secs(30);

/// The keys of the Secret that this module writes.
pub(crate) const KEYS: [&str; 5] = ["tls.crt", "tls.key", "ca.crt", "next.crt", "next.key"];

/// Data of a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// The contents of the Secret.
#[derive(Debug)]
pub(crate) enum StoredCertificate {
    /// The Secret does not exist.
    Absent,
    /// No certificate that can be served, for this reason.
    Unusable(CertificateError),
    /// A certificate that can be served, or could until it expired.
    Usable(Box<Kept>),
}

/// The stored certificates.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) current: Certificate,
    pem: Pem,
    /// The successor, if there is one.
    next: Option<(Certificate, Pem)>,
    /// Why API servers that call by the names of this replica would refuse it. A replica with other flags, during a
    /// roll-out, has other names.
    pub(crate) misnamed: Option<Arc<CertificateError>>,
    /// All CAs that API servers are to trust, as PEM.
    pub(crate) bundle: Vec<u8>,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing before this time.
    Wait(Timestamp),
    /// Change the Secret.
    Write(Renewal),
}

/// A change of the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Issue a first certificate and serve it at once.
    Create,
    /// Restore what this replica serves, with a successor: the Secret was deleted or damaged.
    Restore,
    /// Issue a successor.
    Prepare,
    /// Serve the successor.
    TakeOver,
}

/// The circumstances that a decision depends on besides the Secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Whether this replica leads. Others only replace what cannot be served.
    pub(crate) leads: bool,
    /// How long the bundle of the Secret has been that of the webhook configuration.
    pub(crate) bundle_in_force: Option<Duration>,
    /// The time.
    pub(crate) now: Timestamp,
}

impl StoredCertificate {
    /// Reads a Secret, whose bundle must contain the CAs of its certificates. DNS names that differ
    /// from `names` are accepted; only the leader rewrites them, or replicas with different
    /// `--webhook-service` would overwrite each other forever.
    pub(crate) fn read_secret(data: &Data, names: &[String]) -> Self {
        match Kept::read_certificate(data, names) {
            Ok(kept) => Self::Usable(Box::new(kept)),
            Err(error) => Self::Unusable(error),
        }
    }
}

impl Kept {
    fn read_certificate(data: &Data, names: &[String]) -> Result<Self, CertificateError> {
        let bundle = data.get("ca.crt").cloned().unwrap_or_default();
        let usable = |pem: Pem| {
            let certificate = Certificate::from_pem(&pem)?;
            certificate.check_trusted_by(&bundle)?;
            Ok((certificate, pem))
        };
        let is_named =
            |(certificate, _): &(Certificate, Pem)| certificate.check_names(names).is_ok();
        let (current, pem) = usable(Pem::read_entries(data, ["tls.crt", "tls.key"]))?;
        // A successor that cannot be used is ignored: another one is issued.
        let next = usable(Pem::read_entries(data, ["next.crt", "next.key"]))
            .ok()
            .filter(is_named);
        Ok(Self {
            misnamed: current.check_names(names).err().map(Arc::new),
            current,
            pem,
            next,
            bundle,
        })
    }

    /// Whether it can be served. A certificate that is not valid yet by this clock can: two replicas whose clocks
    /// differ would replace each other's certificates without end.
    fn is_servable(&self, now: Timestamp) -> bool {
        now < self.current.not_after
    }

    /// Whether it was issued by a clock so far ahead that it is not valid yet. Only the leader replaces it.
    pub(crate) fn is_premature(&self, now: Timestamp) -> bool {
        self.current.not_before > now + SKEW
    }

    /// The bundle to be trusted while this certificate is served and another one waits. None if this one need not or
    /// cannot be served any longer.
    pub(crate) fn bundle_with(&self, successor: &Self, now: Timestamp) -> Option<Vec<u8>> {
        let goes_on = self.is_servable(now) && !self.is_premature(now);
        let is_trusted = successor.current.check_trusted_by(&self.bundle).is_ok();
        (goes_on && !is_trusted).then(|| join_pems(&self.bundle, &successor.bundle))
    }

    /// The CA of the served certificate: the last one of the chain, where [`issue_certificate`] puts it, or the bundle, where
    /// somebody else has put it.
    fn ca_of_served(&self) -> &[u8] {
        let mut candidates = split_certificates(&self.pem.chain);
        candidates.reverse();
        candidates.extend(split_certificates(&self.bundle));
        let mut candidates = candidates.into_iter();
        candidates
            .find(|ca| self.current.check_trusted_by(ca).is_ok())
            .unwrap_or(&self.bundle)
    }

    fn renewal_time(&self) -> Timestamp {
        let life = self
            .current
            .not_after
            .duration_since(self.current.not_before);
        self.current.not_before + life * 2 / 3
    }
}

impl Pem {
    fn read_entries(data: &Data, [chain, key]: [&str; 2]) -> Self {
        let get = |key| data.get(key).cloned().unwrap_or_default();
        Self {
            chain: get(chain),
            key: get(key),
        }
    }
}

/// The certificates of a PEM, each as PEM.
fn split_certificates(pem: &[u8]) -> Vec<&[u8]> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let places = pem.windows(BEGIN.len()).enumerate();
    let begins: Vec<_> = places
        .filter_map(|(place, text)| (text == BEGIN).then_some(place))
        .collect();
    let ends = begins.iter().copied().skip(1).chain([pem.len()]);
    begins
        .iter()
        .zip(ends)
        .map(|(begin, end)| &pem[*begin..end])
        .collect()
}

/// Two PEMs as one, the first of which may end without a newline.
fn join_pems(one: &[u8], other: &[u8]) -> Vec<u8> {
    [one.trim_ascii_end(), b"\n", other].concat()
}

/// Decides about a change of the Secret. `served` is what this replica serves.
pub(crate) fn decide_renewal(
    stored: &StoredCertificate,
    served: Option<&Kept>,
    at: Circumstances,
) -> Decision {
    // Nothing usable is stored: any replica may write, since a first write wins by the resourceVersion, and calls fail
    // until one has.
    let StoredCertificate::Usable(kept) = stored else {
        return Decision::Write(match served {
            Some(served) if served.is_servable(at.now) => Renewal::Restore,
            _ => Renewal::Create,
        });
    };
    match &kept.next {
        _ if !kept.is_servable(at.now) => match &kept.next {
            Some((next, _)) if at.now < next.not_after => Decision::Write(Renewal::TakeOver),
            _ => Decision::Write(Renewal::Create),
        },
        // The leader alone: of two replicas whose clocks differ, each would replace what the other has issued.
        _ if at.leads && kept.is_premature(at.now) => Decision::Write(Renewal::Create),
        _ if !at.leads => Decision::Wait(kept.current.not_after),
        // The next certificate is stored before it is served, so that its CA reaches the API servers first.
        None if kept.misnamed.is_some() || at.now >= kept.renewal_time() => {
            Decision::Write(Renewal::Prepare)
        }
        None => Decision::Wait(kept.renewal_time()),
        Some(_) => match at.bundle_in_force {
            Some(spread) if spread >= SPREAD => Decision::Write(Renewal::TakeOver),
            Some(spread) => Decision::Wait(
                kept.current
                    .not_after
                    .min(at.now + (SPREAD.saturating_sub(spread))),
            ),
            None => Decision::Wait(kept.current.not_after),
        },
    }
}

/// The contents of the Secret after a renewal of `kept`, which is what it contained before, or what is served and has
/// to be restored.
pub(crate) fn renewed_data(
    kept: Option<&Kept>,
    renewal: Renewal,
    names: &[String],
    (now, life): (Timestamp, Duration),
    keys: &mut KeySource,
) -> Result<Data, rcgen::Error> {
    let mut issued = || issue_certificate(names, now, life, keys);
    let (pem, next, bundle) = match (renewal, kept) {
        (
            Renewal::TakeOver,
            Some(Kept {
                next: Some((_, next)),
                bundle,
                ..
            }),
        ) => (next.clone(), None, bundle.clone()),
        (Renewal::Prepare | Renewal::Restore, Some(kept)) => {
            let Issued { pem: next, ca } = issued()?;
            (
                kept.pem.clone(),
                Some(next),
                // Not the whole bundle: nobody serves a certificate of the CAs before that, and it would grow with
                // each renewal.
                join_pems(kept.ca_of_served(), &ca),
            )
        }
        _ => {
            let Issued { pem, ca } = issued()?;
            (pem, None, ca)
        }
    };
    let mut data = vec![
        ("tls.crt", pem.chain),
        ("tls.key", pem.key),
        ("ca.crt", bundle),
    ];
    if let Some(next) = next {
        data.extend([("next.crt", next.chain), ("next.key", next.key)]);
    }
    let data = data
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    debug_assert!(
        matches!(
            StoredCertificate::read_secret(&data, names),
            StoredCertificate::Usable(_)
        ),
        "{renewal:?} makes a Secret that cannot be served"
    );
    Ok(data)
}

#[cfg(test)]
mod tests;
