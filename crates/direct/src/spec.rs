//! The parts of the runtime's status that are read: the JSON under `info` of a verbose `ContainerStatus`, of containerd
//! (`ContainerInfo`, `pkg/cri/server/container_status.go`) and of CRI-O (`container_status.go`), with the OCI runtime
//! specification in it. A field that is not known where it would count makes the whole of it unknown.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::capability;
use crate::detour::Detour;

/// The only kind of runtime that containerd tells of whose containers are processes of the node: runc, crun, youki.
const RUNC: &str = "io.containerd.runc.v2";

/// A container in the runtime's words.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerInfo {
    pub(crate) pid: u32,
    /// Said by containerd alone.
    #[serde(default)]
    runtime_type: Option<String>,
    runtime_spec: Specification,
}

#[derive(Debug, Deserialize)]
struct Specification {
    process: Process,
    linux: Linux,
    #[serde(default)]
    vm: Option<IgnoredAny>,
}

/// A process (`config.md#process`). What is not named here changes it in a way that is not known.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Process {
    #[serde(default, rename = "terminal")]
    _terminal: bool,
    #[serde(default, rename = "consoleSize")]
    _console_size: Option<IgnoredAny>,
    /// The container's own command.
    #[serde(default, rename = "args")]
    _args: Option<IgnoredAny>,
    pub(crate) user: User,
    #[serde(default)]
    pub(crate) env: Vec<String>,
    pub(crate) cwd: String,
    pub(crate) capabilities: Capabilities,
    #[serde(default)]
    pub(crate) rlimits: Vec<Rlimit>,
    #[serde(default)]
    pub(crate) no_new_privileges: bool,
    #[serde(default)]
    apparmor_profile: String,
    #[serde(default)]
    selinux_label: String,
    pub(crate) oom_score_adj: i32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    #[serde(default)]
    pub(crate) additional_gids: Vec<u32>,
}

/// The five sets, by the names of capabilities.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Capabilities {
    bounding: Vec<String>,
    effective: Vec<String>,
    inheritable: Vec<String>,
    permitted: Vec<String>,
    ambient: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rlimit {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
    #[serde(default)]
    cgroups_path: String,
    #[serde(default)]
    uid_mappings: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    gid_mappings: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    seccomp: Option<IgnoredAny>,
    #[serde(flatten)]
    others: Fields,
}

/// An object of which only the names of fields are read.
type Fields = serde_json::Map<String, serde_json::Value>;

/// Fields of `linux` that concern the container when it is made, and no command in it.
const OF_CREATION: [&str; 9] = [
    "devices",
    "maskedPaths",
    "mountLabel",
    "netDevices",
    "readonlyPaths",
    "resources",
    "rootfsPropagation",
    "sysctl",
    "annotations",
];

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

/// The five sets of capabilities, each as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapabilityBits {
    pub(crate) bounding: u64,
    pub(crate) effective: u64,
    pub(crate) inheritable: u64,
    pub(crate) permitted: u64,
    pub(crate) ambient: u64,
}

impl ContainerInfo {
    /// Reads the runtime's JSON.
    ///
    /// # Errors
    /// It is none, or says too little or too much.
    pub fn parse(json: &str) -> Result<Self, Detour> {
        // Twice only where something is wrong: is the form another one, or the specification?
        serde_json::from_str(json).map_err(|_| {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Form {
                #[serde(rename = "pid")]
                _pid: u32,
                #[serde(rename = "runtimeSpec")]
                _runtime_spec: Fields,
            }
            match serde_json::from_str::<Form>(json) {
                Ok(_) => Detour::Specification,
                Err(_) => Detour::Status,
            }
        })
    }

    /// The id of the container's first process, in the runtime's process namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn process(&self) -> &Process {
        &self.runtime_spec.process
    }

    /// The container's cgroup below the root of a hierarchy. With systemd it is named by its slice and unit (`expandSlice`,
    /// `libcontainer/cgroups/systemd/common.go` of runc).
    pub(crate) fn cgroup(&self) -> Result<String, Detour> {
        let path = self.runtime_spec.linux.cgroups_path.as_str();
        if path.starts_with('/') && path.len() > 1 {
            return Ok(path.to_owned());
        }
        let mut parts = path.split(':');
        let (Some(slice), Some(prefix), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Detour::Cgroup);
        };
        let words = slice.strip_suffix(".slice").ok_or(Detour::Cgroup)?;
        let mut expanded = String::new();
        for (at, _) in words.match_indices('-').chain([(words.len(), "")]) {
            expanded.extend(["/", &words[..at], ".slice"]);
        }
        Ok(format!("{expanded}/{prefix}-{name}.scope"))
    }

    /// Whether a command may be run directly by all that the specification says.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self) -> Result<CapabilityBits, Detour> {
        let runc = self.runtime_type.as_ref().is_none_or(|kind| kind == RUNC);
        if !runc || self.runtime_spec.vm.is_some() {
            return Err(Detour::Sandbox);
        }
        let (linux, process) = (&self.runtime_spec.linux, self.process());
        if !(process.apparmor_profile.is_empty() && process.selinux_label.is_empty()) {
            return Err(Detour::SecurityModule);
        }
        let known = |field: &String| OF_CREATION.contains(&field.as_str());
        if !linux.others.keys().all(known) {
            return Err(Detour::Specification);
        }
        linux.check_namespaces()?;
        let capabilities = process.capabilities.bits()?;
        if linux.seccomp.is_some() {
            return Err(Detour::Seccomp);
        }
        Ok(capabilities)
    }
}

impl Linux {
    fn check_namespaces(&self) -> Result<(), Detour> {
        let empty = |mappings: &Option<Vec<_>>| mappings.as_ref().is_none_or(Vec::is_empty);
        let mut own_processes = false;
        let mut mounts = false;
        for namespace in &self.namespaces {
            match namespace.kind.as_str() {
                "pid" => own_processes = namespace.path.is_empty(),
                "mount" => mounts = true,
                "ipc" | "uts" | "network" | "cgroup" => {}
                _ => return Err(Detour::Namespaces),
            }
        }
        let plain = empty(&self.uid_mappings) && empty(&self.gid_mappings);
        if own_processes && mounts && plain {
            Ok(())
        } else {
            Err(Detour::Namespaces)
        }
    }
}

impl Capabilities {
    fn bits(&self) -> Result<CapabilityBits, Detour> {
        let bits = |names: &[String]| {
            names.iter().try_fold(0, |bits, name| {
                let one = capability::by_name(name).filter(|one| capability::DIRECT.contains(*one));
                Ok(bits | one.ok_or(Detour::Capabilities)?.bits())
            })
        };
        Ok(CapabilityBits {
            bounding: bits(&self.bounding)?,
            effective: bits(&self.effective)?,
            inheritable: bits(&self.inheritable)?,
            permitted: bits(&self.permitted)?,
            ambient: bits(&self.ambient)?,
        })
    }
}
