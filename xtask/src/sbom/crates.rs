//! The crates that the programs of a package link, as `cargo tree` and `Cargo.lock` tell.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use crate::cargo::{self, cargo};

/// A package's name and version. With a single registry, a lock file has each pair once.
pub(super) type Id = (String, String);

/// A package, with what the bill of materials says about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// An SPDX expression.
    pub(super) licence: Option<String>,
    pub(super) repository: Option<String>,
    /// The SHA-256 of its archive in the registry; none for what is in no registry.
    pub(super) checksum: Option<String>,
}

/// A package of programs, all packages that these link, and which of them depend on which.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) root: Package,
    /// The root is one of them.
    pub(super) packages: BTreeMap<Id, Package>,
    pub(super) dependencies: BTreeMap<Id, BTreeSet<Id>>,
}

impl Package {
    pub(super) fn id(&self) -> Id {
        (self.name.clone(), self.version.clone())
    }

    /// A package URL for what is in the registry (<https://github.com/package-url/purl-spec>), else a name.
    pub(super) fn reference(&self) -> String {
        let prefix = self.checksum.as_ref().map_or("", |_| "pkg:cargo/");
        format!("{prefix}{}@{}", self.name, self.version)
    }
}

impl Graph {
    /// Reads the graph of the programs of package `leadsman`, built for this target.
    pub(super) fn read(target: &str) -> Result<Self> {
        let output = cargo()
            .args(["tree", "--locked", "--package", "leadsman"])
            .args(["--edges", "normal,no-proc-macro", "--target", target])
            .args([
                "--prefix",
                "depth",
                "--charset",
                "ascii",
                "--format",
                FORMAT,
            ])
            .output()
            .context("running cargo tree")?;
        if !output.status.success() {
            bail!(
                "`cargo tree` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let tree = String::from_utf8(output.stdout).context("what cargo tree printed")?;
        let lock = std::fs::read_to_string(cargo::root().join("Cargo.lock"))?;
        Self::parse(&tree, &checksums(&lock))
    }

    /// Reads lines of a depth and [`FORMAT`]. A package that was listed before comes without its dependencies, and is
    /// marked with `(*)`.
    fn parse(tree: &str, checksums: &BTreeMap<Id, String>) -> Result<Self> {
        let mut path: Vec<Id> = Vec::new();
        let mut packages = BTreeMap::new();
        let mut dependencies: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
        for line in tree.lines() {
            let (depth, mut package) = package(line)
                .with_context(|| format!("a line of cargo tree is not understood: {line:?}"))?;
            let id = package.id();
            package.checksum = checksums.get(&id).cloned();
            path.truncate(depth);
            if let Some(parent) = path.last() {
                let needed = dependencies.entry(parent.clone()).or_default();
                needed.insert(id.clone());
            }
            path.push(id.clone());
            packages.entry(id).or_insert(package);
        }
        let root = path.first().and_then(|id| packages.get(id)).cloned();
        Ok(Self {
            root: root.context("cargo tree printed nothing")?,
            packages,
            dependencies,
        })
    }
}

/// Package, licence and repository, separated by a sign that none of them contains.
const FORMAT: &str = " {p}|{l}|{r}";

fn package(line: &str) -> Option<(usize, Package)> {
    let (depth, rest) = line.split_once(' ')?;
    let mut fields = rest.split('|');
    // `name v1.2.3`, and for a package of the workspace its folder.
    let mut words = fields.next()?.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let text = |field: &str| {
        let text = field.trim_end_matches("(*)").trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let package = Package {
        name: name.to_owned(),
        version: version.to_owned(),
        // A slash stood for OR before SPDX expressions (The Cargo Book, "The license field").
        licence: text(fields.next()?).map(|it| {
            it.split('/')
                .map(str::trim)
                .collect::<Vec<_>>()
                .join(" OR ")
        }),
        repository: text(fields.next()?),
        checksum: None,
    };
    Some((depth.parse().ok()?, package))
}

/// The checksums in a lock file.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let packages = lock.split("[[package]]").filter_map(|package| {
        let field = |name: &str| {
            let mut lines = package.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
            Some(value.trim_end_matches('"').to_owned())
        };
        Some(((field("name")?, field("version")?), field("checksum")?))
    });
    packages.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0 program v0.1.0 (/a folder/program)|Apache-2.0|
1 left v1.0.0|MIT / Apache-2.0|https://example.org/left
2 shared v2.0.0|MIT|https://example.org/shared
1 right v3.0.0|ISC|
2 shared v2.0.0|MIT|https://example.org/shared (*)
";
    const LOCK: &str = "\
version = 4

[[package]]
name = \"left\"
version = \"1.0.0\"
source = \"a registry\"
checksum = \"abc\"
dependencies = [
 \"shared\",
]

[[package]]
name = \"program\"
version = \"0.1.0\"
";

    fn id(name: &str, version: &str) -> Id {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn the_tree_is_read_with_each_package_once() {
        let graph = Graph::parse(TREE, &checksums(LOCK)).unwrap();
        assert_eq!(graph.root.reference(), "program@0.1.0");
        let left = &graph.packages[&id("left", "1.0.0")];
        assert_eq!(left.reference(), "pkg:cargo/left@1.0.0");
        assert_eq!(left.licence.as_deref(), Some("MIT OR Apache-2.0"));
        assert_eq!(left.checksum.as_deref(), Some("abc"));
        assert_eq!(graph.packages[&id("right", "3.0.0")].repository, None);
        let names: Vec<_> = graph.packages.keys().map(|(name, _)| name).collect();
        assert_eq!(names, ["left", "program", "right", "shared"]);
    }

    #[test]
    fn a_repeated_package_is_needed_by_both() {
        let graph = Graph::parse(TREE, &BTreeMap::new()).unwrap();
        let needed = |name, version| -> Vec<String> {
            let needed = graph.dependencies.get(&id(name, version)).into_iter();
            needed.flatten().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(needed("program", "0.1.0"), ["left", "right"]);
        assert_eq!(needed("left", "1.0.0"), ["shared"]);
        assert_eq!(needed("right", "3.0.0"), ["shared"]);
        assert!(needed("shared", "2.0.0").is_empty());
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        let error = Graph::parse("0 program\n", &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("0 program"), "{error}");
    }
}
