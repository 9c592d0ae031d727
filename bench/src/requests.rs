//! Requests of one user by kind, as the API server's audit log has them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use leadsman_process::clock;
use leadsman_testkit::ControlPlane;
use leadsman_testkit::audit::{Mark, Request};
use tokio::time::Instant;

/// A moment, by both clocks and in the audit log.
#[derive(Clone, Copy)]
pub(crate) struct Since(Timestamp, Instant, Mark);

impl Since {
    pub(crate) fn now(plane: &ControlPlane) -> Result<Self> {
        let mark = plane.audit_mark()?;
        Ok(Self(clock::now(), clock::monotonic(), mark))
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.1.elapsed()
    }

    /// What a user has asked since then.
    pub(crate) fn requests(self, plane: &ControlPlane, user: &str) -> Result<Requests> {
        Ok(Requests::of(user, &plane.audit(self.2)?, self.0))
    }
}

/// By kind: `patch pods/status`, or `patch pods/status 409` for those that were not a success; each with the time after
/// which it was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests(BTreeMap<String, Vec<(Duration, Request)>>);

impl Requests {
    fn of(user: &str, log: &[Request], since: Timestamp) -> Self {
        let mut kinds = BTreeMap::<_, Vec<_>>::new();
        for request in log.iter().filter(|request| request.user == user) {
            let after = Duration::try_from(request.at.duration_since(since));
            let answered = (after.unwrap_or_default(), request.clone());
            kinds.entry(request.kind()).or_default().push(answered);
        }
        Self(kinds)
    }

    /// Of each kind as many as the one of these with the most has.
    pub(crate) fn largest<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut largest = Self::default();
        for (kind, requests) in all.into_iter().flat_map(|one| &one.0) {
            let most = largest.0.entry(kind.clone()).or_default();
            if requests.len() > most.len() {
                most.clone_from(requests);
            }
        }
        largest
    }

    /// After how long each write of this resource was answered well, in order.
    pub(crate) fn write_times(&self, resource: &str) -> Vec<Duration> {
        self.times(|one| one.is_write() && one.resource == resource)
    }

    /// After how long each pod was created whose name begins so, in order.
    pub(crate) fn creation_times(&self, begin: &str) -> Vec<Duration> {
        let is_pod = |one: &Request| one.resource == "pods" && one.name.starts_with(begin);
        self.times(|one| one.verb == "create" && is_pod(one))
    }

    /// After how long each of these was answered well, in order.
    fn times(&self, which: impl Fn(&Request) -> bool) -> Vec<Duration> {
        let all = self.0.values().flatten();
        let done = all.filter(|(_, request)| request.code < 300 && which(request));
        let mut times: Vec<_> = done.map(|(after, _)| *after).collect();
        times.sort_unstable();
        times
    }

    /// After how long the last of them was; nothing where there was none.
    pub(crate) fn last_write(&self, resource: &str) -> Duration {
        self.write_times(resource).pop().unwrap_or_default()
    }

    /// How many of a kind were a success.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.0.get(kind).map_or(0, Vec::len)
    }

    /// Writes of the work: not the Lease's, which keeps a manager the only one that writes.
    pub(crate) fn writes(&self) -> usize {
        self.sum(|one| one.is_write() && !is_of_lease(one))
    }

    /// Writes of this resource, its status among them.
    pub(crate) fn writes_of(&self, resource: &str) -> usize {
        self.sum(|one| one.is_write() && one.resource == resource)
    }

    /// Those that were not a success, the Lease's aside. That there is nothing to get is an answer.
    pub(crate) fn failed(&self) -> usize {
        let is_answer = |one: &Request| one.code < 300 || (one.verb == "get" && one.code == 404);
        self.sum(|one| !is_answer(one) && !is_of_lease(one))
    }

    /// All that concern the Lease.
    pub(crate) fn lease(&self) -> usize {
        self.sum(is_of_lease)
    }

    fn sum(&self, which: impl Fn(&Request) -> bool) -> usize {
        let all = self.0.values().flatten();
        all.filter(|(_, request)| which(request)).count()
    }

    /// Writes, failures and lists by kind, other reads by verb, each with its count. The Lease's requests are left out.
    pub(crate) fn listed(&self) -> String {
        let mut counts = BTreeMap::<&str, usize>::new();
        for (kind, requests) in &self.0 {
            let one = &requests[0].1;
            let is_plain = !one.is_write() && one.verb != "list" && one.code < 300;
            if !is_of_lease(one) {
                *counts
                    .entry(if is_plain { &one.verb } else { kind })
                    .or_default() += requests.len();
            }
        }
        if counts.is_empty() {
            return "nothing".to_owned();
        }
        let listed = counts
            .iter()
            .map(|(name, count)| format!("{count} × {name}"));
        listed.collect::<Vec<_>>().join(", ")
    }
}

fn is_of_lease(request: &Request) -> bool {
    request.resource == "leases"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_and_the_leases_are_no_writes() {
        let log = [
            (7, "us", "patch", "pods", "status", 200),
            (5, "us", "patch", "pods", "status", 200),
            (6, "us", "patch", "pods", "", 200),
            (8, "us", "patch", "pods", "status", 409),
            (1, "us", "list", "pods", "", 200),
            (1, "us", "update", "leases", "", 200),
            (1, "us", "update", "leases", "", 409),
            (1, "us", "get", "", "", 200),
            (1, "us", "get", "nodes", "", 404),
            (1, "them", "patch", "pods", "status", 200),
        ];
        let since = Timestamp::UNIX_EPOCH;
        let requests = log.map(|(after, user, verb, resource, subresource, code)| Request {
            at: since + Duration::from_millis(after),
            user: user.into(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            uri: "/readyz?verbose".into(),
            code,
            ..Request::default()
        });
        let us = Requests::of("us", &requests, since);
        let times = [5, 6, 7].map(Duration::from_millis);
        assert_eq!(us.write_times("pods"), times);
        assert_eq!(us.last_write("pods"), times[2]);
        assert_eq!(us.count("patch pods/status"), 2);
        assert_eq!(us.writes(), 4, "one of them in vain");
        assert_eq!([us.writes_of("pods"), us.writes_of("leases")], [4, 2]);
        assert_eq!(Requests::largest([&us, &Requests::default()]), us);
        assert_eq!([us.failed(), us.lease()], [1, 2]);
        let listed = "1 × get, 1 × get nodes 404, 1 × list pods, 1 × patch pods, 2 × patch pods/status, 1 × patch pods/status 409";
        assert_eq!(us.listed(), listed);
        assert_eq!(Requests::default().listed(), "nothing");
    }
}
