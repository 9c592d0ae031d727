//! The program of the manager, of `kubectl leadsman` and of an administrator's tools. Each subcommand has a module here, and
//! its work in another crate. The agent's program is `bin/leadsman-agent`.

mod verbs;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::CompleteEnv;
use tikv_jemallocator::Jemalloc;

/// See "Why jemalloc?" in `DESIGN.md`.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Marks pods by probes of their containers, and injects and upgrades sidecars
///
/// `manager` runs in a cluster, twice, and one of the two writes. The agents of the nodes
/// are a program of their own, `leadsman-agent`. `manifests` prints the objects that both
/// need, and `preflight` checks whether they exist and whether anything prevents the
/// first start:
///
///     leadsman manifests | kubectl apply --server-side -f -
///     leadsman preflight
///
/// The other subcommands answer questions about a cluster. Under the name
/// `kubectl-leadsman` in the PATH, this program is the plugin `kubectl leadsman`:
///
///     kubectl leadsman explain pod/game-0
///     kubectl leadsman status -A
///
/// Every flag of manager and preflight can also be set in the environment, as
/// LEADSMAN_ and its name in capitals.
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
    /// Print the objects that a cluster needs before the first start, as YAML
    Manifests(verbs::manifests::Args),
    /// Check whether a cluster is ready, and print what to do first
    Preflight(verbs::preflight::Args),
    /// Say why pods have their marks and sidecars, or lack them, and what to do
    ///
    /// The answer shows which markers match a pod and why the others do not, each verdict, and who wrote each mark. The pods
    /// of a workload or a selector are grouped by cause. Nothing is written. Parts that you may not read are left out, and the
    /// missing right is named; the right to read pods and markers of the namespace is enough for most answers.
    Explain(leadsman_kubectl::ExplainArgs),
    /// Show the markers, their verdicts, and what is wrong
    ///
    /// Matching pods, verdicts, and what is wrong or pending come from each marker's status. The time of the last run and
    /// silent nodes come from the agents' reports, which need the right to list nodepodprobes.apps.kruise.io.
    Status(leadsman_kubectl::StatusArgs),
    /// Show when the verdicts of a pod changed, and the recent runs of its probes
    ///
    /// Verdicts come from the pod's events, which an API server keeps for an hour, and from what is known now. Runs come from
    /// the agent of the pod's node, which keeps the last runs of each probe; they need the right to run commands in the agent's
    /// pod (pods/exec in leadsman's namespace).
    History(leadsman_kubectl::HistoryArgs),
    /// Show which probes take most time, fail or wait, on all nodes
    ///
    /// The numbers come from the recent runs that agents keep. Each agent is asked by a command in its pod, which needs the
    /// right pods/exec in leadsman's namespace. The CPU time of a probe is not shown, since it is counted with its container.
    Top(leadsman_kubectl::TopArgs),
    /// Say what a marker would do, before it is applied
    ///
    /// The answer says whether the API server would accept the marker, which pods it would match, what would be in the way,
    /// and with which markers it conflicts. The probes are run once in a few of the pods, and the marks that would follow are
    /// shown. Nothing is written. The exit code is not 0 if something is wrong. To run probes you need the rights of
    /// kubectl exec (pods/exec) and, for ports, of kubectl port-forward (pods/portforward).
    Try(leadsman_kubectl::TryArgs),
    /// Check whether leadsman works, and print what to do
    ///
    /// The checks are those of `preflight` (the cluster, an OpenKruise, the markers), and then managers, agents and their
    /// reports, the webhook and its certificate, and versions. Checks that you may not make are listed with the missing right.
    /// Nothing is changed. The exit status is 1 if a problem was found.
    Doctor(leadsman_kubectl::DoctorArgs),
    /// Turn a probe of the kubelet, or a marker of OpenKruise, into a marker
    ///
    /// The marker is printed, ready to be applied. What cannot be carried over, and why, is printed to standard error.
    /// Nothing is written.
    Convert(leadsman_kubectl::ConvertArgs),
    /// Say what a pod would get from SidecarSets, before it is created
    ///
    /// For pods, and for the templates of workloads, the answer says which sets are injected and in which revision, why the
    /// others are not, and what has no effect. It shows the pod before and after as a diff. The sets are those of the cluster;
    /// with --set they are those of files, and no cluster is needed. Nothing is written.
    Inject(leadsman_kubectl::InjectArgs),
    /// Show the pods of a SidecarSet by revision, and what a re-creation would change in them
    ///
    /// The answer has each field in which a pod differs from what it would be if it were created now, and says whether an
    /// upgrade in place changes the field. It covers all namespaces, unless -n names one. Nothing is written.
    Drift(leadsman_kubectl::DriftArgs),
}

