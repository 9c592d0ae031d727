//! Table, JSON, YAML or names, to the terminal.
//!
//! Whoever may write a marker, or has a pod whose probe prints something, chooses what stands in an answer. A terminal
//! obeys control characters: it would move the cursor, hide lines or answer as if somebody typed (CVE-2021-25743 was
//! this in kubectl). So all that is printed passes [`escape_harmful`].

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write;

use anstream::ColorChoice;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::VerbError;

/// The form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Columns and sentences
    #[default]
    Table,
    /// Like table, with more columns and all names
    Wide,
    /// One JSON object
    Json,
    /// Like json, as YAML
    Yaml,
    /// KIND/NAME, one on each line
    Name,
}

/// Why a watch takes no other format.
pub(crate) const NO_TABLE: &str = "-w shows a table: use -o table or -o wide";

/// The flag for colours.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Colors {
    /// Colour the output; auto does so on a terminal, unless `NO_COLOR` is set
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: ColorWhen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ColorWhen {
    #[default]
    Auto,
    Always,
    Never,
}

impl Colors {
    /// Applies the choice to all that is printed from here on. `auto` is anstream's: it knows `NO_COLOR`, `CLICOLOR`,
    /// `CLICOLOR_FORCE` and `TERM`.
    pub(crate) fn apply_choice(self) {
        let choice = match self.color {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// Prints text, with colours as far as [`Colors`] allows them.
pub(crate) fn print_text(text: &str) -> Result<(), VerbError> {
    let mut out = anstream::stdout().lock();
    out.write_all(escape_harmful(text).as_bytes())?;
    // A reader that has gone is an error here, and unseen where the stream is dropped.
    out.flush()?;
    Ok(())
}

/// Prints a line to standard error.
pub(crate) fn print_remark(line: &str) {
    anstream::eprintln!("{}", escape_harmful(line));
}

/// The codes of [`Style`](anstyle::Style)s in `report`. Text that brings one along can change its colour, and nothing else.
const STYLES: [&str; 5] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[31m",
    "\u{1b}[32m",
    "\u{1b}[33m",
];

/// Text in which all control characters but ends of lines are written as `\uXXXX`, which JSON takes for the same.
pub(crate) fn escape_harmful(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_harmful) {
        let (before, harmful) = rest.split_at(at);
        out.push_str(before);
        let mut styles = STYLES.iter();
        let taken = match styles.find(|style| harmful.starts_with(**style)) {
            Some(style) => {
                out.push_str(style);
                style.len()
            }
            None => harmful.chars().next().map_or(0, |c| {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a String cannot fail");
                c.len_utf8()
            }),
        };
        rest = &harmful[taken..];
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// C0, DEL and C1, and what turns the direction of the text around it (Unicode TR 9, explicit formatting).
fn is_harmful(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints a value as JSON or YAML. None for the other formats.
pub(crate) fn format_structured(
    format: OutputFormat,
    value: &impl Serialize,
) -> Option<Result<String, VerbError>> {
    let failed =
        |error: &dyn std::fmt::Display| VerbError::Io(std::io::Error::other(error.to_string()));
    Some(match format {
        OutputFormat::Json => {
            let text = serde_json::to_string_pretty(value);
            text.map(|text| text + "\n").map_err(|error| failed(&error))
        }
        OutputFormat::Yaml => to_harmless_yaml(value).map_err(|error| failed(&error)),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => return None,
    })
}

/// Objects as `kubectl apply -f -` takes them. None for formats other than JSON and YAML.
pub(crate) fn objects(
    format: OutputFormat,
    objects: &[Value],
) -> Option<Result<String, VerbError>> {
    match (format, objects) {
        (OutputFormat::Yaml, objects) => {
            let documents = objects
                .iter()
                .map(|object| format_structured(format, object))
                .collect::<Option<Result<Vec<_>, _>>>()?;
            Some(documents.map(|documents| documents.join("---\n")))
        }
        (_, [object]) => format_structured(format, object),
        (_, objects) => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
            format_structured(format, &list)
        }
    }
}

/// A value as YAML that [`escape_harmful`] leaves alone. The emitter writes some harmful characters as they are, and has no way to
/// ask for double quotes, in which alone YAML knows the escapes of JSON (YAML 1.2.2, 5.7). So a word stands in for each such text
/// until the document is written.
pub(crate) fn to_harmless_yaml(value: &impl Serialize) -> Result<String, serde_norway::Error> {
    let text = serde_norway::to_string(value)?;
    if !text.contains(is_harmful) {
        return Ok(text);
    }
    let mut standin = "text".to_owned();
    // The word must stand nowhere else: every place of it is replaced.
    while text.contains(&standin) {
        standin.push('-');
    }
    let mut value = serde_norway::to_value(value)?;
    let mut texts = Vec::new();
    replace_harmful(&mut value, &standin, &mut texts);
    let mut yaml = serde_norway::to_string(&value)?;
    for (word, text) in texts {
        let quoted = serde_json::Value::from(text).to_string();
        yaml = yaml.replace(&word, &escape_harmful(&quoted));
    }
    Ok(yaml)
}

/// Puts words in the places of harmful texts. They are returned with their texts.
fn replace_harmful(
    value: &mut serde_norway::Value,
    standin: &str,
    texts: &mut Vec<(String, String)>,
) {
    use serde_norway::Value;
    match value {
        Value::String(text) if text.contains(is_harmful) => {
            let word = format!("{standin}{}-", texts.len());
            texts.push((word.clone(), std::mem::replace(text, word)));
        }
        Value::Sequence(values) => {
            for value in values {
                replace_harmful(value, standin, texts);
            }
        }
        Value::Mapping(pairs) => {
            *pairs = std::mem::take(pairs)
                .into_iter()
                .map(|(mut key, mut value)| {
                    replace_harmful(&mut key, standin, texts);
                    replace_harmful(&mut value, standin, texts);
                    (key, value)
                })
                .collect();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{TextTable, bad, bold, good, row, waiting};

    #[test]
    fn control_characters_are_written_out() {
        for (text, expected) in [
            ("idle\n\tnow é", "idle\n\tnow é"),
            ("\u{1b}]0;title\u{7}", "\\u001b]0;title\\u0007"),
            ("busy\ridle", "busy\\u000didle"),
            ("\u{1b}[2J\u{1b}[8mhidden", "\\u001b[2J\\u001b[8mhidden"),
            ("\u{9b}2J\u{7f}", "\\u009b2J\\u007f"),
            ("\u{202e}abc", "\\u202eabc"),
        ] {
            assert_eq!(escape_harmful(text), expected, "{text:?}");
        }
        let json = serde_json::to_string("\u{1b}\u{9b}\r").unwrap();
        let read: String = serde_json::from_str(&escape_harmful(&json)).unwrap();
        assert_eq!(read, "\u{1b}\u{9b}\r");
    }

    #[test]
    fn a_document_is_harmless_and_has_the_same_values() {
        let value = json!({
            "output": "busy\u{202e}\n\u{9b}2J",
            "text": ["text", "text-0-", "\u{2066}: \"x\"", "\u{1b}[31m\r"],
            "a\u{200f}\u{7f}": {"b": 1.5, "c": null},
        });
        for format in [OutputFormat::Json, OutputFormat::Yaml] {
            let text = format_structured(format, &value)
                .unwrap()
                .unwrap_or_default();
            assert_eq!(
                escape_harmful(&escape_harmful(&text)),
                escape_harmful(&text)
            );
            let read: serde_json::Value = serde_norway::from_str(&escape_harmful(&text)).unwrap();
            assert_eq!(read, value, "{text}");
        }
    }

    #[test]
    fn objects_are_one_document_each_or_a_list() {
        let marker = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker", "metadata": {"name": "a"}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}});
        let both = [marker.clone(), pod.clone()];
        let read = |objects: &[Value]| -> Value {
            let text = super::objects(OutputFormat::Json, objects)
                .unwrap()
                .unwrap();
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(read(&both[..1]), marker);
        assert_eq!(
            read(&both),
            json!({"apiVersion": "v1", "kind": "List", "items": both.clone()})
        );
        let yaml = super::objects(OutputFormat::Yaml, &both).unwrap().unwrap();
        let documents: Vec<Value> = yaml
            .split("---\n")
            .map(|text| serde_norway::from_str(text).unwrap())
            .collect();
        assert_eq!(documents, both);
    }

    #[test]
    fn the_own_styles_stay() {
        let mut table = TextTable::new(&["A"]);
        row!(table => bad("x"));
        row!(table => format!("{}{}{}", good("x"), waiting("x"), bold("x")));
        let text = table.to_text(0, true);
        assert_eq!(escape_harmful(&text), text);
    }
}
