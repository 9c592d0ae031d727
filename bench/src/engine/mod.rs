//! The engine alone, as `leadsman_core`'s schedule and `leadsman_probe`'s executors are without a cluster: 10,000 probes a
//! second on the loopback interface, beside a bare loop.
//!
//! | module | what lives there |
//! |---|---|
//! | `drive` | the process that is measured |
//! | `targets` | the process that is probed |

mod drive;
mod targets;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_core::podprobe::node::SLOT;
use serde::{Deserialize, Serialize};

use crate::part::bare::{self, Exchange, Tally, Target as Peer};
use crate::part::{Part, Talk};
use crate::progress::wait;
use crate::report::{Amount as _, Report, mebibytes};

pub(crate) use drive::run;
pub(crate) use targets::serve;

/// Probes a second at full size.
const RATE: f64 = 10_000.0;
/// Of what is due, so much must be done, else the rate is not sustained.
const SUSTAINED: f64 = 0.99;
/// The first runs, the first verdicts and the writes that these make come before what is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// What is measured, at full size, in seconds.
const WINDOW: f64 = 30.0;
/// Addresses that are probed: of each, 250 a second leave enough ports while closed connections are remembered.
const ADDRESSES: u8 = 40;
/// Slots of a second.
const SLOTS: u32 = 1_000 / SLOT.subsec_millis();

const HOW: &str = "One process, on one thread, has the rules' own schedule of so many probes with a period of a second, \
spread over the ten slots of it, and runs them by the executors, each in a task; another process answers, at 40 \
addresses of the loopback interface, so that ports suffice. Its CPU is the scheduler's account over the window, after a \
settling of 5 s, divided by the probes that ended in it. The floor is a bare loop with the same exchanges in the same \
slots. Lag: from the begin of the slot in which a run was due until it was begun.";

/// What the engine is to probe, each target once a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    exchange: Exchange,
    probes: u32,
    port: u16,
}

/// What came of it. Lags are since the last answer, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Driven {
    tally: Tally,
    /// Of the resident set, what the schedule of all probes took.
    schedule_bytes: u64,
    /// The median, 99 in 100, the largest.
    lags: [u32; 3],
}

/// The target of a probe.
fn address(probe: u32, port: u16) -> SocketAddr {
    let last = 1 + u8::try_from(probe % u32::from(ADDRESSES)).unwrap_or(0);
    SocketAddr::new(Ipv4Addr::new(127, 0, 1, last).into(), port)
}

/// One rate of one handler.
struct Measured {
    rate: u32,
    driven: Driven,
    done: u64,
    cpu: Duration,
    rss: u64,
    /// Sockets in `TIME_WAIT`.
    waiting: usize,
}

pub(crate) async fn measure(scale: f64) -> Result<Report> {
    let mut report = Report::new("engine", scale, HOW);
    for (name, exchange) in [("tcp", Exchange::Tcp), ("http", Exchange::Http)] {
        let measured = sustained(name, &exchange, scale).await?;
        let floor = floor(name, exchange, measured.rate, scale).await?;
        write(&mut report, name, &measured, floor);
    }
    Ok(report)
}

/// A process to be probed, at a port that nothing was connected to before.
async fn targets() -> Result<(Talk, u16)> {
    let mut targets = Talk::here(&Part::Targets(ADDRESSES)).await?;
    let port = targets.ask().await?;
    Ok((targets, port))
}

/// The first of the full rate, its half, its quarter … that is sustained.
async fn sustained(name: &str, exchange: &Exchange, scale: f64) -> Result<Measured> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "10,000 at most"
    )]
    let mut rate = (RATE * scale).max(10.0) as u32;
    loop {
        let measured = engine(name, exchange, rate, scale).await?;
        let due = f64::from(rate) * window(scale).as_secs_f64();
        // What is due in one slot may have ended just before the window or just after it.
        let at_the_edge = f64::from(rate) * SLOT.as_secs_f64();
        if measured.done.amount() >= due * SUSTAINED - at_the_edge {
            return Ok(measured);
        }
        eprintln!(
            "bench: {rate} {name} probes a second are not sustained: {} of {due} in the window",
            measured.done
        );
        ensure!(rate > 100, "no rate of {name} probes is sustained");
        rate /= 2;
    }
}

