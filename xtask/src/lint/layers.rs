//! Who may depend on whom. The rules know no client and no runtime, the executors no Kubernetes object, and nobody
//! reaches up.

use anyhow::{Result, bail};
use serde_json::Value;

use super::Findings;
use crate::cargo::{self, cargo};
use crate::sources;

const FIRST_NOT_SHIPPED: &str = "leadsman-target";

/// Each crate with the crates of ours that it may name. A new crate needs a line, and so a thought.
const ALLOWED: &[(&str, &[&str])] = &[
    ("leadsman-api", &[]),
    // What every controller needs, whatever its objects: no wire type of ours.
    ("leadsman-reconcile", &[]),
    ("leadsman-core", &["leadsman-api", "leadsman-reconcile"]),
    ("leadsman-probe", &["leadsman-core"]),
    ("leadsman-cri", &["leadsman-core", "leadsman-probe"]),
    ("leadsman-process", &[]),
    ("leadsman-lease", &["leadsman-process"]),
    // Every feature may use it, so it knows none.
    (
        "leadsman-admission",
        &["leadsman-lease", "leadsman-process"],
    ),
    // It runs any feature, so it knows none.
    (
        "leadsman-control",
        &[
            "leadsman-api",
            "leadsman-lease",
            "leadsman-process",
            "leadsman-reconcile",
        ],
    ),
    (
        "leadsman-agent",
        &[
            "leadsman-api",
            "leadsman-core",
            "leadsman-cri",
            "leadsman-probe",
            "leadsman-process",
        ],
    ),
    (
        "leadsman-manager",
        &[
            "leadsman-admission",
            "leadsman-api",
            "leadsman-control",
            "leadsman-core",
            "leadsman-lease",
            "leadsman-process",
        ],
    ),
    // It reads as the manager does, parses the manager's flags, looks at the webhook's certificates, and writes nothing.
    (
        "leadsman-kubectl",
        &[
            "leadsman-admission",
            "leadsman-api",
            "leadsman-core",
            "leadsman-lease",
            "leadsman-manager",
            "leadsman-probe",
            "leadsman-process",
        ],
    ),
    (
        "leadsman",
        &[
            "leadsman-admission",
            "leadsman-agent",
            "leadsman-api",
            "leadsman-core",
            "leadsman-kubectl",
            "leadsman-manager",
            "leadsman-process",
        ],
    ),
    // From this line on nothing is shipped.
    (FIRST_NOT_SHIPPED, &[]),
    // What it models is nobody's of ours.
    ("leadsman-api-model", &[]),
    ("leadsman-image", &[]),
    (
        "leadsman-sim",
        &[
            "leadsman-admission",
            "leadsman-agent",
            "leadsman-api",
            "leadsman-api-model",
            "leadsman-cri",
            "leadsman-manager",
            "leadsman-process",
            "leadsman-tests",
        ],
    ),
    ("leadsman-testkit", &["leadsman-api", "leadsman-image"]),
    (
        "leadsman-tests",
        // A reviewer of its own needs no manager.
        &[
            "leadsman-admission",
            "leadsman-api",
            "leadsman-api-model",
            "leadsman-core",
            "leadsman-cri",
            "leadsman-image",
            "leadsman-lease",
            "leadsman-process",
            "leadsman-testkit",
        ],
    ),
    ("leadsman-demo", &["leadsman-api", "leadsman-testkit"]),
    // Its bare loops use the same libraries as the programs they are compared with. A measured index is driven as a manager
    // drives it, without one.
    (
        "leadsman-bench",
        &[
            "leadsman-api",
            "leadsman-core",
            "leadsman-cri",
            "leadsman-probe",
            "leadsman-process",
            "leadsman-reconcile",
            "leadsman-testkit",
            "leadsman-tests",
        ],
    ),
    ("xtask", &[]),
];

/// What these crates must not even reach through others, in what they are built from.
const PURE: &[&str] = &["leadsman-api", "leadsman-core", "leadsman-reconcile"];
const IMPURE: &[&str] = &["kube-client", "kube-runtime", "tokio", "hyper", "tonic"];

/// Crates that serve all features: none of their sources names one. A feature is what has a module in `core`.
const FEATURELESS: &[&str] = &["admission", "control", "lease", "process", "reconcile"];
const CORE: &str = "crates/core/src";
/// What of `core` is no feature.
const VOCABULARY: &[&str] = &["cluster", "workload"];

pub(super) fn check(metadata: &Value) -> Result<Findings> {
    let mut findings = edges(metadata, ALLOWED);
    for package in PURE {
        findings.extend(impure(package)?);
    }
    findings.extend(features_named()?);
    let guide = std::fs::read_to_string(cargo::root().join("CONTRIBUTING.md"))?;
    findings.extend(undrawn(&guide, ALLOWED));
    Ok(findings)
}

/// Places where a crate that serves all features names one.
fn features_named() -> Result<Findings> {
    let root = cargo::root();
    let mut features = Vec::new();
    for entry in std::fs::read_dir(root.join(CORE))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && !VOCABULARY.contains(&name.as_str()) {
            features.push(name);
        }
    }
    let mut findings = Vec::new();
    for package in FEATURELESS {
        let folder = root.join("crates").join(package).join("src");
        for file in sources::rust_files(&folder, &|_| false)? {
            let text = std::fs::read_to_string(&file)?;
            let named = named_feature(&text, &features);
            findings.extend(named.map(|(line, feature)| {
                let file = file.strip_prefix(root).unwrap_or(&file);
                format!(
                    "{}:{line} names {feature}; {package} serves all features: let the manager tell it",
                    file.display()
                )
            }));
        }
    }
    Ok(findings)
}

