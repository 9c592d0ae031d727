//! Runs helm, kubectl and leadsman, and reads the objects that they print.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use leadsman_testkit::{leadsman, programs, progress};
use serde_json::Value;

/// Objects by `Kind/name`, with the namespace where two differ by that alone: `Role/NAMESPACE/name`.
pub(crate) type Objects = BTreeMap<String, Value>;

static PROGRAMS: LazyLock<PathBuf> =
    LazyLock::new(|| programs::ensure(&mut progress::to_stderr()).unwrap());

pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// What the command prints; its message if it fails.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.current_dir(root()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

pub(crate) fn program(name: &str) -> Command {
    Command::new(PROGRAMS.join(name))
}

/// `helm template` in this namespace with these arguments.
pub(crate) fn template(namespace: &str, arguments: &[&str]) -> Result<Objects, String> {
    let mut helm = program("helm");
    helm.args([
        "template",
        "leadsman",
        "charts/leadsman",
        "--namespace",
        namespace,
    ]);
    run(helm.args(arguments)).map(|text| objects(&text))
}

/// `leadsman manifests` with these arguments.
pub(crate) fn manifests(arguments: &[&str]) -> Objects {
    let mut manifests = Command::new(leadsman::program().unwrap());
    objects(&run(manifests.arg("manifests").args(arguments)).unwrap())
}

pub(crate) fn objects(text: &str) -> Objects {
    let mut objects = Objects::new();
    // Comments alone are no object.
    let documents = text
        .split("\n---")
        .map(|text| text.trim_start_matches("---"));
    for document in documents {
        let object: Value = serde_norway::from_str(document).unwrap();
        if object.is_null() {
            continue;
        }
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap();
        let key = match kind {
            "Role" | "RoleBinding" => format!("{kind}/{}/{}", part("namespace"), part("name")),
            _ => format!("{kind}/{}", part("name")),
        };
        let before = objects.insert(key.clone(), object);
        assert!(before.is_none(), "{key} comes twice");
    }
    objects
}
