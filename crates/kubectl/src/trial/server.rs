//! The API server's answer about a marker: schema, rules and admission, by a create or an update with `dryRun=All`, after
//! which nothing is stored ("Dry-run", Kubernetes API Concepts).

use std::collections::BTreeSet;

use http::header::CONTENT_TYPE;
use http::{Method, Request};
use kube::core::{CustomResourceExt, PartialObjectMeta, Status};
use leadsman_api::PodProbeMarker;
use leadsman_core::cluster::{Invalid, nearest};
use leadsman_process::reply::{Disposition, RetryCause, Verb};
use serde_json::Value;

use super::documents::MarkerCandidate;
use crate::reader::{DEADLINE, Reader};
use crate::resources::MARKERS;

/// The answer of the API server.
pub(super) enum DryRunAnswer {
    /// The marker would be stored.
    Accepted,
    /// The marker would not be stored, for these reasons.
    Refused(Vec<Invalid>),
    /// The API server was not asked, or did not answer: the right that is missing, or what happened.
    NotAsked(String),
}

/// How often a marker is read again that somebody, such as the manager its status, writes at the same time.
const ATTEMPTS: usize = 5;

/// Asks the API server whether it would store a marker. Of one that exists, its resourceVersion is given.
pub(super) async fn ask_api_server(
    reader: &Reader,
    candidate: &MarkerCandidate,
    known_version: Option<&str>,
) -> DryRunAnswer {
    let mut version = known_version.map(str::to_owned);
    let mut written = String::new();
    for _ in 0..ATTEMPTS {
        match ask_once(reader, candidate, version.as_deref()).await {
            Ok(answer) => return answer,
            Err(reason) => written = reason,
        }
        let namespace = Some(candidate.namespace.as_str());
        let found = reader
            .get_object::<PartialObjectMeta>(MARKERS, namespace, &candidate.name)
            .await;
        match found {
            Ok(found) => version = found.and_then(|found| found.metadata.resource_version),
            Err(unread) => return DryRunAnswer::NotAsked(unread.0),
        }
    }
    DryRunAnswer::NotAsked(written)
}

/// The same once; an error says that the marker was written since it was read.
async fn ask_once(
    reader: &Reader,
    candidate: &MarkerCandidate,
    known_version: Option<&str>,
) -> Result<DryRunAnswer, String> {
    let (method, verb, kind) = match known_version {
        Some(_) => (Method::PUT, "update", Verb::Update),
        None => (Method::POST, "create", Verb::Create),
    };
    let mut path = MARKERS.objects_path(Some(&candidate.namespace));
    let mut document = candidate.document.clone();
    if let Some(version) = known_version {
        path = format!("{path}/{}", candidate.name);
        // A custom resource is updated by its version only (`AllowUnconditionalUpdate`,
        // `k8s.io/apiextensions-apiserver/pkg/registry/customresource/strategy.go`).
        document["metadata"]["resourceVersion"] = Value::String(version.to_owned());
    }
    let built = Request::builder()
        .method(method)
        .uri(format!(
            // Strict: a field that no schema knows is dropped otherwise, and its author learns nothing (KEP-2885).
            "{path}?dryRun=All&fieldValidation=Strict&fieldManager=kubectl-leadsman"
        ))
        .header(CONTENT_TYPE, "application/json")
        .body(document.to_string().into_bytes());
    let request = match built {
        Ok(request) => request,
        // A name that no path can hold.
        Err(error) => {
            return Ok(DryRunAnswer::Refused(vec![invalid_at(
                "metadata.name",
                error,
            )]));
        }
    };
    let reply = reader.server.send_request(kind, request, DEADLINE).await;
    Ok(match &reply.disposition {
        Disposition::AlreadyExists { reason }
        | Disposition::Gone { reason }
        | Disposition::Retry {
            cause: RetryCause::Conflict,
            reason,
            ..
        } => return Err(reason.clone()),
        Disposition::Done => DryRunAnswer::Accepted,
        Disposition::Retry {
            cause: RetryCause::NoRight,
            ..
        } => DryRunAnswer::NotAsked(format!(
            "missing right: {verb} {} in namespace {}",
            MARKERS.full_name(),
            candidate.namespace
        )),
        Disposition::Retry {
            cause:
                RetryCause::NoAnswer
                | RetryCause::NotSent
                | RetryCause::Throttled
                | RetryCause::Unavailable
                | RetryCause::InternalError,
            reason,
            ..
        } => DryRunAnswer::NotAsked(reason.clone()),
        failure @ Disposition::Retry {
            cause: RetryCause::NotApiServer,
            ..
        } => DryRunAnswer::NotAsked(failure.explain_reason()),
        // A marker that is to be replaced was there just now: whoever says otherwise is not the API server.
        Disposition::Retry {
            cause: RetryCause::NoSuchKind,
            reason,
            ..
        } if known_version.is_some() => DryRunAnswer::NotAsked(reason.clone()),
        failure => {
            let status = serde_json::from_slice::<Status>(&reply.body).unwrap_or_default();
            let reason = failure.reason().unwrap_or_default();
            DryRunAnswer::Refused(errors_of(&status, reason))
        }
    })
}

