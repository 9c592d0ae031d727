//! Publishes the served certificate and its CA bundle to the rest of the process.

use std::sync::Arc;

use leadsman_process::ReadinessCheck;
use leadsman_process::watch;
use rustls::sign::CertifiedKey;

use super::{CaBundle, Certificate};
use crate::metrics::AdmissionMetrics;

/// Publishes certificates.
pub(crate) struct CertificatePublisher {
    certificate: watch::Sender<Option<Arc<CertifiedKey>>>,
    bundle: watch::Sender<CaBundle>,
    metrics: AdmissionMetrics,
    check: ReadinessCheck,
}

impl CertificatePublisher {
    pub(crate) fn new(metrics: AdmissionMetrics, check: ReadinessCheck) -> Self {
        Self {
            certificate: watch::Sender::new(None),
            bundle: watch::Sender::new(CaBundle::Unknown),
            metrics,
            check,
        }
    }

    pub(crate) fn subscribe_to_certificate(&self) -> watch::Receiver<Option<Arc<CertifiedKey>>> {
        self.certificate.subscribe()
    }

    pub(crate) fn subscribe_to_bundle(&self) -> watch::Receiver<CaBundle> {
        self.bundle.subscribe()
    }

    /// Serves this certificate from the next handshake on.
    pub(crate) fn publish_certificate(&self, certificate: &Certificate, bundle: CaBundle) {
        let is_new = self.certificate.send_if_modified(|served| {
            let serves = |served: &Arc<CertifiedKey>| served.cert == certificate.key.cert;
            let is_new = !served.as_ref().is_some_and(serves);
            *served = Some(Arc::clone(&certificate.key));
            is_new
        });
        if is_new {
            let not_after = certificate.not_after;
            tracing::info!(%not_after, "serving admission webhooks with a new certificate");
            self.metrics.set_not_after(not_after);
        }
        self.bundle.send_if_modified(|known| {
            let is_new = *known != bundle;
            *known = bundle;
            is_new
        });
    }

    pub(crate) fn set_ready(&self) {
        self.check.set_ready();
    }

    pub(crate) fn set_not_ready(&self, reason: String) {
        self.check.set_not_ready(reason);
    }
}
