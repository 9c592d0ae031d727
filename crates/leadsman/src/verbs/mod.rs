//! The subcommands, each in a module.

mod install;
pub(crate) mod manager;
pub(crate) mod manifests;
pub(crate) mod preflight;
