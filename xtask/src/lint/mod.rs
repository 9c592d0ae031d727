//! `cargo xtask lint`: every check that is no test. All run; what failed is listed at the end, a line each.

mod circles;
pub(crate) mod deny;
mod fragments;
mod layers;
mod orphans;
mod proofs;
mod selects;
mod versions;

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::cargo::{self, cargo};
use crate::{book, clock, crds, fuzz, manifests, rules};

/// What a check found: a line each, with what to do about it. None: it passed.
type Findings = Vec<String>;

/// A check by its name.
type Check = (&'static str, fn() -> Result<Findings>);

/// Arguments of `lint`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also what the gate leaves out: the documentation of the code
    #[arg(long)]
    all: bool,
    /// Only these checks, such as fmt or circles
    checks: Vec<String>,
}

const CHECKS: &[Check] = &[
    ("fmt", fmt),
    ("layers", || layers::check(&cargo::metadata()?)),
    ("orphans", || orphans::check(&cargo::metadata()?)),
    ("circles", circles::check),
    ("selects", selects::check),
    ("fragments", fragments::check),
    ("rules", rules::findings),
    ("proofs", proofs::check),
    ("versions", versions::check),
    ("clippy", clippy),
    ("crds", crds_are_fresh),
    ("manifests", manifests_are_fresh),
    ("book", book::findings),
    ("deny", deny::check),
];

/// Those that `--all` alone runs.
const LATER: &[Check] = &[("docs", docs)];

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let asked = &arguments.checks;
    let is_gate = !arguments.all && asked.is_empty();
    let later = if is_gate { &[] } else { LATER };
    let is_asked = |(name, _): &&Check| asked.is_empty() || asked.iter().any(|one| one == name);
    let checks: Vec<_> = CHECKS.iter().chain(later).filter(is_asked).collect();
    let names = CHECKS.iter().chain(LATER).map(|(name, _)| *name);
    if let Some(unknown) = asked
        .iter()
        .find(|one| !names.clone().any(|name| name == *one))
    {
        eprintln!(
            "no check {unknown:?}; there are {}",
            names.collect::<Vec<_>>().join(", ")
        );
        return ExitCode::FAILURE;
    }
    let mut failed = Vec::new();
    for (name, check) in &checks {
        eprintln!("lint: {name}");
        let started = clock::now();
        let findings = check().unwrap_or_else(|error| vec![format!("{error:#}")]);
        let seconds = started.elapsed().as_secs_f64();
        let verdict = if findings.is_empty() { "ok" } else { "FAILED" };
        eprintln!("lint: {name} {verdict} ({seconds:.1} s)");
        failed.extend(
            findings
                .into_iter()
                .map(|finding| format!("{name}: {finding}")),
        );
    }
    if failed.is_empty() {
        println!("all {} checks passed", checks.len());
        if is_gate {
            println!("left out: docs; `cargo xtask lint --all` runs it too");
        }
        return ExitCode::SUCCESS;
    }
    println!("\nto do:");
    for line in failed {
        println!("  {line}");
    }
    ExitCode::FAILURE
}

/// Runs a command whose own words say what is wrong; `advice` says what to do then.
fn passes(command: &mut Command, advice: &str) -> Result<Findings> {
    let status = command.status()?;
    Ok(if status.success() {
        Vec::new()
    } else {
        vec![advice.to_owned()]
    })
}

/// Whether `cargo TOOL` exists; rustup installs it as a component.
fn component(tool: &str, component: &str) -> Option<String> {
    let there = cargo()
        .args([tool, "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    (!there).then(|| {
        format!("this toolchain has no {component}; run `rustup component add {component}`")
    })
}

fn fmt() -> Result<Findings> {
    if let Some(missing) = component("fmt", "rustfmt") {
        return Ok(vec![missing]);
    }
    let mut findings = passes(
        cargo().args(["fmt", "--all", "--check"]),
        "run `cargo fmt --all`",
    )?;
    findings.extend(passes(
        cargo().args(["fmt", "--check", "--manifest-path", fuzz::MANIFEST]),
        "run `cargo fmt --manifest-path fuzz/Cargo.toml`",
    )?);
    Ok(findings)
}

fn clippy() -> Result<Findings> {
    if let Some(missing) = component("clippy", "clippy") {
        return Ok(vec![missing]);
    }
    passes(
        cargo::for_tests("clippy")?.args([
            "--workspace",
            "--all-targets",
            "--keep-going",
            "--",
            "-D",
            "warnings",
        ]),
        "fix what clippy says above; an `#[expect(…, reason = \"…\")]` needs a reason worth reading",
    )
}

fn crds_are_fresh() -> Result<Findings> {
    let fresh = crds::run(&crds::Arguments { check: true })? == ExitCode::SUCCESS;
    Ok(if fresh {
        Vec::new()
    } else {
        vec!["run `cargo xtask crds` and commit what it wrote".to_owned()]
    })
}

fn manifests_are_fresh() -> Result<Findings> {
    let fresh = manifests::run(&manifests::Arguments { check: true })? == ExitCode::SUCCESS;
    Ok(if fresh {
        Vec::new()
    } else {
        vec!["run `cargo xtask manifests` and commit what it wrote".to_owned()]
    })
}

fn docs() -> Result<Findings> {
    passes(
        cargo::for_tests("doc")?
            .args([
                "--workspace",
                "--lib",
                "--bins",
                "--no-deps",
                "--document-private-items",
                "--quiet",
            ])
            .env(
                "RUSTDOCFLAGS",
                "-D warnings -A rustdoc::private_intra_doc_links",
            ),
        "mend the doc comments that rustdoc names above",
    )
}
