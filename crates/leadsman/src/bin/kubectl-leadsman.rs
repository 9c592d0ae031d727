//! The plugin of kubectl. Its work is in the crate `leadsman-kubectl`.
//!
//! Its subcommands are not those of `leadsman`: people run them on their machines, and a manager would have their code in
//! memory ("Why several programs?" in `DESIGN.md`).

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::CompleteEnv;
use leadsman_core::cron::version_with_zones;

#[derive(Parser)]
#[command(name = PROGRAM, bin_name = "kubectl leadsman", version, long_version = version_with_zones())]
#[command(about = ABOUT, long_about = LONG_ABOUT)]
#[command(propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say why pods have their marks and sidecars, or lack them, why nodes lack the pod of a job, and what to do
    ///
    /// The answer shows which markers match a pod and why the others do not, each verdict, and who wrote each mark. The pods
    /// of a workload or a selector are grouped by cause, and so are the nodes without a pod of a broadcastjob. Nothing is
    /// written. Parts that you may not read are left out, and the missing right is named; the right to read pods and markers of
    /// the namespace is enough for most answers.
    Explain(leadsman_kubectl::ExplainArgs),
    /// Show the markers and SidecarSets, their pods, and what is wrong
    ///
    /// Matching pods, verdicts, and what is wrong or pending come from the status of each marker and set. The time of the last
    /// run and silent nodes come from the agents' reports, which need the right to list nodepodprobes.apps.kruise.io.
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
    /// Show when a schedule runs next, and why nothing runs
    ///
    /// The answer has the next times in UTC and as the clocks of the time zone show them, the times that were missed, and what
    /// keeps runs from beginning, in the default time zone that the manager's flags name. With --schedule or -f no cluster is
    /// asked. The exit status is 1 if a schedule has no next time. Nothing is written.
    Next(leadsman_kubectl::NextArgs),
    /// Show, wait for, undo, pause and resume the roll-out of a CloneSet
    ///
    /// The words are those of kubectl rollout, which does not know the kind. undo, pause, resume and restart write the set, with
    /// your own right to patch clonesets.apps.kruise.io; status and history write nothing.
    Rollout(leadsman_kubectl::RolloutArgs),
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
        return leadsman_kubectl::complete_for_kubectl(Arguments::command(), words);
    }
    // Ends the process where a shell asks for candidates.
    CompleteEnv::with_factory(Arguments::command)
        .bin(PROGRAM)
        .complete();
    match Arguments::parse().command {
        Command::Explain(args) => leadsman_kubectl::explain(&args),
        Command::Status(args) => leadsman_kubectl::status(&args),
        Command::History(args) => leadsman_kubectl::history(&args),
        Command::Top(args) => leadsman_kubectl::top(&args),
        Command::Drift(args) => leadsman_kubectl::drift(&args),
        Command::Inject(args) => leadsman_kubectl::inject(&args),
        Command::Next(args) => leadsman_kubectl::next(&args),
        Command::Rollout(args) => leadsman_kubectl::rollout(&args),
        Command::Try(args) => leadsman_kubectl::try_markers(&args),
        Command::Doctor(args) => leadsman_kubectl::doctor(&args),
    }
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
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let help = Arguments::command().render_long_help().to_string();
        let about = help.split("Usage:").next().unwrap();
        let fits = about.lines().all(|line| line.chars().count() < 90);
        assert!(fits, "{about}");
    }
}
