//! The address that a run dials: the one that the runtime reports for the pod's own sandbox, or the node's own for a
//! hostNetwork pod.
//!
//! For a hostNetwork pod the runtime reports no address. It is dialled at `--node-ip`, or without the flag at the address
//! in the plan, provided that one of the network interfaces of this process has it. So whoever writes a plan can choose
//! among the node's own addresses and no others. Interfaces that are known to carry foreign addresses are excluded by
//! name; only `--node-ip` is exact.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use leadsman_api::NodePodProbeSpec;
use leadsman_core::podprobe::CannotProbe;
use leadsman_core::podprobe::node::{PodIdentity, ProbeRun};
use leadsman_cri::{Addresses, CurrentContainers};
use leadsman_probe::{ProbeTarget, is_dialable};
use leadsman_process::clock;
use nix::ifaddrs::getifaddrs;
use tokio::time::Instant;

use super::container_list::pod_labels;

/// The age at which the addresses of the interfaces are read again. An address that has left the node is dialled for at
/// most as long.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The addresses of the node, and those in the plan.
#[derive(Debug, Default)]
pub(crate) struct ProbeTargets {
    /// `--node-ip`, the primary one first.
    node_ips: Vec<IpAddr>,
    /// The addresses of all pods in the plan.
    planned: HashMap<PodIdentity, String>,
    interfaces: InterfaceAddresses,
}

impl ProbeTargets {
    pub(crate) fn new(node_ips: Vec<IpAddr>) -> Self {
        Self {
            node_ips,
            ..Self::default()
        }
    }

    /// Takes over the addresses of a plan.
    pub(crate) fn follow_plan(&mut self, spec: Option<&NodePodProbeSpec>) {
        self.planned.clear();
        for pod in spec.iter().flat_map(|spec| &spec.pod_probes) {
            let name = PodIdentity {
                namespace: pod.namespace.as_str().into(),
                name: pod.name.as_str().into(),
                uid: pod.uid.as_str().into(),
            };
            self.planned.insert(name, pod.ip.clone());
        }
    }

    /// The target of a run; `None` if its container is not the newest one any more.
    pub(crate) fn target_of(
        &mut self,
        run: &ProbeRun,
        containers: Option<&CurrentContainers>,
    ) -> Option<ProbeTarget> {
        let pod = &run.key.pod;
        let container = containers?.get(pod_labels(pod), &run.key.container)?;
        // The container has been replaced since the run was planned.
        if container.id != run.container {
            return None;
        }
        let id = &*container.id;
        Some(match &container.addresses {
            Addresses::Unknown => ProbeTarget::unreachable(CannotProbe::NoAddress, id),
            Addresses::Pod(addresses) => {
                let address = self.pod_address_of(pod, addresses);
                ProbeTarget::new(address.as_slice(), id)
            }
            Addresses::Node => match self.node_address_of(pod) {
                Ok(addresses) => ProbeTarget::new(&addresses, id),
                Err(cause) => ProbeTarget::unreachable(cause, id),
            },
        })
    }

    /// The address of a pod with a network of its own: of those that the runtime reports, the one in the plan. A runtime
    /// reports them in the order of the network plugin. The kubelet's `status.podIP`, which is what it probes and what the
    /// plan has, is the first one of the node's own family (`sortPodIPs`, `pkg/kubelet/kubelet_pods.go`).
    fn pod_address_of(&self, pod: &PodIdentity, reported: &[IpAddr]) -> Option<IpAddr> {
        let planned = self.planned_address_of(pod);
        let mut addresses = reported.iter();
        let primary = addresses.find(|ip| Some(ip.to_canonical()) == planned);
        primary.or(reported.first()).copied()
    }

    fn planned_address_of(&self, pod: &PodIdentity) -> Option<IpAddr> {
        let planned = self.planned.get(pod)?.parse::<IpAddr>();
        planned.ok().map(|ip| ip.to_canonical())
    }

