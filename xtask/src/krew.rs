//! The plugin `kubectl leadsman` for Krew: an archive for each architecture, and the manifest that names them
//! (<https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest>).
//!
//! Where the archives will be downloaded from is up to whoever publishes them, so it is an argument.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cargo;

/// The name by which kubectl finds the plugin.
const PROGRAM: &str = "kubectl-leadsman";
const LICENSE: &str = "LICENSE";

/// An archive of one architecture.
pub(crate) struct Platform {
    /// As Go names it, and so Krew: `amd64`.
    pub(crate) architecture: String,
    /// The name of its file.
    pub(crate) file: String,
    pub(crate) sha256: String,
}

/// Packs the program and the license, with the same bytes for all who build a commit: `time` is the commit's, in seconds
/// since 1970.
pub(crate) fn pack(program: &Path, archive: &Path, time: &str) -> Result<()> {
    let folder = archive.with_extension("folder");
    fs::create_dir_all(&folder)?;
    fs::copy(program, folder.join(PROGRAM))?;
    fs::copy(cargo::root().join(LICENSE), folder.join(LICENSE))?;
    let status = Command::new("tar")
        .args([
            "--create",
            "--use-compress-program=gzip -n",
            "--format=ustar",
        ])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--mode=0755"])
        .arg(format!("--mtime=@{time}"))
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(&folder)
        .args([LICENSE, PROGRAM])
        .stdin(Stdio::null())
        .status()
        .context("running tar")?;
    fs::remove_dir_all(&folder)?;
    ensure!(status.success(), "tar ended with {status}");
    Ok(())
}

/// The checksum of a file, by `sha256sum`.
pub(crate) fn checksum(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).output();
    let output = output.context("running sha256sum")?;
    let text = String::from_utf8(output.stdout)?;
    let sum = text.split_whitespace().next().map(str::to_owned);
    sum.with_context(|| format!("sha256sum says nothing of {}", file.display()))
}

