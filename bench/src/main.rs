//! The bench: what leadsman costs, in requests, bytes, CPU and time, each beside its floor: a bare loop that does the
//! same exchanges with the same libraries and decides nothing.
//!
//! Counts come from the API server's audit log by user and from a counting proxy on the runtime's socket, CPU and
//! memory from the processes under `/proc`. `cargo xtask bench` builds and starts it.
//!
//! | module | what lives there |
//! |---|---|
//! | `figures` | what every figure is called, its unit, and what is to be reached |
//! | `report` | a result: its figures, their table, JSON, plots, and the comparison with an earlier one |
//! | `requests` | what a user has asked of the API server |
//! | `meter` | CPU, memory, threads and descriptors of a process |
//! | `call_counter` | a proxy that counts the calls of a container runtime |
//! | `machine` | what the figures were taken on |
//! | `progress` | what is said meanwhile, and waiting |
//! | `agent` | one agent on a real node, and its restart |
//! | `cluster` | the manager beside a whole cluster of objects |
//! | `engine` | rules and executors alone |
//! | `index` | the rules of the manager alone |
//! | `tenants` | what a hostile namespace does to another one |
//! | `part` | processes that the bench starts of itself, the bare loops among them |
//!
//! What a bench does is told in `pages/`, in the words of its page.

/// Functions that put a name together from what it is the name of.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident($($of:ident: $type:ty),*) = $format:literal $(, $value:expr)*;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name($($of: $type),*) -> String {
            format!($format $(, $value)*)
        }
    )*};
}

mod agent;
mod call_counter;
mod cluster;
mod engine;
mod figures;
mod index;
mod machine;
mod meter;
mod part;
mod progress;
mod report;
mod requests;
mod tenants;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use tikv_jemallocator::Jemalloc;

use machine::Machine;
use report::{Amount as _, Report};
use tenants::Attack;

/// The rules alone and the floors allocate as the programs do that they are compared with.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Measures leadsman and writes down what was measured.
#[derive(Parser)]
struct Arguments {
    /// What to measure; all of it, one after the other, when left out
    #[arg(value_enum)]
    what: Vec<What>,
    /// Where results are written, as NAME.md, NAME.json and NAME-*.svg; nowhere when left out
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Compare with the result in this file
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// A hundredth to all of the full size and duration: for a look at whether it works, not for figures
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "PERCENT")]
    scale: u32,
    /// Of `tenants`, only these attacks
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ATTACK")]
    only: Vec<Attack>,
    /// Measure nothing: write the pages of the results in this folder anew
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["what", "out", "compare", "scale", "only"])]
    pages: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// One agent with 50 real pods, each handler at 1 s and at 10 s. Needs root
    Agent,
    /// The manager's start beside 250 nodes, 5,000 pods and 20 markers
    ColdStart,
    /// 1,000 and 10,000 verdicts at once
    Flips,
    /// A `SidecarSet` gets another image: 1,000, 5,000 and 20,000 pods upgraded in place
    RollOut,
    /// 100 pods a second beside 1, 10 and 100 `SidecarSet`s, and what the webhook adds
    Injection,
    /// 1,000 `AdvancedCronJob`s due at once, and 10,000 that are not
    Schedules,
    /// A `BroadcastJob` on 500 and 5,000 nodes
    Broadcast,
    /// A `CloneSet` of 5,000 pods that grows and is updated, 100 sets of 50 and 200 pods, one of 10 beside one of 5,000, and one of
    /// 20,000
    Clonesets,
    /// Manager and agent starting again, with nothing to do and with something
    Restart,
    /// A manager beside 5,000 nodes and 150,000 pods. Takes half an hour and 16 GiB
    Record,
    /// A manager beside 50,000 `SidecarSet`s
    Sets,
    /// The rules alone: one event among 1,000 to 100,000 pods, bytes a pod
    Index,
    /// 10,000 probes a second on loopback
    Engine,
    /// An ordinary namespace beside a hostile one, by eight attacks. Needs root
    Tenants,
}

fn main() -> Result<()> {
    part::run_if_asked().unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(folder) = &arguments.pages {
        for file in report::write_pages(folder)? {
            eprintln!("bench: wrote {}", file.display());
        }
        return Ok(());
    }
    let machine = Machine::read()?;
    let earlier = arguments.compare.as_deref().map(Report::read).transpose()?;
    let mut all = arguments.what.as_slice();
    if all.is_empty() {
        all = What::value_variants();
    }
    for what in all {
        let mut report = measure(*what, f64::from(arguments.scale) / 100.0, &arguments.only)?;
        report.machine = machine.clone();
        print!("{}", report.text(earlier.as_ref()));
        if let Some(folder) = &arguments.out {
            for file in report.write(folder)? {
                eprintln!("bench: wrote {}", file.display());
            }
        }
    }
    Ok(())
}

fn measure(what: What, scale: f64, only: &[Attack]) -> Result<Report> {
    match what {
        What::Agent => agent::measure(scale),
        What::ColdStart => cluster::cold_start::measure(scale),
        What::Flips => cluster::flips::measure(scale),
        What::Injection => cluster::injection::measure(scale),
        What::RollOut => cluster::roll_out::measure(scale),
        What::Schedules => cluster::jobs::schedules(scale),
        What::Broadcast => cluster::jobs::broadcast(scale),
        What::Record => cluster::record::measure(scale),
        What::Sets => cluster::sets::measure(scale),
        What::Clonesets => cluster::clone_sets::measure(scale),
        What::Restart => {
            let mut report = Report::new("restart", scale, include_str!("../pages/restart.md"));
            cluster::restart::measure(scale, &mut report)?;
            agent::restart::measure(scale, &mut report)?;
            Ok(report)
        }
        What::Engine => here(engine::measure(scale)),
        What::Index => here(index::measure(scale)),
        What::Tenants => tenants::measure(scale, only),
    }
}

/// This share of a count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts here are far below 2^52"
)]
fn share_of(count: usize, share: f64) -> usize {
    (count.amount() * share).round() as usize
}

/// Of sorted values the one that this share of them does not exceed.
fn at_share<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let place = share_of(sorted.len(), share).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

/// Does what needs nothing to be raised.
fn here<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    play(async { Ok(()) }, async |()| work.await, async |()| Ok(()))
}

/// Raises something, lets `act` use it, and takes it away whatever came of it, Ctrl-C included.
///
/// On this thread, not on a worker: processes are started that end with the thread which started them.
fn play<S, T>(
    raise: impl Future<Output = Result<S>>,
    act: impl AsyncFnOnce(&mut S) -> Result<T>,
    end: impl AsyncFnOnce(S) -> Result<()>,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        let mut stage = interruptible(raise).await?;
        let outcome = interruptible(act(&mut stage)).await;
        let ended = end(stage).await;
        outcome.and_then(|outcome| ended.map(|()| outcome))
    });
    // A bed being raised holds a thread; its keeper takes all away once this process is gone.
    runtime.shutdown_background();
    outcome
}

async fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; everything is being taken away"),
    }
}