    /// The address of a hostNetwork pod.
    fn node_address_of(&mut self, pod: &PodIdentity) -> Result<Vec<IpAddr>, CannotProbe> {
        if !self.node_ips.is_empty() {
            return Ok(self.node_ips.clone());
        }
        match self.planned_address_of(pod) {
            Some(ip)
                if is_dialable(ip) && self.interfaces.contain_fresh(ip, clock::monotonic()) =>
            {
                Ok(vec![ip])
            }
            _ => {
                let planned = self.planned.get(pod).cloned();
                Err(CannotProbe::NotOfNode(planned.unwrap_or_default()))
            }
        }
    }
}

/// The addresses of the network interfaces in this process's network namespace.
#[derive(Debug, Default)]
struct InterfaceAddresses {
    addresses: HashSet<IpAddr>,
    read_at: Option<Instant>,
}

impl InterfaceAddresses {
    fn contain_fresh(&mut self, ip: IpAddr, now: Instant) -> bool {
        let is_fresh = |read_at: Instant| now.saturating_duration_since(read_at) < MAX_AGE;
        if !self.read_at.is_some_and(is_fresh) {
            // The time is noted even where reading fails: it is not tried again with each run.
            self.read_at = Some(now);
            self.addresses = read_addresses().unwrap_or_else(|error| {
                tracing::warn!(
                    %error,
                    "reading the addresses of the network interfaces failed, hostNetwork pods are not probed; set --node-ip"
                );
                HashSet::new()
            });
        }
        self.addresses.contains(&ip)
    }
}

/// Whether the addresses of an interface may be the node's own. kube-proxy binds those of all Services to one of its
/// own (`pkg/proxy/ipvs/proxier.go`, `defaultDummyDevice`), `NodeLocal DNSCache` that of the cluster's DNS. Either is a
/// dummy device, which the kernel names `dummy<N>`.
fn may_carry_node_addresses(interface: &str) -> bool {
    let number = interface.strip_prefix("dummy");
    let dummy = number.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
    !(dummy || interface == "kube-ipvs0" || interface == "nodelocaldns")
}

