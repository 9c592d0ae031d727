//! The cluster that the story is played on.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::Result;
use leadsman_testkit::{NodeBed, Options, Release, cache, progress};
use serde_json::json;

use crate::acts::NAMESPACE;
use crate::tell::Tell;

/// A cluster of one real node with leadsman installed on it, as its README says.
pub(crate) struct Demo {
    release: Release,
}

impl Deref for Demo {
    type Target = Release;

    fn deref(&self) -> &Release {
        &self.release
    }
}

/// The features that are off by default.
const GATES: &str =
    "SidecarSetGate=true,AdvancedCronJobGate=true,BroadcastJobGate=true,CloneSetGate=true";

impl Demo {
    /// Raises the bed and installs leadsman as its README says.
    pub(crate) async fn raise() -> Result<Self> {
        let bed = NodeBed::start(Options::default(), progress::to_stderr()).await?;
        let release = Release::prepare(bed).await?;
        Tell::title(&format!(
            "leadsman on it: helm upgrade --install leadsman charts/leadsman --namespace leadsman-system --create-namespace \
             --set-literal featureGates={GATES}",
        ));
        release.install(&json!({"featureGates": GATES})).await?;
        Ok(Self { release })
    }

    /// Where the logs of manager and agent are put if something is not seen; they outlive the cluster.
    pub(crate) fn logs() -> Result<PathBuf> {
        Ok(cache::folder()?.join("demo-logs"))
    }

    /// `kubectl` as an administrator; its own message is the error.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.bed.kubectl(arguments).await
    }

    /// Applies files of the repository, in the manual's namespace.
    pub(crate) async fn apply(&self, files: &[&str]) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let paths: Vec<String> = files
            .iter()
            .map(|file| folder.join(file).display().to_string())
            .collect();
        let mut arguments = vec!["apply", "--namespace", NAMESPACE];
        arguments.extend(paths.iter().flat_map(|path| ["-f", path]));
        self.kubectl(&arguments).await.map(drop)
    }

    /// Ends the bed and waits until nothing of it is left.
    pub(crate) async fn end(self) -> Result<()> {
        self.release.end().await
    }
}
