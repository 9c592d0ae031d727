//! The program of the manager and of an administrator's tools. Each subcommand has a module here. The other programs are in
//! `bin/`: `leadsman-agent`, which is in the image too, and the plugin `kubectl-leadsman`.

#[cfg(test)]
mod flags;
mod verbs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use leadsman_core::cron::version_with_zones;
use tikv_jemallocator::Jemalloc;

/// See "Why jemalloc?" in `DESIGN.md`.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Marks pods by probes of their containers, and injects and upgrades sidecars
///
/// `manager` runs in a cluster with two replicas, of which one writes. The agents of the
/// nodes are a program of their own, `leadsman-agent`. `manifests` prints the objects that
/// both need, and `preflight` checks whether they exist and whether anything prevents the
/// first start:
///
///     leadsman manifests | kubectl apply --server-side -f -
///     leadsman preflight
///
/// Questions about a cluster are answered by the plugin `kubectl leadsman`, which is
/// a program of its own too, `kubectl-leadsman`.
///
/// Every flag of manager and preflight can also be set in the environment, as
/// LEADSMAN_ and its name in capitals.
#[derive(Parser)]
#[command(version, long_version = version_with_zones(), verbatim_doc_comment, propagate_version = true)]
#[command(arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: LeadsmanCommand,
}

#[derive(Subcommand)]
enum LeadsmanCommand {
    /// Run the cluster's manager
    Manager(Box<leadsman_manager::ManagerArgs>),
    /// Print the objects that a cluster needs before the first start, as YAML
    Manifests(verbs::manifests::ManifestsArgs),
    /// Check whether a cluster is ready, and print what to do first
    Preflight(verbs::preflight::PreflightArgs),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        LeadsmanCommand::Manager(args) => verbs::manager::run(&args),
        LeadsmanCommand::Manifests(args) => verbs::manifests::run(&args),
        LeadsmanCommand::Preflight(args) => verbs::preflight::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let help = Arguments::command().render_long_help().to_string();
        let about = help.split("Usage:").next().unwrap();
        let fits = about.lines().all(|line| line.chars().count() < 90);
        assert!(fits, "{about}");
    }

    // ACJ-9
    #[test]
    fn the_version_names_that_of_the_time_zones() {
        let version = Arguments::command().render_long_version();
        let zones = version.lines().nth(1);
        let named = zones.and_then(|line| line.strip_prefix("time zones: IANA database "));
        assert!(
            named.is_some_and(|version| version.starts_with("20")),
            "{version}"
        );
    }

    #[test]
    fn every_flag_of_a_container_can_be_set_in_the_environment() {
        let mut command = Arguments::command();
        for verb in ["manager", "preflight"] {
            flags::assert_are_variables(command.find_subcommand_mut(verb).unwrap());
        }
    }
}
