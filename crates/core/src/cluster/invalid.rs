//! The faults of an object, and where in it they are. All errors of an object are found in one pass.

use std::fmt;

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Invalid {
    /// The path of the field, as the API server writes it: `spec.probes[0].probe`.
    pub path: String,
    /// The fault in the field.
    pub message: String,
}

/// The errors in one field of an object and below it, like `field.ErrorList` of `k8s.io/apimachinery`.
pub struct FieldErrors<'a> {
    errors: &'a mut Vec<Invalid>,
    path: String,
}

impl<'a> FieldErrors<'a> {
    /// No errors yet in the field at `path`.
    pub fn new(errors: &'a mut Vec<Invalid>, path: impl Into<String>) -> Self {
        Self {
            errors,
            path: path.into(),
        }
    }

    /// A field below this one.
    pub fn field(&mut self, name: &str) -> FieldErrors<'_> {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.below(format_args!("{dot}{name}"))
    }

    /// An item of this list.
    pub fn index(&mut self, index: usize) -> FieldErrors<'_> {
        self.below(format_args!("[{index}]"))
    }

    /// A value of this map.
    pub fn key(&mut self, key: &str) -> FieldErrors<'_> {
        self.below(format_args!("[{key}]"))
    }

    fn below(&mut self, suffix: fmt::Arguments<'_>) -> FieldErrors<'_> {
        FieldErrors {
            path: format!("{}{suffix}", self.path),
            errors: self.errors,
        }
    }

    /// Adds an error in this field.
    pub fn add(&mut self, message: impl Into<String>) {
        self.errors.push(Invalid {
            path: self.path.clone(),
            message: message.into(),
        });
    }

    /// Adds the error of a checked value.
    pub fn check<T>(&mut self, checked: Result<T, String>) -> Option<T> {
        checked.map_err(|message| self.add(message)).ok()
    }

    /// Adds an error if a count is above its limit; `what` is counted.
    pub fn at_most(&mut self, count: usize, limit: usize, what: &str) {
        if count > limit {
            self.add(format!("{count} {what} are more than {limit}"));
        }
    }

    /// Whether a text has no more characters than its limit; adds an error if it has.
    pub fn at_most_chars(&mut self, text: &str, limit: usize) -> bool {
        let count = text.chars().count();
        if count > limit {
            self.add(format!(
                "{count} characters, beginning with {:?}, are more than {limit}",
                text.chars().take(32).collect::<String>()
            ));
        }
        count <= limit
    }
}
