//! Single fields of a JSON object, read where they stand. Pods are compared with their sets at each event, of which trees of
//! values for all that their annotations record would be most of the cost.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The value of a field; None if there is none, or no object.
pub(super) fn field<'a>(object: &'a str, name: &str) -> Option<&'a RawValue> {
    let [value] = fields(object, [name])?;
    value
}

/// The values of fields; None if there is no object. Of two fields of one name the later counts.
pub(super) fn fields<'a, const N: usize>(
    object: &'a str,
    names: [&str; N],
) -> Option<[Option<&'a RawValue>; N]> {
    let mut json = serde_json::Deserializer::from_str(object);
    let values = json.deserialize_map(Fields(names)).ok()?;
    // An object with text behind it is not JSON: reading the annotation as a whole fails too.
    json.end().ok()?;
    Some(values)
}

/// The text that a value is.
pub(super) fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct EntryText<'a>(#[serde(borrow)] Cow<'a, str>);
    let text = value.get().starts_with('"').then_some(value.get())?;
    serde_json::from_str(text).ok().map(|EntryText(text)| text)
}

struct Fields<'n, const N: usize>([&'n str; N]);

impl<'a, const N: usize> Visitor<'a> for Fields<'_, N> {
    type Value = [Option<&'a RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut values = [None; N];
        while let Some(place) = map.next_key_seed(Place(&self.0))? {
            match place {
                Some(place) => values[place] = Some(map.next_value()?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(values)
    }
}

/// The place of a key among names.
struct Place<'n>(&'n [&'n str]);

impl<'a> DeserializeSeed<'a> for Place<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'a>>(self, key: D) -> Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Place<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| *name == key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_stands_beside_them() {
        let object = r#" {"a": {"b": [1, "}"]}, "n\u0061me": "x\ny", "c": null, "a": 7} "#;
        let [name, a, other] = fields(object, ["name", "a", "other"]).unwrap();
        assert_eq!(name.and_then(text_of).as_deref(), Some("x\ny"));
        assert_eq!(a.map(RawValue::get), Some("7"));
        assert!(other.is_none());
        assert_eq!(a.and_then(text_of), None);
    }

    #[test]
    fn what_is_no_object_has_no_fields() {
        for text in [
            "",
            "no json",
            "[]",
            "null",
            r#"{"a":}"#,
            r#"{"a":1"#,
            r#"{"a":1}}"#,
        ] {
            assert!(fields(text, ["a"]).is_none(), "{text}");
        }
    }
}
