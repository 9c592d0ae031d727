//! A span: what was done, from when to when, as part of which trace.

use jiff::Timestamp;

/// The id of a trace. Two processes that know what a trace is about derive the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// The id of a span within its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl SpanId {
    /// For a span that no other process refers to.
    pub(super) fn random(random: &mut fastrand::Rng) -> Self {
        // All zeros would be no id (W3C Trace Context, parent-id).
        Self(random.u64(1..).to_be_bytes())
    }
}

impl TraceId {
    /// Whether it is among so many of a million, if ids are distributed evenly. The last 56 bits are those that W3C Trace
    /// Context, level 2, wants random.
    pub(super) fn is_among(self, per_million: u32) -> bool {
        let random = u128::from_be_bytes(self.0) & ((1 << 56) - 1);
        (random * 1_000_000) >> 56 < u128::from(per_million)
    }
}

/// A name and its value.
pub type Attribute = (&'static str, String);

/// Whether a span is a request to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within the process.
    Internal,
    /// A request that the process sends.
    Client,
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// The span that it is part of or follows from, possibly one of another process.
    pub parent: Option<SpanId>,
    /// What was done, of a closed list.
    pub name: &'static str,
    /// Whether it is a request.
    pub kind: SpanKind,
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// On what, and with what result.
    pub attributes: Vec<Attribute>,
    /// Why it failed.
    pub error: Option<String>,
}

/// A span of work that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenSpan {
    /// Its trace.
    pub trace: TraceId,
    /// Its id, by which spans within it refer to it.
    pub id: SpanId,
    /// The span that it follows from.
    pub parent: SpanId,
    /// What is being done.
    pub name: &'static str,
    /// Since when.
    pub began: Timestamp,
    /// On what.
    pub attributes: Vec<Attribute>,
}

impl OpenSpan {
    /// The span of work that has succeeded.
    pub fn end_at(self, ended: Timestamp) -> Span {
        Span {
            trace: self.trace,
            id: self.id,
            parent: Some(self.parent),
            name: self.name,
            kind: SpanKind::Internal,
            began: self.began,
            ended,
            attributes: self.attributes,
            error: None,
        }
    }
}