/// The manifest, as JSON, which is YAML too.
pub(crate) fn manifest(
    version: &str,
    homepage: &str,
    download: &str,
    platforms: &[Platform],
) -> Value {
    let download = download.trim_end_matches('/');
    let files = [PROGRAM, LICENSE].map(|file| json!({ "from": file, "to": "." }));
    let platforms = platforms.iter().map(|platform| {
        json!({
            "selector": { "matchLabels": { "os": "linux", "arch": platform.architecture } },
            "uri": format!("{download}/{}", platform.file),
            "sha256": platform.sha256,
            "bin": PROGRAM,
            "files": files,
        })
    });
    json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": { "name": "leadsman" },
        "spec": {
            "version": format!("v{version}"),
            "homepage": homepage,
            "shortDescription": "Say why pods lack marks or sidecars",
            "description": "Pods are marked by the verdicts of PodProbeMarkers, and get containers by SidecarSets. Says why a pod \
                lacks a mark or a sidecar and what to do (explain), shows markers at a glance (status), and says of markers (try) \
                and SidecarSets (inject) what they would do before they are applied, with your own rights.",
            "caveats": "For completion, give the program a second name:\nln -s kubectl-leadsman \"${KREW_ROOT:-$HOME/.krew}/bin/kubectl_complete-leadsman\"",
            "platforms": platforms.collect::<Vec<_>>(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_the_program_and_equal_bytes_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kubectl-leadsman");
        fs::write(&program, "program").unwrap();
        let [one, other] = ["one.tar.gz", "other.tar.gz"].map(|name| folder.path().join(name));
        pack(&program, &one, "1700000000").unwrap();
        pack(&program, &other, "1700000000").unwrap();
        assert_eq!(checksum(&one).unwrap(), checksum(&other).unwrap());
        let listed = Command::new("tar").arg("-tvzf").arg(&one).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let files: Vec<_> = listed
            .lines()
            .map(|line| (&line[..10], line.rsplit(' ').next()))
            .collect();
        let expected = [
            ("-rwxr-xr-x", Some("LICENSE")),
            ("-rwxr-xr-x", Some("kubectl-leadsman")),
        ];
        assert_eq!(files, expected);
    }

    fn example() -> Value {
        let platforms = ["amd64", "arm64"].map(|architecture| Platform {
            architecture: architecture.to_owned(),
            file: format!("kubectl-leadsman-{architecture}.tar.gz"),
            sha256: "0123456789abcdef".repeat(4),
        });
        manifest(
            "1.2.3",
            "https://h.example",
            "https://d.example/v1/",
            &platforms,
        )
    }

    #[test]
    fn the_manifest_names_each_archive_with_its_checksum() {
        let manifest = example();
        let archive = &manifest["spec"]["platforms"][0];
        let uri = "https://d.example/v1/kubectl-leadsman-amd64.tar.gz";
        assert_eq!(archive["uri"], uri);
        assert_eq!(archive["sha256"], "0123456789abcdef".repeat(4));
        assert_eq!(manifest["spec"]["version"], "v1.2.3");
    }

    /// What Krew refuses a manifest for (`ValidatePlugin`, `internal/index/validation/validate.go`, and what
    /// `cmd/validate-krew-manifest` adds: each platform of one archive, and the executable among its files). Of the short description,
    /// its guidelines ask for at most 50 characters.
    fn refusals(name: &str, manifest: &Value) -> Vec<String> {
        let mut refusals = Vec::new();
        let mut require = |holds: bool, rule: &str| {
            if !holds {
                refusals.push(rule.to_owned());
            }
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let spec = &manifest["spec"];
        let version = manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2";
        require(version, "apiVersion");
        require(manifest["kind"] == "Plugin", "kind");
        require(!name.is_empty() && name.chars().all(is_word), "name");
        require(manifest["metadata"]["name"] == name, "metadata.name");
        let short = text(&spec["shortDescription"]);
        let is_line = !short.is_empty() && !short.contains(['\r', '\n']);
        require(is_line && short.len() <= 50, "shortDescription");
        let version = text(&spec["version"]);
        let numbers = version.strip_prefix('v').unwrap_or_default().split('.');
        let numbers: Vec<_> = numbers.map(str::parse::<u32>).collect();
        require(
            numbers.len() == 3 && numbers.iter().all(Result::is_ok),
            "version",
        );
        let platforms = spec["platforms"].as_array().cloned().unwrap_or_default();
        require(!platforms.is_empty(), "platforms");
        let mut selectors = Vec::new();
        for platform in &platforms {
            require(!text(&platform["uri"]).is_empty(), "uri");
            let sum = text(&platform["sha256"]);
            let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            require(sum.len() == 64 && sum.chars().all(is_hex), "sha256");
            let files = platform["files"].as_array().cloned().unwrap_or_default();
            let is_whole =
                |file: &Value| !text(&file["from"]).is_empty() && !text(&file["to"]).is_empty();
            require(!files.is_empty() && files.iter().all(is_whole), "files");
            let bin = text(&platform["bin"]);
            let is_program = |file: &Value| file["from"] == *bin && file["to"] == ".";
            require(!bin.is_empty() && files.iter().any(is_program), "bin");
            let labels = platform["selector"]["matchLabels"].as_object();
            let mut keys = labels.into_iter().flat_map(serde_json::Map::keys);
            let has_labels = labels.is_some_and(|labels| !labels.is_empty());
            require(
                has_labels && keys.all(|key| key == "os" || key == "arch"),
                "selector",
            );
            require(
                !selectors.contains(&labels),
                "one archive for each platform",
            );
            selectors.push(labels);
        }
        refusals
    }

    #[test]
    fn krew_refuses_nothing_of_the_manifest() {
        assert_eq!(refusals("leadsman", &example()), [] as [String; 0]);
        for (pointer, value, rule) in [
            ("/kind", json!("Plug"), "kind"),
            ("/metadata/name", json!("other"), "metadata.name"),
            (
                "/spec/shortDescription",
                json!("x".repeat(51)),
                "shortDescription",
            ),
            ("/spec/version", json!("1.2.3"), "version"),
            ("/spec/platforms", json!([]), "platforms"),
            ("/spec/platforms/0/sha256", json!("AB12"), "sha256"),
            ("/spec/platforms/0/bin", json!("leadsman"), "bin"),
            ("/spec/platforms/0/files", json!([]), "files"),
            (
                "/spec/platforms/0/selector/matchLabels",
                json!({}),
                "selector",
            ),
            (
                "/spec/platforms/0/selector/matchLabels/arch",
                json!("arm64"),
                "one archive for each platform",
            ),
        ] {
            let mut manifest = example();
            *manifest.pointer_mut(pointer).unwrap() = value;
            let refusals = refusals("leadsman", &manifest);
            assert!(
                refusals.contains(&rule.to_owned()),
                "{pointer}: {refusals:?}"
            );
        }
    }
}
