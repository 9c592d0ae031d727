//! The target of probes: one static program that answers over HTTP, TCP and gRPC as it is told to
//! at run time, and that is its own client.
//!
//! In a bed's images it is `/target`. It ends at once on SIGTERM, also as process 1.

mod client;
mod grpc;
mod handover;
mod http1;
mod load;
mod state;
mod tcp;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::state::State;

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage:
  target serve [--http 8080] [--tcp 9090] [--grpc 50051] [--set KEY=VALUE]...
                                         print the ports; 0 takes a free one
  target handover [--http 7000] [--socket /handover/socket] [--set KEY=VALUE]...
                                         serve on the listening socket of the process at that socket, or on one of its
                                         own, until a successor takes it
  target handed-over [--socket /handover/socket]
                                         wait until the container of version $SIDECARSET_VERSION serves so
  target load [--http 8080] URL...       ask each URL without end; what came of it is at /counts
  target get URL [--timeout SECONDS]     print the body; exit 0 on 2xx, else 1
  target post URL [--timeout SECONDS]
  target emit BYTES                      that many bytes on stdout
  target emit-invalid-utf8               a line that is not UTF-8
  target sleep [SECONDS]                 for ever without a number
  target pause                           wait for a signal";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = run(&arguments) => outcome,
            ended = asked_to_end() => ended,
        }
    });
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Failure) -> ExitCode {
    eprintln!("target: {error}");
    ExitCode::FAILURE
}

async fn asked_to_end() -> Result<(), Failure> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn run(arguments: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => serve(&[]).await,
        ["serve", rest @ ..] => serve(rest).await,
        ["handover", rest @ ..] => handover::serve(rest).await,
        ["handed-over", rest @ ..] => handover::wait_until_served(rest).await,
        ["load", rest @ ..] => load::run(rest).await,
        ["get", url, rest @ ..] => client::print("GET", url, timeout(rest)?).await,
        ["post", url, rest @ ..] => client::print("POST", url, timeout(rest)?).await,
        ["emit", bytes] => emit(bytes.parse()?),
        ["emit-invalid-utf8"] => Ok(std::io::stdout().write_all(b"caf\xe9 \xff\xfe\n")?),
        ["sleep", seconds] => {
            tokio::time::sleep(Duration::from_secs_f64(seconds.parse()?)).await;
            Ok(())
        }
        ["pause" | "sleep"] => std::future::pending().await,
        _ => Err(USAGE.into()),
    }
}

fn timeout(rest: &[&str]) -> Result<Duration, Failure> {
    match rest {
        [] => Ok(Duration::from_secs(10)),
        ["--timeout", seconds] => Ok(Duration::from_secs_f64(seconds.parse()?)),
        _ => Err(USAGE.into()),
    }
}

fn emit(bytes: usize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let block = [b'x'; 4096];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len());
        out.write_all(&block[..now])?;
        left -= now;
    }
    Ok(out.flush()?)
}

async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(("0.0.0.0", port)).await
}

fn port(listener: &TcpListener) -> std::io::Result<u16> {
    Ok(listener.local_addr()?.port())
}

async fn serve(arguments: &[&str]) -> Result<(), Failure> {
    let (mut http, mut tcp, mut grpc) = (8080, 9090, 50051);
    let state = Arc::new(State::default());
    for pair in arguments.chunks(2) {
        match pair {
            ["--http", port] => http = port.parse()?,
            ["--tcp", port] => tcp = port.parse()?,
            ["--grpc", port] => grpc = port.parse()?,
            ["--set", setting] => {
                let (key, value) = setting.split_once('=').ok_or(USAGE)?;
                state.set(key, value)?;
            }
            _ => return Err(USAGE.into()),
        }
    }
    let [http, tcp, grpc] = [listen(http).await?, listen(tcp).await?, listen(grpc).await?];
    let [http_port, tcp_port, grpc_port] = [port(&http)?, port(&tcp)?, port(&grpc)?];
    // Who passes port 0 reads here which ports these are.
    writeln!(
        std::io::stdout(),
        "listening http={http_port} tcp={tcp_port} grpc={grpc_port}"
    )?;
    tokio::try_join!(
        http1::serve(http, Arc::clone(&state)),
        tcp::serve(tcp, Arc::clone(&state)),
        grpc::serve(grpc, state)
    )?;
    Ok(())
}
