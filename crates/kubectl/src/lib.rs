//! `kubectl leadsman`: why a pod is marked as it is, and markers at a glance, for people.
//!
//! What `explain`, `status` and `try` say of pods and markers is decided in `leadsman_core::podprobe::explain`. Here objects
//! are read, with the kubeconfig and the rights of whoever asks, and the answer is printed. `rollout` alone writes an object.
//!
//! | module | holds |
//! |---|---|
//! | `command` | the verbs by name, with their help |
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
mod command;
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

pub use command::Command;
pub use completion::complete_for_kubectl;
/// Why a verb has no answer.
#[derive(Debug, thiserror::Error)]
enum VerbError {
    /// No client could be made.
    #[error(transparent)]
    Connection(Box<connection::ConnectionError>),
    /// Something that the answer needs could not be read.
    #[error("{}", .0.0)]
    Unread(leadsman_core::podprobe::explain::Unread),
    /// No object has that name.
    #[error("no {kind} {name}{place}{suggestion}")]
    NoSuchObject {
        /// `pod`, `deployment`, …
        kind: &'static str,
        /// The name that was given.
        name: String,
        /// The place of the search: ` in namespace NAME`, or nothing.
        place: String,
        /// The end of the message: what may have been meant, or nothing.
        suggestion: String,
    },
    /// A selector matches nothing.
    #[error("no pod {of} {place}")]
    NoPods {
        /// The object that selects the pods, or the selector: `of KIND NAME` or `with labels SELECTOR`.
        of: String,
        /// The place of the search: `in namespace NAME`, `in any namespace`, …
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

/// A verb's flags by themselves, as its tests parse them.
#[cfg(test)]
#[derive(Debug, clap::Parser)]
struct CommandLine<A: clap::Args> {
    #[command(flatten)]
    args: A,
}
