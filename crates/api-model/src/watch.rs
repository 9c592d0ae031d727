//! Watches: every change after a version, as it concerns the selection.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures::stream;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::link::EventFate;
use crate::read::select;
use crate::request::Call;
use crate::selector::ObjectSelection;
use crate::server::{Answer, Connection, partial_metadata};
use crate::status::Failure;
use crate::store::{Object, StoredChange, encode};

/// `defaultBookmarkFrequency` in `k8s.io/apiserver/pkg/storage/cacher/cacher.go`.
const BOOKMARKS: Duration = Duration::from_mins(1);
/// How long before its end a watch gets its last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// `--min-request-timeout` of kube-apiserver, for a watch that asks for no time.
const LONGEST: Duration = Duration::from_mins(30);
/// How often a watch on a replica that is behind looks whether it has caught up: no change of its own tells.
const CATCHING_UP: Duration = Duration::from_millis(50);

/// A watch that is established.
struct WatchStream {
    connection: Connection,
    kind: usize,
    resource: String,
    namespace: String,
    selection: ObjectSelection,
    wants_metadata: bool,
    has_bookmarks: bool,
    /// All changes up to this version were looked at.
    seen: u64,
    restores: u64,
    initial: VecDeque<Bytes>,
    changed: watch::Receiver<u64>,
    ends: Instant,
    bookmark_due: Instant,
    is_over: bool,
}

enum Next {
    Event(Bytes, u64),
    /// Nothing before another change.
    Caught,
    /// The replica lacks changes that exist.
    Behind,
    Ended,
}

impl Connection {
    pub(crate) fn watch(&self, kind: usize, call: &Call) -> Result<Answer, Failure> {
        let selection = ObjectSelection::of_call(call)?;
        let from = call.number("resourceVersion")?.unwrap_or_default();
        let timeout = call
            .number("timeoutSeconds")?
            .map_or(LONGEST, Duration::from_secs);
        let has_bookmarks = call.is_set("allowWatchBookmarks");
        let sends_initial = call.is_set("sendInitialEvents");
        let changed = self.server.subscribe_to_kind(kind);
        let store = self.server.store();
        let mut initial = VecDeque::new();
        let mut seen = from;
        if from == 0 || sends_initial {
            seen = self.cached_version(&store, &call.plural);
            let objects = store.objects_at(kind, seen);
            let selected = select(&objects, &call.namespace, &selection);
            initial.extend(selected.map(|object| event("ADDED", object, call.wants_metadata())));
            if sends_initial {
                initial.push_back(bookmark(
                    &store.resources[kind].kind,
                    &store.resources[kind].api_version(),
                    seen,
                    true,
                ));
            }
        } else if from < store.compacted {
            initial.push_back(expired(from, store.compacted));
        }
        let is_over = from != 0 && from < store.compacted;
        let now = Instant::now();
        let watch = WatchStream {
            connection: self.clone(),
            kind,
            resource: call.plural.clone(),
            namespace: call.namespace.clone(),
            selection,
            wants_metadata: call.wants_metadata(),
            has_bookmarks,
            seen,
            restores: store.restores,
            initial,
            changed,
            ends: now + timeout,
            bookmark_due: next_bookmark(now, now + timeout),
            is_over,
        };
        let frames = stream::unfold(watch, async |mut watch| {
            let frame = watch.next_frame().await?;
            Some((frame, watch))
        });
        Ok(Answer::Stream(Box::pin(frames)))
    }
}

impl WatchStream {
    async fn next_frame(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        if let Some(initial) = self.initial.pop_front() {
            return Some(Ok(Frame::data(initial)));
        }
        if self.is_over {
            return None;
        }
        loop {
            if self.connection.is_gone() {
                return futures::future::pending().await;
            }
            let wait = match self.next_change() {
                Next::Event(event, version) => return self.deliver(event, version).await,
                Next::Ended => return None,
                Next::Caught => None,
                Next::Behind => Some(CATCHING_UP),
            };
            tokio::select! {
                // A change counts before the end of the watch that comes at the same moment.
                biased;
                changed = self.changed.changed() => if changed.is_err() {
                    return None;
                },
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                () = sleep_until(self.ends) => return None,
                () = sleep_until(self.bookmark_due), if self.has_bookmarks => {
                    self.bookmark_due = next_bookmark(self.bookmark_due, self.ends);
                    if let Some((bookmark, version)) = self.bookmark() {
                        return self.deliver(bookmark, version).await;
                    }
                }
            }
        }
    }

