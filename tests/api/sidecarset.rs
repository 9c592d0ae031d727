//! Roll-outs of `SidecarSet`s: sets and pods in; revisions, upgraded pods and counts out. Nobody runs the pods, a stand-in for
//! kubelets reports them.

mod neighbours;
mod refused;
mod restarts;
mod revisions;
mod rollout;
mod status;
mod world;

pub(crate) use neighbours::*;
pub(crate) use refused::*;
pub(crate) use restarts::*;
pub(crate) use revisions::*;
pub(crate) use rollout::*;
pub(crate) use status::*;
