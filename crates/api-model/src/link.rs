//! The link of one client: what happens to its requests on their way, and how far behind the API server is that answers them.

use std::time::Duration;

use http::StatusCode;
use hyper::body::Bytes;

/// The way from one client to its API server.
pub trait Link: Send + Sync {
    /// Decides on the fate of a request.
    fn fate(&self, request: &RequestFacts) -> RequestFate {
        let _ = request;
        RequestFate::Pass
    }

    /// Tells the outcome of a request that arrived. Not called for one whose client is gone
    /// meanwhile.
    fn answered(&self, request: &RequestFacts, outcome: &Answered) {
        let _ = (request, outcome);
    }

    /// Whether the client is gone: nothing of it arrives any more, and nothing reaches it.
    fn is_dead(&self) -> bool {
        false
    }

    /// How many versions the watch cache of this client's API server is behind. It concerns watches, reads with
    /// `resourceVersion=0`, and the webhook configurations by which the API server calls webhooks.
    fn replica_lag(&self, resource: &str) -> u64 {
        let _ = resource;
        0
    }

    /// Whether the lag concerns all other reads too. No API server is like that: a read without a resourceVersion shows
    /// every write that was answered before it began.
    fn reads_are_stale(&self) -> bool {
        false
    }

    /// How many objects a page of a list has at most, however many are asked for.
    fn longest_page(&self) -> u64 {
        u64::MAX
    }

    /// Decides on the fate of an event of a watch, or of a bookmark.
    fn event_fate(&self, resource: &str, version: u64) -> EventFate {
        let _ = (resource, version);
        EventFate::Deliver
    }
}

/// A link without faults.
#[derive(Clone, Copy, Debug)]
pub struct FaultlessLink;

impl Link for FaultlessLink {}

/// The facts of a request that a [`Link`] decides by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// How many requests of all clients came before.
    pub number: u64,
    /// The client.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The kind of a patch: `apply`, `merge`, `strategic` or `json`; else empty.
    pub patch: &'static str,
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural of the kind.
    pub resource: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty if there is none.
    pub namespace: String,
    /// The name; empty if there is none.
    pub name: String,
    /// The body.
    pub body: Bytes,
}

impl RequestFacts {
    /// Whether the request may change something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// The outcome of a request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The code of the answer, also of one that never reaches the client.
    pub status: StatusCode,
    /// The version of the last change that the request made. None if it changed nothing.
    pub changed: Option<u64>,
    /// Why it failed; empty for a success.
    pub reason: String,
    /// The fate that the link chose.
    pub fate: RequestFate,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFate {
    /// The request is carried out and answered at once.
    Pass,
    /// The request arrives later, even if the client has given it up meanwhile.
    Delay(Duration),
    /// The request is carried out at once and answered later.
    DelayReply(Duration),
    /// The request never arrives: the client sees a broken connection.
    LoseRequest,
    /// The request never arrives, and no answer ever comes.
    HangRequest,
    /// The request is carried out, and the client sees a broken connection.
    LoseReply,
    /// The request is carried out, and no answer ever comes.
    HangReply,
    /// The request is refused with this code, and `Retry-After` in seconds.
    Refuse(StatusCode, Option<u32>),
    /// The client is gone: neither this request nor any later one arrives, and nothing is answered.
    CrashBefore,
    /// The request is carried out, and then the client is gone.
    CrashAfter,
}

/// The fate of an event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFate {
    /// The event is delivered at once.
    Deliver,
    /// The event is delivered later, and so are those after it.
    Delay(Duration),
    /// The watch ends before it, as when its time is over.
    CloseStream,
    /// The connection breaks before it.
    BreakStream,
    /// The watch ends before it with an error: the version that it has come to is forgotten.
    Expire,
    /// Neither it nor anything after it is delivered, and the watch does not end.
    Hang,
}
