//! Without an endpoint traces cost nothing: no task, no allocation, no metric. In a program of its own, as it counts all
//! allocations of the process.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::alloc::System;

use clap::Parser;
use leadsman_process::traces::{self, TraceId, Tracer};
use leadsman_process::{Component, Metrics, RandomSource};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::runtime::{Builder, Handle};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    traces: traces::Args,
}

/// Records spans that are not to be made.
fn record(tracer: &Tracer) {
    for last in 0..=255 {
        let trace = TraceId([last; 16]);
        assert!(!tracer.is_sampled(trace));
        tracer.record_span(trace, |_| unreachable!("no span is made"));
    }
}

#[test]
fn without_an_endpoint_there_is_no_task_no_allocation_and_no_metric() {
    let args = Program::parse_from(["program"]).traces;
    let metrics = Metrics::default();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let random = RandomSource::from_seed(7);
    let (tasks, allocations) = runtime.block_on(async {
        let region = Region::new(ALLOCATOR);
        let (tracer, exporter) = args.start_tracer(Component::Agent, &metrics, &random);
        record(&tracer);
        exporter.flush_queue().await;
        let allocations = region.change().allocations;
        (Handle::current().metrics().num_alive_tasks(), allocations)
    });
    assert_eq!((tasks, allocations), (0, 0));
    assert!(!metrics.text().unwrap().contains("trace_spans"));
}
