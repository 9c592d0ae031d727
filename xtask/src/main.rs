//! The chores of this repository, as `cargo xtask VERB`.
//!
//! What lives here: running other programs, adding up what they say, and the checks that look at source files and
//! at cargo's own view of the workspace. What does not: anything that needs a Kubernetes client; that is in the
//! programs of `testkit` and `demo`, which are only called from here.

mod bed;
mod bench;
mod book;
mod cache;
mod cargo;
mod clock;
mod commit;
mod crds;
mod demo;
mod dist;
mod fuzz;
mod image;
mod krew;
mod lint;
mod manifests;
mod root;
mod rules;
mod sbom;
mod sim;
mod sources;
mod test;
mod tool;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The chores of this repository.
///
/// New here? `cargo xtask demo` raises a real cluster and marks real pods; `cargo xtask test` runs the tests of the gate.
/// Both compile the cluster's programs the first time (minutes) and keep them in a cache. Nodes need root on Linux.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", after_help = HABITS)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
}

const HABITS: &str = "\
Every day:
  cargo test -p leadsman-core           the rules alone, seconds
  cargo xtask test pure                 all that needs no cluster
  cargo xtask test api marks            black-box tests whose name contains `marks`
  cargo xtask lint                      before every commit
  cargo xtask bed up                    a cluster of your own to try things on, `bed down` ends it";

#[derive(Subcommand)]
enum Verb {
    /// Play the manual's story on a real cluster and show each step as it is seen in the API
    Demo(demo::Arguments),
    /// Run the tests of the gate, or those of one stage, or all whose name contains FILTER; with --all every test there is
    Test(test::Arguments),
    /// Measure what leadsman costs, each figure beside its floor, and write the results into docs/performance
    Bench(bench::Arguments),
    /// Run seeds of the simulation: managers and agents against a model of the API server, with faults
    Sim(sim::Arguments),
    /// Run fuzz targets: parsers of what others send or write, with inputs that libFuzzer makes up
    Fuzz(fuzz::Arguments),
    /// Make leadsman's container image as an OCI archive, without Docker
    Image(image::Arguments),
    /// Make what a release consists of in target/dist: images, chart, manifests, bills of materials, checksums
    Dist(dist::Arguments),
    /// Write the generated pages of docs/reference, build the documentation as a book in target/book/html, check its links
    Docs(book::Arguments),
    /// Run the checks that are no tests: format, clippy, CRDs, layers, orphan files, rules without a test, versions, the book
    /// and its links, licences; with --all also the documentation of the code
    Lint(lint::Arguments),
    /// Raise a cluster and leave it up, or take it away
    Bed(bed::Arguments),
    /// Show which tests prove which rule of `docs/reference.md`; fail if a rule has none
    Rules(rules::Arguments),
    /// Generate the CRDs in `charts/leadsman/files/crds` from the types, or check that they are up to date
    Crds(crds::Arguments),
    /// Generate the chart's files and the kustomize base, or check that they are up to date
    Manifests(manifests::Arguments),
}

fn main() -> ExitCode {
    let Some(verb) = Arguments::parse().verb else {
        // Asked for nothing in particular: the help is the answer, not an error.
        return match Arguments::command().print_long_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    };
    let outcome = match verb {
        Verb::Demo(arguments) => demo::run(&arguments),
        Verb::Test(arguments) => Ok(test::run(&arguments)),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Sim(arguments) => sim::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::Image(arguments) => image::run(&arguments),
        Verb::Dist(arguments) => dist::run(arguments),
        Verb::Docs(arguments) => book::run(&arguments),
        Verb::Lint(arguments) => Ok(lint::run(&arguments)),
        Verb::Bed(arguments) => bed::run(&arguments),
        Verb::Rules(arguments) => rules::run(&arguments),
        Verb::Crds(arguments) => crds::run(&arguments),
        Verb::Manifests(arguments) => manifests::run(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
