//! Admission webhooks, called as the stored configurations say (`k8s.io/apiserver/pkg/admission/plugin/webhook`).

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use crate::patch::json_patch;
use crate::resource::Resource;
use crate::selector::selects;
use crate::status::Failure;

/// The side that answers the calls of webhooks.
pub trait Admission: Send + Sync {
    /// Sends a review, and waits for the answer. An error is a connection that failed.
    fn call(&self, call: WebhookCall) -> BoxFuture<'static, Result<(StatusCode, Vec<u8>), String>>;

    /// Whether an expression of `matchConditions` is true.
    fn evaluate(&self, expression: &str, variables: &Variables) -> Result<bool, String>;
}

/// The call of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookCall {
    /// The webhook's name in its configuration.
    pub webhook: String,
    /// `clientConfig` of the webhook.
    pub client_config: Value,
    /// The path of the URL: that of the service, or of `url`.
    pub path: String,
    /// An `AdmissionReview`.
    pub body: Vec<u8>,
    /// The time after which the call has failed.
    pub timeout: Duration,
}

/// The variables of an expression of `matchConditions`.
#[derive(Clone, Debug)]
pub struct Variables {
    /// The object as it would be stored; null for a deletion.
    pub object: Value,
    /// The object as it is stored; null for a creation.
    pub old_object: Value,
    /// The `AdmissionRequest`, without objects.
    pub request: Value,
}

/// The configurations of one kind that are in force for a request, and the labels of its namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigurationsInForce {
    pub(crate) webhooks: Vec<Value>,
    pub(crate) namespace_labels: Map<String, Value>,
}

/// The change that is reviewed.
pub(crate) struct Review<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) operation: &'static str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) user: &'a str,
    pub(crate) is_dry_run: bool,
    pub(crate) uid: String,
    pub(crate) old: Option<&'a Value>,
}

impl Review<'_> {
    /// Lets webhooks change the object.
    pub(crate) async fn mutate(
        &self,
        admission: &Arc<dyn Admission>,
        in_force: &ConfigurationsInForce,
        mut object: Value,
    ) -> Result<Value, Failure> {
        let mut again = Vec::new();
        for webhook in &in_force.webhooks {
            let before = object.clone();
            let called = self.call(admission, in_force, webhook, &mut object).await?;
            // Webhooks before are asked again about what a later one has changed.
            if object != before {
                for (_, is_due) in &mut again {
                    *is_due = true;
                }
            }
            if called && webhook["reinvocationPolicy"] == "IfNeeded" {
                again.push((webhook, false));
            }
        }
        for (webhook, _) in again.into_iter().filter(|(_, is_due)| *is_due) {
            self.call(admission, in_force, webhook, &mut object).await?;
        }
        Ok(object)
    }

    /// Lets webhooks refuse the object. It is null for a deletion.
    pub(crate) async fn validate(
        &self,
        admission: &Arc<dyn Admission>,
        in_force: &ConfigurationsInForce,
        object: &Value,
    ) -> Result<(), Failure> {
        for webhook in &in_force.webhooks {
            let mut unchanged = object.clone();
            self.call(admission, in_force, webhook, &mut unchanged)
                .await?;
        }
        Ok(())
    }

    /// Calls a webhook if its configuration says so, and applies its patch. Returns whether it was called.
    async fn call(
        &self,
        admission: &Arc<dyn Admission>,
        in_force: &ConfigurationsInForce,
        webhook: &Value,
        object: &mut Value,
    ) -> Result<bool, Failure> {
        let name = webhook["name"].as_str().unwrap_or_default();
        let is_ignored = webhook["failurePolicy"] == "Ignore";
        if !self.is_selected(webhook, in_force, object) {
            return Ok(false);
        }
        match self.meets_conditions(admission, webhook, object) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(_) if is_ignored => return Ok(false),
            Err(error) => return Err(Failure::new(403, "Forbidden", error)),
        }
        let timeout = Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10));
        let call = WebhookCall {
            webhook: name.to_owned(),
            client_config: webhook["clientConfig"].clone(),
            path: call_path(&webhook["clientConfig"]),
            body: self.to_body(object),
            timeout,
        };
        let answer = tokio::time::timeout(timeout, admission.call(call))
            .await
            .unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        match answer.and_then(|(code, body)| read_answer(code, &body)) {
            Ok(response) => accept_response(name, &response, object)?,
            Err(_) if is_ignored => {}
            Err(error) => {
                let message =
                    format!("failed calling webhook {name:?}: failed to call webhook: {error}");
                return Err(Failure::internal(message));
            }
        }
        Ok(true)
    }

    fn is_selected(
        &self,
        webhook: &Value,
        in_force: &ConfigurationsInForce,
        object: &Value,
    ) -> bool {
        let rules = webhook["rules"].as_array().into_iter().flatten();
        let is_covered = rules.into_iter().any(|rule| self.is_covered(rule));
        let labels = |object: &Value| {
            object
                .pointer("/metadata/labels")
                .and_then(Value::as_object)
                .cloned()
        };
        let selector = webhook.get("objectSelector");
        let is_object_selected = [Some(object), self.old]
            .into_iter()
            .flatten()
            .filter(|object| !object.is_null())
            .any(|object| selects(selector, labels(object).as_ref()));
        let namespaces = webhook.get("namespaceSelector");
        let is_namespace_selected = match (self.resource.plural.as_str(), self.namespace) {
            ("namespaces", _) => selects(namespaces, labels(object).as_ref()),
            (_, "") => true,
            _ => selects(namespaces, Some(&in_force.namespace_labels)),
        };
        is_covered && is_object_selected && is_namespace_selected
    }

    fn is_covered(&self, rule: &Value) -> bool {
        let has = |list: &str, wanted: &str| {
            let items = rule[list].as_array().into_iter().flatten();
            items
                .filter_map(Value::as_str)
                .any(|item| item == "*" || item == wanted)
        };
        let plural = &self.resource.plural;
        let resources = rule["resources"].as_array().into_iter().flatten();
        let is_resource = resources.filter_map(Value::as_str).any(|item| {
            let (resource, subresource) = item.split_once('/').unwrap_or((item, ""));
            let is_sub = match (subresource, self.subresource) {
                ("*", _) | ("", None) => true,
                (wanted, sub) => sub == Some(wanted),
            };
            (resource == "*" || resource == plural) && is_sub
        });
        let is_scope = match rule["scope"].as_str() {
            Some("Namespaced") => !self.namespace.is_empty(),
            Some("Cluster") => self.namespace.is_empty(),
            _ => true,
        };
        has("operations", self.operation)
            && has("apiGroups", &self.resource.group)
            && has("apiVersions", &self.resource.version)
            && is_resource
            && is_scope
    }

    fn meets_conditions(
        &self,
        admission: &Arc<dyn Admission>,
        webhook: &Value,
        object: &Value,
    ) -> Result<bool, String> {
        let mut conditions = webhook["matchConditions"]
            .as_array()
            .into_iter()
            .flatten()
            .peekable();
        if conditions.peek().is_none() {
            return Ok(true);
        }
        let variables = Variables {
            object: object.clone(),
            old_object: self.old.cloned().unwrap_or_default(),
            request: self.to_request(),
        };
        let mut failed = None;
        for condition in conditions {
            let expression = condition["expression"].as_str().unwrap_or_default();
            match admission.evaluate(expression, &variables) {
                Ok(true) => {}
                // One that is false counts more than one that fails.
                Ok(false) => return Ok(false),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(true), Err)
    }

    fn to_request(&self) -> Value {
        let Resource {
            group,
            version,
            kind,
            plural,
            ..
        } = self.resource;
        let kind = json!({"group": group, "version": version, "kind": kind});
        let resource = json!({"group": group, "version": version, "resource": plural});
        let mut request = json!({
            "uid": self.uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": self.name, "operation": self.operation, "userInfo": {"username": self.user},
            "dryRun": self.is_dry_run,
        });
        if !self.namespace.is_empty() {
            request["namespace"] = json!(self.namespace);
        }
        if let Some(subresource) = self.subresource {
            request["subResource"] = json!(subresource);
            request["requestSubResource"] = json!(subresource);
        }
        request
    }

    fn to_body(&self, object: &Value) -> Vec<u8> {
        let mut request = self.to_request();
        request["object"] = object.clone();
        request["oldObject"] = self.old.cloned().unwrap_or_default();
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request,
        });
        review.to_string().into_bytes()
    }
}

