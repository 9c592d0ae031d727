//! Writes to the API server, by object and result.

use super::{Counters, Metrics};
use crate::reply::Disposition;

/// Counters of writes. Clones share them.
#[derive(Clone, Debug)]
pub struct WriteCounters(Counters<2>);

impl WriteCounters {
    /// Registers them.
    pub fn new(registry: &Metrics) -> Self {
        let counters = Self(Counters::default());
        registry.register(|registry| {
            let help = "Writes to the API server, by what is written and by result";
            registry.register("writes", help, counters.0.clone());
        });
        counters
    }

    /// Shows a write with all results, each 0 so far.
    pub fn declare_write(&self, write: &'static str) {
        for result in Disposition::LABELS {
            let labels = [("write", write), ("result", result)];
            drop(self.0.get_or_create(&labels));
        }
    }

    /// Counts a write that has ended.
    pub fn count_write(&self, write: &'static str, disposition: &Disposition) {
        let labels = [("write", write), ("result", disposition.as_label())];
        self.0.get_or_create(&labels).inc();
    }
}
