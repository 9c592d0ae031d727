//! The bare loop: the same exchanges at the same rate on the same grid, one task each, on one thread. It knows no
//! verdicts, no thresholds, no deadlines and no bounds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use leadsman_core::podprobe::node::SLOT;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::exchange::{self, Runtime};

/// From one list of all containers to the next.
const LOOK: Duration = Duration::from_secs(1);

/// What is exchanged with whom, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// What.
    pub(crate) exchange: Exchange,
    /// With each of these once in a period, in this slot of it.
    pub(crate) targets: Vec<(Target, u64)>,
    /// Slots of a period.
    pub(crate) period: u64,
    /// The container runtime, to be asked for all containers once a second.
    pub(crate) runtime: Option<String>,
}

/// What is exchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exchange {
    /// A connection.
    Tcp,
    /// A GET of `/healthz`.
    Http,
    /// A command, through the runtime.
    Exec(Vec<String>),
}

/// With whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Target {
    /// Who listens there.
    Address(SocketAddr),
    /// A container, by the runtime's id.
    Container(String),
}

/// How many exchanges there were so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Done.
    pub(crate) done: u64,
    /// In vain.
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
    let answering = super::answer(|| {
        Ok(Tally {
            done: counts.done.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
        })
    });
    tokio::select! {
        answered = answering => answered,
        () = exchange_all(&order, runtime, &counts) => Ok(()),
    }
}

/// Who is due in which slot of a period.
fn by_slot(order: &Order) -> BTreeMap<u64, Vec<Target>> {
    let mut slots: BTreeMap<u64, Vec<Target>> = BTreeMap::new();
    for (target, slot) in &order.targets {
        let due = slots.entry(slot % order.period).or_default();
        due.push(target.clone());
    }
    slots
}

async fn exchange_all(order: &Order, runtime: Option<Runtime>, counts: &Arc<Counts>) {
    let slots = by_slot(order);
    let a_look = u64::try_from(LOOK.as_millis() / SLOT.as_millis()).unwrap_or(1);
    let begun = begin();
    let mut slot: u64 = 0;
    loop {
        if let Some(runtime) = &runtime
            && slot.is_multiple_of(a_look)
        {
            let runtime = runtime.clone();
            count(counts, exchange::list(runtime), false);
        }
        for target in slots.get(&(slot % order.period)).into_iter().flatten() {
            begin_one(&order.exchange, target, runtime.as_ref(), counts);
        }
        // Nobody is woken where nothing is due.
        slot += 1;
        let is_due = |slot: u64| {
            let looks = runtime.is_some() && slot.is_multiple_of(a_look);
            looks || slots.contains_key(&(slot % order.period))
        };
        while !is_due(slot) {
            slot += 1;
        }
        let passed = SLOT * u32::try_from(slot).unwrap_or(u32::MAX);
        sleep_until(begun + passed).await;
    }
}

fn begin() -> Instant {
    Instant::from_std(crate::clock::now())
}

fn begin_one(
    exchange: &Exchange,
    target: &Target,
    runtime: Option<&Runtime>,
    counts: &Arc<Counts>,
) {
    match (exchange, target, runtime) {
        (Exchange::Tcp, Target::Address(address), _) => {
            count(counts, exchange::tcp(*address), true);
        }
        (Exchange::Http, Target::Address(address), _) => {
            count(counts, exchange::http(*address, "/healthz"), true);
        }
        (Exchange::Exec(command), Target::Container(id), Some(runtime)) => {
            let exec = exchange::exec(runtime.clone(), id.clone(), command.clone());
            count(counts, exec, true);
        }
        _ => {
            counts.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn count(
    counts: &Arc<Counts>,
    exchange: impl Future<Output = Result<()>> + Send + 'static,
    counted: bool,
) {
    let counts = Arc::clone(counts);
    tokio::spawn(async move {
        let count = match exchange.await {
            Ok(()) if !counted => return,
            Ok(()) => &counts.done,
            Err(_) => &counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    });
}
