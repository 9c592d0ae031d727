//! What a test program's lines mean, as libtest and libtest-mimic both write them.

/// A line of a test program's stdout.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// `running N tests`.
    Announced(usize),
    /// A test ended well.
    Passed(&'a str),
    /// A test failed; its output comes later.
    Failed(&'a str),
    /// A test did not run.
    Skipped(&'a str, &'a str),
    /// The sum: passed, failed, skipped.
    Result(usize, usize, usize),
    Empty,
    /// Anything else: what a test had to say.
    Other(&'a str),
}

impl<'a> Line<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        if text.trim().is_empty() {
            return Self::Empty;
        }
        sum(text)
            .or_else(|| announced(text))
            .or_else(|| one(text))
            .unwrap_or(Self::Other(text))
    }
}

fn announced(text: &str) -> Option<Line<'_>> {
    let count = text
        .strip_prefix("running ")?
        .strip_suffix(" tests")
        .or_else(|| text.strip_prefix("running ")?.strip_suffix(" test"))?;
    count.parse().ok().map(Line::Announced)
}

fn sum(text: &str) -> Option<Line<'_>> {
    let sums = text.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |what: &str| {
        sums.split("; ")
            .find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    Some(Line::Result(
        count("passed")?,
        count("failed")?,
        count("ignored")?,
    ))
}

fn one(text: &str) -> Option<Line<'_>> {
    let (name, outcome) = text.strip_prefix("test ")?.rsplit_once(" ... ")?;
    // libtest-mimic pads names to a common width; libtest says `- should panic` after some.
    let name = name.trim();
    match outcome.split([' ', ',']).next()? {
        "ok" => Some(Line::Passed(name)),
        "FAILED" => Some(Line::Failed(name)),
        "ignored" => {
            let reason = outcome["ignored".len()..].trim_start_matches(',').trim();
            Some(Line::Skipped(
                name,
                reason.trim_start_matches('(').trim_end_matches(')'),
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_harnesses_are_read() {
        for (text, line) in [
            ("running 1 test", Line::Announced(1)),
            ("running 12 tests", Line::Announced(12)),
            ("test a::b ... ok", Line::Passed("a::b")),
            ("test a::b    ... ok", Line::Passed("a::b")),
            (
                "test a::b - should panic ... ok",
                Line::Passed("a::b - should panic"),
            ),
            ("test a ... FAILED", Line::Failed("a")),
            ("test a ... FAILED (boom)", Line::Failed("a")),
            ("test a ... ignored", Line::Skipped("a", "")),
            (
                "test a ... ignored, needs root",
                Line::Skipped("a", "needs root"),
            ),
            (
                "test a ... ignored (needs root)",
                Line::Skipped("a", "needs root"),
            ),
            (
                "test src/lib.rs - x (line 3) ... ok",
                Line::Passed("src/lib.rs - x (line 3)"),
            ),
            (
                "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s",
                Line::Result(3, 1, 2),
            ),
            ("", Line::Empty),
            ("testing, testing", Line::Other("testing, testing")),
            ("test a ... what", Line::Other("test a ... what")),
        ] {
            assert_eq!(Line::of(text), line, "{text}");
        }
    }
}
