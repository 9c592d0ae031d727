//! A request, from its path, query and headers.

use std::collections::BTreeMap;

use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderName, Method};
use hyper::body::Bytes;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::link::RequestFacts;
use crate::status::Failure;

/// The types of patches.
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const JSON: &str = "application/json-patch+json";

/// The call that a request makes.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) user: String,
    pub(crate) verb: &'static str,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) subresource: Option<String>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    query: BTreeMap<String, String>,
    pub(crate) content_type: String,
    accept: String,
    user_agent: String,
    pub(crate) body: Bytes,
    pub(crate) number: u64,
}

impl Call {
    /// Reads a call. `None` if the path is not that of a resource.
    pub(crate) fn read(user: &str, parts: &Parts) -> Option<Self> {
        let path = percent_decode_str(parts.uri.path()).decode_utf8().ok()?;
        let steps: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match &steps[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            // A namespace's own subresources are no kinds in it.
            ["namespaces", namespace, rest @ ..]
                if !matches!(rest, [] | ["status" | "finalize"]) =>
            {
                (*namespace, rest)
            }
            _ => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", None),
            [plural, name] => (*plural, *name, None),
            [plural, name, subresource] => (*plural, *name, Some((*subresource).to_owned())),
            _ => return None,
        };
        let header = |name: HeaderName| {
            let value = parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let query = read_query(parts.uri.query().unwrap_or_default());
        let is_watch = matches!(query.get("watch").map(String::as_str), Some("true" | "1"));
        let verb = match (&parts.method, name.is_empty()) {
            (&Method::GET, _) if is_watch => "watch",
            (&Method::GET, true) => "list",
            (&Method::GET, false) => "get",
            (&Method::POST, true) => "create",
            (&Method::PUT, false) => "update",
            (&Method::PATCH, false) => "patch",
            (&Method::DELETE, false) => "delete",
            (&Method::DELETE, true) => "deletecollection",
            _ => "unknown",
        };
        Some(Self {
            user: user.to_owned(),
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            subresource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            query,
            content_type: header(CONTENT_TYPE),
            accept: header(ACCEPT),
            user_agent: header(USER_AGENT),
            body: Bytes::new(),
            number: 0,
        })
    }

    pub(crate) fn facts(&self, number: u64) -> RequestFacts {
        RequestFacts {
            number,
            user: self.user.clone(),
            verb: self.verb,
            patch: match (self.verb, self.content_type.as_str()) {
                ("patch", APPLY) => "apply",
                ("patch", MERGE) => "merge",
                ("patch", STRATEGIC) => "strategic",
                ("patch", JSON) => "json",
                _ => "",
            },
            group: self.group.clone(),
            resource: self.plural.clone(),
            subresource: self.subresource.clone().unwrap_or_default(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            body: self.body.clone(),
        }
    }

    /// A parameter of the query; empty if it is missing.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        matches!(self.parameter(name), "true" | "1")
    }

    /// A number in the query.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        let text = self.parameter(name);
        if text.is_empty() {
            return Ok(None);
        }
        let number = text.parse().map(Some);
        number.map_err(|_| Failure::bad_request(format!("invalid {name}: {text:?}")))
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.parameter("dryRun") == "All"
    }

    /// The name under which the writer stands in managedFields (`managerOrUserAgent`).
    pub(crate) fn manager(&self) -> String {
        match self.parameter("fieldManager") {
            "" => {
                let agent = self.user_agent.split('/').next().unwrap_or_default();
                agent.chars().take(128).collect()
            }
            manager => manager.to_owned(),
        }
    }

    /// Whether the metadata of objects is asked for alone.
    pub(crate) fn wants_metadata(&self) -> bool {
        let first = self.accept.split(',').next().unwrap_or_default();
        first.contains("as=PartialObjectMetadata")
    }

    /// Whether JSON is asked for, or anything.
    pub(crate) fn accepts_json(&self) -> bool {
        self.accept.is_empty() || self.accept.contains("json") || self.accept.contains("*/*")
    }

    /// The body, if it is JSON.
    pub(crate) fn read_body(&self) -> Result<Value, Failure> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Failure::bad_request(format!("error decoding the body: {error}")))
    }
}

fn read_query(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8_lossy().into_owned()
    };
    let pairs = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}
