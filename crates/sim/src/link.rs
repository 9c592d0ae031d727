//! The way of a process's requests to the API server: its faults, and what is told of each request.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use leadsman_api_model::{Answered, EventFate, Fate, Link, RequestFacts};

use crate::faults::{Faults, RequestFault};
use crate::story::Story;

/// The link of one incarnation.
pub(crate) struct FaultyLink {
    faults: Faults,
    incarnation: u64,
    user: String,
    story: Story,
    /// The last time that the watch of a resource was ended.
    watch_epochs: Mutex<BTreeMap<String, u64>>,
}

impl FaultyLink {
    /// A link of this incarnation.
    pub(crate) fn new(faults: Faults, incarnation: u64, user: String, story: Story) -> Self {
        Self {
            faults,
            incarnation,
            user,
            story,
            watch_epochs: Mutex::default(),
        }
    }

    fn is_told(request: &RequestFacts) -> bool {
        // The renewals of Leases would be half of a story.
        request.is_write() && request.resource != "leases"
    }
}

impl Link for FaultyLink {
    fn fate(&self, request: &RequestFacts) -> Fate {
        let verdict = self.faults.judge(
            self.incarnation,
            request.is_write(),
            request.verb == "watch",
        );
        if verdict != RequestFault::Pass
            && (Self::is_told(request) || !matches!(verdict, RequestFault::Hangs))
        {
            self.story.tell(
                &self.user,
                format_args!("{}: {verdict:?}", describe(request)),
            );
        }
        match verdict {
            RequestFault::Pass => Fate::Pass,
            RequestFault::Late(by) => Fate::Delay(by),
            RequestFault::LateReply(by) => Fate::DelayReply(by),
            RequestFault::RequestLost => Fate::LoseRequest,
            RequestFault::ReplyLost => Fate::LoseReply,
            RequestFault::ReplyHangs => Fate::HangReply,
            RequestFault::Hangs => Fate::HangRequest,
            RequestFault::Refused(status, after) => {
                let status =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Fate::Refuse(
                    status,
                    after.and_then(|seconds| u32::try_from(seconds).ok()),
                )
            }
            RequestFault::DiesAfter => Fate::CrashAfter,
            RequestFault::DiesBefore => Fate::CrashBefore,
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

    fn event_fate(&self, resource: &str, _version: u64) -> EventFate {
        let epoch = self.faults.lock().watch_epoch;
        let mut epochs = self
            .watch_epochs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = epochs.insert(resource.to_owned(), epoch);
        drop(epochs);
        if before.is_some_and(|before| before != epoch) {
            let is_orderly = epoch.is_multiple_of(2);
            return if is_orderly {
                EventFate::CloseStream
            } else {
                EventFate::BreakStream
            };
        }
        match self.faults.event_delay(self.incarnation, resource) {
            None => EventFate::Hang,
            Some(Duration::ZERO) => EventFate::Deliver,
            Some(by) => EventFate::Delay(by),
        }
    }
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
