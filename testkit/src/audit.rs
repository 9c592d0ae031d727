//! Requests as the API server's audit log counts them: by user, verb and resource. Metrics would
//! not do, since they do not say who asked.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;

/// A place in the audit log; see [`crate::ControlPlane::audit_mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// One request that was answered. A watch is listed once, when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// When it was answered, by the API server's clock; of a watch, when it started.
    pub at: Timestamp,
    /// The authenticated user, or whom that user acts as.
    pub user: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// The resource in the plural, for instance `pods`; empty for paths that are none.
    pub resource: String,
    /// The subresource, for instance `status`, or empty.
    pub subresource: String,
    /// The object's namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The request's path and query.
    pub uri: String,
    /// The status of the answer.
    pub code: u16,
}

impl Request {
    /// Whether it was to change something. A dry run asks what a write would do.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch") && !self.is_dry_run()
    }

    fn is_dry_run(&self) -> bool {
        self.uri.contains("dryRun=All")
    }

    /// `VERB RESOURCE`, or `VERB RESOURCE/SUBRESOURCE`, or with a path that is no resource; with the status behind it where
    /// that was not a success: `patch pods/status 409`.
    pub fn kind(&self) -> String {
        let of = match (self.resource.as_str(), self.subresource.as_str()) {
            ("", _) => self.uri.split('?').next().unwrap_or_default().to_owned(),
            (resource, "") => resource.to_owned(),
            (resource, subresource) => format!("{resource}/{subresource}"),
        };
        let verb = if self.is_dry_run() {
            format!("dry-run {}", self.verb)
        } else {
            self.verb.clone()
        };
        match self.code {
            ..300 => format!("{verb} {of}"),
            code => format!("{verb} {of} {code}"),
        }
    }
}

pub(crate) fn mark(log: &Path) -> Result<Mark> {
    let length = std::fs::metadata(log)
        .with_context(|| format!("reading {}", log.display()))?
        .len();
    Ok(Mark(length))
}

pub(crate) fn since(log: &Path, mark: Mark) -> Result<Vec<Request>> {
    let mut text = Vec::new();
    let mut file = File::open(log).with_context(|| format!("opening {}", log.display()))?;
    file.seek(SeekFrom::Start(mark.0))?;
    file.read_to_end(&mut text)?;
    Ok(parse(&text))
}

fn parse(text: &[u8]) -> Vec<Request> {
    // The last line may still be in writing.
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let lines = text[..whole].split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| serde_json::from_slice::<Line>(line).ok()?.request())
        .collect()
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Line {
    stage: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    user_agent: String,
    object_ref: ObjectRef,
    response_status: ResponseStatus,
    #[serde(rename = "requestURI")]
    request_uri: String,
    stage_timestamp: Option<MicroTime>,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl Line {
    fn request(self) -> Option<Request> {
        // A long-running request has two stages after its receipt, any other one.
        let counted = match self.verb.as_str() {
            "watch" => {
                self.stage == "ResponseStarted"
                    || (self.stage == "ResponseComplete" && self.response_status.code >= 400)
            }
            _ => self.stage == "ResponseComplete",
        };
        counted.then(|| Request {
            at: self.stage_timestamp.map(|time| time.0).unwrap_or_default(),
            user: self.impersonated_user.unwrap_or(self.user).username,
            user_agent: self.user_agent,
            verb: self.verb,
            resource: self.object_ref.resource,
            subresource: self.object_ref.subresource,
            namespace: self.object_ref.namespace,
            name: self.object_ref.name,
            uri: self.request_uri,
            code: self.response_status.code,
        })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_watch_counts_once_and_a_line_in_writing_not_yet() {
        let log = concat!(
            r#"{"stage":"ResponseStarted","verb":"watch","user":{"username":"a"},"responseStatus":{"code":200}}"#,
            "\n",
            r#"{"stage":"ResponseComplete","verb":"watch","user":{"username":"a"},"responseStatus":{"code":200}}"#,
            "\n",
            r#"{"stage":"ResponseComplete","verb":"patch","user":{"username":"b"},"objectRef":{"resource":"pods","subresource":"status","name":"p"},"responseStatus":{"code":422},"stageTimestamp":"2026-01-02T03:04:05.678901Z"}"#,
            "\n",
            r#"{"stage":"ResponseComplete","verb":"get","us"#,
        );
        let seen = super::parse(log.as_bytes()).into_iter().map(|request| {
            let [user, verb, of] = [request.user, request.verb, request.subresource];
            format!("{user} {verb} {of} {} {}", request.code, request.at)
        });
        let expected = [
            "a watch  200 1970-01-01T00:00:00Z",
            "b patch status 422 2026-01-02T03:04:05.678901Z",
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
