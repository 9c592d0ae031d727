//! Containers that were looked at: whether commands can be run in them directly, and how.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leadsman_direct::{CgroupMounts, ContainerInfo, Detour, InitFacts, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The most bytes of plans that are kept. Those of containers that have ended are not among them.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A container in which commands are run directly.
pub(super) struct Container {
    /// The first process.
    pub(super) process: OwnedFd,
    /// The process namespace, by the kernel's name for it.
    pub(super) namespace: String,
    pub(super) plan: Plan,
}

/// The findings about a container.
type Known = Result<Arc<Container>, Detour>;

pub(super) struct Containers {
    mounts: CgroupMounts,
    known: Mutex<HashMap<String, Known>>,
}

impl Containers {
    pub(super) fn new(mounts: CgroupMounts) -> Self {
        Self {
            mounts,
            known: Mutex::default(),
        }
    }

    pub(super) fn find(&self, id: &str) -> Option<Known> {
        self.lock().get(id).cloned()
    }

    pub(super) fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    /// Makes the plan of a container from what the runtime tells about it.
    pub(super) fn look_at(&self, id: &str, info: &str) -> Known {
        let found = self.read_container(id, info).map(Arc::new);
        if found
            .as_ref()
            .err()
            .is_none_or(|detour| detour.is_of_container())
        {
            self.keep(id, &found);
        }
        found
    }

    fn keep(&self, id: &str, found: &Known) {
        let mut known = self.lock();
        // Once in a container's life: those that have ended have left before a new one comes.
        known.retain(|_, known| known.as_ref().is_ok_and(|one| is_running(&one.process)));
        let bytes: usize = known.values().flatten().map(|one| one.plan.size()).sum();
        if bytes > MAX_BYTES {
            known.clear();
        }
        known.insert(id.to_owned(), found.clone());
    }

    fn read_container(&self, id: &str, info: &str) -> Result<Container, Detour> {
        let info = ContainerInfo::parse(info)?;
        let pid = i32::try_from(info.pid()).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(Detour::Process)?, PidfdFlags::empty());
        let process = process.map_err(|_| Detour::Process)?;
        let (facts, namespace) = read_facts(info.pid()).map_err(|_| Detour::Process)?;
        // The files, read by number, were those of the process of the descriptor, if that still runs.
        if !is_running(&process) {
            return Err(Detour::Process);
        }
        Ok(Container {
            process,
            namespace,
            plan: Plan::new(id, &info, &facts, &self.mounts)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_facts(pid: u32) -> io::Result<(InitFacts, String)> {
    let read = |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let status = read(pid, "status")?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let parent = parent.and_then(|parent| parent.trim().parse().ok());
    let parent: u32 = parent.ok_or(io::ErrorKind::NotFound)?;
    let users = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    let facts = InitFacts {
        cgroup: read(pid, "cgroup")?,
        limits: read(pid, "limits")?,
        parent_limits: read(parent, "limits")?,
        parent_status: read(parent, "status")?,
        same_users: users(&pid.to_string())? == users("self")?,
        status,
    };
    Ok((facts, process_namespace(pid)?))
}

/// The kernel's name for the process namespace of a process.
pub(super) fn process_namespace(pid: u32) -> io::Result<String> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/pid"))?;
    Ok(link.to_string_lossy().into_owned())
}

/// Whether the process has not ended: its descriptor becomes readable when it has.
fn is_running(process: &impl AsFd) -> bool {
    let mut descriptors = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut descriptors, Some(&Timespec::default())), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert!(is_running(&process));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_running(&process));
        assert!(read_facts(u32::MAX).is_err());
    }
}
