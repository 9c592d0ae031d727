//! Findings of the checks of `preflight` and of `kubectl leadsman doctor`.

/// The number of items of a long list that are named.
const NAMED: usize = 5;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckResult {
    /// Nothing has to be done.
    Ok,
    /// Information; nothing has to be done.
    Note,
    /// Something that the check needs could not be read.
    Unread,
    /// Something has to be done first.
    Todo,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check, from a fixed list.
    pub check: &'static str,
    /// The result of the check.
    pub result: CheckResult,
    /// The text that says what was found.
    pub message: String,
    /// Things to do, a command or a sentence each.
    pub commands: Vec<String>,
}

impl Finding {
    /// A finding with nothing to do.
    pub fn new(check: &'static str, result: CheckResult, message: impl Into<String>) -> Self {
        Self {
            check,
            result,
            message: message.into(),
            commands: Vec::new(),
        }
    }

    /// Adds something to do.
    #[must_use]
    pub fn with_command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }
}

/// A [`Finding`]: the check, its result, what was found, and after a semicolon what to do. Both are formats.
#[macro_export]
macro_rules! finding {
    ($check:expr, $result:ident => $message:literal $(, $value:expr)* $(; $($command:literal),+)?) => {
        $crate::preflight::Finding::new(
            $check,
            $crate::preflight::CheckResult::$result,
            format!($message $(, $value)*),
        )$($(.with_command(format!($command)))+)?
    };
}

/// The first of a list, and how many more there are.
pub fn name_first_of(all: &[impl AsRef<str>]) -> String {
    let first: Vec<_> = all.iter().take(NAMED).map(AsRef::as_ref).collect();
    match all.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
