//! Templates that are passed on as they were written.

use std::sync::Arc;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::limits::TEMPLATE_BYTES;

/// A JSON object as its text: as a tree of values, a hostile one takes ninety times as much memory. Of one that is longer than
/// [`TEMPLATE_BYTES`] nothing but its length is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verbatim(Result<Arc<str>, usize>);

/// A template of which nothing can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableTemplate {
    /// Too many bytes.
    #[error("it has {0} bytes of JSON, more than {TEMPLATE_BYTES}")]
    TooLong(usize),
    /// Text that cannot be read, as it is nested too deeply.
    #[error("{0}")]
    Invalid(String),
}

impl Verbatim {
    /// The object.
    pub fn read(&self) -> Result<Map<String, Value>, UnreadableTemplate> {
        let kept = self.0.as_ref();
        let text = kept.map_err(|bytes| UnreadableTemplate::TooLong(*bytes))?;
        serde_json::from_str(text).map_err(|error| UnreadableTemplate::Invalid(error.to_string()))
    }
}

impl Default for Verbatim {
    fn default() -> Self {
        Self(Ok("{}".into()))
    }
}

impl<'de> Deserialize<'de> for Verbatim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = raw.get();
        if !text.starts_with('{') {
            return Err(D::Error::custom("a template is an object"));
        }
        let is_kept = text.len() <= TEMPLATE_BYTES;
        Ok(Self(is_kept.then(|| text.into()).ok_or(text.len())))
    }
}

impl Serialize for Verbatim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.read().map_err(S::Error::custom)?.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_is_what_it_was_and_a_long_one_is_refused_when_it_is_read() {
        let of_length = |length: usize| json!({"a": "x".repeat(length - r#"{"a":""}"#.len())});
        for (wire, is_kept) in [
            (json!({}), true),
            (json!({"spec": {"b": [1, null, "<"]}}), true),
            (of_length(TEMPLATE_BYTES), true),
            (of_length(TEMPLATE_BYTES + 1), false),
        ] {
            let from_text: Verbatim = serde_json::from_str(&wire.to_string()).unwrap();
            let template: Verbatim = serde_json::from_value(wire.clone()).unwrap();
            assert_eq!(from_text, template);
            let expected = if is_kept {
                Ok(wire.as_object().unwrap().clone())
            } else {
                Err(UnreadableTemplate::TooLong(TEMPLATE_BYTES + 1))
            };
            assert_eq!(template.read(), expected);
            assert_eq!(
                serde_json::to_value(&template).ok(),
                is_kept.then_some(wire)
            );
        }
        assert!(serde_json::from_str::<Verbatim>("[1]").is_err());
    }
}
