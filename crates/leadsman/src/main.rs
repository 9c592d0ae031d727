//! The binary of leadsman. Each subcommand has a module here, and its work in another crate.

mod verbs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Probes containers as a `PodProbeMarker` says, and writes the verdicts to their pods.
///
/// A cluster runs one `manager` and, on every node, one `agent`. `manifests` prints the objects that both
/// need, and `preflight` checks whether they exist and nothing prevents the first start:
///
///     leadsman manifests | kubectl apply --server-side -f -
///     leadsman preflight
///
/// Every flag of manager, agent and preflight can also be set in the environment, as LEADSMAN_ and its name in capitals.
#[derive(Parser)]
#[command(version, verbatim_doc_comment, propagate_version = true)]
#[command(arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the cluster's manager
    Manager(leadsman_manager::Args),
    /// Run a node's agent
    Agent(leadsman_agent::Args),
    /// Print the objects that a cluster needs before the first start, as YAML
    Manifests(verbs::manifests::Args),
    /// Check whether a cluster is ready, and print what to do first
    Preflight(verbs::preflight::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Manager(args) => verbs::manager::run(&args),
        Command::Agent(args) => verbs::agent::run(&args),
        Command::Manifests(args) => verbs::manifests::run(&args),
        Command::Preflight(args) => verbs::preflight::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_flag_can_be_set_in_the_environment() {
        for command in Arguments::command().get_subcommands_mut() {
            command.build();
            if command.get_name() == "manifests" {
                continue;
            }
            for flag in command.get_arguments() {
                let Some(long) = flag.get_long() else {
                    continue;
                };
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let expected = format!("LEADSMAN_{}", long.replace('-', "_").to_uppercase());
                let env = flag.get_env().map(|env| env.to_string_lossy().into_owned());
                assert_eq!(env, Some(expected), "{} --{long}", command.get_name());
            }
        }
    }
}
