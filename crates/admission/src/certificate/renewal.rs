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
use std::time::Duration;

use jiff::Timestamp;

use super::{Certificate, CertificateError, Issued, Pem, issue};

/// How long a bundle has to be in force before a certificate relies on it. API servers read configurations by a watch,
/// each for itself (`k8s.io/apiserver/pkg/admission/configuration`), most within milliseconds.
pub(crate) const SPREAD: Duration = Duration::from_secs(30);

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
    next: Option<(Certificate, Pem)>,
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
    /// Since when the bundle of the Secret is the one by which API servers judge.
    pub(crate) bundle_in_force: Option<Timestamp>,
    /// The time.
    pub(crate) now: Timestamp,
}

impl Stored {
    /// Reads a Secret. What it holds must be for these names, and its bundle must vouch for it.
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
            certificate.names(names)?;
            certificate.trusted_by(&bundle)?;
            Ok((certificate, pem))
        };
        let (current, pem) = usable(Pem::read(data, ["tls.crt", "tls.key"]))?;
        // A successor that cannot be used is none: another one is made.
        let next = usable(Pem::read(data, ["next.crt", "next.key"])).ok();
        Ok(Self {
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

    /// The certificate that signed the first one of the chain, which [`issue`] puts last.
    fn ca(&self) -> &[u8] {
        const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
        let begins = self.chain.windows(BEGIN.len()).rposition(|at| at == BEGIN);
        &self.chain[begins.unwrap_or_default()..]
    }
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
        _ if !at.leads => Decision::Wait(kept.current.not_after),
        None if at.now >= kept.renewed_at() => Decision::Write(Renewal::Prepare),
        None => Decision::Wait(kept.renewed_at()),
        Some(_) => match at.bundle_in_force {
            Some(since) if at.now >= since + SPREAD => Decision::Write(Renewal::TakeOver),
            Some(since) => Decision::Wait(kept.current.not_after.min(since + SPREAD)),
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
            (kept.pem.clone(), Some(next), [kept.pem.ca(), &ca].concat())
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
    Ok(data.map(|(key, value)| (key.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests;
