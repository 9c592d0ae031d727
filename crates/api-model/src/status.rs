//! Failures, as the API server words them (`k8s.io/apimachinery/pkg/api/errors/errors.go`).

use http::StatusCode;
use serde_json::{Value, json};

use crate::resource::Resource;

/// A failure: what becomes a `Status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Value>,
}

/// The name of an object in failures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) name: &'a str,
}

impl Named<'_> {
    fn details(&self) -> Value {
        let mut details = json!({"name": self.name, "kind": self.resource.plural});
        if !self.resource.group.is_empty() {
            details["group"] = json!(self.resource.group);
        }
        details
    }

    fn to_text(self) -> String {
        format!("{} \"{}\"", self.resource.full_name(), self.name)
    }

    pub(crate) fn not_found(self) -> Failure {
        let message = format!("{} not found", self.to_text());
        Failure::new(404, "NotFound", message).with(self.details())
    }

    pub(crate) fn already_exists(self) -> Failure {
        let message = format!("{} already exists", self.to_text());
        Failure::new(409, "AlreadyExists", message).with(self.details())
    }

    pub(crate) fn modified(self) -> Failure {
        self.conflict(
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn conflict(self, why: &str) -> Failure {
        let message = format!("Operation cannot be fulfilled on {}: {why}", self.to_text());
        Failure::new(409, "Conflict", message).with(self.details())
    }

    /// A 422 with its causes: field and message.
    pub(crate) fn invalid(self, causes: &[StatusCause]) -> Failure {
        let Resource { kind, group, .. } = self.resource;
        let full = if group.is_empty() {
            kind.clone()
        } else {
            format!("{kind}.{group}")
        };
        let mut texts: Vec<String> = Vec::new();
        for cause in causes {
            let text = format!("{}: {}", cause.field, cause.message);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let texts = match &texts[..] {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{full} \"{}\" is invalid: {texts}", self.name);
        let mut details = self.details();
        details["kind"] = json!(kind);
        details["causes"] = causes.iter().map(StatusCause::to_value).collect();
        Failure::new(422, "Invalid", message).with(details)
    }

    pub(crate) fn forbidden(self, why: &str) -> Failure {
        let message = format!("{} is forbidden: {why}", self.to_text());
        Failure::new(403, "Forbidden", message).with(self.details())
    }
}

/// Why an object is refused (`StatusCause` in `k8s.io/apimachinery/pkg/apis/meta/v1`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCause {
    /// `FieldValueInvalid`, say.
    pub reason: &'static str,
    /// The field, as `spec.containers[0].name`.
    pub field: String,
    /// The message that says what is wrong.
    pub message: String,
}

impl StatusCause {
    /// A value that is wrong.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self {
            reason: "FieldValueInvalid",
            field: field.to_owned(),
            message: message.into(),
        }
    }

    fn to_value(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    pub(crate) fn with(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub(crate) fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let details = json!({"causes": [{"message": message}]});
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .with(details)
    }

    /// A version or a token that the store does not have any more.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// A version that the store has not reached (`NewTooLargeResourceVersionError`,
    /// `k8s.io/apiserver/pkg/storage/errors.go`).
    pub(crate) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        Self::new(504, "Timeout", message).with(json!({"causes": [cause], "retryAfterSeconds": 1}))
    }

    /// An object that etcd takes no more (`--max-request-bytes`).
    pub(crate) fn too_large_for_store() -> Self {
        Self::new(500, "", "etcdserver: request is too large")
    }

    pub(crate) fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}
