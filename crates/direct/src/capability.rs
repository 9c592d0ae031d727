//! Capabilities by their names, as sets of bits.

use rustix::thread::CapabilitySet;

/// The capabilities that containers have by default (`defaultUnixCaps`, `oci/spec.go` of containerd). No further one is
/// given directly: a process with `SYS_PTRACE` could take over `leadsman-exec` before it gives up its own.
pub(crate) const DIRECT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// The capabilities that the agent needs beside them, to enter namespaces and cgroups, and to look at processes of others. Where a container has
/// higher limits than the agent, it needs `SYS_RESOURCE` too, or the kernel refuses that step.
const TO_ENTER: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_PTRACE);

/// The set of a capability of this name, as `CAP_KILL`.
pub(crate) fn by_name(name: &str) -> Option<CapabilitySet> {
    CapabilitySet::from_name(name.strip_prefix("CAP_")?)
}

/// The names of the capabilities that an agent lacks which has these.
pub fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let missing = DIRECT.union(TO_ENTER) - CapabilitySet::from_bits_retain(effective);
    missing.iter_names().map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_the_kernels_numbers_and_names() {
        assert_eq!(by_name("CAP_CHOWN").unwrap().bits(), 1);
        assert_eq!(by_name("CAP_AUDIT_WRITE").unwrap().bits(), 1 << 29);
        assert_eq!(by_name("CHOWN"), None);
        assert_eq!(by_name("CAP_NEW"), None);
        // As `CapEff` of a container's process shows them.
        assert_eq!(DIRECT.bits(), 0xa804_25fb);
    }

    #[test]
    fn what_an_agent_lacks_is_named() {
        assert!(missing_capabilities(u64::MAX).is_empty());
        let lacking = missing_capabilities(DIRECT.bits());
        assert_eq!(lacking, ["SYS_PTRACE", "SYS_ADMIN"]);
    }
}