fn call_path(client_config: &Value) -> String {
    if let Some(path) = client_config
        .pointer("/service/path")
        .and_then(Value::as_str)
    {
        return path.to_owned();
    }
    let url = client_config["url"].as_str().unwrap_or_default();
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    after_scheme
        .find('/')
        .map_or("/", |slash| &after_scheme[slash..])
        .to_owned()
}

fn read_answer(code: StatusCode, body: &[u8]) -> Result<Value, String> {
    if !code.is_success() {
        return Err(format!("the server answered {code}"));
    }
    let mut review: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    match review.get_mut("response") {
        Some(response @ Value::Object(_)) => Ok(response.take()),
        _ => Err("expected response.uid".to_owned()),
    }
}

fn accept_response(webhook: &str, response: &Value, object: &mut Value) -> Result<(), Failure> {
    if response["allowed"] != true {
        return Err(refusal(webhook, &response["status"]));
    }
    let Some(patch) = response.get("patch").filter(|patch| !patch.is_null()) else {
        return Ok(());
    };
    let broken = |error: &dyn std::fmt::Display| {
        Failure::internal(format!("failed calling webhook {webhook:?}: {error}"))
    };
    let ByteString(patch) = serde_json::from_value(patch.clone()).map_err(|e| broken(&e))?;
    let patch = serde_json::from_slice(&patch).map_err(|e| broken(&e))?;
    json_patch(object, &patch).map_err(|failure| broken(&failure.message))
}

/// `ToStatusErr` in `plugin/webhook/errors/statuserror.go`.
fn refusal(webhook: &str, status: &Value) -> Failure {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let text = |key: &str| status[key].as_str().filter(|text| !text.is_empty());
    let message = match text("message").or_else(|| text("reason")) {
        Some(why) => format!("{denied}: {why}"),
        None => format!("{denied} without explanation"),
    };
    let code = status["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok());
    let reason = match text("reason") {
        Some("Invalid") => "Invalid",
        Some("Forbidden") => "Forbidden",
        Some("BadRequest") => "BadRequest",
        _ => "",
    };
    let failure = Failure::new(
        code.filter(|code| *code >= 400).unwrap_or(403),
        reason,
        message,
    );
    match status.get("details") {
        Some(details) => failure.with(details.clone()),
        None => failure,
    }
}
