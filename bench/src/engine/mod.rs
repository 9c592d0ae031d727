//! The engine alone, as `leadsman_core`'s schedule and `leadsman_probe`'s executors are without a cluster: 10,000 probes a
//! second on the loopback interface, beside a bare loop. The process that is measured is in `drive`; the bench itself is
//! what is probed.

mod drive;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadsman_core::podprobe::node::SLOT;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::net::TcpState;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::part::bare::{Exchange, Order, Tally};
use crate::part::{Part, Talk};
use crate::progress::wait;
use crate::report::{Amount as _, Report};
use crate::{figures, share_of};

pub(crate) use drive::run;

/// Probes a second at full size.
const RATE: usize = 10_000;
/// Of what is due, so much must be done, else the rate is not sustained.
const SUSTAINED: f64 = 0.99;
/// The first runs, the first verdicts and the writes that these make come before what is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// What is measured, at full size.
const WINDOW: Duration = Duration::from_secs(30);
/// Addresses that are probed: of each, 250 a second leave enough ports while closed connections are remembered.
const ADDRESSES: u8 = 40;
/// Slots of a second.
const SLOTS: u32 = 1_000 / SLOT.subsec_millis();
/// Connections that may wait to be taken.
const BACKLOG: u32 = 4096;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

/// What came of it. Lags are since the last answer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Driven {
    tally: Tally,
    /// Of the resident set, what the schedule of all probes took.
    schedule_bytes: u64,
    /// The median, 99 in 100, the largest.
    lags: [Duration; 3],
}

/// One rate of one handler.
struct Measured {
    driven: Driven,
    done: u64,
    cpu: Duration,
    rss: u64,
    /// Sockets in `TIME_WAIT`.
    waiting: usize,
}

pub(crate) async fn measure(scale: f64) -> Result<Report> {
    raise_limit()?;
    let mut report = Report::new("engine", scale, include_str!("../../pages/engine.md"));
    let window = WINDOW.mul_f64(scale).max(Duration::from_secs(3));
    let protocols: [(_, fn(SocketAddr) -> _); 2] =
        [("tcp", Exchange::Tcp), ("http", Exchange::Http)];
    for (name, exchange) in protocols {
        let mut rate = u32::try_from(share_of(RATE, scale).max(10))?;
        // The first of the full rate, its half, its quarter … that is sustained.
        let measured = loop {
            let measured = engine(name, exchange, rate, window).await?;
            let due = f64::from(rate) * window.as_secs_f64();
            // What is due in one slot may have ended just before the window or just after it.
            let at_the_edge = f64::from(rate) * SLOT.as_secs_f64();
            if measured.done.amount() >= due * SUSTAINED - at_the_edge {
                break measured;
            }
            let done = measured.done;
            eprintln!("bench: {rate} {name} probes a second are not sustained: {done} of {due}");
            ensure!(rate > 100, "no rate of {name} probes is sustained");
            rate /= 2;
        };
        let (port, _targets) = serve()?;
        let mut floor = Talk::here(&Part::Bare(order(exchange, rate, port))).await?;
        let settled = format!("{rate} {name} a second");
        let floor = floor.cost_of_exchange(&settled, SETTLE, window).await?;
        add_figures(&mut report, name, rate, &measured, floor);
    }
    Ok(report)
}

async fn engine(
    name: &str,
    exchange: fn(SocketAddr) -> Exchange,
    rate: u32,
    window: Duration,
) -> Result<Measured> {
    let (port, _targets) = serve()?;
    let mut talk = Talk::here(&Part::Engine(order(exchange, rate, port))).await?;
    let name = format!("engine, {rate} {name} a second");
    wait(format!("{name}: settling"), SETTLE).await;
    let before: Driven = talk.ask().await?;
    let measuring = format!("{name}: measuring");
    let cpu = talk.meter.cpu_over(measuring, window).await?;
    let rss = talk.meter.held()?.rss;
    let driven: Driven = talk.ask().await?;
    let failed = driven.tally.failed;
    ensure!(failed == 0, "{name}: {failed} failed");
    Ok(Measured {
        driven,
        done: driven.tally.done - before.tally.done,
        cpu,
        rss,
        waiting: time_waits(port)?,
    })
}

/// Each target once a second, by the engine as probes and by the bare loop as they are.
fn order(exchange: fn(SocketAddr) -> Exchange, rate: u32, port: u16) -> Order {
    let one = |probe| (exchange(address(probe, port)), u64::from(probe % SLOTS));
    Order {
        exchanges: (0..rate).map(one).collect(),
        period: SLOTS.into(),
        runtime: None,
    }
}

/// The target of a probe.
fn address(probe: u32, port: u16) -> SocketAddr {
    let last = 1 + u8::try_from(probe % u32::from(ADDRESSES)).unwrap_or(0);
    SocketAddr::new(Ipv4Addr::new(127, 0, 1, last).into(), port)
}

/// Serves what is probed, at a port that nothing was connected to before: takes connections, answers a request's head, and
/// closes when the other side has.
fn serve() -> Result<(u16, AbortOnDropHandle<()>)> {
    let socket = TcpSocket::new_v4()?;
    // Every address of the loopback interface is one of these.
    socket.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    let port = listener.local_addr()?.port();
    Ok((port, AbortOnDropHandle::new(tokio::spawn(take(listener)))))
}

async fn take(listener: TcpListener) {
    loop {
        if let Ok((peer, _)) = listener.accept().await {
            tokio::spawn(answer(peer));
        }
    }
}

async fn answer(mut peer: TcpStream) -> std::io::Result<()> {
    let mut read = Vec::with_capacity(512);
    while peer.read_buf(&mut read).await? > 0 {
        if read.ends_with(b"\r\n\r\n") {
            peer.write_all(ANSWER).await?;
            peer.shutdown().await?;
        }
    }
    Ok(())
}

/// A thousand connections may be open at once, here and in the parts that are started.
fn raise_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raising the limit of descriptors")
}

/// Connections to or from this port that are kept in `TIME_WAIT`.
fn time_waits(port: u16) -> Result<usize> {
    let ended = procfs::net::tcp()?.into_iter();
    let waits = ended.filter(|end| end.state == TcpState::TimeWait);
    let ports = waits.map(|end| [end.local_address.port(), end.remote_address.port()]);
    Ok(ports.filter(|ports| ports.contains(&port)).count())
}

fn add_figures(report: &mut Report, name: &str, rate: u32, measured: &Measured, floor: Duration) {
    let add = report.section(format!("{name}, 10,000 a second"));
    let sustained = add.add(&figures::SUSTAINED, f64::from(rate));
    if (rate as usize) < RATE {
        sustained.note =
            format!("{rate} a second were sustained or asked for; all else is at that rate");
    }
    let cpu = measured.cpu.div_f64(measured.done.amount());
    add.compare(&figures::CPU_A_PROBE, cpu, floor);
    let [median, of_most, largest] = measured.driven.lags;
    add.add(&figures::LAG_MEDIAN, median);
    add.add(&figures::LAG_OF_MOST, of_most);
    add.add(&figures::LAG_LARGEST, largest);
    let bytes = measured.driven.schedule_bytes.amount() / f64::from(rate);
    add.add(&figures::MEMORY_A_PROBE, bytes);
    add.add(&figures::RSS_IN_ALL, measured.rss);
    add.add(&figures::TIME_WAITS, measured.waiting);
}
