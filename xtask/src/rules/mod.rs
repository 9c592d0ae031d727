//! `cargo xtask rules`: which test proves which rule.
//!
//! The rules are the headings of the pages in [`REFERENCES`]. A test names the rules that it would fail without in a line comment of
//! its own, above its attributes: `// PPM-8, DEF-13`. A rule without a test fails, as does a comment that names no rule or stands above
//! no test.

mod reference;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::reference::Rule;
use self::scan::Named;
use crate::{cargo, sources};

/// Where the rules are listed, from the workspace's folder.
const REFERENCES: [&str; 5] = [
    "docs/reference.md",
    "docs/reference/advancedcronjob.md",
    "docs/reference/broadcastjob.md",
    "docs/reference/cloneset.md",
    "docs/reference/sidecarset.md",
];
/// Files that list the cases of a black-box suite: their functions have no test attribute.
const SUITES: [&str; 3] = ["tests/api", "tests/node", "tests/install"];

/// Arguments of `rules`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How the table is printed
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// What follows from the reference and the sources.
struct Table {
    rules: Vec<Rule>,
    /// Tests as `path::name`, by the rule's id.
    tests: BTreeMap<String, BTreeSet<String>>,
    /// What is to be done, a line each.
    findings: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let table = read_table()?;
    match arguments.output {
        Output::Text => print!("{}", table.text()),
        Output::Json => println!("{:#}", table.json()),
    }
    if table.findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("\nto do:");
    for finding in &table.findings {
        eprintln!("  {finding}");
    }
    Ok(ExitCode::FAILURE)
}

/// What is to be done, a line each.
pub(crate) fn findings() -> Result<Vec<String>> {
    Ok(read_table()?.findings)
}

/// Reads the reference and every Rust file of the workspace.
fn read_table() -> Result<Table> {
    let root = cargo::root().canonicalize()?;
    let mut text = String::new();
    for place in REFERENCES {
        text += &std::fs::read_to_string(root.join(place)).context(place)?;
    }
    let places = REFERENCES.join(", ");
    let rules = reference::rules(&text).map_err(|line| anyhow::anyhow!("{places}: {line}"))?;
    if rules.is_empty() {
        bail!("{places} list no rule");
    }
    let mut suites = BTreeMap::new();
    for suite in SUITES {
        let main = std::fs::read_to_string(root.join(suite).join("main.rs")).context(suite)?;
        suites.insert(suite, scan::cases(&main));
    }
    let mut tests = Vec::new();
    let mut findings = Vec::new();
    for file in sources::rust_files(&root, &|_| false)? {
        let path = file.strip_prefix(&root).unwrap_or(&file);
        let path = path.display().to_string();
        let source = std::fs::read_to_string(&file).with_context(|| path.clone())?;
        let is_case = |name: &str| {
            suites.iter().any(|(suite, cases)| {
                // A module may have its cases in files of a folder; the list has them by its own name.
                let module = path
                    .strip_suffix(".rs")
                    .and_then(|it| it.strip_prefix(suite));
                let module = module.and_then(|it| it.strip_prefix('/')?.split('/').next());
                module.is_some_and(|module| cases.contains(&format!("{module}::{name}")))
            })
        };
        let found = scan::named_rules(&source, &is_case);
        tests.extend(found.tests.into_iter().map(|test| (path.clone(), test)));
        let places = found.findings.into_iter();
        findings.extend(places.map(|(line, what)| format!("{path}:{line}: {what}")));
    }
    Ok(Table::of(rules, tests, findings))
}

impl Table {
    /// Joins rules with the tests that name them.
    fn of(rules: Vec<Rule>, named: Vec<(String, Named)>, mut findings: Vec<String>) -> Self {
        let mut tests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, test) in named {
            for id in test.ids {
                if rules.iter().any(|rule| rule.id == id) {
                    let test = format!("{path}::{}", test.name);
                    tests.entry(id).or_default().insert(test);
                } else {
                    let line = test.line;
                    let places = REFERENCES.join(" nor ");
                    findings.push(format!("{path}:{line}: neither {places} lists {id}"));
                }
            }
        }
        for Rule { id, planned, .. } in &rules {
            match (planned, tests.contains_key(id)) {
                (false, false) => findings.push(format!(
                    "no test names {id}; write `// {id}` above one that fails without it"
                )),
                (true, true) => findings.push(format!(
                    "{id} is planned, and a test names it; take `(planned)` away in its heading, or the id from the test"
                )),
                _ => {}
            }
        }
        Self {
            rules,
            tests,
            findings,
        }
    }

    fn tests_of(&self, id: &str) -> impl Iterator<Item = &str> {
        let tests = self.tests.get(id).into_iter().flatten();
        tests.map(String::as_str)
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for rule in &self.rules {
            let planned = if rule.planned { " (planned)" } else { "" };
            lines.push(format!("{:<7} {}{planned}", rule.id, rule.title));
            lines.extend(
                self.tests_of(&rule.id)
                    .map(|test| format!("        {test}")),
            );
        }
        let planned = self.rules.iter().filter(|rule| rule.planned).count();
        let tests: BTreeSet<_> = self.tests.values().flatten().collect();
        lines.push(format!(
            "{} rules, {planned} of them planned, {} with a test; {} tests\n",
            self.rules.len(),
            self.tests.len(),
            tests.len()
        ));
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let rules = self.rules.iter().map(|rule| {
            json!({
                "id": rule.id, "title": rule.title, "planned": rule.planned,
                "tests": self.tests_of(&rule.id).collect::<Vec<_>>(),
            })
        });
        rules.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, planned: bool) -> Rule {
        Rule {
            id: id.to_owned(),
            title: "What holds".to_owned(),
            planned,
        }
    }

    fn test(name: &str, ids: &[&str]) -> (String, Named) {
        let named = Named {
            name: name.to_owned(),
            line: 3,
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        ("a.rs".to_owned(), named)
    }

    #[test]
    fn a_rule_without_a_test_fails_unless_it_is_planned() {
        let rules = || vec![rule("PPM-1", false), rule("PPM-2", true)];
        let table = Table::of(rules(), vec![test("t", &["PPM-1"])], Vec::new());
        assert_eq!(table.findings, Vec::<String>::new());
        let table = Table::of(rules(), Vec::new(), Vec::new());
        assert_eq!(table.findings.len(), 1, "{:?}", table.findings);
        assert!(table.findings[0].contains("no test names PPM-1"));
    }

    #[test]
    fn a_test_of_an_unknown_or_a_planned_rule_fails() {
        let tests = vec![test("t", &["PPM-1", "PPM-9"])];
        let table = Table::of(vec![rule("PPM-1", true)], tests, Vec::new());
        assert_eq!(table.findings.len(), 2, "{:?}", table.findings);
        assert!(table.findings[0].starts_with("a.rs:3: neither docs/reference.md nor "));
        assert!(table.findings[1].contains("PPM-1 is planned"));
    }

    #[test]
    fn the_table_lists_tests_below_their_rules() {
        let tests = vec![test("t", &["PPM-1", "PPM-2"]), test("s", &["PPM-1"])];
        let rules = vec![rule("PPM-1", false), rule("PPM-2", false)];
        let table = Table::of(rules, tests, Vec::new());
        assert_eq!(
            table.text(),
            "PPM-1   What holds\n        a.rs::s\n        a.rs::t\nPPM-2   What holds\n        a.rs::t\n\
             2 rules, 0 of them planned, 2 with a test; 2 tests\n"
        );
        assert_eq!(table.json()[1]["tests"], json!(["a.rs::t"]));
    }
}
