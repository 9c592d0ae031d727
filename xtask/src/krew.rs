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
            "shortDescription": "Say why pods are marked as they are",
            "description": "Pods are marked by the verdicts of PodProbeMarkers. Says why a pod is not marked and what to do \
                (explain), shows markers at a glance (status), and tries a marker before it is applied (try), with your own \
                rights.",
            "caveats": "For completion, link kubectl_complete-leadsman in your PATH to kubectl-leadsman.",
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
        let program = folder.path().join("leadsman");
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

    #[test]
    fn the_manifest_names_each_archive_with_its_checksum() {
        let platform = Platform {
            architecture: "amd64".to_owned(),
            file: "kubectl-leadsman.tar.gz".to_owned(),
            sha256: "ab12".to_owned(),
        };
        let manifest = manifest(
            "1.2.3",
            "https://h.example",
            "https://d.example/v1/",
            &[platform],
        );
        let archive = &manifest["spec"]["platforms"][0];
        assert_eq!(
            archive["uri"],
            "https://d.example/v1/kubectl-leadsman.tar.gz"
        );
        assert_eq!(archive["sha256"], "ab12");
        assert_eq!(manifest["spec"]["version"], "v1.2.3");
        // Krew refuses longer ones (`internal/index/validation`).
        let short = manifest["spec"]["shortDescription"].as_str().unwrap();
        assert!(short.len() <= 50, "{short}");
    }
}
