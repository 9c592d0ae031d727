//! The agent's program. Its work is in the crate `leadsman-agent`.
//!
//! Not a subcommand of `leadsman`: an agent runs on each node, and would have code of the manager and of the plugin in
//! memory there ("Why several programs?" in `DESIGN.md`).

#[cfg(test)]
#[path = "../flags.rs"]
mod flags;

use std::process::ExitCode;

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use leadsman_agent::{AgentArgs, history};
use tikv_jemallocator::Jemalloc;

/// The allocator is that of `leadsman` ("Why jemalloc?" in `DESIGN.md`).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const NAME: &str = "leadsman-agent";
const HISTORY: &str = "history";

fn main() -> ExitCode {
    let matches = build_command().get_matches();
    match matches.subcommand() {
        Some((_, matches)) => print_history(matches),
        None => run_agent(&matches),
    }
}

fn run_agent(matches: &ArgMatches) -> ExitCode {
    let args = AgentArgs::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
    leadsman_process::exit_status(NAME, &leadsman_agent::run_agent(&args))
}

fn print_history(matches: &ArgMatches) -> ExitCode {
    let args =
        history::PrintHistoryArgs::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
    match history::print_history(&args, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line: the agent's flags, or the subcommand with its own. Not derived from one type: a value of it would need
/// the agent's flags where the subcommand has none of them.
fn build_command() -> Command {
    let history = history::PrintHistoryArgs::augment_args(Command::new(HISTORY));
    AgentArgs::augment_args(Command::new(NAME).version(env!("CARGO_PKG_VERSION")))
        .subcommand(history)
        .subcommand_negates_reqs(true)
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .propagate_version(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        build_command().debug_assert();
    }

    #[test]
    fn the_help_says_what_both_are_for() {
        let mut command = build_command();
        command.build();
        let help = command.render_long_help().to_string();
        let about = help.split("Usage:").next().unwrap();
        for words in ["probes of one node", "`leadsman manifests`", "LEADSMAN_"] {
            assert!(about.contains(words), "{help}");
        }
        let history = command.find_subcommand_mut(HISTORY).unwrap();
        let help = history.render_long_help().to_string();
        assert!(help.contains("`kubectl leadsman explain`"), "{help}");
    }

    #[test]
    fn the_subcommand_needs_no_flag_of_the_agent_and_takes_none() {
        let parse = |words: &[&str]| build_command().try_get_matches_from(words);
        let history = parse(&[NAME, HISTORY, "--namespace=ns"]).unwrap();
        assert_eq!(history.subcommand_name(), Some(HISTORY));
        assert!(parse(&[NAME, "--node-name=n", HISTORY]).is_err());
        assert!(parse(&[NAME]).is_err());
        let agent = parse(&[NAME, "--node-name=n"]).unwrap();
        assert_eq!(AgentArgs::from_arg_matches(&agent).unwrap().node_name, "n");
    }

    #[test]
    fn every_flag_of_the_agent_can_be_set_in_the_environment() {
        flags::assert_are_variables(&mut build_command());
    }
}
