//! Runs seeds of the simulation, or tells the story of one.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use leadsman_sim::{ChurnHour, FailedSeed, FaultClass, Plan, SeedOutcome, churn, run, run_seeds};

/// Runs seeds of the simulation, or tells the story of one
#[derive(Parser)]
struct SimArguments {
    /// How many seeds to run
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Minutes after which no further seed is begun, however many are left
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<u64>,
    /// Seeds that run at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    jobs: usize,
    /// Leave out faults of this class; may be given more than once
    #[arg(long, value_name = "CLASS")]
    without: Vec<FaultClass>,
    /// Include faults of this class, which the gate leaves out
    #[arg(long, value_name = "CLASS")]
    with: Vec<FaultClass>,
    /// Tell the whole story of this seed
    #[arg(long, value_name = "SEED", conflicts_with = "replay")]
    story: Option<u64>,
    /// Carry out round after round in one world, for so many hours of its time; the first round is --from
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u64).range(1..),
          conflicts_with_all = ["replay", "story", "seeds", "minutes", "jobs", "shrink"])]
    churn: Option<u64>,
    /// Run the plan in this file, which a failing seed has printed
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Runs that shrinking a failing plan may take; 0 shrinks none
    #[arg(long, value_name = "COUNT", default_value_t = 80)]
    shrink: usize,
    /// Write the log of all processes to stderr, at this level
    #[arg(long, value_name = "LEVEL")]
    log: Option<tracing_subscriber::filter::LevelFilter>,
}

fn main() -> Result<ExitCode> {
    let arguments = SimArguments::parse();
    if let Some(level) = arguments.log {
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    }
    let mut classes = FaultClass::GATE.to_vec();
    classes.extend(&arguments.with);
    classes.retain(|class| !arguments.without.contains(class));
    if let Some(hours) = arguments.churn {
        return Ok(run_churn(arguments.from, hours, &classes));
    }
    let plan = match (&arguments.replay, arguments.story) {
        (Some(path), _) => {
            let text =
                fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            Some(
                serde_json::from_str(&text)
                    .with_context(|| format!("{} is no plan", path.display()))?,
            )
        }
        (None, seed) => seed.map(|seed| Plan::of_seed(seed, &classes)),
    };
    if let Some(plan) = plan {
        let outcome = run(&plan);
        print!("{}", outcome.render());
        return Ok(exit_code(outcome.violations.is_empty()));
    }
    run_many(&arguments, &classes)
}

/// Tells of each hour, with the resident memory of this process, which holds the API server's model and all processes.
fn run_churn(first: u64, hours: u64, classes: &[FaultClass]) -> ExitCode {
    let outcome = churn(first, hours, classes, |hour| {
        let ChurnHour {
            hour,
            rounds,
            changes,
        } = hour;
        let memory = resident_memory().map_or_else(|| "?".to_owned(), |kib| kib.to_string());
        println!("hour {hour}: {rounds} rounds, {changes} changes stored, {memory} KiB resident");
    });
    let is_right = outcome.violations.is_empty();
    if !is_right {
        for line in &outcome.story {
            println!("{line}");
        }
    }
    let (rounds, count) = (outcome.rounds, outcome.violations.len());
    println!("{rounds} rounds, {count} violations");
    exit_code(is_right)
}

/// `VmRSS` of this process, in KiB.
fn resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long the runs may take is no time of the simulation"
)]
fn run_many(arguments: &SimArguments, classes: &[FaultClass]) -> Result<ExitCode> {
    let began = Instant::now();
    let limit = arguments
        .minutes
        .map(|minutes| Duration::from_secs(minutes * 60));
    let is_over = || limit.is_some_and(|limit| began.elapsed() >= limit);
    let seeds = arguments.from..arguments.from.saturating_add(arguments.seeds);
    let (count, failures) = run_seeds(seeds, arguments.jobs, classes, is_over);
    for failure in &failures {
        println!("seed {}: {}", failure.seed, failure.rule());
    }
    if let Some(first) = failures.first() {
        explain(first, arguments.shrink)?;
    }
    let took = began.elapsed();
    println!("{count} seeds in {took:.1?}, {} failed", failures.len());
    Ok(exit_code(failures.is_empty()))
}

fn explain(failure: &FailedSeed, runs: usize) -> Result<()> {
    let shrunk: SeedOutcome = if runs == 0 {
        failure.whole.clone()
    } else {
        failure.shrunk(runs)
    };
    print!("{}", shrunk.render());
    println!(
        "the plan, for --replay:\n{}",
        serde_json::to_string(&shrunk.plan)?
    );
    Ok(())
}

fn exit_code(is_right: bool) -> ExitCode {
    if is_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
