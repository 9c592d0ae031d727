//! `leadsman-exec` in memory, and what the agent itself must have.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use leadsman_direct::{CgroupMounts, missing_capabilities};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::LinkNameSpaceType;

use super::named;

/// Why commands cannot be run directly at all.
#[derive(Debug, thiserror::Error)]
pub enum DirectExecError {
    /// The agent lacks capabilities.
    #[error("the agent lacks the capabilities {}: add them to its container (agent.directExec of the Helm chart does)", .0.join(", "))]
    Capabilities(Vec<&'static str>),
    /// A restriction that each command would inherit.
    #[error(
        "the agent has {0}, which each command would inherit: agent.directExec of the Helm chart leaves it away"
    )]
    Restricted(&'static str),
    /// The agent has a process namespace of its own.
    #[error("the agent does not see the processes of the node: its pod needs hostPID: true")]
    Processes,
    /// The program is not beside the agent's.
    #[error("{path}: {source}")]
    Helper {
        /// The path at which it should be.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The node's cgroups or process namespace cannot be entered.
    #[error("the node's namespaces cannot be entered: {0}")]
    Node(#[source] io::Error),
}

/// Checks what the agent's pod was given.
pub(super) fn check_process() -> Result<(), DirectExecError> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).map_err(named(path));
    let status = status.map_err(DirectExecError::Node)?;
    if std::process::id() == 1 {
        return Err(DirectExecError::Processes);
    }
    check_status(&status)
}

fn check_status(status: &str) -> Result<(), DirectExecError> {
    let field = |name: &str| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim()
    };
    let effective = u64::from_str_radix(field("CapEff"), 16).unwrap_or_default();
    let missing = missing_capabilities(effective);
    if !missing.is_empty() {
        return Err(DirectExecError::Capabilities(missing));
    }
    if field("Seccomp") != "0" {
        return Err(DirectExecError::Restricted("a seccomp profile"));
    }
    if field("NoNewPrivs") != "0" {
        return Err(DirectExecError::Restricted("no_new_privs"));
    }
    Ok(())
}

/// Moves this thread, and with it each program that it starts, into the node's cgroup namespace: with the option `nsdelegate`
/// nobody else may move a process from one cgroup into another (`cgroup-v2.rst`, Delegation). Returns the node's cgroups.
pub(super) fn enter_cgroup_namespace() -> Result<CgroupMounts, DirectExecError> {
    let read = || -> io::Result<CgroupMounts> {
        let path = "/proc/1/ns/cgroup";
        let namespace = File::open(path).map_err(named(path))?;
        let kind = Some(LinkNameSpaceType::ControlGroup);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?;
        let path = "/proc/1/mountinfo";
        let mounts = std::fs::read_to_string(path).map_err(named(path))?;
        Ok(CgroupMounts::parse(&mounts))
    };
    read().map_err(DirectExecError::Node)
}

/// Copies the helper into memory that nobody can write any more: a process of a container that gets hold of it, as by
/// `#!/proc/self/exe`, could else replace the program that runs with the agent's rights next (CVE-2019-5736 of runc).
pub(super) fn load(path: &Path) -> Result<File, DirectExecError> {
    let load = || -> io::Result<File> {
        let mut source = File::open(path)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The flag is unknown, and not needed, before Linux 6.3.
        let memory = rustix::fs::memfd_create("leadsman-exec", flags | MemfdFlags::EXEC)
            .or_else(|_| rustix::fs::memfd_create("leadsman-exec", flags))?;
        let mut memory = File::from(memory);
        io::copy(&mut source, &mut memory)?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&memory, seals)?;
        // A file that is open for writing cannot be executed.
        File::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
    };
    load().map_err(|source| DirectExecError::Helper {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_lacks_something_is_told_what() {
        let status = |caps: &str, seccomp: u8, privileges: u8| {
            format!("CapEff:\t{caps}\nNoNewPrivs:\t{privileges}\nSeccomp:\t{seccomp}\n")
        };
        let all = "000001ffffffffff";
        check_status(&status(all, 0, 0)).unwrap();
        for (status, words) in [
            (status("00000000a80425fb", 0, 0), "SYS_PTRACE, SYS_ADMIN"),
            (status(all, 2, 0), "a seccomp profile"),
            (status(all, 0, 1), "no_new_privs"),
            (String::new(), "CHOWN"),
        ] {
            let error = check_status(&status).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_helper_in_memory_can_be_executed_and_not_be_written() {
        let loaded = load(Path::new("/bin/true")).unwrap();
        let path = format!("/proc/self/fd/{}", loaded.as_raw_fd());
        assert!(
            std::process::Command::new(&path)
                .status()
                .unwrap()
                .success()
        );
        assert!(
            File::options().write(true).open(&path).is_err_and(|error| {
                // As root it can be opened, and is sealed all the same.
                error.kind() == io::ErrorKind::PermissionDenied
            }) || {
                let mut again = File::options().write(true).open(&path).unwrap();
                io::Write::write(&mut again, b"x").is_err()
            }
        );
        assert!(load(Path::new("/no/such")).is_err());
    }
}