/// What the plugin is for; it runs nothing in a cluster.
const ABOUT_PLUGIN: &str =
    "Says why pods have their marks and sidecars, or lack them, and what to do";
const LONG_ABOUT_PLUGIN: &str = "\
Says why pods have their marks and sidecars, or lack them, and what to do

The plugin asks the API server about PodProbeMarkers and SidecarSets, with your
kubeconfig and your own rights, and changes no object. Begin with:

    kubectl leadsman explain pod/game-0
    kubectl leadsman status -A
    kubectl leadsman doctor";

/// The name by which kubectl finds this program (`kubectl plugin`), and the one by which it asks for completions.
const PLUGIN: &str = "kubectl-leadsman";
const COMPLETION: &str = "kubectl_complete-leadsman";

fn main() -> ExitCode {
    let name = program_name();
    // Before clap: the words are those of an unfinished command line.
    if name == COMPLETION {
        let words = std::env::args_os().skip(1).collect();
        return leadsman_kubectl::complete_for_kubectl(build_command(PLUGIN), words);
    }
    // Ends the process where a shell asks for candidates.
    CompleteEnv::with_factory(|| build_command(&program_name())).complete();
    let matches = build_command(&name).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match arguments.command {
        Command::Manager(args) => verbs::manager::run(&args),
        Command::Manifests(args) => verbs::manifests::run(&args),
        Command::Preflight(args) => verbs::preflight::run(&args),
        Command::Explain(args) => leadsman_kubectl::explain(&args),
        Command::Status(args) => leadsman_kubectl::status(&args),
        Command::History(args) => leadsman_kubectl::history(&args),
        Command::Top(args) => leadsman_kubectl::top(&args),
        Command::Convert(args) => leadsman_kubectl::convert(&args),
        Command::Drift(args) => leadsman_kubectl::drift(&args),
        Command::Inject(args) => leadsman_kubectl::inject(&args),
        Command::Try(args) => leadsman_kubectl::try_markers(&args),
        Command::Doctor(args) => leadsman_kubectl::doctor(&args),
    }
}

/// The name that this program was called by.
fn program_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_stem().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The command line. As a plugin of kubectl it shows what people ask, and not what pods run.
fn build_command(program: &str) -> clap::Command {
    let command = Arguments::command();
    if program != PLUGIN {
        return command;
    }
    let command = command.mut_subcommand("manager", |manager| manager.hide(true));
    let command = command.about(ABOUT_PLUGIN).long_about(LONG_ABOUT_PLUGIN);
    command.bin_name("kubectl leadsman")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        for program in ["leadsman", PLUGIN] {
            build_command(program).debug_assert();
        }
    }

    #[test]
    fn the_help_of_the_plugin_is_about_questions_and_fits_a_terminal() {
        for program in ["leadsman", PLUGIN] {
            let help = build_command(program).render_long_help().to_string();
            let about = help.split("Usage:").next().unwrap();
            assert!(
                about.lines().all(|line| line.chars().count() < 90),
                "{about}"
            );
            let is_of_the_cluster = about.contains("`manager`");
            assert_eq!(is_of_the_cluster, program != PLUGIN, "{about}");
        }
    }

    #[test]
    fn every_flag_can_be_set_in_the_environment() {
        for command in Arguments::command().get_subcommands_mut() {
            command.build();
            // What people type has kubectl's flags.
            let is_typed = [
                "manifests",
                "explain",
                "status",
                "history",
                "top",
                "try",
                "doctor",
                "convert",
                "inject",
                "drift",
            ];
            if is_typed.contains(&command.get_name()) {
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
