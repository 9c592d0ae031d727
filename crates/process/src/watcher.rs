//! One watch that recovers: a kind's list and the changes after it, for as long as somebody polls it.
//!
//! kube's `watcher` does most of it, but hides what matters here: whether a watch is established (one that was accepted
//! is silent), what the API server asks for in a header, and whether an error calls for a new list; its requests have
//! no deadline of their own, and a resumed watch whose version has expired backs off like any failure. What this one
//! guarantees:
//!
//! - Two attempts are at most [`LONGEST_DELAY`] apart, unless the API server asks for longer (Retry-After, up to 5
//!   minutes), and less when another request of the process succeeds after an outage.
//! - A new list begins at once where nothing else helps (410), and a list that broke off continues with its next page.
//! - Every request has a deadline, and a connection that died unnoticed is found: by silence, or when the API server
//!   answers others again.
//! - A watch whose version is of the time before etcd was restored from a backup is listed again. The API server says
//!   nothing of it: until it has counted as far again, the watch is silent.
//! - [`WatchEvent::Following`] and [`WatchEvent::Failed`] say at every moment whether changes are being received.
//!
//! The protocol: Kubernetes API concepts, "Efficient detection of changes"; client-go's `tools/cache/reflector.go`.

use std::fmt::Display;
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use kube::Resource;
use kube::api::WatchParams;
use kube::core::{Request, WatchEvent as WireEvent};
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::{Instant, sleep};

use self::lines::{LineStream, read_event};
use crate::backoff::Backoff;
use crate::clock;
use crate::list::{ListTarget, Paging, unreadable_body};
use crate::metrics::WatchMetrics;
use crate::reach::RecoveryListener;
use crate::reply::{Disposition, RetryCause, judge_watch_error, timed_out};
use crate::server::ApiServer;

mod event;
mod lines;
mod object;

pub use self::event::{WatchEvent, WatchFailure, WatchPhase};
pub use self::lines::ReadObject;
pub use object::{ObjectEvent, ObjectState, watch_object};

/// No two attempts are further apart, unless the API server asks for longer (Retry-After, up to 5 minutes).
pub const LONGEST_DELAY: Duration = Duration::from_secs(5);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(800), LONGEST_DELAY);
/// The deadline for the header of a watch's reply, which API servers send before the first event
/// (`ServeHTTP` in `apiserver/pkg/endpoints/handlers/watch.go` flushes it).
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
/// The API server is asked to end a watch after a time in this range, in seconds, so that not all watches end together.
pub(crate) const TIMEOUT_SECONDS: std::ops::Range<u32> = 200..290;
/// A watch that has been silent for so long is resumed on another request. The API server sends a bookmark each minute
/// (`defaultBookmarkFrequency` in `apiserver/pkg/storage/cacher/cacher.go`), unless the connection is dead, or the watch
/// is from a version that it has not reached (`process` in `cache_watcher.go` there passes over what is not later).
pub const LONGEST_SILENCE: Duration = Duration::from_secs(100);
/// Silence of a watch after which the API server is asked again, where it did not say whether it has come as far.
const SILENCE_UNANSWERED: Duration = Duration::from_secs(10);
/// A request in flight while others are answered again after an outage may hang on a dead connection. It is given up
/// once it is this old: the header of a watch, and a page of a list.
const STALLED_HEADER: Duration = Duration::from_secs(1);
const STALLED_PAGE: Duration = Duration::from_secs(5);
/// A watch that ends sooner and without any event counts as a failure ("very short watch" in client-go's
/// `tools/cache/reflector.go`).
const VERY_SHORT: Duration = Duration::from_secs(1);

const _: () = assert!(
    LONGEST_SILENCE.as_secs() > 60,
    "silence is a sign only after the next bookmark was due"
);
const _: () = assert!(STALLED_HEADER.as_secs() < HEADER_DEADLINE.as_secs());
const _: () = assert!(SILENCE_UNANSWERED.as_secs() < LONGEST_SILENCE.as_secs());