/// The first line that names a feature, in whichever case.
fn named_feature<'a>(text: &str, features: &'a [String]) -> Option<(usize, &'a str)> {
    (1..).zip(text.lines()).find_map(|(number, line)| {
        let line = line.to_lowercase().replace('_', "");
        let feature = features.iter().find(|feature| line.contains(*feature))?;
        Some((number, feature.as_str()))
    })
}

/// Lines of the table that the picture in `CONTRIBUTING.md` lacks.
fn undrawn(guide: &str, allowed: &[(&str, &[&str])]) -> Findings {
    let short = |name: &str| name.trim_start_matches("leadsman-").to_owned();
    let shipped = allowed
        .iter()
        .take_while(|(name, _)| *name != FIRST_NOT_SHIPPED);
    let lines = shipped
        .filter(|(_, may)| !may.is_empty())
        .map(|(name, may)| {
            let may: Vec<_> = may.iter().map(|name| short(name)).collect();
            format!("{} → {}", short(name), may.join(", "))
        });
    let missing = lines.filter(|line| !guide.lines().any(|drawn| drawn == line));
    missing
        .map(|line| format!("the picture of crates in CONTRIBUTING.md lacks the line {line:?}"))
        .collect()
}

/// Edges between the workspace's own crates that the table does not have.
fn edges(metadata: &Value, allowed: &[(&str, &[&str])]) -> Findings {
    let packages = metadata["packages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let names: Vec<&str> = packages
        .iter()
        .filter_map(|package| package["name"].as_str())
        .collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, may)) = allowed.iter().find(|(crate_, _)| *crate_ == name) else {
            findings.push(format!(
                "{name} has no line in the table of {}; give it one",
                file!()
            ));
            continue;
        };
        let dependencies = package["dependencies"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        for dependency in dependencies
            .iter()
            .filter_map(|dependency| dependency["name"].as_str())
        {
            if names.contains(&dependency) && dependency != name && !may.contains(&dependency) {
                let known = if may.is_empty() {
                    "none of ours".to_owned()
                } else {
                    may.join(", ")
                };
                findings.push(format!("{name} depends on {dependency}, but may know {known}; move the code or turn the dependency round"));
            }
        }
    }
    findings
}

/// Asked of `cargo tree` for one package alone: cargo's metadata unites the features of the whole workspace, so there
/// `kube` always brings its client.
fn impure(package: &str) -> Result<Findings> {
    let output = cargo()
        .args([
            "tree",
            "--package",
            package,
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .output()?;
    if !output.status.success() {
        bail!(
            "`cargo tree -p {package}` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    let reached = |wanted: &&&str| {
        tree.lines()
            .any(|line| line.split(' ').next() == Some(wanted))
    };
    let line = |found: &&str| {
        format!(
            "{package} reaches {found}; it must stay pure: `cargo tree -p {package} -i {found} -e normal` shows how"
        )
    };
    Ok(IMPURE.iter().filter(reached).map(line).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(dependencies: &[&str]) -> Findings {
        let dependencies: Vec<_> = dependencies
            .iter()
            .map(|name| json!({"name": name}))
            .collect();
        let metadata = json!({"packages": [
            {"name": "low", "dependencies": []},
            {"name": "middle", "dependencies": dependencies},
            {"name": "high", "dependencies": [{"name": "middle"}]},
        ]});
        edges(
            &metadata,
            &[("low", &[]), ("middle", &["low"]), ("high", &["middle"])],
        )
    }

    #[test]
    fn an_edge_upwards_is_found_and_a_foreign_crate_is_nobodys_business() {
        assert_eq!(found(&["low", "serde"]), Findings::new());
        let findings = found(&["high"]);
        assert!(
            findings.len() == 1 && findings[0].starts_with("middle depends on high"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_crate_without_a_line_is_found() {
        let metadata = json!({"packages": [{"name": "new", "dependencies": []}]});
        assert_eq!(edges(&metadata, &[]).len(), 1);
    }

    #[test]
    fn a_feature_that_is_named_is_found_in_any_case() {
        let features = ["podprobe".to_owned()];
        for (text, expected) in [
            ("// any feature", None),
            ("use x;\nuse core::podprobe::Index;", Some((2, "podprobe"))),
            ("struct PodProbeRules;", Some((1, "podprobe"))),
            ("let pod_probe = 7;", Some((1, "podprobe"))),
        ] {
            assert_eq!(named_feature(text, &features), expected, "{text}");
        }
    }

    #[test]
    fn an_edge_that_is_not_in_the_picture_is_found() {
        let allowed: &[(&str, &[&str])] = &[
            ("leadsman-low", &[]),
            ("leadsman-high", &["leadsman-low"]),
            (FIRST_NOT_SHIPPED, &["leadsman-high"]),
        ];
        assert_eq!(undrawn("…\nhigh → low\n", allowed), Findings::new());
        assert_eq!(undrawn("high → low, high\n", allowed).len(), 1);
    }

    #[test]
    fn what_is_reached_through_others_is_found() {
        assert_eq!(impure("leadsman-core").unwrap(), Findings::new());
        assert!(
            !impure("leadsman-agent").unwrap().is_empty(),
            "the agent has a runtime"
        );
    }
}
