//! A JSON merge patch (RFC 7396) of a text, as the library of `OpenKruise` makes it (`evanphx/json-patch`, `merge.go`): what
//! the patch does not touch keeps its numbers, escapes and order, and what it touches is sorted.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;

use crate::cluster::go_json::{write_escaped, write_string};
use crate::cluster::truncate;

/// Why a patch cannot be applied, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The value that is there, shortened.
    #[error(
        "MergePatchJson cannot merge into its value {0:?}, which is null or no JSON; make the value a JSON object where the pod \
         is created, or use patchPolicy Overwrite"
    )]
    Present(String),
    /// The patch, shortened.
    #[error(
        "{0:?} is no JSON object or array, as MergePatchJson needs; an example is '{{\"level\": \"info\"}}'"
    )]
    Patch(String),
    /// Either of the two.
    #[error("the value or the patch is nested more than {MOST_LEVELS} levels deep")]
    Nesting,
    /// The annotations of the pod, patched, are too large.
    #[error(
        "with the patch, the annotations of the pod would have more than 256 KiB, which the API server refuses; shorten the \
         patch or the pod's other annotations"
    )]
    TooLarge,
}

/// Bytes of a value that an error quotes.
const LONGEST_QUOTE: usize = 60;

fn quote(text: &str) -> String {
    truncate(text, LONGEST_QUOTE).to_owned()
}

/// Levels of objects and lists that are descended into.
const MOST_LEVELS: usize = 64;

/// A value that is taken apart only where the patch does.
enum LazyNode {
    Raw(Box<RawValue>),
    Object(Members),
    List(Vec<Option<LazyNode>>),
}

/// Values by key; None is null.
type Members = BTreeMap<String, Option<LazyNode>>;

impl LazyNode {
    fn raw(value: Option<Box<RawValue>>) -> Option<Self> {
        value.map(Self::Raw)
    }
}

/// A key as Go reads it: half of a surrogate pair, which JSON can write and no text can have, becomes U+FFFD (`unquoteBytes`,
/// `encoding/json/decode.go`).
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct GoKey(String);

impl<'de> Deserialize<'de> for GoKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Decoding such a key as text would be an error.
        deserializer.deserialize_bytes(GoKeyVisitor)
    }
}

struct GoKeyVisitor;

impl Visitor<'_> for GoKeyVisitor {
    type Value = GoKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        let mut key = String::new();
        for chunk in bytes.utf8_chunks() {
            key.push_str(chunk.valid());
            // Half of a pair comes as three bytes, which are three chunks; of these only the first is no continuation.
            if chunk.invalid().first() == Some(&0xED) {
                key.push(char::REPLACEMENT_CHARACTER);
            }
        }
        Ok(GoKey(key))
    }
}

fn read_object(text: &str) -> Option<Members> {
    let object: BTreeMap<GoKey, Option<Box<RawValue>>> = serde_json::from_str(text).ok()?;
    let entries = object.into_iter();
    Some(
        entries
            .map(|(GoKey(key), value)| (key, LazyNode::raw(value)))
            .collect(),
    )
}

