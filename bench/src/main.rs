//! The bench: what leadsman costs, in requests, bytes, CPU and time, each beside its floor: a bare loop that does the
//! same exchanges with the same libraries and decides nothing.
//!
//! Counts come from the API server's audit log by user and from a counting proxy on the runtime's socket, CPU and
//! memory from the processes under `/proc`. `cargo xtask bench` builds and starts it.
//!
//! | room | what lives there |
//! |---|---|
//! | `report` | figures, their table, JSON, plots, and the comparison with an earlier run |
//! | `meter` | CPU, memory, threads and descriptors of a process |
//! | `machine` | what the figures were taken on |
//! | `progress` | what is told meanwhile |
//! | `agent` | one agent on a real node, and its restart |
//! | `cluster` | the manager beside a whole cluster of objects |
//! | `engine` | rules and executors alone |
//! | `index` | the rules of the manager alone |
//! | `part` | processes that the bench starts of itself, the bare loops among them |

mod agent;
mod clock;
mod cluster;
mod engine;
mod index;
mod machine;
mod meter;
mod part;
mod progress;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use machine::Machine;
use report::Report;

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
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Which figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// One agent with 50 real pods, each handler at 1 s and at 10 s. Needs root
    Agent,
    /// The manager's start beside 250 nodes, 5,000 pods and 20 markers
    ColdStart,
    /// 1,000 and 10,000 verdicts at once
    Flips,
    /// Manager and agent starting again, with nothing to do and with something
    Restart,
    /// The rules alone: one event among 1,000 to 100,000 pods, bytes a pod
    Index,
    /// 10,000 probes a second on loopback
    Engine,
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// People.
    Text,
    /// Machines.
    Json,
}

fn main() -> ExitCode {
    if let Some(code) = part::asked() {
        return code;
    }
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let machine = Machine::read()?;
    let earlier = arguments.compare.as_deref().map(Report::read).transpose()?;
    let all = if arguments.what.is_empty() {
        What::value_variants()
    } else {
        &arguments.what
    };
    for what in all {
        let mut report = measure(*what, f64::from(arguments.scale) / 100.0)?;
        report.machine = machine.clone();
        match arguments.output {
            Output::Text => print!("{}", report.text(earlier.as_ref())),
            Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        }
        if let Some(folder) = &arguments.out {
            for file in report.write(folder)? {
                eprintln!("bench: wrote {}", file.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(what: What, scale: f64) -> Result<Report> {
    match what {
        What::Agent => agent::measure(scale),
        What::ColdStart => cluster::cold_start::run(scale),
        What::Flips => cluster::flips::run(scale),
        What::Restart => {
            let mut report = Report::new("restart", scale, "");
            cluster::restart::manager(scale, &mut report)?;
            agent::restart(scale, &mut report)?;
            Ok(report)
        }
        What::Engine => engine::measure(scale),
        What::Index => index::measure(scale),
    }
}
