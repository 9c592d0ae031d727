//! Times that begin in another process.

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use super::Metrics;

/// The buckets, in seconds. Kubernetes' times are in whole seconds, rounded down, so none is shorter than one.
const BUCKETS: [f64; 10] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// A histogram of the time from a change, as another process has dated it, until this process has carried out what follows
/// from it. The two clocks may differ: a time below zero counts as zero, and is counted. Clones share it.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    seconds: Histogram,
    negative: Counter,
}

impl LatencyHistogram {
    /// Registers `NAME_seconds` and `NAME_negative_total`. `what` is the sentence about the time.
    pub fn new(registry: &Metrics, name: &str, what: &str) -> Self {
        let latency = Self {
            seconds: Histogram::new(BUCKETS),
            negative: Counter::default(),
        };
        registry.register(|registry| {
            registry.register_with_unit(name, what, Unit::Seconds, latency.seconds.clone());
            registry.register(
                format!("{name}_negative"),
                "Times below zero in the histogram of this name, counted there as zero: two clocks differ by more than the \
                 time that was measured",
                latency.negative.clone(),
            );
        });
        latency
    }

    /// Observes what has been carried out now.
    pub fn observe_latency(&self, since: Timestamp, now: Timestamp) {
        let took = now.duration_since(since);
        if took.is_negative() {
            self.negative.inc();
        }
        self.seconds.observe(took.as_secs_f64().max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_counts_as_zero_and_is_counted() {
        let metrics = Metrics::default();
        let latency = LatencyHistogram::new(&metrics, "mark_latency", "Time");
        let at = |second| Timestamp::from_second(second).unwrap();
        latency.observe_latency(at(100), at(104));
        latency.observe_latency(at(105), at(104));
        let text = metrics.text().unwrap();
        for line in [
            "leadsman_mark_latency_seconds_sum 4.0",
            "leadsman_mark_latency_seconds_count 2",
            "leadsman_mark_latency_seconds_bucket{le=\"1.0\"} 1",
            "leadsman_mark_latency_seconds_bucket{le=\"5.0\"} 2",
            "leadsman_mark_latency_negative_total 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }
}
