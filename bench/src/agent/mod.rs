//! One agent on a real node with 50 pods: what a probe costs by each handler, and what it costs to be there.
//!
//! | room | what lives there |
//! |---|---|
//! | `node` | the node, its pods and markers, leadsman's processes |
//! | `case` | the handlers and periods that are measured, one window of each |
//! | `floor` | the same of a bare loop |
//! | `proxy` | the runtime's calls, counted |
//! | `restart` | the agent starting again, and one flip |

mod case;
mod floor;
mod probed_node;
mod proxy;
mod restart;

use std::time::Duration;

use anyhow::Result;

use crate::engine::wait;
use crate::report::{Figure, Report, Target, count};
use case::Window;
use probed_node::ProbedNode;
use proxy::Proxy;

pub(crate) use restart::restart;

/// Pods at full size.
const PODS: f64 = 50.0;
/// A window at full size, in seconds; calls of the runtime are counted over two of them.
const WINDOW: f64 = 30.0;
const MEBI: f64 = 1024.0 * 1024.0;

/// How much of the full size.
#[derive(Clone, Copy, Debug)]
struct Size {
    pods: u32,
    window: Duration,
}

impl Size {
    fn of(scale: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is 50 at most"
        )]
        let pods = (PODS * scale).round().max(2.0) as u32;
        Self {
            pods,
            window: Duration::from_secs_f64((WINDOW * scale).max(5.0)),
        }
    }
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let size = Size::of(scale);
    let how = format!(
        "A real node (kubelet, containerd) with {} pods of one container each, one manager and one agent beside them, \
        as processes with the rights of `leadsman manifests` and default flags. One probe on each pod, by ten markers \
        of a tenth of the pods each, made 1.1 s apart, so that due times are in all ten slots of a second. When all have \
        a verdict and some more time has passed, a window of {} s: CPU by the scheduler's account of the agent's \
        threads, divided by the runs that the agent counted; memory, threads and descriptors at the window's end. The \
        floor is a bare loop in the same node's namespaces, on one thread, with the same pods in the same slots and one \
        ListContainers a second, after the agent's window and with nothing probed otherwise. Calls of the runtime are \
        counted in windows of their own, twice as long, by a proxy on its socket and an agent that is started anew with it; requests to \
        the API server by its audit log, in all windows.",
        size.pods,
        size.window.as_secs()
    );
    let mut report = Report::new("agent", scale, &how);
    with_probed_node(size.pods, async |node| all(node, size, &mut report).await)?;
    Ok(report)
}

/// Raises a node with pods, does something with it, and ends it, also after a failure and after Ctrl-C.
fn with_probed_node(
    pods: u32,
    work: impl AsyncFnOnce(&mut ProbedNode) -> Result<()>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let raised = async {
            let mut node = ProbedNode::raise().await?;
            node.add_pods(pods).await?;
            anyhow::Ok(node)
        };
        // A bed that is being raised goes with what raises it.
        let mut node = tokio::select! {
            raised = raised => raised?,
            stopped = tokio::signal::ctrl_c() => {
                stopped?;
                anyhow::bail!("interrupted")
            }
        };
        let worked = tokio::select! {
            worked = work(&mut node) => worked,
            stopped = tokio::signal::ctrl_c() => stopped
                .map_err(Into::into)
                .and_then(|()| anyhow::bail!("interrupted")),
        };
        node.end().await;
        worked
    })
}

async fn all(node: &mut ProbedNode, size: Size, report: &mut Report) -> Result<()> {
    let endpoint = node.bed.runtime_endpoint();
    node.start_ready_agent(&endpoint).await?;
    idle(node, size, report).await?;
    for case in case::all() {
        node.mark(&case.name(), &case.probe()).await?;
        wait(&format!("{}: settling", case.name()), case.settle()).await;
        let window = Window::measure(node, case, size.window).await?;
        node.unmark().await?;
        let floor = floor::measure(node, case, size.window).await?;
        window.write(case, floor, report);
    }
    peak(node, report)?;
    node.stop_agent().await?;

    let proxy = Proxy::start(
        node.bed.folder().join("counted.sock"),
        node.bed.runtime_socket(),
    )?;
    node.start_ready_agent(&proxy.endpoint()).await?;
    idle_calls(&proxy, size, report).await;
    for case in case::all() {
        node.mark(&case.name(), &case.probe()).await?;
        wait(&format!("{}: settling", case.name()), case.settle()).await;
        let calls = case::Calls::count(node, case, &proxy, 2 * size.window).await?;
        node.unmark().await?;
        calls.write(case, report);
    }
    node.stop_agent().await
}

/// An agent whose node has nothing to probe.
async fn idle(node: &ProbedNode, size: Size, report: &mut Report) -> Result<()> {
    wait("idle: settling", Duration::from_secs(3)).await;
    let meter = node.meter()?;
    let mark = node.bed.audit_mark()?;
    let before = meter.cpu()?;
    wait("idle: measuring", size.window).await;
    let cpu = meter.cpu()?.saturating_sub(before);
    let held = meter.held()?;
    let requests = case::requests(node, mark)?;
    let a_minute = cpu.as_secs_f64() * 1000.0 * 60.0 / size.window.as_secs_f64();
    report.add(
        Figure::new("idle: RSS", count(held.rss) / MEBI, "MiB")
            .reach(Target::AtMost(12.0))
            .note("no markers; before anything was probed"),
    );
    report.add(Figure::new("idle: CPU a minute", a_minute, "ms"));
    report.add(Figure::new("idle: threads", count(held.threads), "threads"));
    let descriptors = count(held.descriptors);
    report.add(Figure::new("idle: descriptors", descriptors, "descriptors"));
    report.add(Figure::new("idle: API requests", requests, "requests").reach(Target::Exactly(0.0)));
    Ok(())
}

async fn idle_calls(proxy: &Proxy, size: Size, report: &mut Report) {
    wait("idle: counting calls of the runtime", size.window).await;
    let calls: u64 = proxy.calls().values().sum();
    let figure = Figure::new("idle: CRI calls", count(calls), "calls");
    report.add(figure.reach(Target::Exactly(0.0)));
}

/// The largest that the agent ever was.
fn peak(node: &ProbedNode, report: &mut Report) -> Result<()> {
    let held = node.meter()?.held()?;
    report.add(
        Figure::new(
            "after all handlers: largest RSS",
            count(held.peak) / MEBI,
            "MiB",
        )
        .note("VmHWM of the one agent of all windows but those of the proxy"),
    );
    report.add(Figure::new(
        "after all handlers: RSS",
        count(held.rss) / MEBI,
        "MiB",
    ));
    Ok(())
}
