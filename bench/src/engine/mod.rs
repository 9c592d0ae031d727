//! The engine alone, as `leadsman_core`'s schedule and `leadsman_probe`'s executors are without a cluster: 10,000 probes a
//! second on the loopback interface, beside a bare loop.
//!
//! | room | what lives there |
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

use crate::clock;
use crate::part::bare::{self, Exchange, Tally, Target as Peer};
use crate::part::{Part, Talk};
use crate::progress::Step;
use crate::report::{Figure, Report, count};

pub(crate) use drive::run;
pub(crate) use targets::serve;

/// Probes a second at full size.
const RATE: f64 = 10_000.0;
/// Of what is due, so much must be done, else the rate is not sustained.
const SUSTAINED: f64 = 0.99;
/// The first runs, the first verdicts and the writes that these make come before what is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// What is measured, at full size.
const WINDOW: f64 = 30.0;
/// Addresses that are probed: of each, 250 a second leave enough ports while closed connections are remembered.
const ADDRESSES: u8 = 40;
/// Slots of a second.
const SLOTS: u64 = 10;

/// What is probed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Targets {
    /// Addresses that listen: 127.0.1.1 and those that follow.
    pub(crate) addresses: u8,
}

/// Where they listen.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    port: u16,
}

/// What the engine is to probe, each target once a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    exchange: Exchange,
    probes: u32,
    addresses: u8,
    port: u16,
}

/// What came of it. Lags are since the last answer, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Driven {
    tally: Tally,
    /// Of the resident set, what the schedule of all probes took.
    schedule_bytes: u64,
    lag_p50: u32,
    lag_p99: u32,
    lag_max: u32,
}

/// The target of a probe.
fn address(probe: u32, addresses: u8, port: u16) -> SocketAddr {
    let last = 1 + u8::try_from(probe % u32::from(addresses)).unwrap_or(0);
    SocketAddr::new(Ipv4Addr::new(127, 0, 1, last).into(), port)
}

/// One rate of one handler.
struct Measured {
    rate: u32,
    driven: Driven,
    done: u64,
    /// Microseconds of CPU a probe.
    cpu: f64,
    rss: u64,
    waiting: u64,
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            report = all(scale) => report,
            stopped = tokio::signal::ctrl_c() => {
                stopped?;
                anyhow::bail!("interrupted")
            }
        }
    })
}

async fn all(scale: f64) -> Result<Report> {
    let how = "One process, on one thread, has the rules' own schedule of so many probes with a period of a second, \
        spread over the ten slots of it, and runs them by the executors, each in a task; another process answers, at 40 \
        addresses of the loopback interface, so that ports suffice. Its CPU is the scheduler's account over the window, \
        after a settling of 5 s, divided by the probes that ended in it. The floor is a bare loop with the same \
        exchanges in the same slots. Lag: from the begin of the slot in which a run was due until it was begun.";
    let mut report = Report::new("engine", scale, how);
    for (name, exchange) in [("tcp", Exchange::Tcp), ("http", Exchange::Http)] {
        let measured = sustained(name, &exchange, scale).await?;
        let floor = floor(name, exchange, measured.rate, scale).await?;
        write(&mut report, name, &measured, floor);
    }
    Ok(report)
}

/// A process to be probed, at a port that nothing was connected to before.
async fn targets() -> Result<(Talk, u16)> {
    let part = Part::Targets(Targets {
        addresses: ADDRESSES,
    });
    let mut targets = Talk::here(&part).await?;
    let listening: Listening = targets.ask().await?;
    Ok((targets, listening.port))
}

/// The first of the full rate, its half, its quarter … that is sustained.
async fn sustained(name: &str, exchange: &Exchange, scale: f64) -> Result<Measured> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is 10,000 at most"
    )]
    let mut rate = (RATE * scale).max(10.0) as u32;
    loop {
        let measured = engine(name, exchange, rate, scale).await?;
        let due = f64::from(rate) * window(scale).as_secs_f64();
        // What is due in one slot may have ended just before the window or just after it.
        let at_the_edge = f64::from(rate) * SLOT.as_secs_f64();
        if count(measured.done) >= due * SUSTAINED - at_the_edge {
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
        addresses: ADDRESSES,
        port,
    };
    let mut talk = Talk::here(&Part::Engine(order)).await?;
    wait(&format!("engine, {rate} {name} a second: settling"), SETTLE).await;
    let before: Driven = talk.ask().await?;
    let cpu_before = talk.meter.cpu()?;
    wait(
        &format!("engine, {rate} {name} a second: measuring"),
        window(scale),
    )
    .await;
    let cpu = talk.meter.cpu()?.saturating_sub(cpu_before);
    let rss = talk.meter.held()?.rss;
    let driven: Driven = talk.ask().await?;
    let waiting = time_waits(port)?;
    let done = driven.tally.done - before.tally.done;
    ensure!(
        driven.tally.failed == 0,
        "{} {name} probes failed",
        driven.tally.failed
    );
    Ok(Measured {
        rate,
        driven,
        done,
        cpu: a_probe(cpu, done),
        rss,
        waiting,
    })
}

