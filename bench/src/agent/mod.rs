//! One agent on a real node with 50 pods: what a probe costs by each handler, and what it costs to be there.

mod case;
mod probed_node;
pub(crate) mod restart;
pub(crate) mod tenants;

use std::time::Duration;

use anyhow::Result;

use crate::call_counter::CallCounter;
use crate::progress::wait;
use crate::report::Report;
use crate::{figures, share_of};
use case::Window;
use probed_node::ProbedNode;

/// Pods at full size.
const PODS: usize = 50;
/// A window at full size; calls of the runtime are counted over two of them.
const WINDOW: Duration = Duration::from_secs(30);

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let window = WINDOW.mul_f64(scale).max(Duration::from_secs(5));
    let how = include_str!("../../pages/agent.md")
        .replace("{pods}", &pods(scale).to_string())
        .replace("{window}", &window.as_secs().to_string());
    let mut report = Report::new("agent", scale, &how);
    on_node(scale, async |node| {
        measure_all(node, window, &mut report).await?;
        count_all(node, 2 * window, &mut report).await
    })?;
    Ok(report)
}

fn pods(scale: f64) -> usize {
    share_of(PODS, scale).max(2)
}

fn on_node(scale: f64, act: impl AsyncFnOnce(&mut ProbedNode) -> Result<()>) -> Result<()> {
    crate::play(ProbedNode::raise(pods(scale)), act, ProbedNode::end)
}

async fn measure_all(node: &ProbedNode, window: Duration, report: &mut Report) -> Result<()> {
    node.start_ready_agent(&node.bed.runtime_endpoint()).await?;
    wait("idle: settling", Duration::from_secs(3)).await;
    let idle = Window::measure(node, "idle", window).await?;
    let add = report.section("idle");
    add.add(&figures::CPU_A_MINUTE, idle.cpu_in(Duration::from_mins(1)));
    idle.add_figures(&figures::IDLE_RSS, add);
    for case in case::all() {
        case.measure(node, window, report).await?;
    }
    let held = node.meter()?.held()?;
    let after = report.section("after all handlers");
    after.add(&figures::LARGEST_RSS, held.peak);
    after.add(&figures::RSS, held.rss);
    node.stop_agent().await
}

async fn count_all(node: &ProbedNode, window: Duration, report: &mut Report) -> Result<()> {
    let socket = node.bed.folder().join("counted.sock");
    let proxy = CallCounter::start(&socket, &node.bed.runtime_socket()).await?;
    let endpoint = format!("unix://{}", socket.display());
    node.start_ready_agent(&endpoint).await?;
    // Without the list by which an agent that starts knows that its runtime answers, and is ready.
    proxy.take();
    wait("idle: counting calls of the runtime", window).await;
    let calls: u64 = proxy.take().values().sum();
    report.section("idle").add(&figures::IDLE_CRI_CALLS, calls);
    for case in case::all() {
        case.count_calls(node, &proxy, window, report).await?;
    }
    node.stop_agent().await
}
