//! JSON as Go's `encoding/json` writes it: `<`, `>`, `&` and two line separators are escaped.
//!
//! The API server stores custom resources in that form (`unstructuredJSONScheme.doEncode` in
//! `k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/helpers.go` calls `json.NewEncoder`), so a text of `<` takes six
//! times the bytes in etcd that serde writes of it. Whatever has to fit into a custom resource is measured here.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Writes a character by its number.
pub fn write_escaped(c: char, text: &mut String) {
    text.push_str("\\u");
    for shift in [12, 8, 4, 0] {
        let digit = (u32::from(c) >> shift) & 0xf;
        text.extend(char::from_digit(digit, 16));
    }
}

/// Writes a string with the escapes of Go 1.22 and later (`appendString` in `encoding/json/encode.go`).
pub fn write_string(string: &str, text: &mut String) {
    text.push('"');
    for c in string.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                write_escaped(c, text);
            }
            _ => text.push(c),
        }
    }
    text.push('"');
}

/// The bytes of a value in a custom resource as the API server stores it. They are counted and not built: a status of
/// hundreds of kilobytes is measured for each write.
pub fn stored_bytes(value: &(impl Serialize + ?Sized)) -> usize {
    let mut count = ByteCount(0);
    let mut serializer = Serializer::with_formatter(&mut count, GoEscapes);
    value
        .serialize(&mut serializer)
        .expect("what is measured has texts as keys, and counting does not fail");
    count.0
}

/// Adds Go's escapes to those of serde, which have the same length as Go's.
struct GoEscapes;

impl Formatter for GoEscapes {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        // 0xe2 begins both line separators. Bytes are compared many times faster than characters.
        let is_escaped = |byte: u8| matches!(byte, b'<' | b'>' | b'&' | 0xe2);
        if !fragment.bytes().any(is_escaped) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some(place) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, escaped) = rest.split_at(place);
            writer.write_all(plain.as_bytes())?;
            writer.write_all(br"\u0000")?;
            let next = escaped.chars().next().map_or(0, char::len_utf8);
            rest = &escaped[next..];
        }
        writer.write_all(rest.as_bytes())
    }
}

struct ByteCount(usize);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    // SCS-28
    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        let mut text = String::new();
        write_string(
            "a<b>&\u{2028}\u{2029}\"\\\n\r\t\u{8}\u{c}\u{1}\u{1f}\u{7f}ä😀/",
            &mut text,
        );
        assert_eq!(
            text,
            "\"a\\u003cb\\u003e\\u0026\\u2028\\u2029\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\u{7f}ä😀/\""
        );
    }

    #[test]
    fn a_value_is_measured_as_go_writes_it() {
        let value = json!({"a<": ["<>&", null, true, 1.5], "b": {"c": "\u{2028}ä\n"}});
        let text = r#"{"a\u003c":["\u003c\u003e\u0026",null,true,1.5],"b":{"c":"\u2028ä\n"}}"#;
        assert_eq!(stored_bytes(&value), text.len());
    }

    proptest! {
        #[test]
        fn a_string_is_measured_as_it_is_written(
            string in "([<>&\u{2028}\u{2029}\"\\\\\u{0}-\u{1f}aé😀]|.){0,40}"
        ) {
            let mut text = String::new();
            write_string(&string, &mut text);
            prop_assert_eq!(stored_bytes(&string), text.len());
        }
    }
}
