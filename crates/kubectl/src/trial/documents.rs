//! Markers from files: YAML or JSON, several documents, lists. What is wrong with them is found by the parser that the
//! manager uses; the API server's own word is in `server`.

use std::io::Read;
use std::path::Path;

use leadsman_api::PodProbeMarker;
use leadsman_core::cluster::nearest;
use serde::Deserialize;
use serde_json::Value;

use crate::VerbError;

const KIND: &str = "PodProbeMarker";

/// A marker as a file has it.
#[derive(Clone, Debug)]
pub(crate) struct MarkerCandidate {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The document, with its namespace.
    pub(crate) document: Value,
    /// The marker, or why it does not decode.
    pub(crate) decoded: Result<Box<PodProbeMarker>, String>,
}

/// The contents of a file; of standard input for `-`.
pub(crate) fn read_file(path: &Path) -> Result<String, VerbError> {
    let failed = |error: std::io::Error| {
        VerbError::Usage(format!("cannot read {}: {error}", path.display()))
    };
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(failed)?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// The objects of a file: its documents, and the items of its lists.
pub(crate) fn parse_objects(text: &str) -> Result<Vec<Value>, VerbError> {
    let mut objects = Vec::new();
    for (number, document) in serde_norway::Deserializer::from_str(text).enumerate() {
        let object = Value::deserialize(document).map_err(|error| {
            VerbError::Usage(format!("document {} is no YAML: {error}", number + 1))
        })?;
        match &object["items"] {
            // An empty document, as after a last `---`.
            _ if object.is_null() => {}
            Value::Array(items) => objects.extend(items.iter().cloned()),
            _ => objects.push(object),
        }
    }
    Ok(objects)
}

/// The markers among objects. `namespace` is that of the command line or of the context; given on the command line it must
/// be that of each marker.
pub(crate) fn find_markers(
    objects: Vec<Value>,
    namespace: &str,
    is_given: bool,
) -> Result<Vec<MarkerCandidate>, VerbError> {
    let mut candidates = Vec::new();
    let mut others = Vec::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        if kind == KIND {
            candidates.push(to_candidate(object, namespace, is_given)?);
        } else if nearest(kind, [KIND]).is_some() {
            return Err(VerbError::Usage(format!(
                "there is no kind {kind}; did you mean {KIND}?"
            )));
        } else {
            others.push(kind.to_owned());
        }
    }
    if !candidates.is_empty() {
        return Ok(candidates);
    }
    let others = if others.is_empty() {
        "nothing".to_owned()
    } else {
        others.join(", ")
    };
    Err(VerbError::Usage(format!(
        "no {KIND} to try: the file has {others}"
    )))
}

fn to_candidate(
    mut object: Value,
    namespace: &str,
    is_given: bool,
) -> Result<MarkerCandidate, VerbError> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let expected = format!("{}/{}", leadsman_api::GROUP, leadsman_api::VERSION);
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if version != expected {
        return Err(VerbError::Usage(format!(
            "{KIND} {name} has apiVersion {version:?}; it is {expected}"
        )));
    }
    if name.is_empty() {
        return Err(VerbError::Usage(format!("a {KIND} has no metadata.name")));
    }
    let namespace = match object["metadata"]["namespace"].as_str() {
        Some(own) if is_given && own != namespace => {
            return Err(VerbError::Usage(format!(
                "{KIND} {name} is of namespace {own}, and -n says {namespace}"
            )));
        }
        Some(own) => own.to_owned(),
        None => namespace.to_owned(),
    };
    object["metadata"]["namespace"] = Value::String(namespace.clone());
    let decoded = serde_json::from_value(object.clone());
    Ok(MarkerCandidate {
        namespace,
        name,
        document: object,
        decoded: decoded.map(Box::new).map_err(|error| error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MARKER: &str = "apiVersion: apps.kruise.io/v1alpha1\nkind: PodProbeMarker\nmetadata: {name: m}\nspec: {selector: {}, probes: []}\n";

    fn found(text: &str, is_given: bool) -> String {
        let found = parse_objects(text).and_then(|objects| find_markers(objects, "ns", is_given));
        match found {
            Ok(candidates) => {
                let names = candidates.iter().map(|one| {
                    let state = if one.decoded.is_ok() { "" } else { "!" };
                    format!("{}/{}{state}", one.namespace, one.name)
                });
                names.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[rstest]
    #[case("", "ns/m")]
    #[case("---\n# nothing\n---\napiVersion: v1\nkind: Service\n", "ns/m")]
    #[case(
        "---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: apps.kruise.io/v1alpha1, kind: PodProbeMarker, metadata: {name: n, namespace: o}, spec: 7}\n",
        "ns/m o/n!"
    )]
    #[case(
        "---\nkind: PodProbeMaker\n",
        "there is no kind PodProbeMaker; did you mean PodProbeMarker?"
    )]
    #[case(
        "---\nkind: PodProbeMarker\napiVersion: v1\nmetadata: {name: n}\n",
        "PodProbeMarker n has apiVersion \"v1\"; it is apps.kruise.io/v1alpha1"
    )]
    #[case(
        "---\nkind: PodProbeMarker\napiVersion: apps.kruise.io/v1alpha1\n",
        "a PodProbeMarker has no metadata.name"
    )]
    fn all_markers_of_a_file_are_found(#[case] more: &str, #[case] expected: &str) {
        assert_eq!(found(&format!("{MARKER}{more}"), false), expected);
    }

    #[test]
    fn a_file_without_a_marker_says_what_it_has() {
        assert_eq!(
            found("kind: Service\n---\nkind: Pod\n", false),
            "no PodProbeMarker to try: the file has Service, Pod"
        );
        assert!(found("a: [", false).starts_with("document 1 is no YAML"));
    }

    #[test]
    fn a_namespace_that_is_given_has_to_be_the_markers() {
        let other = MARKER.replace("{name: m}", "{name: m, namespace: other}");
        assert_eq!(found(&other, false), "other/m");
        assert_eq!(
            found(&other, true),
            "PodProbeMarker m is of namespace other, and -n says ns"
        );
    }
}