fn read_list(text: &str) -> Option<Vec<Option<LazyNode>>> {
    let list: Vec<Option<Box<RawValue>>> = serde_json::from_str(text).ok()?;
    Some(list.into_iter().map(LazyNode::raw).collect())
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Checks that a text can be a patch of a value that is there.
pub(super) fn check_patch(patch: &str) -> Result<(), MergeError> {
    merge("{}", patch).map(drop)
}

/// A present value with a patch applied.
///
/// # Errors
///
/// The value is null or no JSON, or the patch is neither an object nor a list.
pub fn merge(present: &str, patch: &str) -> Result<String, MergeError> {
    // The library fails on such a value, upon which `OpenKruise` refuses the pod; here the
    // annotation stays as it is.
    if !is_json(present) || present.trim() == "null" {
        return Err(MergeError::Present(quote(present)));
    }
    let mut text = String::new();
    match (read_object(present), read_object(patch)) {
        (Some(mut object), Some(patch)) => {
            merge_objects(&mut object, patch, 1)?;
            write(&LazyNode::Object(object), &mut text);
        }
        (None, Some(mut patch)) => {
            drop_nulls(&mut patch, 1)?;
            write(&LazyNode::Object(patch), &mut text);
        }
        (_, None) => {
            // A list takes the place of whatever is there. So would a text or a number by RFC 7396,
            // but to the library these are no patch.
            let mut list = read_list(patch).ok_or_else(|| MergeError::Patch(quote(patch)))?;
            for item in list.iter_mut().flatten() {
                drop_nulls_below(item, 1)?;
            }
            write(&LazyNode::List(list), &mut text);
        }
    }
    Ok(text)
}

fn merge_objects(object: &mut Members, patch: Members, level: usize) -> Result<(), MergeError> {
    check_level(level)?;
    for (key, value) in patch {
        let Some(mut value) = value else {
            object.remove(&key);
            continue;
        };
        let merged = match object.remove(&key).flatten() {
            None => {
                drop_nulls_below(&mut value, level + 1)?;
                value
            }
            Some(present) => merge_nodes(present, value, level + 1)?,
        };
        object.insert(key, Some(merged));
    }
    Ok(())
}

fn merge_nodes(present: LazyNode, patch: LazyNode, level: usize) -> Result<LazyNode, MergeError> {
    let into_object = |node: LazyNode| match node {
        LazyNode::Raw(raw) => read_object(raw.get()).ok_or(LazyNode::Raw(raw)),
        LazyNode::Object(object) => Ok(object),
        list @ LazyNode::List(_) => Err(list),
    };
    match (into_object(present), into_object(patch)) {
        (Ok(mut object), Ok(patch)) => {
            merge_objects(&mut object, patch, level)?;
            Ok(LazyNode::Object(object))
        }
        // Here the library looks for no nulls, not in the objects of a list either (`merge`,
        // `merge.go`).
        (Ok(_), Err(patch)) => Ok(patch),
        (Err(_), Ok(patch)) => {
            let mut patch = LazyNode::Object(patch);
            drop_nulls_below(&mut patch, level)?;
            Ok(patch)
        }
        (Err(_), Err(mut patch)) => {
            drop_nulls_below(&mut patch, level)?;
            Ok(patch)
        }
    }
}

fn drop_nulls(object: &mut Members, level: usize) -> Result<(), MergeError> {
    check_level(level)?;
    object.retain(|_, value| value.is_some());
    for value in object.values_mut().flatten() {
        drop_nulls_below(value, level + 1)?;
    }
    Ok(())
}

/// Drops nulls from objects in a value that the patch adds. In lists they stay.
fn drop_nulls_below(node: &mut LazyNode, level: usize) -> Result<(), MergeError> {
    check_level(level)?;
    if let LazyNode::Raw(raw) = node {
        if let Some(object) = read_object(raw.get()) {
            *node = LazyNode::Object(object);
        } else if let Some(list) = read_list(raw.get()) {
            *node = LazyNode::List(list);
        }
    }
    match node {
        LazyNode::Raw(_) => Ok(()),
        LazyNode::Object(object) => drop_nulls(object, level),
        LazyNode::List(list) => list
            .iter_mut()
            .flatten()
            .try_for_each(|item| drop_nulls_below(item, level + 1)),
    }
}

fn check_level(level: usize) -> Result<(), MergeError> {
    if level > MOST_LEVELS {
        return Err(MergeError::Nesting);
    }
    Ok(())
}

fn write(node: &LazyNode, text: &mut String) {
    match node {
        LazyNode::Raw(raw) => write_compact(raw.get(), text),
        LazyNode::Object(object) => {
            text.push('{');
            for (index, (key, value)) in object.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_string(key, text);
                text.push(':');
                write_or_null(value.as_ref(), text);
            }
            text.push('}');
        }
        LazyNode::List(list) => {
            text.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_or_null(item.as_ref(), text);
            }
            text.push(']');
        }
    }
}

fn write_or_null(node: Option<&LazyNode>, text: &mut String) {
    match node {
        Some(node) => write(node, text),
        None => text.push_str("null"),
    }
}

/// Writes JSON without blanks, and with the escapes that Go adds to what it copies (`appendCompact` in
/// `encoding/json/indent.go`).
fn write_compact(json: &str, text: &mut String) {
    let mut is_string = false;
    let mut is_escaped = false;
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write_escaped(c, text);
            }
            ' ' | '\t' | '\n' | '\r' if !is_string => {}
            c => text.push(c),
        }
        is_string ^= c == '"' && !is_escaped;
        is_escaped = is_string && c == '\\' && !is_escaped;
    }
}