/// Lists and watches the target. The stream never ends; dropping it ends the request in flight. `read_object` reads what the
/// watch delivers, as `K` is deserialized from a list. `random` spreads retries and the ends of watches.
///
/// ```no_run
/// # async fn follow(server: leadsman_process::ApiServer, random: fastrand::Rng) {
/// use std::pin::pin;
///
/// use futures::StreamExt as _;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use leadsman_process::list::ListTarget;
/// use leadsman_process::watcher::{WatchEvent, list_and_watch};
///
/// let target = ListTarget::in_namespace::<ConfigMap>("default");
/// let read_object = |text: &str| serde_json::from_str(text);
/// let mut events = pin!(list_and_watch::<ConfigMap>(server, target, read_object, random));
/// while let Some(event) = events.next().await {
///     match event {
///         WatchEvent::ListItem(it) | WatchEvent::Changed(it) => println!("{:?}", it.metadata.name),
///         WatchEvent::Deleted(it) => println!("{:?} is gone", it.metadata.name),
///         // The watch retries by itself; say why nothing comes.
///         WatchEvent::Failed(failure) => println!("{}", failure.explain_failure("configmaps", "")),
///         WatchEvent::ListStarted | WatchEvent::ListPage(_) | WatchEvent::ListComplete(_) => {}
///         WatchEvent::Following => println!("up to date from here on"),
///     }
/// }
/// # }
/// ```
pub fn list_and_watch<K>(
    server: ApiServer,
    target: ListTarget,
    read_object: ReadObject<K>,
    random: fastrand::Rng,
) -> impl Stream<Item = WatchEvent<K>> + Send
where
    K: Resource + DeserializeOwned + Clone + Send + 'static,
{
    let watch = Watch {
        recoveries: server.reachability.subscribe(),
        metrics: server.metrics.watch_metrics(&target.resource),
        server,
        target,
        read_object,
        random,
        state: WatchState::Unlisted,
        failures: 0,
        expired: 0,
        paging: Paging::default(),
        delay: None,
        silence: Duration::ZERO,
    };
    unfold(watch, async |mut watch| {
        Some((watch.next_event().await, watch))
    })
}

struct Watch<K> {
    server: ApiServer,
    recoveries: RecoveryListener,
    metrics: WatchMetrics,
    target: ListTarget,
    read_object: ReadObject<K>,
    random: fastrand::Rng,
    state: WatchState<K>,
    /// Failures since a watch was last established.
    failures: u32,
    /// How many of them were expired versions or tokens.
    expired: u32,
    paging: Paging,
    /// The delay until the next attempt.
    delay: Option<Duration>,
    /// Time for which the watches before the one that is established have shown nothing: since the last line, list or answer to
    /// whether the API server has gone back. Watches may end before they have been silent for long, each time.
    silence: Duration,
}

enum WatchState<K> {
    /// A list is next.
    Unlisted,
    /// A list is under way: objects that were received and not delivered yet, and what is next.
    Listing {
        objects: std::vec::IntoIter<K>,
        then: AfterPage,
    },
    /// A watch from this version is next.
    Listed { version: String },
    /// A watch from this version was silent: whether the API server has come as far is asked next.
    Silent { version: String },
    /// A watch is established.
    Following {
        version: String,
        stream: EstablishedWatch,
    },
}

/// The step that follows a page.
enum AfterPage {
    /// Another page; the first one has no token.
    Page { token: Option<String> },
    /// A watch from this version.
    Watch { version: String },
}

/// The reply of an established watch.
struct EstablishedWatch {
    lines: LineStream,
    began: Instant,
    /// The time of the last line.
    last_line: Option<Instant>,
}

/// The next thing that an established watch receives.
enum Received {
    Line(Vec<u8>),
    Ended,
    Broken(Disposition),
    /// Nothing since before an outage.
    Stalled,
    /// Nothing for too long.
    Silent,
}

