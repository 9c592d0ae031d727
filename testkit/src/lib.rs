//! The test bed: real Kubernetes on one machine, raised for a test and gone without a trace.
//!
//! * [`ControlPlane`]: etcd and kube-apiserver on 127.0.0.1. No root.
//! * [`NodeBed`]: a whole cluster of one real node or of several (containerd, kubelet, kube-proxy each;
//!   scheduler, controller manager), each in namespaces of its own. Root on Linux.
//! * [`Release`]: a node bed with leadsman on it as its users install it, by chart and image.
//! * [`Cluster`]: a node bed with leadsman's manager and agent in it as processes, for tests that start, kill and measure
//!   them.
//!
//! What a bed guarantees: after its end, whether by drop, by failure, by Ctrl-C or by SIGKILL of its
//! owner or its supervisor, no process, mount, network link, firewall rule, cgroup or temporary
//! folder of it is left. Only the cache stays (see [`cache::folder`]), with what was costly to make.
//!
//! How: the owner holds a pipe to a *keeper* process outside the bed, the keeper holds one to the
//! *supervisor*, the first process of the bed; one for each node. A closed pipe is the end of whoever
//! reads from it. Both are the program `leadsman-bed`.
//!
//! | module | holds |
//! |---|---|
//! | [`progress`] | progress reports while a bed is raised |
//! | `programs`, `packages`, `images` | what a bed is made from, and the [`cache`] of it |
//! | `plan`, `node::plan` | which programs with which flags, in which order |
//! | `keep`, `supervise` | the two kinds of processes behind a bed; `supervised`: the second as the first sees it |
//! | `leftovers` | what was left when both owner and keeper were killed |
//! | [`control_plane`], [`node`] | what a test holds |
//! | `node::vm`, [`node::commands`] | a node in a virtual machine, and commands in it |
//! | [`leadsman`], [`release`], [`cluster`] | leadsman installed; by its chart; as processes |
//! | [`audit`] | requests, counted by user |
//! | [`kubelet`] | a stand-in for kubelets on a control plane without nodes |

pub mod audit;
pub mod cache;
pub mod clock;
pub mod cluster;
pub mod control_plane;
pub mod detached;
pub mod images;
pub mod keep;
pub mod kubelet;
pub mod leadsman;
mod leftovers;
pub mod node;
pub mod packages;
mod pki;
mod plan;
pub mod ports;
mod processes;
pub mod programs;
pub mod progress;
mod raise;
mod readiness;
pub mod release;
mod request;
pub mod supervise;
mod supervised;

pub use cluster::Cluster;
pub use control_plane::ControlPlane;
pub use kubelet::FakeKubelet;
pub use node::{Node, NodeBed};
pub use progress::Progress;
pub use readiness::client;
pub use release::Release;
pub use request::{MOST_NODES, Options};

use std::path::PathBuf;

use anyhow::Result;

/// Compiles, installs and makes what beds need, without raising one. Who is not root does what can be done without,
/// and root then finds it in the cache. Returns the folder of the programs.
pub fn prepare(control_plane: bool, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let programs = programs::ensure(progress)?;
    if control_plane {
        return Ok(programs);
    }
    if nix::unistd::Uid::effective().is_root() {
        packages::ensure(progress)?;
    }
    if packages::suffice_for_images() {
        images::ensure(progress)?;
    } else {
        images::target_program(progress)?;
    }
    Ok(programs)
}
