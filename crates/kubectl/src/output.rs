//! Table, JSON, YAML or names, to the terminal.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use crate::VerbError;

/// The form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns and sentences
    #[default]
    Table,
    /// The same with more columns, and all names
    Wide,
    /// One JSON object
    Json,
    /// The same as YAML
    Yaml,
    /// KIND/NAME, one a line
    Name,
}

/// Prints text with colours, if standard output is a terminal that has some and `NO_COLOR` is not set.
pub(crate) fn print(text: &str) -> Result<(), VerbError> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a value as JSON or YAML. None for the other formats.
pub(crate) fn structured(
    format: Format,
    value: &impl Serialize,
) -> Option<Result<String, VerbError>> {
    let failed =
        |error: &dyn std::fmt::Display| VerbError::Io(std::io::Error::other(error.to_string()));
    Some(match format {
        Format::Json => {
            let text = serde_json::to_string_pretty(value);
            text.map(|text| text + "\n").map_err(|error| failed(&error))
        }
        Format::Yaml => serde_norway::to_string(value).map_err(|error| failed(&error)),
        Format::Table | Format::Wide | Format::Name => return None,
    })
}