    /// The next change that concerns the selection and has reached the replica.
    fn next_change(&mut self) -> Next {
        let store = self.connection.server.store();
        if store.restores != self.restores {
            return Next::Ended;
        }
        let reached = self.connection.cached_version(&store, &self.resource);
        for change in store.changes_after(self.seen) {
            if change.version > reached {
                return Next::Behind;
            }
            self.seen = change.version;
            let is_here = self.namespace.is_empty() || change.key.namespace == self.namespace;
            if change.key.kind == self.kind
                && is_here
                && let Some(event) = self.event_of(change)
            {
                return Next::Event(event, change.version);
            }
        }
        Next::Caught
    }

    /// A change as the selection sees it: an object that leaves it is deleted, one that enters it is added.
    fn event_of(&self, change: &StoredChange) -> Option<Bytes> {
        let matches = |object: &Object| self.selection.matches(&object.value);
        let old = change.old.as_deref().filter(|object| matches(object));
        let new = change.new.as_deref().filter(|object| matches(object));
        let event = |kind, object: &Object| event(kind, object, self.wants_metadata);
        match (old, new, &change.deleted) {
            (None, Some(new), _) => Some(event("ADDED", new)),
            (Some(_), Some(new), _) => Some(event("MODIFIED", new)),
            (Some(_), None, Some(deleted)) => Some(event("DELETED", deleted)),
            // The object is sent as it was when it was still selected, with the version of the
            // change (`watch_cache.go`).
            (Some(old), None, None) => {
                let mut last = (*old.value).clone();
                last["metadata"]["resourceVersion"] = json!(change.version.to_string());
                Some(line("DELETED", &self.encode(&last)))
            }
            (None, None, _) => None,
        }
    }

    fn encode(&self, object: &Value) -> Bytes {
        if self.wants_metadata {
            encode(&partial_metadata(object))
        } else {
            encode(object)
        }
    }

    async fn deliver(&mut self, event: Bytes, version: u64) -> Option<io::Result<Frame<Bytes>>> {
        match self.connection.link.event_fate(&self.resource, version) {
            EventFate::Deliver => {}
            EventFate::Delay(delay) => sleep(delay).await,
            EventFate::Hang => return futures::future::pending().await,
            EventFate::CloseStream => {
                self.is_over = true;
                return None;
            }
            EventFate::BreakStream => {
                self.is_over = true;
                let error =
                    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer");
                return Some(Err(error));
            }
            EventFate::Expire => {
                self.is_over = true;
                return Some(Ok(Frame::data(expired(version - 1, version))));
            }
        }
        if self.connection.is_gone() {
            return futures::future::pending().await;
        }
        Some(Ok(Frame::data(event)))
    }

    /// The version that is reached. A watch from a later one hears of nothing until then (`process` in `cache_watcher.go`).
    fn bookmark(&self) -> Option<(Bytes, u64)> {
        let store = self.connection.server.store();
        let reached = self.connection.cached_version(&store, &self.resource);
        let resource = &store.resources[self.kind];
        let bookmark = bookmark(&resource.kind, &resource.api_version(), reached, false);
        (reached >= self.seen).then_some((bookmark, reached))
    }
}

/// The end of a watch from a version that is forgotten.
fn expired(from: u64, oldest: u64) -> Bytes {
    let message = format!("too old resource version: {from} ({oldest})");
    line("ERROR", &encode(&Failure::expired(message).to_status()))
}

/// Each minute, and shortly before the end (`nextBookmarkTime` in `cache_watcher.go`).
fn next_bookmark(now: Instant, ends: Instant) -> Instant {
    let due = now + BOOKMARKS;
    match ends.checked_sub(LAST_BOOKMARK) {
        Some(last) if last > now => due.min(last),
        _ => due,
    }
}

fn bookmark(kind: &str, api_version: &str, version: u64, ends_initial: bool) -> Bytes {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if ends_initial {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    line("BOOKMARK", &encode(&object))
}

fn event(kind: &str, object: &Object, wants_metadata: bool) -> Bytes {
    if wants_metadata {
        line(kind, &encode(&partial_metadata(&object.value)))
    } else {
        line(kind, &object.text())
    }
}

/// A line as Go's encoder writes it (`WatchEvent` in
/// `k8s.io/apimachinery/pkg/apis/meta/v1/watch.go`).
fn line(kind: &str, object: &Bytes) -> Bytes {
    let parts = [
        &b"{\"type\":\""[..],
        kind.as_bytes(),
        &b"\",\"object\":"[..],
        &object[..],
        &b"}\n"[..],
    ];
    parts.concat().into()
}
