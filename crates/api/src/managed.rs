//! managedFields, reduced while parsing to the owners of labels, annotations and conditions.
//!
//! The field sets of a pod are most of its bytes, and a tree of values takes many times their length. So they are
//! visited while parsing: paths to other fields are skipped, and of the rest only the last key is kept. A field set of
//! another form than `FieldsV1` (`k8s.io/apimachinery/pkg/apis/meta/v1/types.go`) owns nothing, and is no error.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::wire::null_as_default;

/// A field manager, and the labels, annotations and conditions that it owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldOwner {
    /// The name of the field manager.
    #[serde(deserialize_with = "null_as_default")]
    pub manager: String,
    /// `Apply` or `Update`.
    #[serde(deserialize_with = "null_as_default")]
    pub operation: String,
    /// The subresource that it wrote to; empty for the object itself.
    #[serde(deserialize_with = "null_as_default")]
    pub subresource: String,
    /// The time at which it last wrote one of its fields.
    pub time: Option<Time>,
    /// The fields that it owns.
    #[serde(rename = "fieldsV1")]
    pub owned: Owned,
}

/// The labels, annotations and conditions of a field set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Keys of labels.
    pub labels: Vec<String>,
    /// Keys of annotations.
    pub annotations: Vec<String>,
    /// Types of conditions.
    pub conditions: Vec<String>,
}

impl FieldOwner {
    /// Whether it owns no label, annotation or condition.
    pub fn is_empty(&self) -> bool {
        let owned = &self.owned;
        owned.labels.is_empty() && owned.annotations.is_empty() && owned.conditions.is_empty()
    }
}

/// A level of a field set, as far as it leads to labels, annotations and conditions.
#[derive(Clone, Copy)]
enum FieldSetLevel {
    Root,
    Metadata,
    Status,
    Labels,
    Annotations,
    Conditions,
}

impl FieldSetLevel {
    /// Records a key that is a label, an annotation or a condition; returns the level below any other, if it leads to some.
    fn descend(self, key: &str, owned: &mut Owned) -> Option<Self> {
        let field = key.strip_prefix("f:");
        match (self, field) {
            (Self::Root, Some("metadata")) => return Some(Self::Metadata),
            (Self::Root, Some("status")) => return Some(Self::Status),
            (Self::Metadata, Some("labels")) => return Some(Self::Labels),
            (Self::Metadata, Some("annotations")) => return Some(Self::Annotations),
            (Self::Status, Some("conditions")) => return Some(Self::Conditions),
            (Self::Labels, Some(label)) => owned.labels.push(label.to_owned()),
            (Self::Annotations, Some(annotation)) => owned.annotations.push(annotation.to_owned()),
            (Self::Conditions, _) => owned.conditions.extend(condition_type(key)),
            _ => {}
        }
        None
    }
}

/// The type in an associative key such as `k:{"type":"Ready"}`.
fn condition_type(key: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct AssociativeKey<'a> {
        #[serde(borrow, rename = "type")]
        type_: Cow<'a, str>,
    }
    let key = serde_json::from_str::<AssociativeKey<'_>>(key.strip_prefix("k:")?);
    key.ok().map(|key| key.type_.into_owned())
}

impl<'de> Deserialize<'de> for Owned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut owned = Self::default();
        let walk = FieldSetWalk {
            level: FieldSetLevel::Root,
            owned: &mut owned,
        };
        walk.deserialize(deserializer)?;
        Ok(owned)
    }
}

/// The visitor of a map at a level.
struct FieldSetWalk<'a> {
    level: FieldSetLevel,
    owned: &'a mut Owned,
}

