//! Whom a probe is run against, and which addresses may be dialled at all.
//!
//! The agent fills a [`Target`] from what the container runtime reports and from nothing else; the check here keeps a pod
//! (or whoever writes its status) from pointing the agent at the node itself or at its link.

use std::net::IpAddr;

use leadsman_core::podprobe::CannotProbe;

/// One container, as the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    address: Result<IpAddr, CannotProbe>,
    container_id: String,
}

impl Target {
    /// A container by its runtime's id, and the addresses the runtime reports for its sandbox (the node's own address for
    /// a sandbox in the node's network). The first that is [`dialable`] is dialled. With none, probes that dial come to
    /// [`CannotProbe::NoAddress`]; `exec` needs none.
    pub fn new(addresses: &[IpAddr], container_id: impl Into<String>) -> Self {
        Self {
            address: addresses
                .iter()
                .map(IpAddr::to_canonical)
                .find(|ip| dialable(*ip))
                .ok_or(CannotProbe::NoAddress),
            container_id: container_id.into(),
        }
    }

    /// A container that cannot be dialled, and why; `exec` can be run in it.
    pub fn unreachable(cause: CannotProbe, container_id: impl Into<String>) -> Self {
        Self {
            address: Err(cause),
            container_id: container_id.into(),
        }
    }

    /// A target at any address, for tests and benches, whose listeners are on the loopback interface.
    #[cfg(any(test, feature = "loopback"))]
    pub fn unchecked(address: IpAddr, container_id: impl Into<String>) -> Self {
        Self {
            address: Ok(address),
            container_id: container_id.into(),
        }
    }

    /// The address probes dial.
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

/// Whether a probe may connect to an address: not unspecified, loopback, link-local (where clouds keep their metadata),
/// broadcast or multicast. An IPv4 address written as IPv6 is judged as IPv4.
pub fn dialable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // All of 0.0.0.0/8 is "this network": Linux takes 0.0.0.0 for itself.
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
    fn says_which_addresses_may_be_dialled(#[case] ip: IpAddr, #[case] expected: bool) {
        assert_eq!(dialable(ip), expected, "{ip}");
    }

    // PRB-24
    #[test]
    fn takes_the_first_address_that_may_be_dialled() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let of = |list: &[&str]| {
            let list: Vec<_> = list.iter().map(|s| ip(s)).collect();
            Target::new(&list, "c").address().ok()
        };
        assert_eq!(of(&["10.0.0.1", "fd00::1"]), Some(ip("10.0.0.1")));
        assert_eq!(of(&["fe80::1", "fd00::1", "10.0.0.1"]), Some(ip("fd00::1")));
        assert_eq!(of(&["::ffff:10.0.0.1"]), Some(ip("10.0.0.1")));
        assert_eq!(of(&["127.0.0.1"]), None);
        assert_eq!(of(&[]), None);
    }
}
