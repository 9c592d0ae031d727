//! The bare loop beside an agent's window.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::case::{COMMAND, Case, Handler};
use super::probed_node::{GROUPS, ProbedNode, STAGGER};
use crate::engine::wait;
use crate::part::bare::{Exchange, Order, Tally, Target};
use crate::part::{Part, Talk};
use crate::report::count;
use leadsman_core::podprobe::node::SLOT;

/// The connection to the runtime, and the first of everything, come before what is measured.
const SETTLE: Duration = Duration::from_secs(3);

/// Microseconds of CPU a probe; `None` where there is no bare loop.
pub(super) async fn measure(
    node: &ProbedNode,
    case: Case,
    window: Duration,
) -> Result<Option<f64>> {
    let Some(order) = order(node, case)? else {
        return Ok(None);
    };
    let mut talk = Talk::inside(&node.bed, &Part::Bare(order)).await?;
    wait(&format!("{}: floor: settling", case.name()), SETTLE).await;
    let before: Tally = talk.ask().await?;
    let cpu_before = talk.meter.cpu()?;
    wait(&format!("{}: floor: measuring", case.name()), window).await;
    let cpu = talk.meter.cpu()?.saturating_sub(cpu_before);
    let after: Tally = talk.ask().await?;
    ensure!(
        after.failed == 0 && after.done > before.done,
        "{}: of the bare exchanges {} were done and {} failed",
        case.name(),
        after.done - before.done,
        after.failed
    );
    Ok(Some(
        cpu.as_secs_f64() * 1e6 / count(after.done - before.done),
    ))
}

/// The same pods in the same slots: a group's together, each group a stagger after the one before.
fn order(node: &ProbedNode, case: Case) -> Result<Option<Order>> {
    let (exchange, port) = match case.handler {
        Handler::Exec => (Exchange::Exec(COMMAND.map(str::to_owned).into()), 0),
        Handler::Tcp => (Exchange::Tcp, 9090),
        Handler::Http => (Exchange::Http, 8080),
        Handler::Grpc => return Ok(None),
    };
    let slots = |time: Duration| u64::try_from(time.as_millis() / SLOT.as_millis());
    let period = slots(Duration::from_secs(case.period.into()))?;
    let stagger = slots(STAGGER)?;
    let pods = u64::try_from(node.targets.len())?;
    let target = |(number, target): (u64, &super::probed_node::Target)| {
        anyhow::Ok(match case.handler {
            // Commands are spread evenly over the period, as the agent does.
            Handler::Exec => (
                Target::Container(target.container.clone()),
                number * period / pods,
            ),
            _ => (
                Target::Address(SocketAddr::new(target.ip.parse()?, port)),
                number % u64::from(GROUPS) * stagger,
            ),
        })
    };
    let targets = (0..).zip(&node.targets).map(target);
    Ok(Some(Order {
        exchange,
        targets: targets.collect::<Result<_>>()?,
        period,
        runtime: Some(node.bed.runtime_endpoint()),
    }))
}
