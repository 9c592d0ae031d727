//! The verbs by name, with their help, and how one is run.

use std::process::{ExitCode, Termination};

use clap::Subcommand;

use crate::{
    VerbError, doctor, drift, explain, history, inject, next, output, rollout, status, top, trial,
};

/// A verb, with the help of it and its flags.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say why pods have their marks and sidecars, or lack them, why nodes lack the pod of a job, and what to do
    ///
    /// The answer shows which markers match a pod and why the others do not, each verdict, and who wrote each mark. The pods
    /// of a workload or a selector are grouped by cause, and so are the nodes without a pod of a broadcastjob. Nothing is
    /// written. Parts that you may not read are left out, and the missing right is named; the right to read pods and markers of
    /// the namespace is enough for most answers.
    Explain(explain::ExplainArgs),
    /// Show the markers and SidecarSets, their pods, and what is wrong
    ///
    /// Matching pods, verdicts, and what is wrong or pending come from the status of each marker and set. The time of the last
    /// run and silent nodes come from the agents' reports, which need the right to list nodepodprobes.apps.kruise.io.
    Status(status::StatusArgs),
    /// Show when the verdicts of a pod changed, and the recent runs of its probes
    ///
    /// Verdicts come from the pod's events, which an API server keeps for an hour, and from what is known now. Runs come from
    /// the agent of the pod's node, which keeps the last runs of each probe; they need the right to run commands in the agent's
    /// pod (pods/exec in leadsman's namespace).
    History(history::HistoryArgs),
    /// Show which probes take most time, fail or wait, on all nodes
    ///
    /// The numbers come from the recent runs that agents keep. Each agent is asked by a command in its pod, which needs the
    /// right pods/exec in leadsman's namespace. The CPU time of a probe is not shown, since it is counted with its container.
    Top(top::TopArgs),
    /// Say what a marker would do, before it is applied
    ///
    /// The answer says whether the API server would accept the marker, which pods it would match, what would be in the way,
    /// and with which markers it conflicts. The probes are run once in a few of the pods, and the marks that would follow are
    /// shown. Nothing is written. The exit code is not 0 if something is wrong. To run probes you need the rights of
    /// kubectl exec (pods/exec) and, for ports, of kubectl port-forward (pods/portforward).
    Try(trial::TryArgs),
    /// Check whether leadsman works, and print what to do
    ///
    /// The checks are those of `preflight` (the cluster, an OpenKruise, the markers), and then managers, agents and their
    /// reports, the webhook and its certificate, and versions. Checks that you may not make are listed with the missing right.
    /// Nothing is changed. The exit status is 1 if a problem was found.
    Doctor(doctor::DoctorArgs),
    /// Say what a pod would get from SidecarSets, before it is created
    ///
    /// For pods, and for the templates of workloads, the answer says which sets are injected and in which revision, why the
    /// others are not, and what has no effect. It shows the pod before and after as a diff. The sets are those of the cluster;
    /// with --set they are those of files, and no cluster is needed. Nothing is written.
    Inject(inject::InjectArgs),
    /// Show the pods of a SidecarSet by revision, and what a re-creation would change in them
    ///
    /// The answer has each field in which a pod differs from what it would be if it were created now, and says whether an
    /// upgrade in place changes the field. It covers all namespaces, unless -n names one. Nothing is written.
    Drift(drift::DriftArgs),
    /// Show when a schedule runs next, and why nothing runs
    ///
    /// The answer has the next times in UTC and as the clocks of the time zone show them, the times that were missed, and what
    /// keeps runs from beginning, in the default time zone that the manager's flags name. With --schedule or -f no cluster is
    /// asked. The exit status is 1 if a schedule has no next time. Nothing is written.
    Next(next::NextArgs),
    /// Show, wait for, undo, pause and resume the roll-out of a CloneSet
    ///
    /// The words are those of kubectl rollout, which does not know the kind. undo, pause, resume and restart write the set, with
    /// your own right to patch clonesets.apps.kruise.io; status and history write nothing.
    Rollout(rollout::RolloutArgs),
}

impl Command {
    /// Runs it, to the exit status of the process.
    pub fn run(&self) -> ExitCode {
        match self {
            Self::Explain(args) => run(args.colors, explain::run(args)),
            Self::Status(args) => run(args.colors, status::run(args)),
            Self::History(args) => run(args.colors, history::run(args)),
            Self::Top(args) => run(args.colors, top::run(args)),
            Self::Try(args) => run(args.colors, trial::run(args)),
            Self::Doctor(args) => run(args.colors, doctor::run(args)),
            Self::Inject(args) => run(args.colors, inject::run(args)),
            Self::Drift(args) => run(args.colors, drift::run(args)),
            Self::Next(args) => run(args.colors, next::run(args)),
            Self::Rollout(args) => run(args.colors(), rollout::run(args)),
        }
    }
}

fn run<T: Termination>(
    colors: output::Colors,
    verb: impl Future<Output = Result<T, VerbError>>,
) -> ExitCode {
    colors.apply_choice();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = runtime
        .map_err(VerbError::Io)
        .and_then(|runtime| runtime.block_on(verb));
    match ended {
        Ok(answered) => answered.report(),
        // The reader has read enough: `kubectl leadsman status | head`.
        Err(VerbError::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", output::escape_harmful(&format!("error: {error}")));
            ExitCode::FAILURE
        }
    }
}