impl<K> Watch<K>
where
    K: Resource + DeserializeOwned + Clone,
{
    async fn next_event(&mut self) -> WatchEvent<K> {
        loop {
            self.wait_for_retry().await;
            let event = match std::mem::replace(&mut self.state, WatchState::Unlisted) {
                WatchState::Unlisted => {
                    let (objects, then) = (Vec::new().into_iter(), AfterPage::Page { token: None });
                    self.state = WatchState::Listing { objects, then };
                    Some(WatchEvent::ListStarted)
                }
                WatchState::Listing { objects, then } => self.continue_list(objects, then).await,
                WatchState::Listed { version } => Some(self.start_watch(version).await),
                WatchState::Silent { version } => self.check_version(version).await,
                WatchState::Following { version, stream } => {
                    self.follow_watch(version, stream).await
                }
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Waits before the next attempt, but not longer than until the API server answers others again.
    async fn wait_for_retry(&mut self) {
        if let Some(delay) = self.delay {
            tokio::select! {
                // Either ends the wait.
                biased;
                () = sleep(delay) => {}
                _ = self.recoveries.wait_for_recovery() => {}
            }
            self.delay = None;
        }
    }

    async fn continue_list(
        &mut self,
        mut objects: std::vec::IntoIter<K>,
        then: AfterPage,
    ) -> Option<WatchEvent<K>> {
        if let Some(object) = objects.next() {
            self.state = WatchState::Listing { objects, then };
            return Some(WatchEvent::ListItem(object));
        }
        let token = match then {
            AfterPage::Watch { version } => {
                self.metrics.count_list();
                self.silence = Duration::ZERO;
                self.state = WatchState::Listed {
                    version: version.clone(),
                };
                return Some(WatchEvent::ListComplete(version));
            }
            AfterPage::Page { token } => token,
        };
        let read = self
            .target
            .read_page(&self.server, token.clone(), &mut self.paging);
        let page = unless_stalled(read, &mut self.recoveries, STALLED_PAGE).await;
        match page.and_then(|page| page) {
            // The items are delivered one by one before the next page is read, so that no more than one is held.
            Ok(page) => {
                let version = page.version.clone();
                let then = match page.token {
                    Some(token) => AfterPage::Page { token: Some(token) },
                    None => AfterPage::Watch { version },
                };
                let objects = page.objects.into_iter();
                self.state = WatchState::Listing { objects, then };
                Some(WatchEvent::ListPage(page.version))
            }
            Err(disposition) => {
                // A continue token is valid for minutes (etcd's compaction, 5 by default): the pages before need not be
                // sent again.
                let retry = WatchState::Listing {
                    objects: Vec::new().into_iter(),
                    then: AfterPage::Page { token },
                };
                Some(self.fail_attempt(WatchPhase::Listing, disposition, retry))
            }
        }
    }

    async fn start_watch(&mut self, version: String) -> WatchEvent<K> {
        match self.send_watch(&version).await {
            Ok(lines) => {
                self.metrics.count_watch();
                let stream = EstablishedWatch {
                    lines,
                    began: clock::monotonic(),
                    last_line: None,
                };
                self.state = WatchState::Following { version, stream };
                WatchEvent::Following
            }
            Err(disposition) => self.fail_watch(disposition, version),
        }
    }

    /// Lists one object to learn the server's resourceVersion, and re-lists if it is lower than the
    /// watch's (etcd was restored).
    async fn check_version(&mut self, version: String) -> Option<WatchEvent<K>> {
        let target = self.target.clone().with_page_size(1);
        let mut paging = Paging::default();
        let read = target.read_page::<IgnoredAny>(&self.server, None, &mut paging);
        let page = unless_stalled(read, &mut self.recoveries, STALLED_PAGE).await;
        let stored = page.and_then(|page| page).ok().map(|page| page.version);
        self.silence = match stored {
            Some(_) => Duration::ZERO,
            None => LONGEST_SILENCE.saturating_sub(SILENCE_UNANSWERED),
        };
        let number = |text: &str| text.parse::<u64>().ok();
        let has_gone_back = stored
            .as_deref()
            .and_then(number)
            .zip(number(&version))
            .is_some_and(|(stored, own)| stored < own);
        if !has_gone_back {
            self.state = WatchState::Listed { version };
            return None;
        }
        let stored = stored.unwrap_or_default();
        let reason = format!(
            "the API server has resourceVersion {stored}, and the watch began at {version}: etcd was restored from a backup"
        );
        Some(self.fail_watch(Disposition::Expired { reason }, version))
    }

    async fn send_watch(&mut self, version: &str) -> Result<LineStream, Disposition> {
        let began = clock::monotonic();
        let params = WatchParams {
            field_selector: self.target.fields.clone(),
            label_selector: self.target.labels.clone(),
            timeout: Some(self.random.u32(TIMEOUT_SECONDS)),
            ..WatchParams::default()
        };
        let request = Request::new(&self.target.path)
            .watch(&params, version)
            .map_err(|error| unreadable_body(&error))?;
        let started = async {
            let started = LineStream::start_lines(&self.server, request);
            let started = tokio::time::timeout(HEADER_DEADLINE, started).await;
            started.unwrap_or_else(|_| Err(timed_out(HEADER_DEADLINE)))
        };
        let lines = unless_stalled(started, &mut self.recoveries, STALLED_HEADER).await?;
        let disposition = lines.as_ref().err().unwrap_or(&Disposition::Done);
        let now = clock::monotonic();
        self.server
            .reachability
            .record_outcome(disposition, began, now);
        self.recoveries.skip_past();
        lines
    }

    async fn follow_watch(
        &mut self,
        version: String,
        mut stream: EstablishedWatch,
    ) -> Option<WatchEvent<K>> {
        let received = self.receive_line(&mut stream).await;
        self.silence += clock::monotonic() - stream.last_heard();
        match received {
            Received::Line(line) => {
                self.silence = Duration::ZERO;
                return self.decode_line(version, stream, &line);
            }
            Received::Silent => {
                self.reset_failures();
                self.state = WatchState::Silent { version };
                return None;
            }
            // Neither is a failure: an end after a while was asked for, and of a stalled connection nobody knows
            // whether it lives.
            Received::Ended | Received::Stalled if stream.was_useful() => self.reset_failures(),
            Received::Stalled => {}
            Received::Ended => {
                let disposition = unavailable_disposition("the API server ended the watch at once");
                return Some(self.fail_watch(disposition, version));
            }
            Received::Broken(disposition) => {
                if stream.was_useful() {
                    self.reset_failures();
                }
                let (heard, now) = (stream.last_heard(), clock::monotonic());
                self.server
                    .reachability
                    .record_outcome(&disposition, heard, now);
                return Some(self.fail_watch(disposition, version));
            }
        }
        self.state = WatchState::Listed { version };
        None
    }

    fn reset_failures(&mut self) {
        (self.failures, self.expired) = (0, 0);
    }

    async fn receive_line(&mut self, stream: &mut EstablishedWatch) -> Received {
        let heard = stream.last_heard();
        let silent_at = heard + LONGEST_SILENCE.saturating_sub(self.silence);
        loop {
            tokio::select! {
                // A line that is there shows that the watch is alive, however late it is read. Nothing starves: whatever is
                // ready ends the wait, but for outages that the watch has outlived.
                biased;
                line = stream.lines.next_line() => return match line {
                    Ok(Some(line)) => Received::Line(line),
                    Ok(None) => Received::Ended,
                    Err(disposition) => Received::Broken(disposition),
                },
                lost = self.recoveries.wait_for_recovery() => if heard <= lost {
                    return Received::Stalled;
                },
                () = tokio::time::sleep_until(silent_at) => return Received::Silent,
            }
        }
    }

    fn decode_line(
        &mut self,
        version: String,
        stream: EstablishedWatch,
        line: &[u8],
    ) -> Option<WatchEvent<K>> {
        let event = match read_event(line, self.read_object) {
            Ok(event) => event,
            Err(error) => {
                return Some(self.fail_unread(&error));
            }
        };
        let (version, event) = match event {
            WireEvent::Error(status) => {
                return Some(self.fail_watch(judge_watch_error(&status), version));
            }
            WireEvent::Bookmark(bookmark) => (bookmark.metadata.resource_version, None),
            WireEvent::Added(object) | WireEvent::Modified(object) => {
                (version_of(&object), Some(WatchEvent::Changed(object)))
            }
            WireEvent::Deleted(object) => (version_of(&object), Some(WatchEvent::Deleted(object))),
        };
        // A watch could not be resumed after an event without a version.
        if version.is_empty() {
            return Some(self.fail_unread(&"an event without a resourceVersion"));
        }
        self.reset_failures();
        self.metrics.note_sync();
        let stream = EstablishedWatch {
            last_line: Some(clock::monotonic()),
            ..stream
        };
        self.state = WatchState::Following { version, stream };
        event
    }

    /// Lists again after an event that cannot be read.
    fn fail_unread(&mut self, error: &dyn Display) -> WatchEvent<K> {
        let phase = WatchPhase::Watching;
        self.fail_attempt(phase, unreadable_body(error), WatchState::Unlisted)
    }

    fn fail_watch(&mut self, disposition: Disposition, version: String) -> WatchEvent<K> {
        self.fail_attempt(
            WatchPhase::Watching,
            disposition,
            WatchState::Listed { version },
        )
    }

    /// Decides what is tried next, and when. `retry` repeats what failed.
    fn fail_attempt(
        &mut self,
        phase: WatchPhase,
        disposition: Disposition,
        retry: WatchState<K>,
    ) -> WatchEvent<K> {
        match phase {
            WatchPhase::Listing => self.metrics.count_failed_list(),
            WatchPhase::Watching => self.metrics.count_failed_watch(),
        }
        self.failures = self.failures.saturating_add(1);
        let delay = BACKOFF.delay(self.failures, self.random.f64());
        let retry_in = match &disposition {
            Disposition::Expired { .. } => {
                self.expired = self.expired.saturating_add(1);
                // A list of which the watch expires at once would be sent over and over.
                if self.expired == 1 {
                    Duration::ZERO
                } else {
                    delay
                }
            }
            Disposition::Retry { after, .. } => delay.max(after.unwrap_or_default()),
            _ => delay,
        };
        self.state = match &disposition {
            Disposition::Retry { cause, .. } => match cause {
                // Whether the version or the token is to blame is not known, and a new list needs neither. A kind that is served
                // again may be another one.
                RetryCause::InternalError | RetryCause::Conflict | RetryCause::NoSuchKind => {
                    WatchState::Unlisted
                }
                _ => retry,
            },
            _ => WatchState::Unlisted,
        };
        self.delay = Some(retry_in).filter(|delay| !delay.is_zero());
        self.recoveries.skip_past();
        WatchEvent::Failed(WatchFailure {
            phase,
            disposition,
            retry_in,
        })
    }
}

impl EstablishedWatch {
    /// The time at which the API server was last known to serve it.
    fn last_heard(&self) -> Instant {
        self.last_line.unwrap_or(self.began)
    }

    /// Whether it has delivered a line, or lasted.
    fn was_useful(&self) -> bool {
        self.last_line.is_some() || clock::monotonic() >= self.began + VERY_SHORT
    }
}

/// Waits for a request. Once the API server has answered others again after an outage, no longer than `age` from the
/// request's beginning.
async fn unless_stalled<T>(
    request: impl Future<Output = T>,
    recoveries: &mut RecoveryListener,
    age: Duration,
) -> Result<T, Disposition> {
    let began = clock::monotonic();
    recoveries.skip_past();
    let given_up = async {
        recoveries.wait_for_recovery().await;
        tokio::time::sleep_until(began + age).await;
    };
    tokio::select! {
        // A reply that is there counts, also at the moment when the request would be given up.
        biased;
        reply = request => Ok(reply),
        () = given_up => Err(unavailable_disposition("no reply since before an outage")),
    }
}

fn version_of(object: &impl Resource) -> String {
    object.meta().resource_version.clone().unwrap_or_default()
}

fn unavailable_disposition(reason: &str) -> Disposition {
    Disposition::Retry {
        cause: RetryCause::Unavailable,
        after: None,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests;
