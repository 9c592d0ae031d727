//! `cargo xtask demo`: builds as the user, then runs the program `leadsman-demo`, as root.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::{bed, cargo, clock, root};

/// Arguments of `demo`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the cluster up at the end, and say how to reach it and how to end it
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let enter = clock::now();
    let before = clock::since_enter().unwrap_or_default();
    println!("building leadsman and the test bed");
    let built = cargo::build(&["--bin", "leadsman-bed", "--bin", "leadsman-demo"])?;
    let bed = cargo::program(&built, "leadsman-bed")?;
    let product = bed::prepare_beside(&bed, &[], bed::build_product)?;
    let words: &[&str] = if arguments.keep { &["--keep"] } else { &[] };
    let mut environment = bed::prepare_as_user(&bed)?;
    let spent = before + enter.elapsed();
    environment.extend(product);
    environment.extend([
        ("LEADSMAN_BED".to_owned(), bed.into_os_string()),
        // So that the demo's clock starts at the user's Enter.
        (
            root::MOMENTARY.to_owned(),
            OsString::from(format!("{:.3}", spent.as_secs_f64())),
        ),
    ]);
    let program = cargo::program(&built, "leadsman-demo")?;
    // In our place, not beside us: after Ctrl-C the shell waits until the demo has taken everything away.
    let error = root::command(&program, words, &environment)?.exec();
    Err(error).context("running leadsman-demo")
}
