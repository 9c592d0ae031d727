//! The way of a process's requests to the API server: its faults, and what is told of each request.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use leadsman_api_model::{Answered, EventFate, Link, RequestFacts, RequestFate};
use serde_json::Value;

use crate::faults::{Faults, RequestFault};
use crate::plan::WatchEnd;
use crate::process::{Surroundings, is_manager};
use crate::resources::{LEASE, LEASE_NAMESPACE};
use crate::story::Story;
use crate::tenants::BY_HAND;

/// How long a process takes to hear of an event that it was shown.
const AT_ONCE: Duration = Duration::from_millis(10);

/// The link of one incarnation.
pub(crate) struct FaultyLink {
    faults: Faults,
    incarnation: u64,
    user: String,
    story: Story,
    surroundings: Surroundings,
    /// The version of the Lease that was shown last, and when.
    shown_lease: Mutex<(u64, Duration)>,
    /// The time at which the watch of a resource began.
    watches: Mutex<BTreeMap<String, Duration>>,
}

impl FaultyLink {
    /// A link of this incarnation.
    pub(crate) fn new(
        (faults, incarnation): (Faults, u64),
        user: String,
        surroundings: Surroundings,
    ) -> Self {
        Self {
            faults,
            incarnation,
            user,
            story: surroundings.story.clone(),
            surroundings,
            watches: Mutex::default(),
            shown_lease: Mutex::default(),
        }
    }

    /// Checks that a process writes nothing once it was shown that somebody took the Lease by hand.
    fn check_lease(&self, request: &RequestFacts) {
        let is_for_all = ["leases", "secrets", "events"].contains(&&*request.resource);
        if !request.is_write() || is_for_all || !is_manager(&self.user) {
            return;
        }
        let (shown, at) = *lock(&self.shown_lease);
        let server = &self.surroundings.server;
        let lease = server.object("leases", LEASE_NAMESPACE, LEASE);
        let is_lost = |lease: &Value| {
            let version = lease["metadata"]["resourceVersion"].as_str();
            lease["spec"]["holderIdentity"] == BY_HAND && version == Some(&*shown.to_string())
        };
        if lease.is_some_and(|lease| is_lost(&lease)) && self.faults.elapsed() > at + AT_ONCE {
            let what = format_args!("{}: {}", self.user, describe(request));
            self.story
                .violate("who has lost the Lease writes nothing", what);
        }
    }

    fn is_told(request: &RequestFacts) -> bool {
        // The renewals of Leases would be half of a story.
        request.is_write() && request.resource != "leases"
    }
}

impl Link for FaultyLink {
    fn fate(&self, request: &RequestFacts) -> RequestFate {
        if request.verb == "watch" {
            let began = self.faults.elapsed();
            lock(&self.watches).insert(request.resource.clone(), began);
        }
        self.check_lease(request);
        let verdict = self.faults.judge(self.incarnation, request);
        if verdict != RequestFault::Pass
            && (Self::is_told(request) || !matches!(verdict, RequestFault::Hangs))
        {
            self.story.tell(
                &self.user,
                format_args!("{}: {verdict:?}", describe(request)),
            );
        }
        match verdict {
            RequestFault::Pass => self.faults.take_time(),
            RequestFault::Late(by) => RequestFate::Delay(by),
            RequestFault::LateReply(by) => RequestFate::DelayReply(by),
            RequestFault::RequestLost => RequestFate::LoseRequest,
            RequestFault::ReplyLost => RequestFate::LoseReply,
            RequestFault::ReplyHangs => RequestFate::HangReply,
            RequestFault::Hangs => RequestFate::HangRequest,
            RequestFault::Refused(status, after) => {
                let status =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                RequestFate::Refuse(
                    status,
                    after.and_then(|seconds| u32::try_from(seconds).ok()),
                )
            }
            RequestFault::DiesAfter => RequestFate::CrashAfter,
            RequestFault::DiesBefore => RequestFate::CrashBefore,
        }
    }

    fn answered(&self, request: &RequestFacts, outcome: &Answered) {
        if !Self::is_told(request) {
            return;
        }
        let what = describe(request);
        let (code, reason) = (outcome.status.as_u16(), &outcome.reason);
        match outcome.changed {
            Some(version) => {
                self.story
                    .tell(&self.user, format_args!("{what} -> {code} as {version}"));
            }
            None => self.story.tell(
                &self.user,
                format_args!("{what} -> {code} {reason}, nothing changed"),
            ),
        }
        self.story.count_write(format!("{}: {what}", self.user));
    }

    fn is_dead(&self) -> bool {
        !self.faults.is_alive(self.incarnation)
    }

    fn replica_lag(&self, _resource: &str) -> u64 {
        self.faults.lag()
    }

    fn longest_page(&self) -> u64 {
        self.surroundings.page
    }

    fn event_fate(&self, resource: &str, version: u64) -> EventFate {
        if let Some(end) = self.faults.take_watch_end(resource) {
            return match end {
                WatchEnd::Closed => EventFate::CloseStream,
                WatchEnd::Broken => EventFate::BreakStream,
                WatchEnd::Expired => EventFate::Expire,
            };
        }
        let began = lock(&self.watches)
            .get(resource)
            .copied()
            .unwrap_or_default();
        let Some(by) = self.faults.event_delay(self.incarnation, resource, began) else {
            return EventFate::Hang;
        };
        if resource == "leases" {
            *lock(&self.shown_lease) = (version, self.faults.elapsed() + by);
        }
        if by.is_zero() {
            EventFate::Deliver
        } else {
            EventFate::Delay(by)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn describe(request: &RequestFacts) -> String {
    let RequestFacts {
        verb,
        patch,
        resource,
        subresource,
        namespace,
        name,
        ..
    } = request;
    let slash = |text: &str| if text.is_empty() { "" } else { "/" };
    let verb = if patch.is_empty() { verb } else { patch };
    let (before, after) = (slash(subresource), slash(namespace));
    format!("{verb} {resource}{before}{subresource} {namespace}{after}{name}")
}
