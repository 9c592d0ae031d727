//! Traces, sent to an OpenTelemetry collector by OTLP over gRPC, if one is named.
//!
//! Without a collector there is no task and no connection, and [`Tracer::record_span`] does not even make the span. With one, a
//! span is put into a bounded queue, or counted as dropped: neither a probe nor a write ever waits for the collector.
//!
//! The flags are the fields of Kubernetes' `TracingConfiguration` (`k8s.io/component-base/tracing/api/v1`), and as there the
//! connection has no TLS.
//!
//! | module | holds |
//! |---|---|
//! | `span` | a span, and the ids of spans and traces |
//! | `exporter` | the queue and its task |
//! | `otlp` | the messages on the wire |
//! | `collector` | for tests: a collector that keeps what it gets |

#[cfg(any(test, feature = "fake"))]
pub mod collector;
mod exporter;
mod otlp;
mod span;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use tokio::sync::mpsc::{self, error::TrySendError};

pub use self::exporter::Exporter;
use self::exporter::{QUEUE, SpanCounters};
pub use self::span::{Attribute, OpenSpan, Span, SpanId, SpanKind, TraceId};
use crate::{Component, Metrics, RandomSource};

/// All traces, as [`Args::tracing_sampling_rate_per_million`] has it.
const ALL: u32 = 1_000_000;

/// Flags of traces.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Traces")]
pub struct Args {
    /// OpenTelemetry collector that gets a trace of each change of a verdict, by OTLP over gRPC without TLS, such as
    /// collector.observability:4317 [default: none, no traces]
    #[arg(long, env = "LEADSMAN_TRACING_ENDPOINT", value_name = "HOST:PORT")]
    pub tracing_endpoint: Option<CollectorEndpoint>,
    /// How many of a million traces are sent. Processes with the same value send the same traces
    #[arg(
        long,
        env = "LEADSMAN_TRACING_SAMPLING_RATE_PER_MILLION",
        value_name = "COUNT",
        default_value_t = ALL,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(ALL))
    )]
    pub tracing_sampling_rate_per_million: u32,
}

/// Where a collector listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorEndpoint(Uri);

/// A text that names no collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It has no host, no port, or more than these.
    #[error("{0:?} is not HOST:PORT, such as collector.observability:4317")]
    Malformed(String),
    /// It asks for TLS.
    #[error(
        "{0:?} asks for TLS, which is not supported here, as it is not by Kubernetes' own components: name a collector in \
         the cluster, as HOST:PORT"
    )]
    Tls(String),
}

impl FromStr for CollectorEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.starts_with("https://") {
            return Err(EndpointError::Tls(text.to_owned()));
        }
        let malformed = || EndpointError::Malformed(text.to_owned());
        // `OTEL_EXPORTER_OTLP_ENDPOINT` has a scheme (OpenTelemetry specification, "Protocol Exporter"), and people
        // copy it from there; `TracingConfiguration` of Kubernetes has none.
        let address = text.strip_prefix("http://").unwrap_or(text);
        let address = address.strip_suffix('/').unwrap_or(address);
        let uri: Uri = format!("http://{address}/")
            .parse()
            .map_err(|_| malformed())?;
        let is_address = uri.port_u16().is_some_and(|port| port > 0)
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.path_and_query().is_none_or(|path| path == "/");
        is_address.then_some(Self(uri)).ok_or_else(malformed)
    }
}

impl fmt::Display for CollectorEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.0
                .authority()
                .map_or("", |authority| authority.as_str()),
        )
    }
}

/// Takes spans. Clones share the queue. The default takes none.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    spans: mpsc::Sender<Span>,
    sampling_rate_per_million: u32,
    counters: SpanCounters,
    random: RandomSource,
}

impl Args {
    /// A tracer, and the task that exports its spans; neither does anything without an endpoint.
    ///
    /// # Panics
    /// With an endpoint, outside of a tokio runtime.
    pub fn start_tracer(
        &self,
        component: Component,
        metrics: &Metrics,
        random: &RandomSource,
    ) -> (Tracer, Exporter) {
        let Some(endpoint) = &self.tracing_endpoint else {
            return (Tracer::default(), Exporter::default());
        };
        let counters = SpanCounters::new(metrics);
        let (sender, spans) = mpsc::channel(QUEUE);
        let exporter = Exporter::start_exporter(
            (endpoint, component),
            spans,
            counters.clone(),
            random.fork_rng(),
        );
        tracing::info!(%endpoint, sampling_rate_per_million = self.tracing_sampling_rate_per_million, "sending traces");
        let queue = Queue {
            spans: sender,
            sampling_rate_per_million: self.tracing_sampling_rate_per_million,
            counters,
            random: random.clone(),
        };
        (Tracer(Some(Arc::new(queue))), exporter)
    }
}

impl Tracer {
    /// Whether any trace is sent.
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a trace is among those that are sent. By its id, so that all processes choose the same ones (OpenTelemetry's
    /// `TraceIdRatioBased`).
    pub fn is_sampled(&self, trace: TraceId) -> bool {
        let queue = self.0.as_deref();
        queue.is_some_and(|queue| trace.is_among(queue.sampling_rate_per_million))
    }

    /// Hands over a span of a trace that is sampled, which is made with an id that no other span has. If the queue is full, the
    /// span is dropped and counted.
    pub fn record_span(&self, trace: TraceId, span: impl FnOnce(SpanId) -> Span) {
        let Some(queue) = self.0.as_deref().filter(|_| self.is_sampled(trace)) else {
            return;
        };
        let dropped = match queue
            .spans
            .try_send(span(SpanId::random(&mut queue.random.fork_rng())))
        {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => &queue.counters.queue_full,
            // The exporter has flushed: the process is ending.
            Err(TrySendError::Closed(_)) => &queue.counters.unsent,
        };
        dropped.inc();
    }
}

#[cfg(test)]
mod tests;
