//! Ports of the host that containers take. The API server refuses a pod of which two containers take the same; on the
//! host's network each port of a container is one of the host.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::workload::JsonObject;
use crate::workload::object::{items, text};

/// A port of the host. Two are compared as `AccumulateUniqueHostPorts` does (`pkg/apis/core/validation/validation.go`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    port: u64,
    protocol: String,
    /// Empty for all addresses of the host, which is another one than each of them.
    address: String,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.port, self.protocol)?;
        if self.address.is_empty() {
            return Ok(());
        }
        write!(f, " of {}", self.address)
    }
}

impl HostPort {
    fn read(port: &JsonObject, is_on_host_network: bool) -> Option<Self> {
        // `defaultHostNetworkPorts` (`pkg/apis/core/v1/defaults.go`)
        let default = number(port, "containerPort").filter(|_| is_on_host_network);
        Some(Self {
            port: number(port, "hostPort").or(default)?,
            protocol: text(port, "protocol").unwrap_or("TCP").to_owned(),
            address: text(port, "hostIP").unwrap_or_default().to_owned(),
        })
    }
}

/// The ports of the host that a container takes.
pub fn host_ports(
    container: &JsonObject,
    is_on_host_network: bool,
) -> impl Iterator<Item = HostPort> {
    items(container, "ports").filter_map(move |port| HostPort::read(port, is_on_host_network))
}

/// A port of the host that differs from the container's own, which it must not on the host's network
/// (`validatePodHostNetworkDeps`, `pkg/apis/core/validation/validation.go`).
pub fn translated_port(container: &JsonObject) -> Option<HostPort> {
    items(container, "ports").find_map(|port| {
        let host_port = HostPort::read(port, false)?;
        (Some(host_port.port) != number(port, "containerPort")).then_some(host_port)
    })
}

/// The first port that is taken by another container, `taken` before or among these.
pub fn taken_twice(
    mut taken: BTreeSet<HostPort>,
    ports: impl IntoIterator<Item = HostPort>,
) -> Option<HostPort> {
    ports.into_iter().find(|port| !taken.insert(port.clone()))
}

fn number(port: &JsonObject, field: &str) -> Option<u64> {
    let number = port.get(field).and_then(Value::as_u64);
    number.filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    // SDF-1
    #[rstest]
    #[case(json!({"containerPort": 80}), false, &[])]
    #[case(json!({"containerPort": 80}), true, &["80/TCP"])]
    #[case(json!({"containerPort": 80, "hostPort": 0}), true, &["80/TCP"])]
    #[case(json!({"containerPort": 80, "hostPort": 8080}), false, &["8080/TCP"])]
    #[case(json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}), false, &["80/UDP"])]
    #[case(json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}), false, &["80/TCP of 10.0.0.1"])]
    fn ports_of_the_host_are_found(
        #[case] port: Value,
        #[case] is_on_host_network: bool,
        #[case] expected: &[&str],
    ) {
        let container = json!({"ports": [port]});
        let ports = host_ports(container.as_object().unwrap(), is_on_host_network);
        let ports: Vec<_> = ports.map(|port| port.to_string()).collect();
        assert_eq!(ports, expected);
    }

    // SDF-1
    #[rstest]
    #[case(json!({"containerPort": 80}), None)]
    #[case(json!({"containerPort": 80, "hostPort": 80}), None)]
    #[case(json!({"containerPort": 80, "hostPort": 8080}), Some("8080/TCP"))]
    fn ports_that_cannot_be_on_the_hosts_network_are_found(
        #[case] port: Value,
        #[case] expected: Option<&str>,
    ) {
        let container = json!({"ports": [port]});
        let found = translated_port(container.as_object().unwrap());
        assert_eq!(found.map(|port| port.to_string()).as_deref(), expected);
    }
}
