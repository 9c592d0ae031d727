//! What beds have left whose owner and keeper were both killed, so that nobody was there to take it away: a folder,
//! and for a node bed cgroups. The next bed that is raised in the same temporary folder takes it away.
//!
//! A keeper holds a lock on a file in its bed's folder for as long as it lives. The kernel gives a lock up with its
//! holder, so whoever gets it knows that the keeper is dead, whatever has become of its process id.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::unistd::Uid;

use crate::cache;
use crate::node::outside;
use crate::request::Kind;

/// What names of beds' folders begin with; the bed's name follows.
pub(crate) const FOLDER_PREFIX: &str = "leadsman-";

const FILE: &str = "keeper";

/// Marks the bed of this folder as kept until the file is dropped.
pub(crate) fn keep(folder: &Path, kind: Kind) -> Result<File> {
    // Under its name it is there only when it is locked: nobody can come between.
    let making = folder.join("keeper.making");
    let mut file = File::create_new(&making).context("creating the keeper's lock")?;
    file.lock().context("taking the keeper's lock")?;
    file.write_all(&serde_json::to_vec(&kind)?)?;
    fs::rename(&making, folder.join(FILE)).context("naming the keeper's lock")?;
    Ok(file)
}

/// Takes away what this user's dead beds have left. Returns their names.
pub(crate) fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for (name, folder) in beds() {
        let Some(_kept) = dead(&folder) else { continue };
        let kind = fs::read(folder.join(FILE)).context("reading the keeper's lock")?;
        if serde_json::from_slice::<Kind>(&kind).is_ok_and(|kind| kind == Kind::Node) {
            outside::remove(&name)?;
        }
        cache::remove(&folder)?;
        swept.push(name);
    }
    Ok(swept)
}

/// Names and folders of this user's beds. Others' are not to be trusted: a name in there leads to links and cgroups.
fn beds() -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten();
    entries.flatten().filter_map(|entry| {
        let name = entry
            .file_name()
            .to_str()?
            .strip_prefix(FOLDER_PREFIX)?
            .to_owned();
        let folder = entry.metadata().ok()?;
        let ours = folder.is_dir() && folder.uid() == Uid::effective().as_raw();
        (ours && name.starts_with(outside::PREFIX)).then(|| (name, entry.path()))
    })
}

/// The lock of a keeper that is dead. None while it lives, or where it has never come to have one.
fn dead(folder: &Path) -> Option<File> {
    let file = File::open(folder.join(FILE)).ok()?;
    file.try_lock().is_ok().then_some(file)
}
