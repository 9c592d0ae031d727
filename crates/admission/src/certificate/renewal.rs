//! Which certificate is served, and when another one is made: a function of what the Secret holds and of the time.
//!
//! A certificate and its CA live equally long. After two thirds of their life a successor with a CA of its own is put
//! beside them, and the bundle that the API servers are given names both CAs. Only when that bundle has been in force for
//! [`SPREAD`] does the successor take over, so at each moment every API server trusts what it meets. The old CA stays in
//! the bundle until the next renewal, for replicas that have not read of the change.
//!
//! | key of the Secret | holds |
//! |---|---|
//! | `tls.crt`, `tls.key` | what is served, with its CA |
//! | `next.crt`, `next.key` | the successor, while the API servers learn of its CA |
//! | `ca.crt` | the bundle |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Certificate, CertificateError, Issued, Pem, SKEW, issue};

/// How long a bundle has to be in force before a certificate relies on it. API servers read configurations by a watch,
/// each for itself (`k8s.io/apiserver/pkg/admission/configuration`), most within milliseconds.
pub(crate) const SPREAD: Duration = Duration::from_secs(30);

/// The keys of the Secret that are ours.
pub(crate) const KEYS: [&str; 5] = ["tls.crt", "tls.key", "ca.crt", "next.crt", "next.key"];

/// Data of a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// What the Secret holds.
#[derive(Debug)]
pub(crate) enum Stored {
    /// There is none.
    Absent,
    /// Nothing that could be served.
    Unusable(CertificateError),
    /// A certificate that can be served, or could be until it expired.
    Usable(Box<Kept>),
}

/// Certificates as they are kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) current: Certificate,
    pem: Pem,
    /// A successor for the names of this replica.
    next: Option<(Certificate, Pem)>,
    /// Why API servers that call by the names of this replica would refuse it. Another replica, before or after a change
    /// of the flags, has other names.
    pub(crate) misnamed: Option<Arc<CertificateError>>,
    /// All CAs that API servers are to trust, as PEM.
    pub(crate) bundle: Vec<u8>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing until then.
    Wait(Timestamp),
    /// The Secret is to be changed.
    Write(Renewal),
}

/// A change of the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// A first certificate, at once: nothing can be served.
    Create,
    /// What this replica serves is put back, with a successor: the Secret was deleted or spoilt.
    Restore,
    /// A successor is put beside what is served.
    Prepare,
    /// The successor takes over.
    TakeOver,
}

/// What a replica knows beside the Secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Whether this replica leads. A replica that does not only mends what cannot be served.
    pub(crate) leads: bool,
    /// How long the bundle of the Secret has been the one by which API servers judge.
    pub(crate) bundle_in_force: Option<Duration>,
    /// The time.
    pub(crate) now: Timestamp,
}

impl Stored {
    /// Reads a Secret. Its bundle must vouch for what it holds. That it is for other names than these is the leader's to
    /// change: replicas with different names would replace each other's certificates for ever.
    pub(crate) fn read(data: &Data, names: &[String]) -> Self {
        match Kept::read(data, names) {
            Ok(kept) => Self::Usable(Box::new(kept)),
            Err(error) => Self::Unusable(error),
        }
    }
}

impl Kept {
    fn read(data: &Data, names: &[String]) -> Result<Self, CertificateError> {
        let bundle = data.get("ca.crt").cloned().unwrap_or_default();
        let usable = |pem: Pem| {
            let certificate = Certificate::read(&pem)?;
            certificate.trusted_by(&bundle)?;
            Ok((certificate, pem))
        };
        let is_named = |(certificate, _): &(Certificate, Pem)| certificate.names(names).is_ok();
        let (current, pem) = usable(Pem::read(data, ["tls.crt", "tls.key"]))?;
        // A successor that cannot be used is none: another one is made.
        let next = usable(Pem::read(data, ["next.crt", "next.key"])).ok();
        let next = next.filter(is_named);
        Ok(Self {
            misnamed: current.names(names).err().map(Arc::new),
            current,
            pem,
            next,
            bundle,
        })
    }

