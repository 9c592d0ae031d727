//! Requests of one user by kind, as the API server's audit log has them.

use std::collections::BTreeMap;

use leadsman_testkit::audit::Request;

/// Counts by kind: `patch pods/status`, or `patch pods/status (409)` for those that were not a success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests(BTreeMap<String, u64>);

/// What keeps a manager the only one that writes.
const LEASES: &str = "leases";

impl Requests {
    /// Those of `user`.
    pub(super) fn of(user: &str, requests: &[Request]) -> Self {
        let mut counts = BTreeMap::new();
        for request in requests.iter().filter(|request| request.user == user) {
            *counts.entry(kind(request)).or_default() += 1;
        }
        Self(counts)
    }

    /// How many of a kind were a success.
    pub(super) fn count(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// Writes of the work: not the Lease's.
    pub(super) fn writes(&self) -> u64 {
        self.sum(|kind| !is_read(kind) && !is_lease(kind))
    }

    /// Those that were not a success, the Lease's aside.
    pub(super) fn failed(&self) -> u64 {
        self.sum(|kind| kind.ends_with(')') && !is_lease(kind))
    }

    /// All that concern the Lease.
    pub(super) fn lease(&self) -> u64 {
        self.sum(is_lease)
    }

    /// All kinds in words, the Lease's aside.
    pub(super) fn words(&self) -> String {
        let kinds = self.0.iter().filter(|(kind, _)| !is_lease(kind));
        let kinds: Vec<_> = kinds
            .map(|(kind, count)| format!("{count} × {kind}"))
            .collect();
        kinds.join(", ")
    }

    fn sum(&self, which: impl Fn(&str) -> bool) -> u64 {
        let kinds = self.0.iter().filter(|(kind, _)| which(kind));
        kinds.map(|(_, count)| count).sum()
    }
}

fn kind(request: &Request) -> String {
    let of = match (request.resource.as_str(), request.subresource.as_str()) {
        ("", _) => request.uri.split('?').next().unwrap_or_default().to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    };
    if request.code < 300 {
        format!("{} {of}", request.verb)
    } else {
        format!("{} {of} ({})", request.verb, request.code)
    }
}

fn is_read(kind: &str) -> bool {
    let verb = kind.split(' ').next().unwrap_or_default();
    matches!(verb, "get" | "list" | "watch")
}

fn is_lease(kind: &str) -> bool {
    kind.split(' ').nth(1) == Some(LEASES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user: &str, verb: &str, resource: &str, subresource: &str, code: u16) -> Request {
        Request {
            user: user.into(),
            user_agent: String::new(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: String::new(),
            name: String::new(),
            uri: "/readyz?verbose".into(),
            code,
        }
    }

    #[test]
    fn requests_are_counted_by_kind_and_the_leases_are_no_writes() {
        let requests = [
            request("us", "patch", "pods", "status", 200),
            request("us", "patch", "pods", "status", 200),
            request("us", "patch", "pods", "status", 409),
            request("us", "list", "pods", "", 200),
            request("us", "update", "leases", "", 200),
            request("us", "update", "leases", "", 409),
            request("us", "get", "", "", 200),
            request("them", "patch", "pods", "status", 200),
        ];
        let counted = Requests::of("us", &requests);
        assert_eq!(counted.count("patch pods/status"), 2);
        assert_eq!(counted.writes(), 3, "one of them in vain");
        assert_eq!(counted.failed(), 1);
        assert_eq!(counted.lease(), 2);
        assert_eq!(
            counted.words(),
            "1 × get /readyz, 1 × list pods, 2 × patch pods/status, 1 × patch pods/status (409)"
        );
    }
}
