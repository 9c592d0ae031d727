//! The queue of spans, and the task that sends them in batches.
//!
//! Sizes and times are those of OpenTelemetry's batch span processor (OpenTelemetry specification, "SDK environment
//! variables", `OTEL_BSP_*`), but for the deadline, which is shorter: the queue holds what comes meanwhile.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt as _;

use super::CollectorEndpoint;
use super::otlp::{self, ExportTraceServiceRequest, ExportTraceServiceResponse};
use super::span::Span;
use crate::metrics::Labels;
use crate::{Backoff, Component, Metrics};

/// Spans that wait to be sent.
pub(super) const QUEUE: usize = 2048;
/// Spans of one request.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const DELAY: Duration = Duration::from_secs(5);
/// The deadline of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a batch is sent that the collector does not take.
const ATTEMPTS: u32 = 5;
const _: () = assert!(BATCH <= QUEUE, "a full batch fits into the queue");
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
/// The longest pause that a collector may ask for. What comes meanwhile waits in the queue, as far as it has room.
const MAX_RETRY_DELAY: Duration = Duration::from_mins(1);
/// How long the end of the process waits for the last batches.
const FLUSH: Duration = Duration::from_secs(2);

/// What has become of spans.
#[derive(Clone, Debug)]
pub(super) struct SpanCounters {
    exported: Counter,
    /// Dropped, since the queue was full.
    pub(super) queue_full: Counter,
    /// Dropped, since the collector could not be reached or did not answer, or the process ended.
    pub(super) unsent: Counter,
    /// Dropped by the collector.
    rejected: Counter,
}

impl SpanCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let spans: Family<Labels<1>, Counter> = Family::default();
        let result = |result| spans.get_or_create_owned(&[("result", result)]);
        let counters = Self {
            exported: result("exported"),
            queue_full: result("queue_full"),
            unsent: result("unsent"),
            rejected: result("rejected"),
        };
        metrics.register(|registry| {
            registry.register(
                "trace_spans",
                "Spans of traces by what became of them; all but exported ones are lost. Only with --tracing-endpoint",
                spans.clone(),
            );
        });
        counters
    }
}

/// The task that exports spans, if there is one.
#[derive(Debug, Default)]
pub struct Exporter(Option<(JoinHandle<()>, CancellationToken)>);

impl Exporter {
    pub(super) fn start_exporter(
        (endpoint, component): (&CollectorEndpoint, Component),
        spans: Receiver<Span>,
        counters: SpanCounters,
        random: fastrand::Rng,
    ) -> Self {
        let flush = CancellationToken::new();
        let channel = Endpoint::from(endpoint.0.clone())
            .connect_timeout(DEADLINE)
            // A collector that is down, or whose name does not resolve yet, must not keep the process from starting.
            .connect_lazy();
        let sender = BatchSender {
            collector: endpoint.to_string(),
            service: format!("leadsman-{}", component.as_str()),
            channel,
            spans,
            flush: flush.clone(),
            counters,
            random,
            is_failing: false,
        };
        Self(Some((tokio::spawn(sender.run()), flush)))
    }

