//! The bare loop beside an agent's window.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use leadsman_core::podprobe::node::SLOT;

use super::case::Case;
use super::probed_node::{GROUPS, ProbedNode, STAGGER};
use crate::part::bare::{Exchange, Order, Target};
use crate::part::{Part, Talk};

/// The connection to the runtime, and the first of everything, come before what is measured.
const SETTLE: Duration = Duration::from_secs(3);

/// Microseconds of CPU a probe; `None` where there is no bare loop.
pub(super) async fn measure(
    node: &ProbedNode,
    case: &Case,
    window: Duration,
) -> Result<Option<f64>> {
    let Some((exchange, port)) = case.bare.clone() else {
        return Ok(None);
    };
    let order = order(node, case.period, exchange, port)?;
    let mut talk = Talk::inside(&node.bed, &Part::Bare(order)).await?;
    talk.cost_of_exchange(&case.name, SETTLE, window)
        .await
        .map(Some)
}

/// The same pods in the same slots: a group's together, each group a stagger after the one before.
fn order(node: &ProbedNode, period: u32, exchange: Exchange, port: u16) -> Result<Order> {
    let slots = |time: Duration| u64::try_from(time.as_millis() / SLOT.as_millis());
    let (period, stagger) = (slots(Duration::from_secs(period.into()))?, slots(STAGGER)?);
    let pods = u64::try_from(node.targets.len())?;
    let mut targets = Vec::new();
    for (number, target) in (0..).zip(&node.targets) {
        targets.push(if let Exchange::Exec(_) = exchange {
            // Commands are spread evenly over the period, as the agent does.
            let container = Target::Container(target.container.clone());
            (container, number * period / pods)
        } else {
            let address = SocketAddr::new(target.ip.parse()?, port);
            let group = number % u64::from(GROUPS);
            (Target::Address(address), group * stagger)
        });
    }
    let runtime = Some(node.bed.runtime_endpoint());
    Ok(Order {
        exchange,
        targets,
        period,
        runtime,
    })
}
