//! JSON as Go's `encoding/json` writes it: fields in the order of their declaration, those that are empty left out, maps
//! sorted, and strings with the escapes of [`cluster::go_json`](crate::cluster::go_json).
//!
//! A hash over such a text is the same only if every byte is, so this follows the declarations (`core_types`) and not
//! the JSON that was read. A field that they lack is written behind the others, by name: it is newer than the
//! declarations, and a change of it must change the hash.

use serde_json::Value;

use super::JsonObject;
use super::quantity::Quantity;
use crate::cluster::go_json::write_string;

/// How Go declares the type of a value.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A text, a number, a boolean, or a list or map of them; whatever has no form of its own.
    Plain,
    /// An amount, which is written in its canonical form.
    Quantity,
    /// A structure.
    Struct(&'static [Field]),
    /// A list.
    List(&'static Form),
    /// A map, whose keys are sorted.
    Map(&'static Form),
}

/// A field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The field's name in JSON.
    pub name: &'static str,
    /// The field's type.
    pub form: Form,
    /// The condition for writing it.
    pub presence: Presence,
}

/// The condition for writing a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Unless it has the zero value of its type (`omitempty`).
    Optional,
    /// Unless it is absent: `omitempty` of a pointer, whose zero value is written.
    Pointer,
    /// Always; the JSON that stands for the absent value.
    Always(&'static str),
}

/// A field that is left out when it is empty.
pub const fn optional(name: &'static str) -> Field {
    Field {
        name,
        form: Form::Plain,
        presence: Presence::Optional,
    }
}

/// A field that is left out when it is absent.
pub const fn pointer(name: &'static str) -> Field {
    Field {
        name,
        form: Form::Plain,
        presence: Presence::Pointer,
    }
}

/// A field that is never left out.
pub const fn always(name: &'static str, absent: &'static str) -> Field {
    Field {
        name,
        form: Form::Plain,
        presence: Presence::Always(absent),
    }
}

impl Field {
    /// The field with a form.
    #[must_use]
    pub const fn of(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

/// A value that has been completed: what Go would hold after reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoValue {
    /// A text, number, boolean or null.
    Scalar(Value),
    /// A list.
    List(Vec<GoValue>),
    /// A structure or a map, in the order in which Go writes it.
    Object(Vec<(String, GoValue)>),
}

/// The order in which the fields of structures are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOrder {
    /// The order of the declaration: a value of the type itself was written.
    Declared,
    /// The order of the names: the value was read into maps first.
    Sorted,
}

impl GoValue {
    /// Reads a value of a form.
    pub fn read(value: &Value, form: Form) -> Self {
        match (form, value) {
            (Form::Quantity, value) => match Quantity::of(value) {
                Some(quantity) => Self::Scalar(quantity.to_string().into()),
                None => Self::plain(value),
            },
            (Form::Struct(fields), Value::Object(object)) => Self::structure(object, &[fields]),
            (Form::Struct(fields), Value::Null) => Self::structure(&JsonObject::new(), &[fields]),
            (Form::List(item), Value::Array(items)) => {
                Self::List(items.iter().map(|value| Self::read(value, *item)).collect())
            }
            (Form::Map(form), Value::Object(object)) => {
                Self::sorted(object, |value| Self::read(value, *form))
            }
            (_, value) => Self::plain(value),
        }
    }

    /// Reads the items of a list of structures.
    pub fn list(items: &[JsonObject], fields: &[&'static [Field]]) -> Self {
        let items = items.iter();
        Self::List(items.map(|item| Self::structure(item, fields)).collect())
    }

    /// Reads a structure, whose fields are those of one table after those of another where one type embeds another.
    pub fn structure(object: &JsonObject, tables: &[&'static [Field]]) -> Self {
        let fields = || tables.iter().copied().flatten();
        let mut written = Vec::new();
        for field in fields() {
            let value = object.get(field.name).unwrap_or(&Value::Null);
            if let Some(value) = Self::field(value, field) {
                written.push((field.name.to_owned(), value));
            }
        }
        let is_known = |key: &str| fields().any(|field| field.name == key);
        let mut unknown: Vec<_> = object
            .iter()
            .filter(|(key, value)| !is_known(key) && !value.is_null())
            .collect();
        unknown.sort_by_key(|(key, _)| *key);
        for (key, value) in unknown {
            written.push((key.clone(), Self::plain(value)));
        }
        Self::Object(written)
    }

    fn field(value: &Value, field: &Field) -> Option<Self> {
        match field.presence {
            Presence::Optional if is_zero(value) => None,
            Presence::Pointer if value.is_null() => None,
            // Go writes the structure although it is empty, with those of its own fields that are
            // always written.
            Presence::Always("{}") if value.is_null() => Some(Self::read(value, field.form)),
            Presence::Always(absent) if value.is_null() => {
                let absent = serde_json::from_str(absent);
                Some(Self::Scalar(absent.expect("the tables contain JSON")))
            }
            _ => Some(Self::read(value, field.form)),
        }
    }

    fn plain(value: &Value) -> Self {
        match value {
            Value::Array(items) => Self::List(items.iter().map(Self::plain).collect()),
            Value::Object(object) => Self::sorted(object, Self::plain),
            scalar => Self::Scalar(scalar.clone()),
        }
    }

    fn sorted(object: &JsonObject, read: impl Fn(&Value) -> Self) -> Self {
        let mut entries: Vec<_> = object
            .iter()
            .map(|(key, value)| (key.clone(), read(value)))
            .collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self::Object(entries)
    }

    /// Removes a field from an object.
    pub fn remove(&mut self, name: &str) {
        if let Self::Object(entries) = self {
            entries.retain(|(key, _)| key != name);
        }
    }

    /// Writes the value.
    pub fn write(&self, order: FieldOrder, text: &mut String) {
        match self {
            Self::Scalar(Value::String(string)) => write_string(string, text),
            Self::Scalar(other) => text.push_str(&other.to_string()),
            Self::List(items) => {
                text.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    item.write(order, text);
                }
                text.push(']');
            }
            Self::Object(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                if order == FieldOrder::Sorted {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                text.push('{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    write_string(key, text);
                    text.push(':');
                    value.write(order, text);
                }
                text.push('}');
            }
        }
    }

    /// The value as a text.
    pub fn to_text(&self, order: FieldOrder) -> String {
        let mut text = String::new();
        self.write(order, &mut text);
        text
    }
}

/// Whether a value is one that `omitempty` leaves out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        // A map: Go leaves no structure out, and the tables have those as `Always` or `Pointer`.
        Value::Object(object) => object.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const INNER: &[Field] = &[always("key", "\"\""), optional("mode")];
    const FIELDS: &[Field] = &[
        optional("zeta"),
        pointer("flag"),
        always("inner", "{}").of(Form::Struct(INNER)),
        always("port", "0"),
        optional("limits").of(Form::Map(&Form::Quantity)),
        optional("items").of(Form::List(&Form::Struct(INNER))),
    ];

    fn written(value: &Value, order: FieldOrder) -> String {
        GoValue::read(value, Form::Struct(FIELDS)).to_text(order)
    }

    // SCS-28
    #[test]
    fn fields_stand_in_the_order_of_their_declaration_and_empty_ones_are_left_out() {
        let value = json!({
            "items": [{"mode": 0, "key": "k"}, null],
            "limits": {"memory": "1024Mi", "cpu": 1},
            "flag": false, "zeta": "", "port": null,
        });
        let declared = r#"{"flag":false,"inner":{"key":""},"port":0,"limits":{"cpu":"1","memory":"1Gi"},"items":[{"key":"k"},{"key":""}]}"#;
        assert_eq!(written(&value, FieldOrder::Declared), declared);
        let sorted = r#"{"flag":false,"inner":{"key":""},"items":[{"key":"k"},{"key":""}],"limits":{"cpu":"1","memory":"1Gi"},"port":0}"#;
        assert_eq!(written(&value, FieldOrder::Sorted), sorted);
    }

    // SDF-30
    #[test]
    fn an_empty_list_and_an_absent_one_are_the_same() {
        for value in [json!({}), json!({"items": []}), json!({"items": null})] {
            let text = r#"{"inner":{"key":""},"port":0}"#;
            assert_eq!(written(&value, FieldOrder::Declared), text);
        }
    }

    // SDF-31
    #[test]
    fn a_field_that_is_newer_than_the_table_is_written_behind_the_others() {
        let value =
            json!({"newer": {"b": [1], "a": "x"}, "later": null, "zeta": "z", "again": false});
        let text =
            r#"{"zeta":"z","inner":{"key":""},"port":0,"again":false,"newer":{"a":"x","b":[1]}}"#;
        assert_eq!(written(&value, FieldOrder::Declared), text);
    }
}