/// Microseconds of CPU a probe of the bare loop.
async fn floor(name: &str, exchange: Exchange, rate: u32, scale: f64) -> Result<f64> {
    let (_targets, port) = targets().await?;
    let targets = (0..rate)
        .map(|probe| {
            (
                Peer::Address(address(probe, ADDRESSES, port)),
                u64::from(probe) % SLOTS,
            )
        })
        .collect();
    let order = bare::Order {
        exchange,
        targets,
        period: SLOTS,
        runtime: None,
    };
    let mut talk = Talk::here(&Part::Bare(order)).await?;
    wait(&format!("floor, {rate} {name} a second: settling"), SETTLE).await;
    let before: Tally = talk.ask().await?;
    let cpu_before = talk.meter.cpu()?;
    wait(
        &format!("floor, {rate} {name} a second: measuring"),
        window(scale),
    )
    .await;
    let cpu = talk.meter.cpu()?.saturating_sub(cpu_before);
    let after: Tally = talk.ask().await?;
    ensure!(
        after.failed == 0,
        "{} bare {name} exchanges failed",
        after.failed
    );
    Ok(a_probe(cpu, after.done - before.done))
}

/// Lets time pass, and tells.
pub(crate) async fn wait(what: &str, time: Duration) {
    let mut step = Step::begin(what, time.as_secs().max(1));
    let begun = clock::now();
    while begun.elapsed() < time {
        step.at(begun.elapsed().as_secs());
        let left = time.saturating_sub(begun.elapsed());
        tokio::time::sleep(left.min(Duration::from_millis(500))).await;
    }
    step.end();
}

/// Microseconds.
fn a_probe(cpu: Duration, probes: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / count(probes.max(1))
}

/// Connections to or from this port that are kept in `TIME_WAIT`.
fn time_waits(port: u16) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/net/tcp")?;
    let port = format!(":{port:04X}");
    let waits = text.lines().filter(|line| {
        let mut words = line.split_whitespace().skip(1);
        let ends = [words.next(), words.next()];
        words.next() == Some("06") && ends.iter().flatten().any(|end| end.ends_with(&port))
    });
    Ok(waits.count() as u64)
}

fn write(report: &mut Report, name: &str, measured: &Measured, floor: f64) {
    let Measured { rate, driven, .. } = measured;
    let figure = |what: &str, value: f64, unit: &str| {
        Figure::new(format!("{name}, 10,000 a second: {what}"), value, unit)
    };
    let lag = |micros: u32| f64::from(micros) / 1000.0;
    let probes = count(u64::from(*rate));
    let note = if f64::from(*rate) < RATE {
        format!("{rate} a second were sustained or asked for; all else is at that rate")
    } else {
        String::new()
    };
    report.add(figure("sustained", f64::from(*rate), "a second").note(note));
    report.add(figure("CPU a probe", measured.cpu, "µs").floor(floor));
    report.add(figure("lag, median", lag(driven.lag_p50), "ms"));
    report.add(figure("lag, 99 in 100", lag(driven.lag_p99), "ms"));
    report.add(figure("lag, largest", lag(driven.lag_max), "ms"));
    let bytes = count(driven.schedule_bytes) / probes;
    report.add(
        figure("memory a scheduled probe", bytes, "B")
            .note("resident set before and after the plan was taken in and all were scheduled"),
    );
    report.add(figure(
        "RSS in all",
        count(measured.rss) / 1024.0 / 1024.0,
        "MiB",
    ));
    report.add(figure(
        "sockets in TIME_WAIT at the end",
        count(measured.waiting),
        "sockets",
    ));
}
