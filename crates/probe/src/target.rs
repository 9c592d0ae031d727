//! The container that a probe runs against, and which addresses may be connected to at all.
//!
//! The agent fills a [`ProbeTarget`] from what the container runtime reports and from nothing else; the check here keeps a pod, or
//! whoever writes its status, from directing the agent to the node itself or to its link.

use std::net::IpAddr;

use leadsman_core::podprobe::CannotProbe;

/// One container, as the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    address: Result<IpAddr, CannotProbe>,
    container_id: String,
}

impl ProbeTarget {
    /// A container by its runtime's id, and the addresses that the runtime reports for its sandbox (the node's own for a
    /// sandbox in the node's network). The first that [`is_dialable`] is used. Without one a probe that connects ends with
    /// [`CannotProbe::NoAddress`]; `exec` needs none.
    pub fn new(addresses: &[IpAddr], container_id: impl Into<String>) -> Self {
        Self {
            address: addresses
                .iter()
                .map(IpAddr::to_canonical)
                .find(|ip| is_dialable(*ip))
                .ok_or(CannotProbe::NoAddress),
            container_id: container_id.into(),
        }
    }

    /// A container without an address, and why; `exec` can be run in it.
    pub fn unreachable(cause: CannotProbe, container_id: impl Into<String>) -> Self {
        Self {
            address: Err(cause),
            container_id: container_id.into(),
        }
    }

    /// A target at any address, for tests and benches: their servers listen on the loopback interface.
    #[cfg(any(test, feature = "loopback"))]
    pub fn unchecked(address: IpAddr, container_id: impl Into<String>) -> Self {
        Self {
            address: Ok(address),
            container_id: container_id.into(),
        }
    }

    /// The address that probes connect to.
    ///
    /// # Errors
    /// Why there is none.
    pub fn address(&self) -> Result<IpAddr, CannotProbe> {
        self.address.clone()
    }

    /// The runtime's id of the container.
    pub fn container_id(&self) -> &str {
        &self.container_id
    }
}

/// Whether a probe may connect to an address: not if it is unspecified, loopback, link-local (169.254.169.254 serves cloud
/// metadata), broadcast or multicast. An IPv4-mapped IPv6 address counts as its IPv4 address.
pub fn is_dialable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // All of 0.0.0.0/8 is "this network" (RFC 6890); Linux connects 0.0.0.0 to itself.
            ip.octets()[0] != 0
                && !ip.is_loopback()
                && !ip.is_link_local()
                && !ip.is_broadcast()
                && !ip.is_multicast()
        }
        IpAddr::V6(ip) => {
            !ip.is_unspecified()
                && !ip.is_loopback()
                && !ip.is_unicast_link_local()
                && !ip.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    // PRB-24
    #[rstest]
    #[case("10.1.2.3", true)]
    #[case("192.168.0.1", true)]
    #[case("240.1.2.3", true)]
    #[case("fd00::1", true)]
    #[case("2001:db8::1", true)]
    #[case("::ffff:10.1.2.3", true)]
    #[case("0.0.0.0", false)]
    #[case("0.1.2.3", false)]
    #[case("127.0.0.1", false)]
    #[case("127.8.8.8", false)]
    #[case("169.254.169.254", false)]
    #[case("224.0.0.1", false)]
    #[case("255.255.255.255", false)]
    #[case("::", false)]
    #[case("::1", false)]
    #[case("fe80::1", false)]
    #[case("febf::1", false)]
    #[case("ff02::1", false)]
    #[case("::ffff:127.0.0.1", false)]
    #[case("::ffff:169.254.169.254", false)]
    fn addresses_of_the_node_and_its_link_are_not_dialable(
        #[case] ip: IpAddr,
        #[case] expected: bool,
    ) {
        assert_eq!(is_dialable(ip), expected, "{ip}");
    }

    // PRB-24
    #[test]
    fn the_first_dialable_address_is_used() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let of = |list: &[&str]| {
            let list: Vec<_> = list.iter().map(|s| ip(s)).collect();
            ProbeTarget::new(&list, "c").address().ok()
        };
        assert_eq!(of(&["10.0.0.1", "fd00::1"]), Some(ip("10.0.0.1")));
        assert_eq!(of(&["fe80::1", "fd00::1", "10.0.0.1"]), Some(ip("fd00::1")));
        assert_eq!(of(&["::ffff:10.0.0.1"]), Some(ip("10.0.0.1")));
        assert_eq!(of(&["127.0.0.1"]), None);
        assert_eq!(of(&[]), None);
    }
}
