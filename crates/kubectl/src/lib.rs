//! `kubectl leadsman`: why a pod is marked as it is, and markers at a glance, for people.
//!
//! What `explain`, `status` and `try` say of pods and markers is decided in `leadsman_core::podprobe::explain`. Here objects
//! are read, with the kubeconfig and the rights of whoever asks, and the answer is printed. `rollout` alone writes an object.
//!
//! | module | holds |
//! |---|---|
//! | `connection` | kubectl's own flags: which cluster, as whom, in which namespaces |
//! | `resources` | the resources that are read, and their short names |
//! | `reader` | requests, and the right that a refused one names |
//! | `exec` | a command in a container, through the API server |
//! | `recent_runs` | the recent runs that a node's agent keeps |
//! | `install` | who leads, with which settings |
//! | `explain`, `status`, `history`, `top`, `doctor`, `trial` (`try`), `inject`, `drift`, `next` | the verbs |
//! | `rollout` | the roll-outs of `CloneSet`s: the verb that writes |
//! | `sidecars` | what a pod has to do with `SidecarSet`s, for `explain` |
//! | `clone_sets` | what the pods of a `CloneSet` wait for, for `explain` |
//! | `broadcast_jobs` | which nodes have no pod of a `BroadcastJob`, for `explain` |
//! | `sidecar_sets` | the `SidecarSet`s of a cluster or of files, and what their injection follows from |
//! | `targets` | what a verb is asked about, and its pods |
//! | `report` | the answer of a verb in all its forms: lines, tables, styles |
//! | `output` | JSON, YAML, objects, and what may reach the terminal |
//! | `text` | an explanation as text |
//! | `completion` | values for the shell |
#![doc(html_no_source)]

mod broadcast_jobs;
mod clone_sets;
mod cluster_clock;
mod completion;
mod connection;
mod doctor;
mod drift;
mod exec;
mod explain;
mod history;
mod inject;
mod install;
mod next;
mod output;
mod reader;
mod recent_runs;
mod report;
mod resources;
mod rollout;
mod sidecar_sets;
mod sidecars;
mod status;
mod targets;
mod text;
mod top;
mod trial;

use std::process::{ExitCode, Termination};

pub use completion::complete_for_kubectl;
pub use doctor::Args as DoctorArgs;
pub use drift::Args as DriftArgs;
pub use explain::Args as ExplainArgs;
pub use history::Args as HistoryArgs;
pub use inject::Args as InjectArgs;
pub use next::Args as NextArgs;
pub use rollout::Args as RolloutArgs;
pub use status::Args as StatusArgs;
pub use top::Args as TopArgs;
pub use trial::Args as TryArgs;

/// Explains pods.
pub fn explain(args: &ExplainArgs) -> ExitCode {
    run(args.colors, explain::run(args))
}

/// Shows markers at a glance.
pub fn status(args: &StatusArgs) -> ExitCode {
    run(args.colors, status::run(args))
}

/// Shows transitions and recent runs of a pod's probes.
pub fn history(args: &HistoryArgs) -> ExitCode {
    run(args.colors, history::run(args))
}

/// Shows what probes cost, over all nodes.
pub fn top(args: &TopArgs) -> ExitCode {
    run(args.colors, top::run(args))
}

/// Shows the pods of a `SidecarSet` by what a re-creation would change.
pub fn drift(args: &DriftArgs) -> ExitCode {
    run(args.colors, drift::run(args))
}

/// Says what pods would get from `SidecarSet`s.
pub fn inject(args: &InjectArgs) -> ExitCode {
    run(args.colors, inject::run(args))
}

/// Shows when a schedule runs.
pub fn next(args: &NextArgs) -> ExitCode {
    run(args.colors, next::run(args))
}

/// Shows and steers the roll-out of a `CloneSet`.
pub fn rollout(args: &RolloutArgs) -> ExitCode {
    run(args.colors(), rollout::run(args))
}

/// Says what markers would do. (`try` is a keyword.)
pub fn try_markers(args: &TryArgs) -> ExitCode {
    run(args.colors, trial::run(args))
}

/// Checks a cluster and the leadsman in it. The exit status is 1 if a problem was found.
pub fn doctor(args: &DoctorArgs) -> ExitCode {
    run(args.colors, doctor::run(args))
}

/// Why a verb has no answer.
#[derive(Debug, thiserror::Error)]
enum VerbError {
    /// No client could be made.
    #[error(transparent)]
    Connection(Box<connection::ConnectionError>),
    /// Something that the answer needs could not be read.
    #[error("{}", .0.0)]
    Unread(leadsman_core::podprobe::explain::Unread),
    /// There is no object of that name.
    #[error("no {kind} {name}{place}{suggestion}")]
    NoSuchObject {
        /// `pod`, `deployment`, …
        kind: &'static str,
        /// The name that was given.
        name: String,
        /// Where it was looked for: ` in namespace NAME`, or nothing.
        place: String,
        /// What may have been meant.
        suggestion: String,
    },
    /// A selector matches nothing.
    #[error("no pod {of} {place}")]
    NoPods {
        /// Whose pods, or by which selector.
        of: String,
        /// Where they were looked for.
        place: String,
    },
    /// The answer was printed, and says that something is wrong.
    #[error("{0}")]
    Found(String),
    /// The command line cannot be understood.
    #[error("{0}")]
    Usage(String),
    /// The answer could not be printed, or the runtime not started.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<leadsman_core::podprobe::explain::Unread> for VerbError {
    fn from(unread: leadsman_core::podprobe::explain::Unread) -> Self {
        Self::Unread(unread)
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
        // Whoever reads has read enough: `kubectl leadsman status | head`.
        Err(VerbError::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", output::escape_harmful(&format!("error: {error}")));
            ExitCode::FAILURE
        }
    }
}

/// A verb's flags by themselves, as its tests parse them.
#[cfg(test)]
#[derive(Debug, clap::Parser)]
struct CommandLine<A: clap::Args> {
    #[command(flatten)]
    args: A,
}
