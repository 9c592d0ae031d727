//! The one binary of leadsman. Each verb has its own module; what it does lives in a crate of its own.

mod verbs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Probes containers as a `PodProbeMarker` says, and writes the verdicts on their pods.
///
/// A cluster runs one `manager` and, on every node, one `agent`. `manifests` prints what both need to be there first,
/// and `preflight` says whether it is there and nothing is in the way:
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
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the cluster's manager
    Manager(leadsman_manager::Args),
    /// Run a node's agent
    Agent(leadsman_agent::Args),
    /// Print what a cluster needs before the first start, as YAML
    Manifests(verbs::manifests::Args),
    /// Say whether a cluster is ready, and what to do first
    Preflight(verbs::preflight::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Manager(args) => verbs::manager::run(&args),
        Verb::Agent(args) => verbs::agent::run(&args),
        Verb::Manifests(args) => verbs::manifests::run(&args),
        Verb::Preflight(args) => verbs::preflight::run(&args),
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
        for verb in Arguments::command().get_subcommands_mut() {
            verb.build();
            if verb.get_name() == "manifests" {
                continue;
            }
            for flag in verb.get_arguments() {
                let Some(long) = flag.get_long() else {
                    continue;
                };
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let expected = format!("LEADSMAN_{}", long.replace('-', "_").to_uppercase());
                let env = flag.get_env().map(|env| env.to_string_lossy().into_owned());
                assert_eq!(env, Some(expected), "{} --{long}", verb.get_name());
            }
        }
    }
}
