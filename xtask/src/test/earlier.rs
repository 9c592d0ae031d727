//! An earlier commit of leadsman, for the cases of the install suite in which two versions meet.
//!
//! Its sources are a git worktree in `target/earlier`. Its chart is installed as it is; its program is built with the
//! toolchain and the flags of this commit, and put into an image of its own tag, so that one node has both.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cargo;
use crate::commit::{Commit, line};
use crate::image;

/// The tag of its image.
const TAG: &str = "earlier";

/// Builds the commit. Returns the environment in which testkit finds chart and image.
pub(super) fn build(commit: &str) -> Result<[(String, OsString); 3]> {
    let commit = Commit::named(commit)?;
    let sources = check_out(&commit)?;
    let chart = sources.join("charts/leadsman");
    let has_chart = chart.join("Chart.yaml").is_file();
    ensure!(has_chart, "the commit of --earlier has no charts/leadsman");
    let image = image::make_of(&sources, &commit, TAG)?;
    Ok([
        ("LEADSMAN_EARLIER_CHART".to_owned(), chart.into_os_string()),
        (
            "LEADSMAN_EARLIER_IMAGE".to_owned(),
            image.path.into_os_string(),
        ),
        ("LEADSMAN_EARLIER_TAG".to_owned(), TAG.into()),
    ])
}

/// Puts the commit's files into the worktree, which is made if need be.
fn check_out(commit: &Commit) -> Result<PathBuf> {
    let revision = commit.revision.as_deref().context("git names no commit")?;
    let folder = cargo::root().canonicalize()?.join("target/earlier");
    let path = folder.display().to_string();
    // Both print where HEAD is now. What somebody has edited there is thrown away.
    let words: &[&str] = if is_worktree(&folder) {
        &["-C", &path, "checkout", "--force", "--detach", revision]
    } else {
        // Forced: git may remember one there, that was removed with `target`.
        &["worktree", "add", "--force", "--detach", &path, revision]
    };
    line("git", words);
    let head = line("git", &["-C", &path, "rev-parse", "HEAD"]);
    ensure!(
        head.as_deref() == Some(revision),
        "`git {}` has not made {path} the commit {revision}",
        words.join(" ")
    );
    Ok(folder)
}

fn is_worktree(folder: &Path) -> bool {
    folder.join(".git").is_file()
}