    /// Sends what is in the queue, for [`FLUSH`] at most.
    pub async fn flush_queue(self) {
        let Some((mut task, flush)) = self.0 else {
            return;
        };
        flush.cancel();
        // The process is ending, and whoever waits for it waits for marks and verdicts, not for traces.
        if timeout(FLUSH, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Why a batch is not taken.
struct Unsent {
    reason: String,
    /// How long to wait at least until it is sent again. None if the same batch would not be taken later either.
    retry_after: Option<Duration>,
}

struct BatchSender {
    collector: String,
    service: String,
    channel: Channel,
    spans: Receiver<Span>,
    flush: CancellationToken,
    counters: SpanCounters,
    random: fastrand::Rng,
    is_failing: bool,
}

impl BatchSender {
    async fn run(mut self) {
        while let Some(batch) = self.next_batch().await {
            let request = otlp::export_request(&self.service, &batch);
            self.send_batch(request, batch.len()).await;
        }
    }

    /// Waits for spans. None if there will be no more.
    async fn next_batch(&mut self) -> Option<Vec<Span>> {
        let mut batch = Vec::new();
        let first = tokio::select! {
            // First: a flush comes once, however many spans there are.
            biased;
            () = self.flush.cancelled(), if !self.spans.is_closed() => {
                // What is in the queue can still be received.
                self.spans.close();
                self.spans.recv().await?
            }
            first = self.spans.recv() => first?,
        };
        batch.push(first);
        // From the first span on, so that none waits for longer.
        let delay = sleep(DELAY);
        tokio::pin!(delay);
        while batch.len() < BATCH {
            tokio::select! {
                biased;
                // First: spans that are there join the batch also when its time is over.
                next = self.spans.recv() => match next {
                    Some(span) => batch.push(span),
                    None => break,
                },
                () = &mut delay => break,
                () = self.flush.cancelled(), if !self.spans.is_closed() => self.spans.close(),
            }
        }
        Some(batch)
    }

    /// Sends a batch until the collector has taken or rejected it, or too often.
    async fn send_batch(&mut self, request: ExportTraceServiceRequest, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        for attempt in 1..=ATTEMPTS {
            let unsent = match self.export_once(request.clone()).await {
                Ok(reply) => return self.count_taken(spans, &reply),
                Err(unsent) => unsent,
            };
            if !self.is_failing {
                self.is_failing = true;
                let (collector, reason) = (&self.collector, unsent.reason);
                tracing::warn!(
                    collector,
                    reason,
                    "the collector of traces does not accept spans; some may be lost"
                );
            }
            // The time of a flush is for one attempt: the process is ending.
            let is_last = attempt == ATTEMPTS || self.flush.is_cancelled();
            let Some(retry_after) = unsent.retry_after.filter(|_| !is_last) else {
                break;
            };
            let pause = BACKOFF.delay(attempt, self.random.f64()).max(retry_after);
            tokio::select! {
                // Either ends the pause.
                biased;
                () = self.flush.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
        self.counters.unsent.inc_by(spans);
    }

    async fn export_once(
        &self,
        request: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Unsent> {
        let call = async {
            let mut collector = Grpc::new(self.channel.clone());
            // A channel that connects lazily connects here; an error is one of the connection.
            let ready = collector.ready().await;
            ready.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec: ProstCodec<_, ExportTraceServiceResponse> = ProstCodec::default();
            collector
                .unary(Request::new(request), otlp::PATH, codec)
                .await
        };
        match timeout(DEADLINE, call).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(Unsent {
                reason: format!("{}: {}", status.code(), status.message()),
                retry_after: retry_after(&status),
            }),
            Err(_elapsed) => Err(Unsent {
                reason: format!("no answer within {DEADLINE:?}"),
                retry_after: Some(Duration::ZERO),
            }),
        }
    }

    fn count_taken(&mut self, spans: u64, reply: &ExportTraceServiceResponse) {
        let partial = reply.partial_success.as_ref();
        let rejected = partial.map_or(0, |partial| partial.rejected_spans);
        // As the collector says, which may send anything: the two counters add up to the spans sent.
        let rejected = u64::try_from(rejected).unwrap_or_default().min(spans);
        self.counters.rejected.inc_by(rejected);
        self.counters.exported.inc_by(spans - rejected);
        if self.is_failing {
            self.is_failing = false;
            tracing::info!(
                collector = self.collector,
                "the collector of traces takes spans again"
            );
        }
    }
}

/// How long to wait at least until a batch is sent again, if its status is one that the specification calls retryable
/// (OTLP specification, "Failures", "OTLP/gRPC Throttling").
fn retry_after(status: &Status) -> Option<Duration> {
    let info = status.get_details_retry_info();
    let asked = info.map(|info| info.retry_delay.unwrap_or_default().min(MAX_RETRY_DELAY));
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Some(asked.unwrap_or_default()),
        // Only the collector knows whether it will have room again.
        Code::ResourceExhausted => asked,
        _ => None,
    }
}
