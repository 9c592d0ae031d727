//! The rules that the tests of one source file name, read line by line: the tests are formatted by rustfmt, so an
//! attribute, a comment and a function's head each begin a line.

use std::collections::BTreeSet;

use super::reference::is_id;

/// A test and the rules that it names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The function's name.
    pub(super) name: String,
    /// Where the comment is, counted from 1.
    pub(super) line: usize,
    pub(super) ids: Vec<String>,
}

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) tests: Vec<Named>,
    /// Comments that do not count, with their line and the reason.
    pub(super) findings: Vec<(usize, String)>,
}

/// A comment's ids on their way to the function below it.
struct Scan<'a> {
    is_case: &'a dyn Fn(&str) -> bool,
    found: Found,
    /// Line and ids of the comment that was read last.
    named: Option<(usize, Vec<String>)>,
    /// Among the attributes since the last function is a test's.
    is_test: bool,
    /// Brackets that an attribute of several lines has left open.
    open: usize,
}

/// The tests of a file that name rules. `is_case` says which functions a black-box suite lists as its cases.
pub(super) fn named_rules(source: &str, is_case: &dyn Fn(&str) -> bool) -> Found {
    let mut scan = Scan {
        is_case,
        found: Found::default(),
        named: None,
        is_test: false,
        open: 0,
    };
    for (index, line) in source.lines().enumerate() {
        scan.read(index + 1, line.trim());
    }
    scan.end();
    scan.found
}

impl Scan<'_> {
    fn read(&mut self, number: usize, line: &str) {
        if self.open > 0 || line.starts_with("#[") {
            self.is_test |= self.open == 0 && is_test_attribute(line);
            self.open = brackets(line, self.open);
        } else if line.starts_with("///") || line.starts_with("//!") {
            // A doc comment may stand between.
        } else if let Some(comment) = line.strip_prefix("//") {
            self.read_comment(number, comment);
        } else if let Some(name) = function(line) {
            self.read_function(name);
        } else {
            self.end();
        }
    }

    fn read_comment(&mut self, number: usize, comment: &str) {
        match ids(comment) {
            Ids::None => {}
            Ids::Malformed => {
                let what = format!(
                    "`//{comment}` is not `// PPM-8, DEF-13`: ids, commas and no other word"
                );
                self.found.findings.push((number, what));
            }
            Ids::Some(ids) => {
                let (_, known) = self.named.get_or_insert((number, Vec::new()));
                known.extend(ids);
            }
        }
    }

    fn read_function(&mut self, name: &str) {
        if (self.is_test || (self.is_case)(name))
            && let Some((line, ids)) = self.named.take()
        {
            let name = name.to_owned();
            self.found.tests.push(Named { name, line, ids });
        }
        self.end();
    }

    /// Whatever was read is not above a function any more.
    fn end(&mut self) {
        self.is_test = false;
        if let Some((line, ids)) = self.named.take() {
            let what = format!("{} is not directly above a test or a case", ids.join(", "));
            self.found.findings.push((line, what));
        }
    }
}

/// `module::name` of each `case!(apart module::name)` that a suite lists.
pub(super) fn cases(main: &str) -> BTreeSet<String> {
    let lines = main.lines().map(str::trim);
    let listed = lines.filter_map(|line| line.strip_prefix("case!(")?.split(')').next());
    listed
        .filter_map(|case| case.rsplit(' ').next())
        .map(str::to_owned)
        .collect()
}

enum Ids {
    /// A comment about something else.
    None,
    /// It begins as a list of ids does, or is one of words that are nearly ids.
    Malformed,
    Some(Vec<String>),
}

fn ids(comment: &str) -> Ids {
    let words: Vec<&str> = comment.split(',').map(str::trim).collect();
    if words.iter().all(|word| is_id(word)) {
        return Ids::Some(words.into_iter().map(str::to_owned).collect());
    }
    let mut parts = comment
        .split(|c: char| c.is_whitespace() || ",;:.".contains(c))
        .filter(|part| !part.is_empty())
        .peekable();
    let begins = parts.peek().is_some_and(|first| is_rule_like(first));
    let alike = parts.peek().is_some() && parts.all(is_id_like);
    if begins || alike {
        Ids::Malformed
    } else {
        Ids::None
    }
}

