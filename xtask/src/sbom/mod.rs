//! The bill of materials of leadsman's programs, as CycloneDX 1.6 in JSON (<https://cyclonedx.org/docs/1.6/json>).
//!
//! It lists the crates whose code is in `leadsman`, `leadsman-agent` or `kubectl-leadsman`: the normal dependencies, with the
//! features that are shipped, without procedural macros, build scripts and what only tests use. It also lists what is linked
//! beside them: Rust's standard library, glibc and gcc's unwinder. The same sources and toolchain give the same text.

mod crates;
mod notices;

use anyhow::Result;
use serde_json::{Value, json};

use crate::commit::{Commit, line};
use crate::image::Architecture;
use crates::{Graph, Package};

/// What a release says about the code that its programs are linked from.
pub(crate) struct Materials {
    /// The bill of materials.
    pub(crate) bill: Value,
    /// The licences.
    pub(crate) notices: String,
}

impl Materials {
    /// Reads both for the programs of this architecture.
    pub(crate) fn read(architecture: Architecture, commit: &Commit) -> Result<Self> {
        let graph = Graph::read(architecture.triple())?;
        let libraries = linked_libraries(architecture);
        Ok(Self {
            bill: document(&graph, &libraries, &commit.utc()?),
            notices: notices::text(&graph, architecture.triple())?,
        })
    }
}

fn document(graph: &Graph, libraries: &[Value], timestamp: &str) -> Value {
    let root = &graph.root;
    let components = graph.packages.values().filter(|it| it.id() != root.id());
    let components: Vec<_> = components
        .map(component)
        .chain(libraries.iter().cloned())
        .collect();
    let libraries: Vec<_> = libraries.iter().map(|it| it["bom-ref"].clone()).collect();
    let dependencies: Vec<_> = graph
        .packages
        .values()
        .map(|package| {
            let on = graph.dependencies.get(&package.id()).into_iter().flatten();
            let on = on.filter_map(|id| Some(json!(graph.packages.get(id)?.reference())));
            let linked = libraries.iter().filter(|_| package.id() == root.id());
            json!({
                "ref": package.reference(),
                "dependsOn": on.chain(linked.cloned()).collect::<Vec<_>>(),
            })
        })
        .collect();
    let mut of_program = component(root);
    of_program["type"] = json!("application");
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{
                "type": "application",
                "name": "cargo xtask dist",
                "version": env!("CARGO_PKG_VERSION"),
            }]},
            "component": of_program,
        },
        "components": components,
        "dependencies": dependencies,
    })
}

fn component(package: &Package) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": package.reference(),
        "name": package.name,
        "version": package.version,
        "scope": "required",
    });
    if let Some(licence) = &package.licence {
        component["licenses"] = json!([{"expression": licence}]);
    }
    // What is in no registry has no address there.
    if let Some(checksum) = &package.checksum {
        component["purl"] = json!(package.reference());
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

/// The libraries that are linked and are no crates of the workspace's graph.
fn linked_libraries(architecture: Architecture) -> Vec<Value> {
    let linker = architecture.linker().program;
    let rust = line("rustc", &["--version"]);
    let rust = rust.as_deref().and_then(|text| text.split(' ').nth(1));
    let libc = line(linker, &["-print-file-name=libc.a"]).and_then(|path| std::fs::read(path).ok());
    let libc = libc.as_deref().and_then(glibc_version);
    let gcc = line(linker, &["-dumpfullversion", "-dumpversion"]);
    [
        ("rust-std", rust, "MIT OR Apache-2.0"),
        ("glibc", libc.as_deref(), "LGPL-2.1-or-later"),
        (
            "libgcc",
            gcc.as_deref(),
            "GPL-3.0-or-later WITH GCC-exception-3.1",
        ),
    ]
    .into_iter()
    .map(|(name, version, licence)| {
        let version = version.unwrap_or("unknown");
        json!({
            "type": "library",
            "bom-ref": format!("{name}@{version}"),
            "name": name,
            "version": version,
            "scope": "required",
            "licenses": [{"expression": licence}],
        })
    })
    .collect()
}

/// The version in the banner of a libc.a: `GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.` The text in
/// brackets is the distribution's, with the level of its patches.
fn glibc_version(library: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"GNU C Library (";
    let start = library.windows(BANNER.len()).position(|it| it == BANNER)? + BANNER.len();
    let banner = library.get(start..start + 200)?;
    let banner = &banner[..banner.iter().position(|byte| *byte == b')')?];
    let name = std::str::from_utf8(banner).ok()?;
    name.split(' ').next_back().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn package(name: &str, checksum: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: Some("MIT".to_owned()),
            repository: None,
            checksum: checksum.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn the_program_needs_its_crates_and_what_is_linked_beside_them() {
        let (root, one) = (package("program", None), package("one", Some("abc")));
        let graph = Graph {
            root: root.clone(),
            packages: [&root, &one].map(|it| (it.id(), it.clone())).into(),
            dependencies: BTreeMap::from([(root.id(), [one.id()].into())]),
        };
        let libc = json!({"type": "library", "bom-ref": "glibc@2.36", "name": "glibc"});
        let document = document(&graph, &[libc], "2026-01-02T03:04:05Z");
        assert_eq!(document["metadata"]["component"]["name"], "program");
        let names = document["components"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["one", "glibc"]);
        assert_eq!(
            document["dependencies"],
            json!([
                {"ref": "pkg:cargo/one@1.0.0", "dependsOn": []},
                {"ref": "program@1.0.0", "dependsOn": ["pkg:cargo/one@1.0.0", "glibc@2.36"]},
            ])
        );
        assert_eq!(document["components"][0]["hashes"][0]["content"], "abc");
    }

    #[test]
    fn the_version_of_glibc_is_that_of_the_distribution() {
        let library =
            b"\0\0GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\n";
        let library = [&library[..], &[0; 200]].concat();
        assert_eq!(glibc_version(&library).as_deref(), Some("2.36-9+deb12u14"));
        assert_eq!(glibc_version(b"no banner"), None);
    }

    #[test]
    fn the_bill_of_this_workspace_has_what_is_linked_and_nothing_else() {
        let commit = Commit {
            revision: None,
            time: "0".to_owned(),
        };
        let materials = Materials::read(Architecture::native().unwrap(), &commit).unwrap();
        let components = materials.bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|it| it["name"] == name);
        for linked in [
            "leadsman-core",
            "ring",
            "rustls",
            "tokio",
            "rust-std",
            "glibc",
        ] {
            assert!(named(linked).is_some(), "{linked} is missing");
        }
        for absent in ["leadsman", "syn", "serde_derive", "cc", "proptest", "xtask"] {
            assert!(named(absent).is_none(), "{absent} is not linked");
        }
        for component in components {
            assert!(component["licenses"].is_array(), "no licence: {component}");
            assert_ne!(component["version"], "unknown", "{component}");
        }
        assert_eq!(
            materials.bill["metadata"]["timestamp"],
            "1970-01-01T00:00:00Z"
        );
        assert!(
            materials.notices.contains("ring 0.17"),
            "{}",
            materials.notices
        );
    }
}
