//! What the runtime and `/proc` say together: a plan for every command of a container, and the request for one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::detour::Detour;
use crate::init::{CgroupMounts, InitFacts};
use crate::spec::ContainerInfo;

/// The largest request: the environment is most of it, and a larger one goes through the runtime.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024;

/// The part that all commands of a container have in common: whom to be, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The files into which a process writes 0 to enter its cgroups, below the root of the node's first process.
    pub(crate) cgroups: Vec<String>,
    /// The name of the session keyring.
    pub(crate) keyring: String,
    pub(crate) oom_score_adj: i32,
    /// Soft and hard, in the kernel's order.
    pub(crate) limits: Vec<[u64; 2]>,
    pub(crate) cwd: String,
    pub(crate) env: Vec<String>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) no_new_privileges: bool,
    pub(crate) bounding: u64,
    pub(crate) effective: u64,
    pub(crate) inheritable: u64,
    pub(crate) permitted: u64,
    pub(crate) ambient: u64,
}

/// One command, as `leadsman-exec` reads it.
#[derive(Debug, Serialize)]
pub struct Request<'a> {
    /// The container's plan.
    pub plan: &'a Plan,
    /// The command. The first is the program.
    pub command: &'a [String],
}

impl Plan {
    /// Makes the plan of the container of this id.
    ///
    /// # Errors
    /// Why its commands have to go through the runtime.
    pub fn new(
        id: &str,
        info: &ContainerInfo,
        facts: &InitFacts,
        mounts: &CgroupMounts,
    ) -> Result<Self, Detour> {
        let capabilities = info.check()?;
        let process = info.process();
        check_environment(&process.env)?;
        facts.check_umask()?;
        let groups: BTreeSet<u32> = process.user.additional_gids.iter().copied().collect();
        let plan = Self {
            cgroups: facts.prove(info, mounts)?,
            // `getSessionRingName` in `libcontainer/setns_init_linux.go` of runc.
            keyring: format!("_ses.{id}"),
            oom_score_adj: process.oom_score_adj,
            limits: facts.limits(info)?,
            cwd: process.cwd.clone(),
            env: process.env.clone(),
            uid: process.user.uid,
            gid: process.user.gid,
            groups: groups.into_iter().collect(),
            no_new_privileges: process.no_new_privileges,
            bounding: capabilities.bounding,
            effective: capabilities.effective,
            inheritable: capabilities.inheritable,
            permitted: capabilities.permitted,
            ambient: capabilities.ambient,
        };
        if plan.size() > MAX_REQUEST_BYTES / 2 {
            return Err(Detour::Specification);
        }
        Ok(plan)
    }

    /// About as many bytes as it takes.
    pub fn size(&self) -> usize {
        let texts = self.env.iter().chain(&self.cgroups);
        texts.map(|text| text.len() + 24).sum::<usize>() + 512
    }
}

/// Runtimes differ in what they make of a variable that comes twice or has no name, and of a `HOME` that is empty: runc sets it.
fn check_environment(env: &[String]) -> Result<(), Detour> {
    let mut names = BTreeSet::new();
    for variable in env {
        let name = variable.split_once('=').map_or("", |(name, _)| name);
        let plain = !name.is_empty() && !variable.contains('\0') && variable != "HOME=";
        if !plain || !names.insert(name) {
            return Err(Detour::Specification);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
