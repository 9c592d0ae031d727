//! The flags that say which install a verb is about.

use leadsman_manager::Gates;

/// An install, as its manager's flags describe it.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct InstallArgs {
    /// Namespace of manager and agents
    #[arg(
        long,
        env = "LEADSMAN_NAMESPACE",
        value_name = "NAME",
        default_value = leadsman_api::DEFAULT_NAMESPACE
    )]
    pub(crate) namespace: String,
    /// Feature gates that the manager runs with, as NAME=true,NAME=false: rights and objects that only a feature needs are
    /// left out if its gate is off
    #[arg(
        long,
        env = "LEADSMAN_FEATURE_GATES",
        value_name = "GATES",
        default_value = ""
    )]
    pub(crate) feature_gates: Gates,
}
