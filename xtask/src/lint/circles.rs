//! Circles between the files of a crate: two files that name each other are one file in two pieces, and none of them can
//! be read alone. A folder counts as one file for those beside it. A module and what is inside it may name each other.
//!
//! Paths are read from the text: those that begin with `crate`, `super` or `self`, in `use` and elsewhere, and what a
//! module re-exports from its own files. Test modules may name what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Findings, orphans};
use crate::cargo;

/// The crates that are checked.
const CRATES: &[&str] = &[
    "admission",
    "agent",
    "api",
    "core",
    "cri",
    "lease",
    "probe",
    "process",
];

type Module = Vec<String>;

#[derive(Default)]
struct Crate {
    modules: BTreeSet<Module>,
    /// Which module names which path.
    named: Vec<(Module, Module)>,
    /// Paths that a module re-exports from its own files, and where the item is.
    exported: BTreeMap<Module, Module>,
}

pub(super) fn check() -> Result<Findings> {
    let mut findings = Vec::new();
    for package in CRATES {
        let mut all = Crate::default();
        let root = cargo::root().join("crates").join(package);
        all.read(&root.join("src/lib.rs"), Module::new())?;
        let circles = all.circles().into_iter();
        findings.extend(circles.map(|circle| format!("{package}: {circle}")));
    }
    Ok(findings)
}

impl Crate {
    fn read(&mut self, file: &Path, module: Module) -> Result<()> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "mod.rs") => file.with_file_name(""),
            _ => file.with_extension(""),
        };
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        let lines = code.unwrap_or_default().lines();
        let lines = lines.map(|line| line.split("//").next().unwrap_or_default().trim());
        let lines: Vec<_> = lines.collect();
        for (number, line) in lines.iter().enumerate() {
            let is_test = number > 0 && is_for_tests(lines[number - 1]);
            let Some(name) = orphans::declared(line).filter(|_| !is_test) else {
                continue;
            };
            let beside = folder.join(format!("{name}.rs"));
            let inside = folder.join(name).join("mod.rs");
            let file = if beside.is_file() { beside } else { inside };
            self.read(&file, below(&module, [name.to_owned()]))?;
        }
        for path in paths(&lines.join(" ")) {
            let supers = path.iter().take_while(|name| *name == "super").count();
            let named = match path.first().map(String::as_str) {
                Some("crate") => path[1..].to_vec(),
                Some("self") => below(&module, path[1..].to_vec()),
                Some("super") => {
                    let depth = module.len().saturating_sub(supers);
                    below(&module[..depth], path[supers..].to_vec())
                }
                Some(_) => {
                    let export = below(&module, path.last().cloned());
                    self.exported.insert(export, below(&module, path));
                    continue;
                }
                None => continue,
            };
            self.named.push((module.clone(), named));
        }
        self.modules.insert(module);
        Ok(())
    }

    /// The module that a path leads into.
    fn target(&self, path: &[String]) -> Module {
        let prefixes = (0..=path.len()).rev().map(|length| &path[..length]);
        let exported = |prefix: &[String]| Some(self.exported.get(prefix)?.split_last()?.1);
        let mut modules = prefixes.flat_map(|prefix| [Some(prefix), exported(prefix)]);
        let found = modules.find_map(|module| module.filter(|it| self.modules.contains(*it)));
        found.unwrap_or_default().to_vec()
    }

    /// Each module with those beside it that it, or what is inside it, names.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, path) in &self.named {
            let to = self.target(path);
            let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if same < from.len() && same < to.len() {
                let (from, to) = (from[..=same].to_vec(), to[..=same].to_vec());
                edges.entry(from).or_default().insert(to);
            }
        }
        edges
    }

    fn circles(&self) -> Findings {
        let edges = self.edges();
        let mut seen = BTreeSet::new();
        let mut findings = Vec::new();
        for start in edges.keys() {
            let Some(circle) = circle(start, &edges) else {
                continue;
            };
            if seen.insert(circle.iter().cloned().collect::<BTreeSet<_>>()) {
                let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
                let names = names.join(" → ");
                findings.push(format!(
                    "{names} → {} is a circle; move what they share into a file of its own",
                    start.join("::")
                ));
            }
        }
        findings
    }
}

