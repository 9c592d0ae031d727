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
        self.sum(|verb, resource| !is_read(verb) && resource != "leases")
    }

    /// Writes of this resource, its status among them.
    pub(crate) fn writes_of(&self, resource: &str) -> u64 {
        self.sum(|verb, of| !is_read(verb) && of == resource)
    }

    /// Those that were not a success, the Lease's aside. That there is nothing to get is an answer.
    pub(crate) fn failed(&self) -> u64 {
        let is_answer = |kind: &str| kind.starts_with("get ") && kind.ends_with("(404)");
        let failed = |(kind, _): &(&String, _)| kind.ends_with(')') && !is_answer(kind);
        self.of_work().filter(failed).map(|(_, count)| count).sum()
    }

    /// All that concern the Lease.
    pub(crate) fn lease(&self) -> u64 {
        self.sum(|_, resource| resource == "leases")
    }

    /// All kinds with their counts, the Lease's aside.
    pub(crate) fn listed(&self) -> String {
        let kinds = self
            .of_work()
            .map(|(kind, count)| format!("{count} × {kind}"));
        kinds.collect::<Vec<_>>().join(", ")
    }

    fn of_work(&self) -> impl Iterator<Item = (&String, &u64)> {
        let kinds = self.0.iter();
        kinds.filter(|(kind, _)| verb_and_resource(kind).1 != "leases")
    }

    fn sum(&self, which: impl Fn(&str, &str) -> bool) -> u64 {
        let counts = self.0.iter().filter(|(kind, _)| {
            let (verb, resource) = verb_and_resource(kind);
            which(verb, resource)
        });
        counts.map(|(_, count)| count).sum()
    }
}

fn kind(request: &Request) -> String {
    let of = match (request.resource.as_str(), request.subresource.as_str()) {
        ("", _) => request.uri.split('?').next().unwrap_or_default().to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    };
    match request.code {
        ..300 => format!("{} {of}", request.verb),
        code => format!("{} {of} ({code})", request.verb),
    }
}

fn verb_and_resource(kind: &str) -> (&str, &str) {
    let (verb, of) = kind.split_once(' ').unwrap_or((kind, ""));
    (verb, of.split(['/', ' ']).next().unwrap_or_default())
}

fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_and_the_leases_are_no_writes() {
        let log = [
            ("us", "patch", "pods", "status", 200),
            ("us", "patch", "pods", "status", 200),
            ("us", "patch", "pods", "status", 409),
            ("us", "list", "pods", "", 200),
            ("us", "update", "leases", "", 200),
            ("us", "update", "leases", "", 409),
            ("us", "get", "", "", 200),
            ("us", "get", "nodes", "", 404),
            ("them", "patch", "pods", "status", 200),
        ];
        let requests = log.map(|(user, verb, resource, subresource, code)| Request {
            user: user.into(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            uri: "/readyz?verbose".into(),
            code,
            ..Request::default()
        });
        let us = Requests::of("us", &requests);
        assert_eq!(us.count("patch pods/status"), 2);
        assert_eq!(us.writes(), 3, "one of them in vain");
        assert_eq!([us.writes_of("pods"), us.writes_of("leases")], [3, 2]);
        assert_eq!(Requests::largest([&us, &Requests::default()]), us);
        assert_eq!([us.failed(), us.lease()], [1, 2]);
        let listed = "1 × get /readyz, 1 × get nodes (404), 1 × list pods, 2 × patch pods/status, 1 × patch pods/status (409)";
        assert_eq!(us.listed(), listed);
    }
}