fn invalid_at(path: &str, message: impl std::fmt::Display) -> Invalid {
    Invalid {
        path: path.to_owned(),
        message: message.to_string(),
    }
}

/// The errors of a refusal, field by field where the API server names fields.
fn errors_of(status: &Status, reason: &str) -> Vec<Invalid> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut errors: Vec<_> = causes
        // One cause has no field: it says that rules were not checked, since the schema has errors.
        .filter(|cause| !["", "<nil>"].contains(&&*cause.field))
        .map(|cause| invalid_at(&cause.field, &cause.message))
        .collect();
    if errors.is_empty() {
        errors = unknown_fields(reason);
    }
    if errors.is_empty() {
        errors.push(invalid_at("", reason));
    }
    errors
}

/// The fields of `strict decoding error: unknown field "spec.a", unknown field "spec.b"` (`runtime.NewStrictDecodingError`,
/// `k8s.io/apimachinery/pkg/runtime/error.go`), with what was meant.
fn unknown_fields(reason: &str) -> Vec<Invalid> {
    let known = known_fields();
    let fields = reason
        .split("unknown field \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    let errors = fields.map(|path| {
        let name = path.rsplit('.').next().unwrap_or(path);
        let near = nearest(name, known.iter().map(String::as_str));
        let meant = near.map(|near| format!("; did you mean {near}?"));
        invalid_at(path, format!("unknown field{}", meant.unwrap_or_default()))
    });
    errors.collect()
}

/// The names of all fields of a marker.
fn known_fields() -> BTreeSet<String> {
    fn collect_fields(schema: &Value, names: &mut BTreeSet<String>) {
        match schema {
            Value::Object(fields) => {
                if let Some(Value::Object(properties)) = fields.get("properties") {
                    names.extend(properties.keys().cloned());
                }
                fields
                    .values()
                    .for_each(|below| collect_fields(below, names));
            }
            Value::Array(items) => items.iter().for_each(|below| collect_fields(below, names)),
            _ => {}
        }
    }
    let mut names = BTreeSet::new();
    // The CRD of this program will do: it is only for what may have been meant.
    let schema = serde_json::to_value(PodProbeMarker::crd()).unwrap_or_default();
    collect_fields(&schema["spec"]["versions"], &mut names);
    names
}

/// Our parser's errors, and those of the API server in other fields: ours say what to do.
pub(super) fn merge_errors(own: Vec<Invalid>, theirs: Vec<Invalid>) -> Vec<Invalid> {
    let fields: BTreeSet<_> = own.iter().map(|error| error.path.clone()).collect();
    let mut merged = own;
    merged.extend(
        theirs
            .into_iter()
            .filter(|error| !fields.contains(&error.path)),
    );
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(errors: &[Invalid]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unknown_field_gets_what_was_meant() {
        let reason = "PodProbeMarker in version \"v1alpha1\" cannot be handled as a PodProbeMarker: strict decoding error: \
            unknown field \"spec.probes[0].containername\", unknown field \"spec.zzz\"";
        let errors = errors_of(&Status::default(), reason);
        let expected = [
            "spec.probes[0].containername: unknown field; did you mean containerName?",
            "spec.zzz: unknown field",
        ];
        assert_eq!(texts(&errors), expected);
    }

    #[test]
    fn a_refusal_is_told_field_by_field() {
        let status = json!({ "details": { "causes": [
            { "reason": "FieldValueInvalid", "field": "spec.probes[0]", "message": "Invalid value: x" },
            { "reason": "FieldValueRequired", "field": "spec.probes[1].name", "message": "Required value" },
            { "reason": "FieldValueInvalid", "field": "<nil>", "message": "some validation rules were not checked" },
        ] } });
        let status = serde_json::from_value(status).unwrap();
        let errors = errors_of(&status, "is invalid");
        let expected = [
            "spec.probes[0]: Invalid value: x",
            "spec.probes[1].name: Required value",
        ];
        assert_eq!(texts(&errors), expected);
        let merged = merge_errors(
            vec![invalid_at("spec.probes[0]", "names no handler")],
            errors,
        );
        let expected = ["spec.probes[0]: names no handler", expected[1]];
        assert_eq!(texts(&merged), expected);
    }
}