/// Letters and then digits, with or without something between: `PPM8`, `ppm-8`, `PPM_8`.
fn is_id_like(word: &str) -> bool {
    let family = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let letters = family.trim_end_matches(['-', '_']);
    family.len() < word.len()
        && letters.len() == 3
        && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// The same, of a family that there is.
fn is_rule_like(word: &str) -> bool {
    let family = word.get(..3).unwrap_or_default().to_ascii_uppercase();
    is_id_like(word) && ["PPM", "PRB", "DEF"].contains(&family.as_str())
}

/// `#[test]`, `#[tokio::test(…)]`, `#[rstest]`.
fn is_test_attribute(line: &str) -> bool {
    let attribute = line.trim_start_matches("#[");
    let path = attribute.split(['(', ']']).next().unwrap_or_default();
    matches!(path.rsplit("::").next(), Some("test" | "rstest"))
}

/// How many brackets are open after this line, if so many are before it. Those in strings do not count.
fn brackets(line: &str, before: usize) -> usize {
    let (mut open, mut quoted, mut escaped) = (before, false, false);
    for byte in line.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' if !quoted => open += 1,
            b']' if !quoted => open = open.saturating_sub(1),
            _ => {}
        }
    }
    open
}

/// The name of the function whose head begins this line.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let words =
        |word: &str| matches!(word, "async" | "const" | "unsafe") || word.starts_with("pub");
    let name = rest
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (before.split(' ').filter(|word| !word.is_empty()).all(words) && !name.is_empty())
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(name, ids)` of each test, and the lines of the findings.
    fn scanned(lines: &[&str]) -> (Vec<(String, String)>, Vec<usize>) {
        let found = named_rules(&lines.join("\n"), &|name| name == "listed");
        let tests = found.tests.into_iter();
        (
            tests.map(|test| (test.name, test.ids.join(" "))).collect(),
            found.findings.into_iter().map(|(line, _)| line).collect(),
        )
    }

    fn reads(lines: &[&str], name: &str, ids: &str) {
        let expected = (vec![(name.to_owned(), ids.to_owned())], Vec::new());
        assert_eq!(scanned(lines), expected, "{lines:?}");
    }

    #[test]
    fn a_comment_above_a_test_names_its_rules() {
        reads(
            &["    // PPM-8, DEF-13", "    #[test]", "    fn t() {"],
            "t",
            "PPM-8 DEF-13",
        );
        reads(
            &[
                "// PPM-8",
                "#[tokio::test(start_paused = true)]",
                "async fn t() {",
            ],
            "t",
            "PPM-8",
        );
        reads(
            &[
                "// PPM-8",
                "// PRB-1",
                "/// Words.",
                "// Why.",
                "#[test]",
                "fn t() {",
            ],
            "t",
            "PPM-8 PRB-1",
        );
        reads(
            &["// PPM-8", "pub(crate) async fn listed(_: A) {"],
            "listed",
            "PPM-8",
        );
        reads(
            &[
                "/// Words.",
                "// PPM-8",
                "pub(crate) async fn listed(_: A) {",
            ],
            "listed",
            "PPM-8",
        );
    }

    #[test]
    fn attributes_of_many_lines_stand_between() {
        reads(
            &[
                "// PPM-8",
                "#[rstest]",
                "#[case::a(",
                "    \"]\", &[1],",
                ")]",
                "fn t(#[case] a: u8) {",
            ],
            "t",
            "PPM-8",
        );
    }

    #[test]
    fn a_comment_that_stands_above_no_test_is_a_finding() {
        for lines in [
            &["// PPM-8", "fn helper() {"] as &[_],
            &["// PPM-8", "", "#[test]", "fn t() {"],
            &["#[test]", "fn t() {", "    // PPM-8", "    let a = 1;"],
            &["// PPM-8"],
            &["// PPM-8", "pub(crate) async fn unlisted(_: A) {"],
        ] {
            let (tests, findings) = scanned(lines);
            assert_eq!((tests.len(), findings.len()), (0, 1), "{lines:?}");
        }
    }

    #[test]
    fn what_is_nearly_a_list_of_ids_is_a_finding() {
        for comment in [
            "// PPM8",
            "// PPM-8 DEF-13",
            "// PPM-8.",
            "// PPM-8: why",
            "// ppm-8",
            "// PMM8",
            "//PPM-8,",
        ] {
            let (tests, findings) = scanned(&[comment, "#[test]", "fn t() {"]);
            assert_eq!((tests.len(), findings), (0, vec![1]), "{comment}");
        }
        for comment in [
            "// Why.",
            "// as PPM-8 says",
            "// RFC 7386",
            "// KEP-753 says",
            "//",
            "// ---",
        ] {
            let (_, findings) = scanned(&[comment, "#[test]", "fn t() {"]);
            assert_eq!(findings, Vec::<usize>::new(), "{comment}");
        }
    }

    #[test]
    fn a_suites_cases_are_read_from_its_list() {
        let main =
            "    case!(apart budgets::starts),\n    case!(marks::one),\n    // case!(marks::two)\n";
        let expected = ["budgets::starts", "marks::one"].map(str::to_owned);
        assert_eq!(cases(main), expected.into());
    }
}
