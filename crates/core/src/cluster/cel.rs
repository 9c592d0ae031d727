//! Selectors as CEL, in which the API server is told for which objects it has to call a webhook (KEP-3716).

use super::selector::Operator;

/// An expression over `object` that is true where the labels of the object fulfil all requirements. No key and no value
/// has a character that would have to be escaped. `#` stands for an absent label: it is in no value, and of a type with
/// them, without which the expression would not compile.
pub fn labels_match<'a>(requirements: impl IntoIterator<Item = (&'a str, &'a Operator)>) -> String {
    let requirements = requirements.into_iter().map(|(key, operator)| {
        let label = format!("object.metadata.?labels[?'{key}']");
        let is_in = |values: &[_]| format!("{label}.orValue('#') in {}", list(values));
        match operator {
            Operator::In(values) => is_in(values),
            Operator::NotIn(values) => format!("!({})", is_in(values)),
            Operator::Exists => format!("{label}.hasValue()"),
            Operator::DoesNotExist => format!("!{label}.hasValue()"),
        }
    });
    requirements.collect::<Vec<_>>().join(" && ")
}

/// An expression that is true where the object has this annotation.
pub fn has_annotation(key: &str) -> String {
    format!("object.metadata.?annotations[?'{key}'].hasValue()")
}

/// An expression that is true where the object is in one of these namespaces.
pub fn namespace_in(names: &[impl AsRef<str>]) -> String {
    format!("request.namespace in {}", list(names))
}

/// An expression that is true where one of the terms is. None if it is longer than `limit` bytes.
pub fn any(terms: impl IntoIterator<Item = String>, limit: usize) -> Option<String> {
    let mut text = String::new();
    for term in terms {
        if !text.is_empty() {
            text.push_str(" || ");
        }
        text.push_str(&term);
        // The check after each term ensures that no more is put together than can be used.
        if text.len() > limit {
            return None;
        }
    }
    Some(text)
}

fn list(values: &[impl AsRef<str>]) -> String {
    let values: Vec<_> = values.iter().map(AsRef::as_ref).collect();
    format!("['{}']", values.join("', '"))
}
