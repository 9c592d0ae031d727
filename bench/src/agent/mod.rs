//! One agent on a real node with 50 pods: what a probe costs by each handler, and what it costs to be there.
//!
//! | module | what lives there |
//! |---|---|
//! | `probed_node` | the node, its pods and markers, leadsman's processes |
//! | `case` | the handlers and periods that are measured, one window of each |
//! | `floor` | the same of a bare loop |
//! | `proxy` | the runtime's calls, counted |
//! | `restart` | the agent starting again, and one flip |

mod case;
mod floor;
mod probed_node;
mod proxy;
pub(crate) mod restart;

use std::time::Duration;

use anyhow::Result;

use crate::progress::wait;
use crate::report::{Report, Target, mebibytes};
use case::Window;
use probed_node::ProbedNode;
use proxy::Proxy;

/// Pods at full size.
const PODS: f64 = 50.0;
/// A window at full size, in seconds; calls of the runtime are counted over two of them.
const WINDOW: f64 = 30.0;

const HOW: &str = "A real node (kubelet, containerd) with {pods} pods of one container each, one manager and one agent \
beside them, as processes with the rights of `leadsman manifests` and default flags. One probe on each pod, by ten markers \
of a tenth of the pods each, made 1.1 s apart, so that due times are in all ten slots of a second. When all have a verdict \
and some more time has passed, a window of {window} s: CPU by the scheduler's account of the agent's threads, divided by \
the runs that the agent counted; memory, threads and descriptors at the window's end. The floor is a bare loop in the same \
node's namespaces, on one thread, with the same pods in the same slots and one ListContainers a second, after the agent's \
window and with nothing probed otherwise. Calls of the runtime are counted in windows of their own, twice as long, by a \
proxy on its socket and an agent that is started again with it; requests to the API server by its audit log, in all windows.";

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let window = Duration::from_secs_f64((WINDOW * scale).max(5.0));
    let how = HOW
        .replace("{pods}", &pods(scale).to_string())
        .replace("{window}", &window.as_secs().to_string());
    let mut report = Report::new("agent", scale, how);
    on_node(scale, async |node| {
        measure_all(node, window, &mut report).await?;
        count_all(node, window, &mut report).await
    })?;
    Ok(report)
}

fn pods(scale: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "50 at most"
    )]
    let pods = (PODS * scale).round() as u32;
    pods.max(2)
}

fn on_node(scale: f64, act: impl AsyncFnOnce(&mut ProbedNode) -> Result<()>) -> Result<()> {
    crate::play(ProbedNode::raise(pods(scale)), act, ProbedNode::end)
}

async fn measure_all(node: &ProbedNode, window: Duration, report: &mut Report) -> Result<()> {
    node.start_ready_agent(&node.bed.runtime_endpoint()).await?;
    wait("idle: settling", Duration::from_secs(3)).await;
    let idle = Window::measure(node, "idle", window).await?;
    let a_minute = idle.cpu.as_secs_f64() * 1000.0 * 60.0 / window.as_secs_f64();
    report.add("idle: CPU a minute", a_minute, "ms");
    idle.write("idle", Some(12.0), report);
    for case in case::all() {
        case::measure(node, &case, window, report).await?;
    }
    let held = node.meter()?.held()?;
    let mut after = report.section("after all handlers");
    after
        .add("largest RSS", mebibytes(held.peak), "MiB")
        .note("VmHWM of the one agent of all windows but those of the proxy");
    after.add("RSS", mebibytes(held.rss), "MiB");
    node.stop_agent().await
}

async fn count_all(node: &ProbedNode, window: Duration, report: &mut Report) -> Result<()> {
    let socket = node.bed.folder().join("counted.sock");
    let proxy = Proxy::start(socket, node.bed.runtime_socket())?;
    node.start_ready_agent(&proxy.endpoint()).await?;
    wait("idle: counting calls of the runtime", window).await;
    let calls: u64 = proxy.calls().values().sum();
    report
        .add("idle: CRI calls", calls, "calls")
        .reach(Target::Exactly(0.0));
    for case in case::all() {
        case::count_calls(node, &case, &proxy, 2 * window, report).await?;
    }
    node.stop_agent().await
}
