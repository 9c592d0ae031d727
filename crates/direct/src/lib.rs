//! Commands in containers without the container runtime: what the runtime says about a container becomes a plan of what to
//! enter and whom to be, and the program `leadsman-exec` carries it out on itself and becomes the command.
//!
//! The runtime's `exec` starts two programs of its own for each command, which takes a hundred times as much CPU as most
//! commands do. Here nothing is decided anew: user, capabilities, limits and so on are those of the runtime's specification,
//! in the order in which runc applies them (`libcontainer/setns_init_linux.go`, `init_linux.go`). Whatever cannot be made
//! exactly as the runtime makes it is a [`Detour`]: the command goes through the runtime.
//!
//! | module | holds |
//! |---|---|
//! | `detour` | why a command goes through the runtime |
//! | `spec` | the parts of the runtime's status that are read |
//! | `init` | what `/proc` says of the container's first process: the proof that it is the container's, cgroups, limits |
//! | `plan` | both together, as a request to `leadsman-exec` |
//! | `capability` | capabilities by their names |
//! | `enter` | `leadsman-exec` itself |
//!
//! Not here: who calls the runtime, starts programs and waits for them. That is the agent.

mod capability;
mod detour;
mod enter;
mod init;
mod plan;
mod spec;

pub use capability::missing_capabilities;
pub use detour::Detour;
pub use enter::{enter_and_execute, parse_answer};
pub use init::{CgroupMounts, InitFacts};
pub use plan::{MAX_REQUEST_BYTES, Plan, Request};
pub use spec::ContainerInfo;