impl<'de> DeserializeSeed<'de> for FieldSetWalk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSetWalk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(below) = map.next_key_seed(FieldKey {
            level: self.level,
            owned: &mut *self.owned,
        })? {
            match below {
                Some(level) => map.next_value_seed(FieldSetWalk {
                    level,
                    owned: &mut *self.owned,
                })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<(), S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// The visitor of a key, which is not kept.
struct FieldKey<'a> {
    level: FieldSetLevel,
    owned: &'a mut Owned,
}

impl<'de> DeserializeSeed<'de> for FieldKey<'_> {
    type Value = Option<FieldSetLevel>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldKey<'_> {
    type Value = Option<FieldSetLevel>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.level.descend(key, self.owned))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn read(entry: &Value) -> FieldOwner {
        serde_json::from_str(&entry.to_string()).unwrap()
    }

    #[test]
    fn an_entry_is_reduced_to_labels_annotations_and_conditions() {
        let kubelet = json!({
            "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-01-02T03:04:05Z",
            "fieldsType": "FieldsV1", "subresource": "status",
            "fieldsV1": {
                "f:metadata": {
                    ".": {}, "f:labels": { ".": {}, "f:app": {}, "f:a.b/c": {} },
                    "f:annotations": { "f:k8s.io/x": {} }, "f:ownerReferences": { ".": {}, "k:{\"uid\":\"u\"}": {} },
                },
                "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": { "f:labels": { "f:no": {} } } } },
                "f:status": {
                    "f:conditions": {
                        ".": {}, "k:{\"type\":\"Ready\"}": { ".": {}, "f:status": {}, "f:labels": { "f:no": {} } },
                        "k:{\"type\":\"game.io/idle\"}": {},
                    },
                    "f:podIPs": { "k:{\"ip\":\"10.0.0.1\"}": {} },
                },
            },
        });
        let owner = read(&kubelet);
        let expected = FieldOwner {
            manager: "kubelet".into(),
            operation: "Update".into(),
            subresource: "status".into(),
            time: Some(Time("2026-01-02T03:04:05Z".parse().unwrap())),
            owned: Owned {
                // serde_json's map is sorted; the wire's order is kept.
                labels: vec!["a.b/c".into(), "app".into()],
                annotations: vec!["k8s.io/x".into()],
                conditions: vec!["Ready".into(), "game.io/idle".into()],
            },
        };
        assert_eq!(owner, expected);
        assert!(!owner.is_empty());
    }

    #[rstest]
    #[case::nothing(json!({}), json!([[], [], []]))]
    #[case::null(Value::Null, json!([[], [], []]))]
    #[case::a_number(json!(7), json!([[], [], []]))]
    #[case::below_zero(json!(-7.5), json!([[], [], []]))]
    #[case::a_text(json!("f:metadata"), json!([[], [], []]))]
    #[case::a_list(json!([{ "f:metadata": { "f:labels": { "f:a": {} } } }]), json!([[], [], []]))]
    #[case::metadata_that_is_a_list(json!({ "f:metadata": [1, [2], {}] }), json!([[], [], []]))]
    #[case::labels_that_are_true(json!({ "f:metadata": { "f:labels": true, "f:annotations": { "f:a": {} } } }), json!([[], ["a"], []]))]
    #[case::a_key_without_prefix(json!({ "f:metadata": { "f:labels": { "a": {}, "v:b": {}, "f:c": 3 } } }), json!([["c"], [], []]))]
    #[case::an_empty_key(json!({ "f:metadata": { "f:labels": { "f:": {}, "": {} } } }), json!([[""], [], []]))]
    #[case::escapes(
        json!({ "f:metadata": { "f:annotations": { "f:a\"b\\c\u{e9}\n": {} } },
                "f:status": { "f:conditions": { "k:{\"type\":\"q\\\"\\u00e9\"}": {} } } }),
        json!([[], ["a\"b\\c\u{e9}\n"], ["q\"\u{e9}"]])
    )]
    #[case::conditions_by_other_keys(
        json!({ "f:status": { "f:conditions": {
            "k:{\"type\":7}": {}, "k:{\"kind\":\"x\"}": {}, "k:{\"type\":\"a\",\"more\":1}": {}, "k:nonsense": {},
            "v:{\"type\":\"x\"}": {}, "f:type": {},
        } } }),
        json!([[], [], ["a"]])
    )]
    fn unexpected_fields_own_nothing(#[case] fields: Value, #[case] expected: Value) {
        let owned = read(&json!({ "manager": "m", "fieldsV1": fields })).owned;
        let found = json!([owned.labels, owned.annotations, owned.conditions]);
        assert_eq!(found, expected);
    }

    #[test]
    fn null_and_absent_fields_are_empty() {
        for entry in [
            json!({}),
            json!({ "manager": null, "operation": null, "subresource": null, "fieldsV1": null }),
        ] {
            assert_eq!(read(&entry), FieldOwner::default());
            assert!(read(&entry).is_empty());
        }
    }
}
