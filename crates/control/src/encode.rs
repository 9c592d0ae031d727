//! Writes as HTTP requests. Only here it is decided which path, verb and kind of patch a write is.

use http::request::Request as HttpRequest;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request as Builder;
use kube::core::request::Error as BuildError;
use leadsman_reconcile::{ObjectName, WriteKind, WriteVerb};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::request::DecodeReply;
use crate::rules::Rules;

/// Whether a creation reads the object that is in its way. A name that the API server makes meets nothing.
pub(crate) fn is_read_back<R: Rules>(kind: &WriteKind) -> bool {
    kind.verb == WriteVerb::Create && find_decoder::<R>(kind).is_some()
}

/// How to read the object in the reply to a write: as an object of the watched kind of that resource, if there is one. The replies
/// to deletions and dry runs show none that exists.
pub(crate) fn find_decoder<R: Rules>(written: &WriteKind) -> Option<DecodeReply<R::Event>> {
    if matches!(written.verb, WriteVerb::Delete | WriteVerb::DryRun) {
        return None;
    }
    let plural = split_resource(written).0;
    let kind = R::KINDS.iter().find(|kind| {
        let resource = kind.resource();
        resource.group == written.group && resource.plural == plural
    })?;
    Some(kind.decode_reply)
}

/// The request of a write, whose body is this JSON; that of a deletion has its preconditions. `manager` is the field manager under which it stands in managedFields.
pub(crate) fn encode_write(
    manager: &str,
    kind: &WriteKind,
    object: &ObjectName,
    body: &str,
) -> Result<HttpRequest<Vec<u8>>, BuildError> {
    let (name, (plural, subresource)) = (&object.name, split_resource(kind));
    let builder = Builder::new(collection_path(kind, plural, &object.namespace));
    let patch = |params: &PatchParams, patch: &Patch<_>| match subresource {
        Some(subresource) => builder.patch_subresource(subresource, name, params, patch),
        None => builder.patch(name, params, patch),
    };
    let params = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    let post = PostParams {
        dry_run: kind.verb == WriteVerb::DryRun,
        field_manager: Some(manager.to_owned()),
    };
    let raw = || serde_json::from_str::<&RawValue>(body).map_err(BuildError::SerializeBody);
    match kind.verb {
        WriteVerb::MergePatch => patch(&params, &Patch::Merge(raw()?)),
        WriteVerb::StrategicPatch => patch(&params, &Patch::Strategic(raw()?)),
        // Forced: a field that another manager has with another value would be a conflict (409), and what is applied is ours to
        // say, whoever has it.
        WriteVerb::Apply(manager) => {
            patch(&PatchParams::apply(manager).force(), &Patch::Apply(raw()?))
        }
        WriteVerb::Create | WriteVerb::DryRun => builder.create(&post, body.into()),
        WriteVerb::Replace => builder.replace(name, &post, body.into()),
        WriteVerb::Delete => {
            let body: Value = serde_json::from_str(body).map_err(BuildError::SerializeBody)?;
            let text = |place| Some(body.pointer(place)?.as_str()?.to_owned());
            let preconditions = Preconditions {
                uid: text("/preconditions/uid"),
                resource_version: text("/preconditions/resourceVersion"),
            };
            // The pods of a Job would be orphaned by a deletion that says nothing of them (`DefaultGarbageCollectionPolicy`,
            // `pkg/registry/batch/job/strategy.go`).
            builder.delete(
                name,
                &DeleteParams::background().preconditions(preconditions),
            )
        }
    }
}

/// The request that reads the object which is in the way of a creation.
pub(crate) fn encode_read(kind: &WriteKind, object: &ObjectName) -> Option<HttpRequest<Vec<u8>>> {
    let path = collection_path(kind, split_resource(kind).0, &object.namespace);
    Builder::new(path)
        .get(&object.name, &GetParams::default())
        .ok()
}

fn split_resource(kind: &WriteKind) -> (&'static str, Option<&'static str>) {
    kind.resource
        .split_once('/')
        .map_or((kind.resource, None), |(plural, subresource)| {
            (plural, Some(subresource))
        })
}

fn collection_path(kind: &WriteKind, plural: &str, namespace: &str) -> String {
    let group = match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    match namespace {
        "" => format!("{group}/{plural}"),
        namespace => format!("{group}/namespaces/{namespace}/{plural}"),
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use leadsman_reconcile::RightScope;
    use serde_json::json;

    use super::*;

    const LAMP: WriteKind = WriteKind {
        label: "lamp",
        group: "example.com",
        version: "v1",
        resource: "lamps",
        verb: WriteVerb::Create,
        scope: RightScope::Cluster,
        class: 0,
    };

    /// Method, path with query, and media type.
    fn shown(
        verb: WriteVerb,
        resource: &'static str,
        namespace: &str,
    ) -> (String, String, String, Vec<u8>) {
        let kind = WriteKind {
            resource,
            verb,
            ..LAMP
        };
        let name = ObjectName {
            namespace: namespace.to_owned(),
            name: "a".to_owned(),
        };
        let body = json!({"preconditions": {"uid": "u"}}).to_string();
        let request = encode_write("leadsman-lamps", &kind, &name, &body).unwrap();
        let media = request.headers().get(CONTENT_TYPE).unwrap();
        let media = media.to_str().unwrap().to_owned();
        let path = request.uri().to_string().replace("?&", "?");
        (
            request.method().to_string(),
            path,
            media,
            request.into_body(),
        )
    }

    #[test]
    fn a_write_is_this_request() {
        const LAMPS: &str = "/apis/example.com/v1/namespaces/shop/lamps";
        const BY: &str = "fieldManager=leadsman-lamps";
        let body = br#"{"preconditions":{"uid":"u"}}"#;
        let json = "application/json";
        for (verb, resource, method, path, media) in [
            (
                WriteVerb::Create,
                "lamps",
                "POST",
                format!("{LAMPS}?{BY}"),
                json,
            ),
            (
                WriteVerb::DryRun,
                "lamps",
                "POST",
                format!("{LAMPS}?dryRun=All&{BY}"),
                json,
            ),
            (
                WriteVerb::Replace,
                "lamps",
                "PUT",
                format!("{LAMPS}/a?{BY}"),
                json,
            ),
            (
                WriteVerb::MergePatch,
                "lamps/status",
                "PATCH",
                format!("{LAMPS}/a/status?{BY}"),
                "application/merge-patch+json",
            ),
            (
                WriteVerb::StrategicPatch,
                "lamps",
                "PATCH",
                format!("{LAMPS}/a?{BY}"),
                "application/strategic-merge-patch+json",
            ),
            (
                WriteVerb::Apply("leadsman-marks"),
                "lamps/status",
                "PATCH",
                format!("{LAMPS}/a/status?force=true&fieldManager=leadsman-marks"),
                "application/apply-patch+yaml",
            ),
        ] {
            let expected = (method.to_owned(), path, media.to_owned(), body.to_vec());
            assert_eq!(shown(verb, resource, "shop"), expected);
        }
    }

    #[test]
    fn a_deletion_is_of_the_object_that_was_seen_and_takes_what_it_owns_along() {
        let (method, path, _, body) = shown(WriteVerb::Delete, "lamps", "");
        assert_eq!(
            (&*method, &*path),
            ("DELETE", "/apis/example.com/v1/lamps/a?")
        );
        let body: Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({"propagationPolicy": "Background", "preconditions": {"uid": "u"}});
        assert_eq!(body, expected);
    }
}
