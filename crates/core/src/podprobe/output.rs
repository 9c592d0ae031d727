//! The expected output of a probe, the values in it, and texts in which these stand.
//!
//! The node's agent judges the whole output of each run, and its verdict carries the values. The manager judges the message of
//! a verdict without values, as those of providers and of `OpenKruise`'s agent are.

use std::collections::BTreeMap;
use std::sync::Arc;

use leadsman_api::limits;
use leadsman_api::marker as wire;
use regex::{Regex, RegexBuilder};

use super::probe::State;
use crate::cluster::FieldErrors;
use crate::cluster::go_json::stored_bytes;

/// Bytes that an expression may take once it is compiled: `\w` in a few places. It is compiled within a millisecond, on
/// each node again.
const COMPILED_EXPRESSION: usize = 128 * 1024;

/// Named values in an output.
pub type OutputValues = BTreeMap<Arc<str>, Arc<str>>;

/// The expected output of a successful run.
#[derive(Clone, Debug)]
pub struct ExpectedOutput {
    expression: Regex,
    mismatch: State,
}

impl PartialEq for ExpectedOutput {
    fn eq(&self, other: &Self) -> bool {
        self.expression.as_str() == other.expression.as_str() && self.mismatch == other.mismatch
    }
}

impl Eq for ExpectedOutput {}

/// Output that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputMismatch {
    /// The state that it stands for, [`State::Failed`] or [`State::Unknown`].
    pub state: State,
    /// The fault, and the output.
    pub message: String,
}

impl ExpectedOutput {
    /// Reads what is expected.
    ///
    /// Returns None after an error that `report` has: the expression does not compile or is too large, it has too many values, or
    /// the mismatch is no verdict.
    pub fn read(output: &wire::ExpectedOutput, report: &mut FieldErrors<'_>) -> Option<Self> {
        let mismatch = match output.mismatch.as_deref() {
            None | Some("" | "Failed") => State::Failed,
            Some("Unknown") => State::Unknown,
            Some(other) => {
                let message = format!("{other:?} is not one of Failed, Unknown");
                report.field("mismatch").add(message);
                return None;
            }
        };
        let mut report = report.field("matches");
        let text = &output.matches;
        if text.is_empty() {
            report.add("must not be empty");
            return None;
        }
        if !report.at_most_chars(text, limits::OUTPUT_EXPRESSION) {
            return None;
        }
        let compiled = RegexBuilder::new(text)
            .size_limit(COMPILED_EXPRESSION)
            .build()
            .map_err(|error| {
                let whole = error.to_string();
                let error = whole.lines().last().unwrap_or_default();
                format!("{text:?} is not a regular expression: {error}")
            });
        let expression = report.check(compiled)?;
        let names = expression.capture_names().flatten().count();
        report.at_most(names, limits::OUTPUT_VALUES, "values");
        Some(Self {
            expression,
            mismatch,
        })
    }

    /// The form on the wire.
    pub fn to_wire(&self) -> wire::ExpectedOutput {
        wire::ExpectedOutput {
            matches: self.expression.as_str().to_owned(),
            mismatch: Some(self.mismatch.as_str().to_owned()),
        }
    }

    /// Whether it gives a value of this name.
    pub fn has_value(&self, name: &str) -> bool {
        let mut names = self.expression.capture_names().flatten();
        names.any(|known| known == name)
    }

    /// The values in an output. A part that took no part in the match is an empty value.
    ///
    /// # Errors
    ///
    /// Output that does not match, or whose values are too long to be passed on: no value is ever cut.
    pub fn judge(&self, output: &str) -> Result<OutputValues, OutputMismatch> {
        let mismatch = |what: &str| OutputMismatch {
            state: self.mismatch,
            message: format!("{what}: {output}"),
        };
        // The last line of an output often has a line break too.
        let found = self
            .expression
            .captures(output.trim_end())
            .ok_or_else(|| mismatch("the output does not match"))?;
        let names = self.expression.capture_names().flatten();
        let values: OutputValues = names
            .map(|name| {
                let value = found.name(name).map_or("", |part| part.as_str());
                (name.into(), value.into())
            })
            .collect();
        let bytes: usize = values.values().map(|value| stored_bytes(&**value)).sum();
        if bytes > limits::OUTPUT_VALUES_BYTES {
            let most = limits::OUTPUT_VALUES_BYTES;
            return Err(mismatch(&format!(
                "the values in the output take {bytes} bytes, more than {most}"
            )));
        }
        Ok(values)
    }
}

/// A text in which `$(name)` stands for a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueText {
    /// The same for all values.
    Fixed(Arc<str>),
    /// A text with references.
    Filled(Box<[TextPart]>),
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextPart {
    /// Stands for itself.
    Literal(Arc<str>),
    /// Stands for the value of this name.
    Value(Arc<str>),
}