fn window(scale: f64) -> Duration {
    Duration::from_secs_f64((WINDOW * scale).max(3.0))
}

async fn engine(name: &str, exchange: &Exchange, rate: u32, scale: f64) -> Result<Measured> {
    let (_targets, port) = targets().await?;
    let order = Order {
        exchange: exchange.clone(),
        probes: rate,
        port,
    };
    let mut talk = Talk::here(&Part::Engine(order)).await?;
    let name = format!("engine, {rate} {name} a second");
    wait(format!("{name}: settling"), SETTLE).await;
    let before: Driven = talk.ask().await?;
    let cpu = talk
        .meter
        .cpu_over(format!("{name}: measuring"), window(scale))
        .await?;
    let rss = talk.meter.held()?.rss;
    let driven: Driven = talk.ask().await?;
    ensure!(
        driven.tally.failed == 0,
        "{name}: {} failed",
        driven.tally.failed
    );
    let done = driven.tally.done - before.tally.done;
    Ok(Measured {
        rate,
        driven,
        done,
        cpu,
        rss,
        waiting: time_waits(port)?,
    })
}

/// Microseconds of CPU a probe of the bare loop.
async fn floor(name: &str, exchange: Exchange, rate: u32, scale: f64) -> Result<f64> {
    let (_targets, port) = targets().await?;
    let target = |probe| {
        (
            Peer::Address(address(probe, port)),
            u64::from(probe % SLOTS),
        )
    };
    let targets = (0..rate).map(target).collect();
    let order = bare::Order {
        exchange,
        targets,
        period: SLOTS.into(),
        runtime: None,
    };
    let mut talk = Talk::here(&Part::Bare(order)).await?;
    talk.cost_of_exchange(&format!("{rate} {name} a second"), SETTLE, window(scale))
        .await
}

/// Connections to or from this port that are kept in `TIME_WAIT`.
fn time_waits(port: u16) -> Result<usize> {
    let text = std::fs::read_to_string("/proc/net/tcp")?;
    let port = format!(":{port:04X}");
    let waits = text.lines().filter(|line| {
        let mut words = line.split_whitespace().skip(1);
        let ends = [words.next(), words.next()];
        words.next() == Some("06") && ends.iter().flatten().any(|end| end.ends_with(&port))
    });
    Ok(waits.count())
}

fn write(report: &mut Report, name: &str, measured: &Measured, floor: f64) {
    let Measured {
        rate,
        driven,
        done,
        cpu,
        rss,
        waiting,
    } = measured;
    let mut add = report.section(format!("{name}, 10,000 a second"));
    let sustained = add.add("sustained", f64::from(*rate), "a second");
    if f64::from(*rate) < RATE {
        let note = format!("{rate} a second were sustained or asked for; all else is at that rate");
        sustained.note(note);
    }
    add.add("CPU a probe", cpu.as_secs_f64() * 1e6 / done.amount(), "µs")
        .floor(floor);
    for (lag, micros) in ["median", "99 in 100", "largest"].iter().zip(driven.lags) {
        add.add(&format!("lag, {lag}"), f64::from(micros) / 1000.0, "ms");
    }
    let bytes = driven.schedule_bytes.amount() / f64::from(*rate);
    add.add("memory a scheduled probe", bytes, "B")
        .note("resident set before and after the plan was taken in and all were scheduled");
    add.add("RSS in all", mebibytes(*rss), "MiB");
    add.add("sockets in TIME_WAIT at the end", *waiting, "sockets");
}