fn read_addresses() -> nix::Result<HashSet<IpAddr>> {
    let own = getifaddrs()?.filter(|interface| may_carry_node_addresses(&interface.interface_name));
    let addresses = own.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use leadsman_api::node_pod_probe::PodProbe;

    use super::*;

    fn pod(name: &str) -> PodIdentity {
        PodIdentity {
            namespace: "ns".into(),
            name: name.into(),
            uid: "u".into(),
        }
    }

    fn planned(addresses: &[(&str, &str)]) -> NodePodProbeSpec {
        let pods = addresses.iter().map(|(name, ip)| PodProbe {
            name: (*name).to_owned(),
            namespace: "ns".to_owned(),
            uid: "u".to_owned(),
            ip: (*ip).to_owned(),
            probes: Vec::new(),
        });
        NodePodProbeSpec {
            pod_probes: pods.collect(),
        }
    }

    /// A node that has these addresses.
    fn node(own: &[&str]) -> ProbeTargets {
        ProbeTargets {
            interfaces: InterfaceAddresses {
                addresses: own.iter().map(|ip| ip.parse().unwrap()).collect(),
                read_at: Some(clock::monotonic()),
            },
            ..ProbeTargets::default()
        }
    }

    // PRB-24
    #[tokio::test]
    async fn a_pod_in_the_nodes_network_is_dialled_at_an_address_that_the_node_has() {
        let own = [
            "192.0.2.9",
            "2001:db8::9",
            "127.0.0.1",
            "169.254.1.1",
            "fe80::9",
        ];
        let table = [
            ("192.0.2.9", true),
            ("2001:db8::9", true),
            ("::ffff:192.0.2.9", true),
            ("192.0.2.10", false),
            ("10.0.0.1", false),
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.1.1", false),
            ("fe80::9", false),
            ("0.0.0.0", false),
            ("localhost", false),
            ("", false),
        ];
        for (ip, expected) in table {
            let mut node = node(&own);
            node.follow_plan(Some(&planned(&[("one", ip)])));
            match node.node_address_of(&pod("one")) {
                Ok(addresses) => {
                    let ip: IpAddr = ip.parse().unwrap();
                    assert!(expected, "{ip}");
                    assert_eq!(addresses, [ip.to_canonical()]);
                }
                Err(cause) => {
                    assert!(!expected, "{ip}");
                    assert_eq!(cause, CannotProbe::NotOfNode(ip.to_owned()));
                    assert!(cause.to_string().contains("set --node-ip"), "{cause}");
                }
            }
        }
    }

    // PRB-24
    #[tokio::test]
    async fn what_the_plan_says_counts_for_its_own_pod_and_not_beside_the_flag() {
        let mut by_plan = node(&["192.0.2.9"]);
        by_plan.follow_plan(Some(&planned(&[("one", "192.0.2.9"), ("two", "10.0.0.1")])));
        assert!(by_plan.node_address_of(&pod("one")).is_ok());
        assert!(by_plan.node_address_of(&pod("two")).is_err());
        assert!(by_plan.node_address_of(&pod("three")).is_err());
        by_plan.follow_plan(None);
        assert!(by_plan.node_address_of(&pod("one")).is_err());

        let node_ips: Vec<IpAddr> =
            vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        let mut by_flag = node(&["192.0.2.9"]);
        by_flag.node_ips.clone_from(&node_ips);
        by_flag.follow_plan(Some(&planned(&[("one", "192.0.2.9")])));
        assert_eq!(by_flag.node_address_of(&pod("one")), Ok(node_ips));
    }

    // PRB-18, PRB-24
    #[test]
    fn of_a_pods_addresses_the_one_in_the_plan_is_dialled_if_the_runtime_reports_it() {
        let table = [
            ("10.0.0.1", ["2001:db8::1", "10.0.0.1"], "10.0.0.1"),
            ("2001:db8::1", ["10.0.0.1", "2001:db8::1"], "2001:db8::1"),
            (
                "10.0.0.1",
                ["2001:db8::1", "::ffff:10.0.0.1"],
                "::ffff:10.0.0.1",
            ),
            ("10.0.0.9", ["2001:db8::1", "10.0.0.1"], "2001:db8::1"),
            ("", ["2001:db8::1", "10.0.0.1"], "2001:db8::1"),
        ];
        for (in_plan, reported, expected) in table {
            for node_ips in [Vec::new(), vec!["192.0.2.7".parse().unwrap()]] {
                let mut node = ProbeTargets::new(node_ips);
                node.follow_plan(Some(&planned(&[("one", in_plan)])));
                let reported = reported.map(|ip| ip.parse::<IpAddr>().unwrap());
                let address = node.pod_address_of(&pod("one"), &reported);
                assert_eq!(address, Some(expected.parse().unwrap()), "{in_plan:?}");
            }
        }
    }

    // PRB-24
    #[test]
    fn interfaces_that_carry_the_addresses_of_others_are_left_out() {
        for name in ["kube-ipvs0", "nodelocaldns", "dummy0", "dummy12"] {
            assert!(!may_carry_node_addresses(name), "{name}");
        }
        for name in ["eth0", "lo", "kube-bridge", "dummynet", "bond0", "wg0"] {
            assert!(may_carry_node_addresses(name), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn interfaces_are_read_and_read_again_after_a_while() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let mut interfaces = InterfaceAddresses::default();
        let start = clock::monotonic();
        assert!(interfaces.contain_fresh(loopback, start));
        interfaces.addresses.clear();
        assert!(!interfaces.contain_fresh(loopback, start + MAX_AGE - Duration::from_millis(1)));
        assert!(interfaces.contain_fresh(loopback, start + MAX_AGE));
    }
}
