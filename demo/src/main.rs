//! The demo: a real cluster, leadsman on it, and the story of the OpenKruise manual played with what Kubernetes itself
//! then does.
//!
//! It acts as a user would, through `kubectl` and the pods' own files and ports, and looks only at the API and at what
//! answers requests. It never writes a pod's metadata or status. `cargo xtask demo` builds and starts it.

mod acts;
mod autopsy;
mod cluster;
mod see;
mod tell;
mod tour;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use cluster::Demo;
use tell::Tell;

/// Plays the manual's story on a real cluster.
#[derive(Parser)]
struct Arguments {
    /// Leave the cluster up at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("demo: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(&arguments));
    // A bed being raised holds a thread; its keeper takes all away once this process is gone.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<()> {
    let tell = Tell::new();
    Tell::title(
        "A cluster: etcd, kube-apiserver, controller manager, scheduler, containerd, kubelet, kube-proxy",
    );
    let cluster = tokio::select! {
        cluster = Demo::raise() => cluster?,
        () = interrupt() => bail!("interrupted; everything is being taken away"),
    };
    let outcome = tokio::select! {
        outcome = acts::play(&cluster, &tell) => outcome,
        () = interrupt() => {
            println!("\n== Interrupted; taking everything away");
            cluster.end().await?;
            bail!("interrupted");
        }
    };
    match &outcome {
        Ok(()) => Tell::title(&format!(
            "All of it was observed, {:.0} s after Enter",
            tell.since_enter().as_secs_f64()
        )),
        Err(error) => autopsy::print(&cluster, error).await,
    }
    if arguments.keep {
        tour::print(&cluster)?;
        interrupt().await;
    }
    let ended = cluster.end().await;
    outcome
        .and(ended.inspect_err(|error| eprintln!("demo: {error:#}")))
        .map_err(|_| anyhow::anyhow!("not all of it was observed; the reason is above"))
}

/// Waits for SIGINT or SIGTERM; for ever where no handler can be installed.
async fn interrupt() {
    let received = async |kind| match signal(kind) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = received(SignalKind::interrupt()) => {}
        () = received(SignalKind::terminate()) => {}
    }
}
