//! Why a command goes through the runtime.

/// Why a command is not run directly. Each is a value of a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Detour {
    /// The runtime gave no status with process id and specification.
    #[error("the container runtime's status has no process id or no specification")]
    Status,
    /// The container's processes are not the node's: a virtual machine, or a kernel of its own.
    #[error("the container is not one of runc or crun")]
    Sandbox,
    /// The specification has something that is not known here.
    #[error("the container's specification has a field that only the runtime knows to apply")]
    Specification,
    /// A user namespace, or processes of others in the same process namespace.
    #[error("the container has a user namespace, or shares its process namespace")]
    Namespaces,
    /// Capabilities beyond those that containers have by default.
    #[error("the container has more capabilities than the default ones")]
    Capabilities,
    /// A seccomp profile.
    #[error("the container has a seccomp profile")]
    Seccomp,
    /// An `AppArmor` profile or an `SELinux` label.
    #[error("the container has an AppArmor profile or an SELinux label")]
    SecurityModule,
    /// The first process is not where the specification has it.
    #[error("the container's first process is not in the container's cgroup")]
    Cgroup,
    /// The limits of the first process are not those that a command would get.
    #[error("the container's first process has changed its limits")]
    Limits,
    /// The process cannot be shown to be the container's.
    #[error("the container's first process is gone, or is another one")]
    Process,
    /// The kernel refused a step.
    #[error("the kernel refused to enter the container")]
    Kernel,
    /// The program does not exist, or cannot be executed. The runtime says why.
    #[error("the command cannot be executed")]
    Start,
    /// The helper could not be started, or ended before it became the command.
    #[error("leadsman-exec could not be started, or failed")]
    Helper,
}

impl Detour {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Status,
        Self::Sandbox,
        Self::Specification,
        Self::Namespaces,
        Self::Capabilities,
        Self::Seccomp,
        Self::SecurityModule,
        Self::Cgroup,
        Self::Limits,
        Self::Process,
        Self::Kernel,
        Self::Start,
        Self::Helper,
    ];

    /// The metric's name for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Sandbox => "sandbox",
            Self::Specification => "specification",
            Self::Namespaces => "namespaces",
            Self::Capabilities => "capabilities",
            Self::Seccomp => "seccomp",
            Self::SecurityModule => "security_module",
            Self::Cgroup => "cgroup",
            Self::Limits => "limits",
            Self::Process => "process",
            Self::Kernel => "kernel",
            Self::Start => "start",
            Self::Helper => "helper",
        }
    }

    /// Whether the next command in this container would meet it too.
    pub fn is_of_container(self) -> bool {
        !matches!(
            self,
            Self::Status | Self::Process | Self::Kernel | Self::Start | Self::Helper
        )
    }
}
