//! The reply to a watch, line by line, and what a line says.

use http::Response;
use http::request::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::WatchEvent as WireEvent;
use serde::de::DeserializeOwned;

use crate::clock;
use crate::reply::{Disposition, Verb, judge_reply, no_reply};
use crate::server::{ApiServer, LONGEST_BODY, read_body};

/// A line is one object, which always fits into a body.
const LONGEST_LINE: usize = LONGEST_BODY;

/// How the text of an object is read that a watch delivers.
pub type ReadObject<K> = fn(&str) -> serde_json::Result<K>;

/// The body of a watch that was accepted.
pub(super) struct LineStream {
    body: Body,
    /// Bytes of lines that were not returned yet, and how many of them were searched for a line's end.
    received: Vec<u8>,
    searched: usize,
}

impl LineStream {
    /// Sends the request; returns when the header of the reply has come.
    pub(super) async fn start_lines(
        server: &ApiServer,
        request: Request<Vec<u8>>,
    ) -> Result<Self, Disposition> {
        let (began, method) = (clock::monotonic(), request.method().clone());
        let response = server.client.send(request.map(Body::from)).await;
        let status = response.as_ref().ok().map(Response::status);
        let took = clock::monotonic() - began;
        server.metrics.observe_request(&method, status, took);
        let (head, body) = response.map_err(|error| no_reply(&error))?.into_parts();
        if !head.status.is_success() {
            // The deadline of the caller covers this body too.
            let body = read_body(body).await.map_err(|error| no_reply(&error))?;
            return Err(judge_reply(
                Verb::ListOrWatch,
                head.status,
                &head.headers,
                &body.unwrap_or_default(),
            ));
        }
        let received = Vec::new();
        Ok(Self {
            body,
            received,
            searched: 0,
        })
    }

    /// The next line; none when the watch has ended. Cancel safe: no byte is lost if the future is dropped.
    pub(super) async fn next_line(&mut self) -> Result<Option<Vec<u8>>, Disposition> {
        loop {
            let found = self.received[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(found) = found {
                let rest = self.received.split_off(self.searched + found + 1);
                self.searched = 0;
                return Ok(Some(std::mem::replace(&mut self.received, rest)));
            }
            // A large object comes in many frames, and searching all of it with each would cost the square of its
            // size.
            self.searched = self.received.len();
            if self.searched > LONGEST_LINE {
                let reason = format!("a watch event of more than {LONGEST_LINE} bytes");
                return Err(Disposition::Refused { reason });
            }
            match self.body.frame().await {
                // The received part of a line without an end is dropped: the watch resumes before
                // that event.
                None => return Ok(None),
                Some(Err(error)) => return Err(no_reply(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// Reads a line of a watch. Its object is read in place: as a part of the line it would first be looked through for its end,
/// which takes a third as long again.
pub(super) fn read_event<K: DeserializeOwned>(
    line: &[u8],
    read_object: ReadObject<K>,
) -> serde_json::Result<WireEvent<K>> {
    let about_object = |prefix: &[u8], event: fn(K) -> WireEvent<K>| {
        let rest = line.strip_prefix(prefix)?.trim_ascii_end();
        let object = str::from_utf8(rest.strip_suffix(b"}")?).ok()?;
        read_object(object).ok().map(event)
    };
    // Go's encoder writes it so (`WatchEvent` in `k8s.io/apimachinery/pkg/apis/meta/v1/watch.go`).
    // Anything that is written otherwise is read otherwise, errors among it.
    about_object(br#"{"type":"MODIFIED","object":"#, WireEvent::Modified)
        .or_else(|| about_object(br#"{"type":"ADDED","object":"#, WireEvent::Added))
        .or_else(|| about_object(br#"{"type":"DELETED","object":"#, WireEvent::Deleted))
        .map_or_else(|| serde_json::from_slice(line), Ok)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use rstest::rstest;

    use super::*;

    /// How a line is read: in place, by the function for objects, or as a whole.
    #[rstest]
    #[case::as_go_writes_it(
        r#"{"type":"MODIFIED","object":{"metadata":{"name":"a"}}}"#,
        "changed in place: a"
    )]
    #[case::with_its_end(concat!(r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#, "\n"), "changed in place: a")]
    #[case::deleted(
        r#"{"type":"DELETED","object":{"metadata":{"name":"a"}}}"#,
        "deleted in place: a"
    )]
    #[case::another_order(
        r#"{"object":{"metadata":{"name":"a"}},"type":"MODIFIED"}"#,
        "changed: a"
    )]
    #[case::with_spaces(
        r#"{"type": "MODIFIED", "object": {"metadata": {"name": "a"}}}"#,
        "changed: a"
    )]
    #[case::with_another_field(
        r#"{"type":"ADDED","object":{"metadata":{"name":"a"}},"x":{}}"#,
        "changed: a"
    )]
    #[case::a_bookmark(r#"{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"7"}}}"#, "bookmark 7")]
    #[case::an_error(
    r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"old"}}"#,
    "error 410"
)]
    #[case::broken_off(
        r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}"#,
        "EOF while parsing an object at line 1 column 50"
    )]
    #[case::unreadable(
        r#"{"type":"ADDED","object":{"metadata":7}}"#,
        "invalid type: integer `7`, expected ObjectMeta at line 1 column 38"
    )]
    fn a_line_is_read_in_place_where_it_is_as_go_writes_it(
        #[case] line: &str,
        #[case] expected: &str,
    ) {
        let in_place: ReadObject<Node> = |text| {
            let mut node: Node = serde_json::from_str(text)?;
            node.metadata.uid = Some("in place".to_owned());
            Ok(node)
        };
        let object = |what: &str, node: Node| {
            let place = node.metadata.uid.map(|uid| format!(" {uid}"));
            format!(
                "{what}{}: {}",
                place.unwrap_or_default(),
                node.metadata.name.unwrap_or_default()
            )
        };
        let read = match read_event(line.as_bytes(), in_place) {
            Ok(WireEvent::Added(node) | WireEvent::Modified(node)) => object("changed", node),
            Ok(WireEvent::Deleted(node)) => object("deleted", node),
            Ok(WireEvent::Bookmark(bookmark)) => {
                format!("bookmark {}", bookmark.metadata.resource_version)
            }
            Ok(WireEvent::Error(status)) => format!("error {}", status.code),
            Err(error) => error.to_string(),
        };
        assert_eq!(read, expected);
    }
}
