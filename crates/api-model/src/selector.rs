//! Label and field selectors (`k8s.io/apimachinery/pkg/labels` and `fields`).

use serde_json::{Map, Value};

use crate::request::Call;
use crate::status::Failure;

/// The fields that lists of a kind can be restricted by; those of all kinds first.
const FIELDS: [(&str, &[&str]); 4] = [
    ("", &["metadata.name", "metadata.namespace"]),
    (
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "status.phase",
            "status.podIP",
        ],
    ),
    ("namespaces", &["status.phase"]),
    ("secrets", &["type"]),
];

/// The restriction of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectSelection {
    labels: Vec<LabelRequirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl ObjectSelection {
    pub(crate) fn of_call(call: &Call) -> Result<Self, Failure> {
        let (labels, fields) = (
            call.parameter("labelSelector"),
            call.parameter("fieldSelector"),
        );
        let selection = Self::parse(labels, fields)?;
        let known: Vec<&str> = FIELDS
            .iter()
            .filter(|(plural, _)| plural.is_empty() || *plural == call.plural)
            .flat_map(|(_, fields)| fields.iter().copied())
            .collect();
        match selection
            .fields
            .iter()
            .find(|(path, ..)| !known.contains(&path.as_str()))
        {
            Some((path, ..)) => Err(Failure::bad_request(format!(
                "{path:?} is not a known field selector: only {known:?}"
            ))),
            None => Ok(selection),
        }
    }

    fn parse(labels: &str, fields: &str) -> Result<Self, Failure> {
        let labels = split_outside(labels).into_iter().map(parse_requirement);
        let fields = fields
            .split(',')
            .filter(|term| !term.is_empty())
            .map(|term| {
                let parsed = term
                    .split_once("!=")
                    .map(|(path, value)| (path, false, value))
                    .or_else(|| {
                        term.split_once("==")
                            .map(|(path, value)| (path, true, value))
                    })
                    .or_else(|| {
                        term.split_once('=')
                            .map(|(path, value)| (path, true, value))
                    });
                parsed
                    .map(|(path, equal, value)| (path.trim().to_owned(), equal, value.to_owned()))
                    .ok_or_else(|| {
                        Failure::bad_request(format!(
                            "invalid selector: '{term}'; can't understand '{term}'"
                        ))
                    })
            });
        Ok(Self {
            labels: labels.collect::<Result<_, _>>()?,
            fields: fields.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = object
            .pointer("/metadata/labels")
            .and_then(Value::as_object);
        self.labels
            .iter()
            .all(|requirement| requirement.matches(labels))
            && self.fields.iter().all(|(path, equal, value)| {
                let pointer = format!("/{}", path.replace('.', "/"));
                let found = object
                    .pointer(&pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                (found == value) == *equal
            })
    }
}

/// Whether a `LabelSelector` of an object selects these labels. An absent or empty one selects all.
pub(crate) fn selects(selector: Option<&Value>, labels: Option<&Map<String, Value>>) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    let pairs = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| {
            let value = value.as_str().unwrap_or_default().to_owned();
            LabelRequirement::In(key.clone(), vec![value])
        });
    let expressions = selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|expression| {
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            let values = expression["values"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            match expression["operator"].as_str() {
                Some("In") => LabelRequirement::In(key, values),
                Some("NotIn") => LabelRequirement::NotIn(key, values),
                Some("Exists") => LabelRequirement::Exists(key),
                _ => LabelRequirement::Absent(key),
            }
        });
    pairs
        .chain(expressions)
        .all(|requirement| requirement.matches(labels))
}

impl LabelRequirement {
    fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        let find = |key: &str| labels.and_then(|labels| labels.get(key)?.as_str());
        match self {
            Self::In(key, values) => {
                find(key).is_some_and(|found| values.iter().any(|v| v == found))
            }
            Self::NotIn(key, values) => {
                find(key).is_none_or(|found| values.iter().all(|v| v != found))
            }
            Self::Exists(key) => find(key).is_some(),
            Self::Absent(key) => find(key).is_none(),
        }
    }
}

/// The terms between commas that are not in parentheses.
fn split_outside(text: &str) -> Vec<&str> {
    let (mut terms, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (place, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&text[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[begin..]);
    terms
        .into_iter()
        .map(str::trim)
        .filter(|term| !term.is_empty())
        .collect()
}

fn parse_requirement(term: &str) -> Result<LabelRequirement, Failure> {
    let unreadable = || Failure::bad_request(format!("unable to parse requirement: {term}"));
    let listed = |separator: &str| {
        let (key, values) = term.split_once(separator)?;
        let values = values
            .trim()
            .strip_prefix('(')?
            .strip_suffix(')')?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        Some((key.trim().to_owned(), values))
    };
    if let Some((key, values)) = listed(" notin ") {
        return Ok(LabelRequirement::NotIn(key, values));
    }
    if let Some((key, values)) = listed(" in ") {
        return Ok(LabelRequirement::In(key, values));
    }
    let pair = |(key, value): (&str, &str)| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    if let Some((key, values)) = term.split_once("!=").map(pair) {
        return Ok(LabelRequirement::NotIn(key, values));
    }
    if let Some((key, values)) = term
        .split_once("==")
        .or_else(|| term.split_once('='))
        .map(pair)
    {
        return Ok(LabelRequirement::In(key, values));
    }
    match term.strip_prefix('!') {
        Some(key) => Ok(LabelRequirement::Absent(key.trim().to_owned())),
        None if term.contains(['(', ')', ' ']) => Err(unreadable()),
        None => Ok(LabelRequirement::Exists(term.to_owned())),
    }
}