    /// Whether it can be served. A clock behind the maker's is no reason against it: two replicas would replace each
    /// other's certificates for ever.
    fn lives(&self, now: Timestamp) -> bool {
        now < self.current.not_after
    }

    /// Whether it was made by a clock so far ahead that it is not valid yet, as only the leader mends.
    pub(crate) fn is_premature(&self, now: Timestamp) -> bool {
        self.current.not_before > now + SKEW
    }

    /// What is to be trusted for what is served while another certificate waits: the bundles of both. None if what is
    /// served need not, or cannot, go on.
    pub(crate) fn bundle_with(&self, successor: &Self, now: Timestamp) -> Option<Vec<u8>> {
        let goes_on = self.lives(now) && !self.is_premature(now);
        let is_trusted = successor.current.trusted_by(&self.bundle).is_ok();
        (goes_on && !is_trusted).then(|| joined(&self.bundle, &successor.bundle))
    }

    /// The CA of what is served: the one that [`issue`] puts last into the chain, or that somebody else put into the
    /// bundle alone.
    fn ca(&self) -> &[u8] {
        let mut candidates = certificates(&self.pem.chain);
        candidates.reverse();
        candidates.extend(certificates(&self.bundle));
        let mut candidates = candidates.into_iter();
        candidates
            .find(|ca| self.current.trusted_by(ca).is_ok())
            .unwrap_or(&self.bundle)
    }

    fn renewed_at(&self) -> Timestamp {
        let life = self
            .current
            .not_after
            .duration_since(self.current.not_before);
        self.current.not_before + life * 2 / 3
    }
}

impl Pem {
    fn read(data: &Data, [chain, key]: [&str; 2]) -> Self {
        let get = |key| data.get(key).cloned().unwrap_or_default();
        Self {
            chain: get(chain),
            key: get(key),
        }
    }
}

/// The certificates of a PEM, each as PEM.
fn certificates(pem: &[u8]) -> Vec<&[u8]> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let places = pem.windows(BEGIN.len()).enumerate();
    let begins = places.filter_map(|(place, text)| (text == BEGIN).then_some(place));
    let begins: Vec<_> = begins.collect();
    let ends = begins.iter().copied().skip(1).chain([pem.len()]);
    begins
        .iter()
        .zip(ends)
        .map(|(begin, end)| &pem[*begin..end])
        .collect()
}

/// Two PEMs as one, the first of which may end without a newline.
fn joined(one: &[u8], other: &[u8]) -> Vec<u8> {
    [one.trim_ascii_end(), b"\n", other].concat()
}

/// Decides what is to be done. `served` is what this replica serves.
pub(crate) fn decide(stored: &Stored, served: Option<&Kept>, at: Circumstances) -> Decision {
    let Stored::Usable(kept) = stored else {
        return Decision::Write(match served {
            Some(served) if served.lives(at.now) => Renewal::Restore,
            _ => Renewal::Create,
        });
    };
    match &kept.next {
        _ if !kept.lives(at.now) => match &kept.next {
            Some((next, _)) if at.now < next.not_after => Decision::Write(Renewal::TakeOver),
            _ => Decision::Write(Renewal::Create),
        },
        _ if at.leads && kept.is_premature(at.now) => Decision::Write(Renewal::Create),
        _ if !at.leads => Decision::Wait(kept.current.not_after),
        None if kept.misnamed.is_some() || at.now >= kept.renewed_at() => {
            Decision::Write(Renewal::Prepare)
        }
        None => Decision::Wait(kept.renewed_at()),
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

/// What the Secret holds after a change of what it held (or of what is served, to restore that).
pub(crate) fn changed(
    kept: Option<&Kept>,
    renewal: Renewal,
    names: &[String],
    now: Timestamp,
    life: Duration,
) -> Result<Data, rcgen::Error> {
    let issued = || issue(names, now, life);
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
            (kept.pem.clone(), Some(next), joined(kept.ca(), &ca))
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
    let data = data.into_iter();
    let data = data.map(|(key, value)| (key.to_owned(), value)).collect();
    debug_assert!(
        matches!(Stored::read(&data, names), Stored::Usable(_)),
        "{renewal:?} makes a Secret that cannot be served"
    );
    Ok(data)
}

#[cfg(test)]
mod tests;