/// The shortest way from a module back to itself.
fn circle(start: &Module, edges: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    let mut ways = vec![vec![start.clone()]];
    let mut reached = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in &ways {
            for next in edges.get(way.last()?).into_iter().flatten() {
                if next == start {
                    return Some(way.clone());
                }
                if reached.insert(next) {
                    longer.push(way.iter().chain([next]).cloned().collect());
                }
            }
        }
        ways = longer;
    }
    None
}

fn below(module: &[String], rest: impl IntoIterator<Item = String>) -> Module {
    module.iter().cloned().chain(rest).collect()
}

fn is_for_tests(attribute: &str) -> bool {
    attribute.starts_with("#[cfg(") && attribute.contains("test")
}

/// The paths in a text, groups in braces spelled out.
fn paths(code: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    let mut path = Module::new();
    // How much of the path stands before the group, of each group that is open.
    let mut groups = Vec::new();
    let mut joined = false;
    for token in tokens(code) {
        match token {
            "::" => {}
            "{" if joined => groups.push(path.len()),
            name if name.starts_with(is_name) && joined => path.push(name.to_owned()),
            token => {
                paths.push(path.clone());
                if token == "}" {
                    groups.pop();
                }
                path.truncate(groups.last().copied().unwrap_or_default());
                if token.starts_with(is_name) {
                    path.push(token.to_owned());
                }
            }
        }
        joined = token == "::";
    }
    paths
}

/// Names, `::`, and all else by the character.
fn tokens(code: &str) -> impl Iterator<Item = &str> {
    let mut rest = code.trim_start();
    std::iter::from_fn(move || {
        let end = match rest.find(|c| !is_name(c)) {
            Some(0) if rest.starts_with("::") => 2,
            Some(0) => rest.chars().next()?.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let token = rest.get(..end).filter(|token| !token.is_empty())?;
        rest = rest[end..].trim_start();
        Some(token)
    })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate of these files.
    fn circles(files: &[(&str, &str)]) -> Findings {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let mut all = Crate::default();
        all.read(&folder.path().join("lib.rs"), Module::new())
            .unwrap();
        all.circles()
    }

    #[test]
    fn files_that_name_each_other_are_a_circle() {
        let root = ("lib.rs", "mod a;\nmod b;\npub use b::B;\n");
        let a = ("a.rs", "use super::b::{B, C};\n");
        assert_eq!(circles(&[root, a, ("b.rs", "fn f() {}\n")]).len(), 0);
        for b in [
            "use crate::{a::A, x};\n",
            "fn f(a: &super::a::A) {}\n",
            "use std::{\n    fmt,\n};\nuse super::{\n    a::{A},\n};\n",
        ] {
            let found = circles(&[root, a, ("b.rs", b)]);
            assert!(
                found.len() == 1 && found[0].starts_with("a → b → a "),
                "{found:?}"
            );
        }
        let exported = ("a.rs", "use crate::B;\n");
        let b = ("b.rs", "use super::a::A;\n");
        assert_eq!(circles(&[root, exported, b]).len(), 1);
    }

    #[test]
    fn a_folder_is_one_file_for_those_beside_it() {
        let root = ("lib.rs", "mod a;\nmod b;\n");
        let of_a = [
            ("a/mod.rs", "mod c;\nmod d;\n"),
            ("a/c.rs", "use crate::b::B;\n"),
        ];
        let files = |d| {
            [
                root,
                of_a[0],
                of_a[1],
                ("a/d.rs", "use super::A;\n"),
                ("b.rs", d),
            ]
        };
        assert_eq!(circles(&files("")).len(), 0);
        assert_eq!(circles(&files("use crate::a::d::D;\n")).len(), 1);
    }

    #[test]
    fn tests_and_comments_make_no_circle() {
        let root = ("lib.rs", "mod a;\n#[cfg(test)]\nmod b;\nmod c;\n");
        let a = ("a.rs", "// super::c::C\nuse super::c::C;\n");
        let c = (
            "c.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        );
        let b = ("b.rs", "use super::a::A;\n");
        assert_eq!(circles(&[root, a, b, c]).len(), 0);
    }
}
