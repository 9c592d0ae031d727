//! The registry of metrics and its text form. Each module registers the metrics that it counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Media type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of this process; all names begin with `leadsman_`.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("leadsman");
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of leadsman, as a label", version);
        Self(Arc::new(Mutex::new(registry)))
    }
}

impl Metrics {
    /// Registers metrics. Names are without the prefix.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.lock())
    }

    /// All metrics in the `OpenMetrics` text format.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.lock())?;
        Ok(text)
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // A panic leaves a registry whole: registering pushes one entry.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn registered_metrics_are_shown_with_the_prefix() {
        let metrics = Metrics::default();
        let reads: Counter = Counter::default();
        metrics.register(|registry| registry.register("reads", "Reads", reads.clone()));
        reads.inc();
        let text = metrics.text().unwrap();
        assert!(text.contains("leadsman_reads_total 1\n"), "{text}");
        assert!(text.contains("leadsman_build_info{version="), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
