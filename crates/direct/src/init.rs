//! What `/proc` says of a container's first process, as text: the proof that the process is the container's, and what a
//! command has in common with it.

use crate::detour::Detour;
use crate::spec::ContainerInfo;

/// The permissions that a new file is not given, in every process that a runtime starts.
const UMASK: u32 = 0o022;

/// The files in `/proc` of a container's first process, and of its parent, by which the runtime starts commands. Whoever read
/// them has to look afterwards whether the process still runs: then all of it was about that process.
#[derive(Clone, Debug)]
pub struct InitFacts {
    /// `/proc/PID/cgroup`.
    pub cgroup: String,
    /// `/proc/PID/status`.
    pub status: String,
    /// `/proc/PID/limits`.
    pub limits: String,
    /// `/proc/PARENT/limits`.
    pub parent_limits: String,
    /// `/proc/PARENT/status`.
    pub parent_status: String,
    /// Whether its user namespace is the agent's.
    pub same_users: bool,
}

/// The mounts of the hierarchies of cgroups, of all that the node's first process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMounts {
    /// The controllers of a hierarchy as `/proc/PID/cgroup` has them, sorted, and its folder. Version 2 has none.
    hierarchies: Vec<(Vec<String>, String)>,
}

impl CgroupMounts {
    /// Reads `/proc/1/mountinfo`.
    pub fn parse(mountinfo: &str) -> Self {
        let hierarchies = mountinfo.lines().filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ');
            let (root, point) = (before.nth(3)?, before.next()?);
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            let controllers = match kind {
                "cgroup2" => Vec::new(),
                "cgroup" => sorted(options.split(',').filter(|option| is_controller(option))),
                _ => return None,
            };
            (root == "/").then(|| (controllers, point.to_owned()))
        });
        Self {
            hierarchies: hierarchies.collect(),
        }
    }

    fn find(&self, controllers: &str) -> Option<&str> {
        let wanted = sorted(controllers.split(',').filter(|name| !name.is_empty()));
        let mut found = self.hierarchies.iter();
        let (_, point) = found.find(|(controllers, _)| *controllers == wanted)?;
        Some(point)
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(ToOwned::to_owned).collect();
    names.sort_unstable();
    names
}

/// Options of the file system itself that stand among the controllers.
fn is_controller(option: &str) -> bool {
    let of_mount = [
        "rw",
        "ro",
        "xattr",
        "noprefix",
        "clone_children",
        "none",
        "seclabel",
        "cpuset_v2_mode",
        "favordynmods",
    ];
    !of_mount.contains(&option) && !option.starts_with("release_agent=")
}

impl InitFacts {
    /// Proves that the process is the first of this container: it is the first of a process namespace, has the users of the
    /// node, and is in the cgroup that the specification names, which holds no process of any other container. Returns the
    /// files by which a process enters its cgroups.
    ///
    /// # Errors
    /// It is another process, or one that has moved.
    pub(crate) fn prove(
        &self,
        info: &ContainerInfo,
        mounts: &CgroupMounts,
    ) -> Result<Vec<String>, Detour> {
        let namespaces = field(&self.status, "NSpid").ok_or(Detour::Process)?;
        let ids: Vec<&str> = namespaces.split_whitespace().collect();
        if ids != [info.pid().to_string().as_str(), "1"] {
            return Err(Detour::Process);
        }
        if !self.same_users {
            return Err(Detour::Namespaces);
        }
        let expected = info.cgroup()?;
        // crun makes one more for its processes where systemd manages those of version 2.
        let inner = format!("{expected}/container");
        let mut found = false;
        let mut files = Vec::new();
        for line in self.cgroup.lines() {
            let (_, rest) = line.split_once(':').ok_or(Detour::Cgroup)?;
            let (controllers, path) = rest.split_once(':').ok_or(Detour::Cgroup)?;
            let is_own = path == expected || (path == inner && controllers.is_empty());
            // The runtime leaves some hierarchies alone: there it is where the runtime is.
            if !is_own && path.starts_with(&expected) {
                return Err(Detour::Cgroup);
            }
            found |= is_own;
            match mounts.find(controllers) {
                Some(folder) => files.push(format!("{folder}{path}/cgroup.procs")),
                None if is_own => return Err(Detour::Cgroup),
                None => {}
            }
        }
        found.then_some(files).ok_or(Detour::Cgroup)
    }

    /// The limits of a command: soft and hard, in the kernel's order. The runtime starts it with those of its own process and
    /// sets those of the specification; both together must have given the container's first process what it has.
    ///
    /// # Errors
    /// They are others, or not readable.
    pub(crate) fn limits(&self, info: &ContainerInfo) -> Result<Vec<[u64; 2]>, Detour> {
        let own = parse_limits(&self.limits).ok_or(Detour::Limits)?;
        let mut given = parse_limits(&self.parent_limits).ok_or(Detour::Limits)?;
        for limit in &info.process().rlimits {
            let at = RESOURCES.iter().position(|(kind, _)| *kind == limit.kind);
            given[at.ok_or(Detour::Limits)?] = [limit.soft, limit.hard];
        }
        // A program of Go raises its own soft limit of files, and a runtime is one. So the hard ones have to be equal.
        let hard = |limits: &[[u64; 2]]| limits.iter().map(|limit| limit[1]).collect::<Vec<_>>();
        if hard(&own) == hard(&given) {
            Ok(own)
        } else {
            Err(Detour::Limits)
        }
    }

    /// # Errors
    /// The runtime would start a command with another mask than the usual one.
    pub(crate) fn check_umask(&self) -> Result<(), Detour> {
        let mask = field(&self.parent_status, "Umask");
        let mask = mask.and_then(|mask| u32::from_str_radix(mask, 8).ok());
        if mask == Some(UMASK) {
            Ok(())
        } else {
            Err(Detour::Specification)
        }
    }
}

/// The value of a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

/// The kinds of limits in the kernel's order (`include/uapi/asm-generic/resource.h`), and as `/proc/PID/limits` names them.
const RESOURCES: [(&str, &str); 16] = [
    ("RLIMIT_CPU", "Max cpu time"),
    ("RLIMIT_FSIZE", "Max file size"),
    ("RLIMIT_DATA", "Max data size"),
    ("RLIMIT_STACK", "Max stack size"),
    ("RLIMIT_CORE", "Max core file size"),
    ("RLIMIT_RSS", "Max resident set"),
    ("RLIMIT_NPROC", "Max processes"),
    ("RLIMIT_NOFILE", "Max open files"),
    ("RLIMIT_MEMLOCK", "Max locked memory"),
    ("RLIMIT_AS", "Max address space"),
    ("RLIMIT_LOCKS", "Max file locks"),
    ("RLIMIT_SIGPENDING", "Max pending signals"),
    ("RLIMIT_MSGQUEUE", "Max msgqueue size"),
    ("RLIMIT_NICE", "Max nice priority"),
    ("RLIMIT_RTPRIO", "Max realtime priority"),
    ("RLIMIT_RTTIME", "Max realtime timeout"),
];

fn parse_limits(text: &str) -> Option<Vec<[u64; 2]>> {
    let limits = RESOURCES.iter().map(|(_, name)| {
        let mut lines = text.lines();
        let values = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let mut values = values.split_whitespace().map(|value| match value {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        });
        Some([values.next()??, values.next()??])
    });
    limits.collect()
}
