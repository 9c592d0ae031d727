//! The cluster that the story is played on.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::Result;
use leadsman_testkit::{NodeBed, Options, Release, cache, progress};
use serde_json::json;

use crate::acts::NAMESPACE;
use crate::tell::Tell;

/// A cluster of one real node with leadsman installed on it, and where its programs are.
pub(crate) struct Demo {
    release: Release,
    programs: PathBuf,
}

impl Deref for Demo {
    type Target = Release;

    fn deref(&self) -> &Release {
        &self.release
    }
}

impl Demo {
    /// Raises the bed and installs leadsman as its README says.
    pub(crate) async fn raise() -> Result<Self> {
        let bed = NodeBed::start(Options::default(), progress::to_stderr()).await?;
        let programs = bed.programs()?;
        let release = Release::prepare(bed).await?;
        Tell::title(
            "leadsman on it: helm upgrade --install leadsman charts/leadsman --namespace leadsman-system --create-namespace",
        );
        release.install(&json!({})).await?;
        Ok(Self { release, programs })
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

    /// For `--keep`.
    pub(crate) fn say_how_to_use_it(&self) {
        let kubeconfig = self.bed.admin_kubeconfig().display();
        let folder = self.programs.display();
        println!(
            "
== The cluster stays up. In another terminal:

  export KUBECONFIG={kubeconfig} PATH=\"{folder}:$PATH\"

  kubectl -n ns get podprobemarkers                      # one line a marker: matched, succeeded, failed
  kubectl -n ns describe podprobemarker game-server-probe
  kubectl -n ns get pods -L gameserver-idle,role         # the marks
  kubectl -n ns get pods --watch -L gameserver-idle,role # and how they change
  kubectl -n ns exec deploy/game-server -- touch /home/game/match
  kubectl -n ns exec deploy/game-server -- rm /home/game/match
  kubectl -n ns exec cache -- /target post 'http://127.0.0.1:8080/set?tcp=closed'
  kubectl -n ns get pod cache -o wide                    # its readiness gate
  kubectl get nodepodprobe -o yaml                       # what the agent is asked, and what it found
  kubectl -n ns get events --field-selector=reportingComponent=kruise-daemon-podprobe
  kubectl -n ns delete podprobemarker game-server-probe  # and its marks are gone

  kubectl -n leadsman-system get pods                    # manager and agent
  kubectl -n leadsman-system logs -f daemonset/leadsman-agent
  helm -n leadsman-system get all leadsman               # what was installed

Ctrl-C here ends the cluster and takes everything away."
        );
    }

    /// Ends the bed and waits until nothing of it is left.
    pub(crate) async fn end(self) -> Result<()> {
        self.release.end().await
    }
}
