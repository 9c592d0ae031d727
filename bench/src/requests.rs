//! Requests of one user by kind, as the API server's audit log has them.

use std::collections::BTreeMap;

use leadsman_testkit::audit::Request;

/// Counts by kind: `patch pods/status`, or `patch pods/status (409)` for those that were not a success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests(BTreeMap<String, u64>);

impl Requests {
    pub(crate) fn of(user: &str, requests: &[Request]) -> Self {
        let mut counts = BTreeMap::new();
        for request in requests.iter().filter(|request| request.user == user) {
            *counts.entry(kind(request)).or_default() += 1;
        }
        Self(counts)
    }

    /// Of each kind the largest count of these.
    pub(crate) fn largest<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut largest = Self::default();
        for (kind, count) in all.into_iter().flat_map(|one| &one.0) {
            let most = largest.0.entry(kind.clone()).or_default();
            *most = (*most).max(*count);
        }
        largest
    }

    /// How many of a kind were a success.
    pub(crate) fn count(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// Writes of the work: not the Lease's, which keeps a manager the only one that writes.
    pub(crate) fn writes(&self) -> u64 {
        self.sum(|kind| !is_read(kind) && !is_lease(kind))
    }

    /// Writes of this resource, its status among them.
    pub(crate) fn writes_of(&self, resource: &str) -> u64 {
        self.sum(|kind| !is_read(kind) && resource_of(kind) == resource)
    }

    /// Those that were not a success, the Lease's aside.
    pub(crate) fn failed(&self) -> u64 {
        self.sum(|kind| kind.ends_with(')') && !is_lease(kind))
    }

    /// All that concern the Lease.
    pub(crate) fn lease(&self) -> u64 {
        self.sum(is_lease)
    }

    /// All kinds with their counts, the Lease's aside.
    pub(crate) fn listed(&self) -> String {
        let kinds = self.0.iter().filter(|(kind, _)| !is_lease(kind));
        let kinds: Vec<_> = kinds
            .map(|(kind, count)| format!("{count} × {kind}"))
            .collect();
        kinds.join(", ")
    }

    fn sum(&self, which: impl Fn(&str) -> bool) -> u64 {
        self.0
            .iter()
            .filter(|(kind, _)| which(kind))
            .map(|(_, count)| count)
            .sum()
    }
}

fn kind(request: &Request) -> String {
    let of = match (request.resource.as_str(), request.subresource.as_str()) {
        ("", _) => request.uri.split('?').next().unwrap_or_default().to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    };
    let failed = if request.code < 300 {
        String::new()
    } else {
        format!(" ({})", request.code)
    };
    format!("{} {of}{failed}", request.verb)
}

fn is_read(kind: &str) -> bool {
    matches!(kind.split(' ').next(), Some("get" | "list" | "watch"))
}

fn resource_of(kind: &str) -> &str {
    let of = kind.split(' ').nth(1).unwrap_or_default();
    of.split('/').next().unwrap_or_default()
}

fn is_lease(kind: &str) -> bool {
    resource_of(kind) == "leases"
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
        assert_eq!(
            (counted.writes_of("pods"), counted.writes_of("leases")),
            (3, 2)
        );
        assert_eq!(Requests::largest([&counted, &Requests::default()]), counted);
        assert_eq!(counted.failed(), 1);
        assert_eq!(counted.lease(), 2);
        assert_eq!(
            counted.listed(),
            "1 × get /readyz, 1 × list pods, 2 × patch pods/status, 1 × patch pods/status (409)"
        );
    }
}
