//! The bare loop: the same exchanges at the same rate on the same grid, one task each, on one thread. It knows no
//! verdicts, no thresholds, no deadlines and no bounds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use leadsman_core::podprobe::node::SLOT;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::exchange::{self, Runtime};
use super::{Question, converse};

/// From one list of all containers to the next.
const LOOK: Duration = Duration::from_secs(1);

/// What is exchanged with whom, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) exchange: Exchange,
    /// With each of these once in a period, in this slot of it.
    pub(crate) targets: Vec<(Target, u64)>,
    /// Slots of a period.
    pub(crate) period: u64,
    /// The container runtime, to be asked for all containers once a second.
    pub(crate) runtime: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exchange {
    /// A connection.
    Tcp,
    /// A GET of `/healthz`.
    Http,
    /// A command, through the runtime.
    Exec(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Target {
    Address(SocketAddr),
    /// A container, by the runtime's id.
    Container(String),
}

/// How many exchanges there were so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) failed: u64,
}

#[derive(Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
}

/// Exchanges until nobody asks any more.
pub(super) async fn run(order: Order) -> Result<()> {
    let counts = Arc::new(Counts::default());
    let runtime = order.runtime.clone().map(exchange::runtime).transpose()?;
    let (ask, mut asked) = mpsc::channel::<Question<Tally>>(1);
    let answering = async {
        while let Some(question) = asked.recv().await {
            let (done, failed) = (&counts.done, &counts.failed);
            let [done, failed] = [done, failed].map(|count| count.load(Ordering::Relaxed));
            let _ = question.send(Tally { done, failed });
        }
    };
    tokio::select! {
        ended = converse(ask) => ended,
        () = exchange_all(&order, runtime, &counts) => Ok(()),
        () = answering => Ok(()),
    }
}

async fn exchange_all(order: &Order, runtime: Option<Runtime>, counts: &Arc<Counts>) {
    let mut slots: BTreeMap<u64, Vec<&Target>> = BTreeMap::new();
    for (target, slot) in &order.targets {
        slots.entry(slot % order.period).or_default().push(target);
    }
    let a_look = u64::try_from(LOOK.as_millis() / SLOT.as_millis()).unwrap_or(1);
    let begun = Instant::from_std(crate::clock::now());
    for slot in 0_u32.. {
        let looks = runtime
            .as_ref()
            .filter(|_| u64::from(slot).is_multiple_of(a_look));
        let due = slots.get(&(u64::from(slot) % order.period));
        if looks.is_none() && due.is_none() {
            // Nobody is woken where nothing is due.
            continue;
        }
        sleep_until(begun + SLOT * slot).await;
        if let Some(runtime) = looks.cloned() {
            count(counts, false, exchange::list(runtime));
        }
        for target in due.into_iter().flatten() {
            let exchange = one(order.exchange.clone(), (*target).clone(), runtime.clone());
            count(counts, true, exchange);
        }
    }
}

async fn one(exchange: Exchange, target: Target, runtime: Option<Runtime>) -> Result<()> {
    match (exchange, target, runtime) {
        (Exchange::Tcp, Target::Address(address), _) => exchange::tcp(address).await,
        (Exchange::Http, Target::Address(address), _) => exchange::http(address, "/healthz").await,
        (Exchange::Exec(command), Target::Container(id), Some(runtime)) => {
            exchange::exec(runtime, id, command).await
        }
        _ => bail!("no such exchange with such a target"),
    }
}

fn count(
    counts: &Arc<Counts>,
    counted: bool,
    exchange: impl Future<Output = Result<()>> + Send + 'static,
) {
    let counts = Arc::clone(counts);
    tokio::spawn(async move {
        match exchange.await {
            Ok(()) => counts.done.fetch_add(counted.into(), Ordering::Relaxed),
            Err(_) => counts.failed.fetch_add(1, Ordering::Relaxed),
        }
    });
}
