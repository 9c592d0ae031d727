//! The plugin of kubectl. Its work is in the crate `leadsman-kubectl`.
//!
//! Its subcommands are not those of `leadsman`: people run them on their machines, and a manager would have their code in
//! memory ("Why several programs?" in `DESIGN.md`).

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use clap_complete::CompleteEnv;
use leadsman_core::cron::version_with_zones;
use leadsman_kubectl::{Command, complete_for_kubectl};

#[derive(Parser)]
#[command(name = PROGRAM, bin_name = "kubectl leadsman", version, long_version = version_with_zones())]
#[command(about = ABOUT, long_about = LONG_ABOUT)]
#[command(propagate_version = true, arg_required_else_help = true)]
struct PluginArguments {
    #[command(subcommand)]
    command: Command,
}

const ABOUT: &str =
    "Says why pods lack their marks or sidecars, why jobs do not run, and what to do";
const LONG_ABOUT: &str = "\
Says why pods lack their marks or sidecars, why jobs do not run, and what to do

The plugin asks the API server about PodProbeMarkers, SidecarSets, BroadcastJobs
and AdvancedCronJobs, with your kubeconfig and your own rights. It changes no
object, but for what rollout is told to do with a CloneSet. Begin with:

    kubectl leadsman explain pod/game-0
    kubectl leadsman status -A
    kubectl leadsman doctor";

/// The name by which kubectl finds this program (`kubectl plugin`), and the one by which it asks for completions.
const PROGRAM: &str = "kubectl-leadsman";
const COMPLETION: &str = "kubectl_complete-leadsman";

fn main() -> ExitCode {
    // Completions come before clap: the words are those of an unfinished command line.
    if is_asked_for_completions() {
        let words = std::env::args_os().skip(1).collect();
        return complete_for_kubectl(PluginArguments::command(), words);
    }
    // Ends the process where a shell asks for candidates.
    CompleteEnv::with_factory(PluginArguments::command)
        .bin(PROGRAM)
        .complete();
    PluginArguments::parse().command.run()
}

/// Whether this program was called by its second name.
fn is_asked_for_completions() -> bool {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path).file_stem() == Some(COMPLETION.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        PluginArguments::command().debug_assert();
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let help = PluginArguments::command().render_long_help().to_string();
        let about = help.split("Usage:").next().unwrap();
        let fits = about.lines().all(|line| line.chars().count() < 90);
        assert!(fits, "{about}");
    }
}
