//! What passes between the owner of a bed, its keeper and its supervisor: the request for a bed,
//! the events on the way, the orders afterwards. One JSON value a line.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::progress::Progress;

/// What a caller may vary about a bed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Options {
    arguments: BTreeMap<String, Vec<String>>,
}

impl Options {
    /// Adds an argument to a program's command line, after the bed's own; for most flags the last wins.
    #[must_use]
    pub fn argument(mut self, program: &str, argument: &str) -> Self {
        self.arguments
            .entry(program.into())
            .or_default()
            .push(argument.into());
        self
    }

    pub(crate) fn arguments_of(&self, program: &str) -> impl Iterator<Item = String> {
        self.arguments.get(program).into_iter().flatten().cloned()
    }
}

/// Which bed is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    ControlPlane,
    Node,
}

/// A bed asked for: everything it needs is already on the disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) options: Options,
    /// The folder of the cluster's programs.
    pub(crate) programs: PathBuf,
    /// Image archives to import, by name.
    pub(crate) images: Vec<ImageArchive>,
    /// Where the logs of a failed bed go.
    pub(crate) logs_after_failure: PathBuf,
    /// The bed is to outlive its owner (after [`Order::Detach`]), so its keeper must not
    /// hold the owner's stderr.
    pub(crate) detached: bool,
}

/// An image on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ImageArchive {
    /// The name without tag, for instance `docker.io/local/target`.
    pub(crate) name: String,
    pub(crate) archive: PathBuf,
}

/// A line from keeper or supervisor to the owner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Progress(Progress),
    /// The bed's facts, once known; it is not up yet.
    Bed(Box<Bed>),
    /// All parts are ready.
    Raised,
    /// An order was carried out.
    Done,
    /// An order was not carried out.
    Refused(String),
    /// The bed could not be raised; it is being taken away.
    Failed(String),
}

/// The facts of a bed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bed {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) server: String,
    pub(crate) keeper: u32,
    pub(crate) supervisor: i32,
    pub(crate) node: Option<Node>,
}

/// The facts of a node bed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) host_address: Ipv4Addr,
    pub(crate) runtime_socket: PathBuf,
}

/// What an owner may ask of a bed that is up.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Kill a part.
    Stop(String),
    /// Start it again and wait until it is ready.
    Start(String),
    /// Live on when the owner is gone; from then on a signal to the keeper is the end.
    Detach,
}

/// Writes an event to stdout. Nobody may be listening any more, which is no reason to fail.
pub(crate) fn report(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}