impl ValueText {
    /// Parses a text. `$$(name)` stands for `$(name)`, as in the arguments of a container; a `$` without a name in parentheses
    /// stands for itself.
    pub fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            let escaped = rest.strip_prefix("$$").and_then(split_reference);
            if let Some((name, after)) = escaped {
                literal.extend(["$(", name, ")"]);
                rest = after;
            } else if let Some((name, after)) = rest.strip_prefix('$').and_then(split_reference) {
                if !literal.is_empty() {
                    parts.push(TextPart::Literal(std::mem::take(&mut literal).into()));
                }
                parts.push(TextPart::Value(name.into()));
                rest = after;
            } else {
                literal.push('$');
                rest = &rest[1..];
            }
        }
        literal.push_str(rest);
        if parts.is_empty() {
            return Self::Fixed(literal.into());
        }
        if !literal.is_empty() {
            parts.push(TextPart::Literal(literal.into()));
        }
        Self::Filled(parts.into())
    }

    /// The names of the values that it refers to.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let parts: &[TextPart] = match self {
            Self::Fixed(_) => &[],
            Self::Filled(parts) => parts,
        };
        parts.iter().filter_map(|part| match part {
            TextPart::Literal(_) => None,
            TextPart::Value(name) => Some(name),
        })
    }

    /// The text with these values; one that is missing is empty.
    pub fn fill(&self, values: Option<&OutputValues>) -> Arc<str> {
        self.fill_by(|name| values?.get(name).map(|value| &**value))
    }

    /// The text with the same in place of each value.
    pub fn fill_with(&self, value: &str) -> Arc<str> {
        self.fill_by(|_| Some(value))
    }

    fn fill_by<'s>(&'s self, value: impl Fn(&str) -> Option<&'s str>) -> Arc<str> {
        let parts = match self {
            Self::Fixed(text) => return text.clone(),
            Self::Filled(parts) => parts,
        };
        let texts: Vec<&str> = parts
            .iter()
            .map(|part| match part {
                TextPart::Literal(text) => text,
                TextPart::Value(name) => value(name).unwrap_or_default(),
            })
            .collect();
        texts.concat().into()
    }
}

/// `(name)rest` as `name` and `rest`.
fn split_reference(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.strip_prefix('(')?.split_once(')')?;
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit());
    is_name.then_some((name, rest))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(matches: &str, mismatch: Option<&str>) -> Result<ExpectedOutput, String> {
        let mut errors = Vec::new();
        let output = wire::ExpectedOutput {
            matches: matches.to_owned(),
            mismatch: mismatch.map(str::to_owned),
        };
        let read = ExpectedOutput::read(&output, &mut FieldErrors::new(&mut errors, "output"));
        match errors.first() {
            None => Ok(read.unwrap()),
            Some(error) => Err(error.to_string()),
        }
    }

    // PPM-21
    #[rstest]
    #[case::whole("primary 7\n", Some("primary 7"))]
    #[case::without_an_optional_part("replica", Some("replica "))]
    #[case::another_line("primary 7\nmore", None)]
    #[case::empty("", None)]
    fn the_named_parts_of_an_output_are_its_values(
        #[case] output: &str,
        #[case] expected: Option<&str>,
    ) {
        let expression = "^(?<role>primary|replica)(?: (?<version>[0-9]+))?$";
        let text = ValueText::parse("$(role) $(version)");
        let values = read(expression, None).unwrap().judge(output);
        let filled = values.as_ref().ok();
        let filled = filled.map(|values| text.fill(Some(values)));
        assert_eq!(filled.as_deref(), expected);
        let mismatch = values.err().map(|mismatch| mismatch.state);
        assert_eq!(mismatch.is_some(), expected.is_none());
    }

    // PPM-21
    #[test]
    fn values_are_never_cut() {
        let output = read("(?s)^(?<all>.*)$", Some("Unknown")).unwrap();
        let fits = "x".repeat(limits::OUTPUT_VALUES_BYTES - 2);
        assert_eq!(&*output.judge(&fits).unwrap()["all"], fits);
        // With the quotes and escapes that the API server stores.
        for longer in [format!("{fits}x"), "<".repeat(43)] {
            let mismatch = output.judge(&longer).unwrap_err();
            assert_eq!(mismatch.state, State::Unknown);
            assert!(
                mismatch.message.contains("bytes, more than 256"),
                "{mismatch:?}"
            );
        }
    }

    // PPM-15, PPM-21
    #[rstest]
    #[case("", None, "output.matches: must not be empty")]
    #[case(
        "(",
        None,
        "output.matches: \"(\" is not a regular expression: error: unclosed group"
    )]
    #[case("(?=a)", None, "look-around")]
    #[case(r"(\w{100}){100}", None, "exceeds size limit of 131072")]
    #[case(
        "a",
        Some("Succeeded"),
        "output.mismatch: \"Succeeded\" is not one of Failed, Unknown"
    )]
    #[case(
        "(?<a>)(?<b>)(?<c>)(?<d>)(?<e>)(?<f>)(?<g>)(?<h>)(?<i>)",
        None,
        "values"
    )]
    fn what_cannot_be_expected_is_refused(
        #[case] matches: &str,
        #[case] mismatch: Option<&str>,
        #[case] expected: &str,
    ) {
        let error = read(matches, mismatch).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("plain", "plain")]
    #[case("$(a)", "1")]
    #[case("x-$(a)$(b).y", "x-12.y")]
    #[case("$$(a) $a $ $(", "$(a) $a $ $(")]
    #[case("$$$(a) $(0) $() $(a b)", "$$(a) $(0) $() $(a b)")]
    #[case("[$(none)]", "[]")]
    fn references_stand_for_values(#[case] text: &str, #[case] expected: &str) {
        let values = [("a".into(), "1".into()), ("b".into(), "2".into())].into();
        assert_eq!(&*ValueText::parse(text).fill(Some(&values)), expected);
    }
}
