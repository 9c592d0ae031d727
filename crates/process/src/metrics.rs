//! The registry of metrics and its text form. Each module registers the metrics that it counts.
//!
//! Names and labels follow Kubernetes' own components where these measure the same: `prober_probe_total` is the kubelet's,
//! `rest_client_requests_total` client-go's. The values of a label come from a closed list, never from the name of a pod or
//! a marker, and the series of such a list exist from the start: of a counter that begins to exist with its first event,
//! `rate` does not see that event.
//!
//! | module | holds |
//! |---|---|
//! | `client` | requests to the API server, and its watches |
//! | `latency` | times that begin in another process |
//! | `operating_system` | CPU time, memory and open files of the process |
//! | `text` | the text form |
//! | `writes` | writes to the API server by object and result |

mod client;
mod latency;
mod operating_system;
mod text;
mod writes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use self::client::ClientMetrics;
pub(crate) use self::client::WatchMetrics;
pub use self::latency::LatencyHistogram;
use self::operating_system::OperatingSystemMetrics;
pub use self::text::CONTENT_TYPE;
pub use self::writes::WriteCounters;

/// The values of `N` labels, each with its name.
pub type Labels<const N: usize> = [(&'static str, &'static str); N];
/// Counters by `N` labels of closed lists.
pub type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// The metrics of this process. The names of all that are registered begin with `leadsman_`.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    operating_system: OperatingSystemMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("leadsman");
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of leadsman, as a label", version);
        Self {
            registry: Arc::new(Mutex::new(registry)),
            operating_system: OperatingSystemMetrics::new(),
        }
    }
}

impl Metrics {
    /// Registers metrics. Names are without the prefix.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.lock_registry())
    }

    /// All metrics in the text format of Prometheus ([`CONTENT_TYPE`]).
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut open_metrics = String::new();
        encode_registry(&mut open_metrics, &self.lock_registry())?;
        let mut text = text::from_open_metrics(&open_metrics);
        // Outside of the registry, whose prefix they must not have: dashboards look for `process_…` whatever the
        // process.
        self.operating_system.encode_into(&mut text)?;
        Ok(text)
    }

    fn lock_registry(&self) -> MutexGuard<'_, Registry> {
        // A panic leaves a registry whole: registering pushes one entry.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_metrics_are_shown_with_the_prefix() {
        let metrics = Metrics::default();
        let reads: Counter = Counter::default();
        metrics.register(|registry| registry.register("reads", "Reads", reads.clone()));
        reads.inc();
        let text = metrics.text().unwrap();
        assert!(text.contains("\nleadsman_reads_total 1\n"), "{text}");
        assert!(text.contains("\nleadsman_build_info{version="), "{text}");
    }
}
