use std::time::Duration;

use jiff::Timestamp;
use rstest::rstest;
use tokio::time::timeout;

use super::collector::{CollectedSpan, FakeCollector};
use super::*;

const DEADLINE: Duration = Duration::from_mins(1);

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn trace(last: u8) -> TraceId {
    let mut id = [7; 16];
    id[9..].fill(last);
    TraceId(id)
}

fn span(trace: TraceId, name: &'static str) -> Span {
    Span {
        trace,
        id: SpanId([1; 8]),
        parent: Some(SpanId([2; 8])),
        name,
        kind: SpanKind::Client,
        began: time(100),
        ended: time(103),
        attributes: vec![("k8s.pod.name", "one".to_owned())],
        error: Some("it failed".to_owned()),
    }
}

fn args(endpoint: &str, rate: u32) -> Args {
    Args {
        tracing_endpoint: Some(endpoint.parse().unwrap()),
        tracing_sampling_rate_per_million: rate,
    }
}

/// The value of the counter of spans with this result.
fn count(metrics: &Metrics, result: &str) -> u64 {
    let text = metrics.text().unwrap();
    let name = format!("leadsman_trace_spans_total{{result=\"{result}\"}} ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&name));
    lines.next().unwrap().parse().unwrap()
}

async fn collected(collector: &FakeCollector, spans: usize) -> Vec<CollectedSpan> {
    let waiting = collector.wait_for(|known| known.len() >= spans);
    timeout(DEADLINE, waiting).await.unwrap()
}

#[rstest]
#[case("collector.observability:4317", Ok("collector.observability:4317"))]
#[case("http://127.0.0.1:4317/", Ok("127.0.0.1:4317"))]
#[case("[::1]:4317", Ok("[::1]:4317"))]
#[case("https://collector:4317", Err("TLS"))]
#[case("collector", Err("HOST:PORT"))]
#[case("collector:0", Err("HOST:PORT"))]
#[case(":4317", Err("HOST:PORT"))]
#[case("collector:4317/v1/traces", Err("HOST:PORT"))]
#[case("", Err("HOST:PORT"))]
fn an_endpoint_is_a_host_and_a_port(#[case] text: &str, #[case] expected: Result<&str, &str>) {
    match (text.parse::<CollectorEndpoint>(), expected) {
        (Ok(endpoint), Ok(shown)) => assert_eq!(endpoint.to_string(), shown),
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
        (parsed, _) => panic!("{text:?} is {parsed:?}"),
    }
}

#[tokio::test]
async fn a_span_arrives_with_all_that_it_says_and_the_last_ones_at_the_end() {
    let collector = FakeCollector::start().await.unwrap();
    let metrics = Metrics::default();
    let args = args(&collector.address.to_string(), ALL);
    let (tracer, exporter) =
        args.start_tracer(Component::Agent, &metrics, &RandomSource::from_seed(7));
    tracer.record_span(trace(255), |_| span(trace(255), "first"));
    exporter.flush_queue().await;
    let expected = CollectedSpan {
        service: "leadsman-agent".to_owned(),
        trace: "070707070707070707ffffffffffffff".to_owned(),
        id: "0101010101010101".to_owned(),
        parent: "0202020202020202".to_owned(),
        name: "first".to_owned(),
        began: time(100),
        ended: time(103),
        attributes: [("k8s.pod.name".to_owned(), "one".to_owned())].into(),
        error: Some("it failed".to_owned()),
    };
    assert_eq!(collector.collected_spans(), [expected]);
    assert_eq!(count(&metrics, "exported"), 1);
    // Nobody takes it any more.
    tracer.record_span(trace(255), |_| span(trace(255), "late"));
    assert_eq!(count(&metrics, "unsent"), 1);
}

#[tokio::test]
async fn all_processes_sample_the_same_traces_about_as_many_as_are_wanted() {
    let metrics = Metrics::default();
    let half = args("127.0.0.1:1", ALL / 2);
    let [(one, _), (other, _)] = [Component::Agent, Component::Manager]
        .map(|component| half.start_tracer(component, &metrics, &RandomSource::from_seed(7)));
    let ids = (0..=255).map(trace);
    let sampled: Vec<_> = ids.clone().filter(|id| one.is_sampled(*id)).collect();
    assert_eq!(sampled.len(), 128);
    assert!(
        ids.clone()
            .all(|id| one.is_sampled(id) == other.is_sampled(id))
    );
    let (none, _) = args("127.0.0.1:1", 0).start_tracer(
        Component::Agent,
        &metrics,
        &RandomSource::from_seed(7),
    );
    assert!(!ids.clone().any(|id| none.is_sampled(id)));
    let (all, _) = args("127.0.0.1:1", ALL).start_tracer(
        Component::Agent,
        &metrics,
        &RandomSource::from_seed(7),
    );
    assert!(ids.clone().all(|id| all.is_sampled(id)));
    none.record_span(trace(0), |_| {
        unreachable!("a span that is not sampled is not made")
    });
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_spans_and_counts_them_and_nobody_waits() {
    let metrics = Metrics::default();
    let (tracer, exporter) = args("127.0.0.1:1", ALL).start_tracer(
        Component::Agent,
        &metrics,
        &RandomSource::from_seed(7),
    );
    for _ in 0..QUEUE + 10 {
        // The exporter gets no turn: nothing here waits.
        tracer.record_span(trace(0), |_| span(trace(0), "one of many"));
    }
    assert_eq!(count(&metrics, "queue_full"), 10);
    exporter.flush_queue().await;
    assert_eq!(count(&metrics, "exported"), 0);
}

#[tokio::test]
async fn what_a_collector_does_not_take_is_sent_again() {
    let collector = FakeCollector::start().await.unwrap();
    collector.refuse_next(2);
    let metrics = Metrics::default();
    let args = args(&collector.address.to_string(), ALL);
    let (tracer, _exporter) =
        args.start_tracer(Component::Manager, &metrics, &RandomSource::from_seed(7));
    tracer.record_span(trace(0), |_| span(trace(0), "refused"));
    let spans = collected(&collector, 1).await;
    assert_eq!(spans[0].service, "leadsman-manager");
    assert_eq!(collector.refused_count(), 2);
}

/// A tracer whose first span was just refused.
async fn refused_tracer(collector: &FakeCollector, metrics: &Metrics) -> (Tracer, Exporter) {
    let args = args(&collector.address.to_string(), ALL);
    let (tracer, exporter) =
        args.start_tracer(Component::Manager, metrics, &RandomSource::from_seed(7));
    tracer.record_span(trace(0), |_| span(trace(0), "refused"));
    let refused = collector.wait_for_refusals(1);
    timeout(DEADLINE, refused).await.unwrap();
    (tracer, exporter)
}

/// The specification of OTLP has it so ("Failures", "OTLP/gRPC Throttling").
#[tokio::test]
async fn what_an_exhausted_collector_does_not_ask_for_is_not_sent_again() {
    let collector = FakeCollector::start().await.unwrap();
    collector.exhaust_next(1, None);
    let metrics = Metrics::default();
    let (tracer, _exporter) = refused_tracer(&collector, &metrics).await;
    // Its batch would be sent again before this one.
    tracer.record_span(trace(0), |_| span(trace(0), "later"));
    let spans = collected(&collector, 1).await;
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["later"]);
    assert_eq!(count(&metrics, "unsent"), 1);
}

#[tokio::test]
async fn an_exhausted_collector_gets_again_what_it_asks_for_and_not_before() {
    // Longer than the first pause of our own, with what is added at random.
    const DELAY: Duration = Duration::from_millis(2500);
    let collector = FakeCollector::start().await.unwrap();
    collector.exhaust_next(1, Some(DELAY));
    let metrics = Metrics::default();
    let (_tracer, _exporter) = refused_tracer(&collector, &metrics).await;
    let refused_at = tokio::time::Instant::now();
    collected(&collector, 1).await;
    assert!(refused_at.elapsed() >= DELAY, "{:?}", refused_at.elapsed());
}
