//! What is wrong with an object, and where in it. All errors of an object are found in one pass.

use std::fmt;

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Invalid {
    /// Where, as the API server writes it: `spec.probes[0].probe`.
    pub path: String,
    /// What.
    pub message: String,
}

/// Collects errors below one place of an object.
pub(super) struct Report<'a> {
    errors: &'a mut Vec<Invalid>,
    path: String,
}

impl<'a> Report<'a> {
    pub(super) fn new(errors: &'a mut Vec<Invalid>, path: impl Into<String>) -> Self {
        Self {
            errors,
            path: path.into(),
        }
    }

    /// The place of a field of this one.
    pub(super) fn field(&mut self, name: &str) -> Report<'_> {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.below(format_args!("{dot}{name}"))
    }

    /// The place of an item of this list.
    pub(super) fn index(&mut self, index: usize) -> Report<'_> {
        self.below(format_args!("[{index}]"))
    }

    /// The place of a value of this map.
    pub(super) fn key(&mut self, key: &str) -> Report<'_> {
        self.below(format_args!("[{key}]"))
    }

    fn below(&mut self, suffix: fmt::Arguments<'_>) -> Report<'_> {
        Report {
            path: format!("{}{suffix}", self.path),
            errors: self.errors,
        }
    }

    pub(super) fn add(&mut self, message: impl Into<String>) {
        self.errors.push(Invalid {
            path: self.path.clone(),
            message: message.into(),
        });
    }

    /// Adds the complaint of a checked value.
    pub(super) fn check<T>(&mut self, checked: Result<T, String>) -> Option<T> {
        checked.map_err(|message| self.add(message)).ok()
    }

    pub(super) fn at_most(&mut self, count: usize, limit: usize, what: &str) {
        if count > limit {
            self.add(format!("{count} {what} are more than {limit}"));
        }
    }

    pub(super) fn at_most_chars(&mut self, text: &str, limit: usize) {
        let count = text.chars().count();
        if count > limit {
            self.add(format!(
                "{count} characters, beginning with {:?}, are more than {limit}",
                text.chars().take(32).collect::<String>()
            ));
        }
    }
}
