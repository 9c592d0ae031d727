//! The reply to a watch, line by line.

use http::Response;
use http::request::Request;
use http_body_util::BodyExt;
use kube::client::Body;

use crate::clock;
use crate::reply::{Disposition, Verb, judge_reply, no_reply};
use crate::server::ApiServer;

/// A line is an object, and no API server stores larger ones than a few megabytes
/// (`--max-request-bytes` of etcd, and 3 MiB for a request body).
const LONGEST_LINE: usize = 16 << 20;

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
            let body = body.collect_bytes().await;
            let body = body.map_err(|error| no_reply(&error))?;
            return Err(judge_reply(
                Verb::ListOrWatch,
                head.status,
                &head.headers,
                &body,
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
            self.searched = self.received.len();
            if self.searched > LONGEST_LINE {
                let reason = format!("a watch event of more than {LONGEST_LINE} bytes");
                return Err(Disposition::Refused { reason });
            }
            match self.body.frame().await {
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
