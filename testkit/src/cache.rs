//! Where costly things are kept between runs: compiled programs, images, the records of detached
//! beds, the logs of the last failure.
//!
//! `$LEADSMAN_CACHE`, else `$XDG_CACHE_HOME/leadsman`, else `~/.cache/leadsman`. An entry appears
//! whole or not at all: it is made in a folder beside its place and renamed, under a lock, so two
//! runs neither do the same work twice nor see half of it. What root makes in another's cache it gives
//! to the cache's owner, who would else be refused later.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::unistd::Uid;
use sha2::{Digest as _, Sha256};

/// Names the cache folder.
pub const VARIABLE: &str = "LEADSMAN_CACHE";

/// The cache folder. It may not exist yet.
pub fn folder() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set(VARIABLE)
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("leadsman")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/leadsman")))
        .context(
            "none of LEADSMAN_CACHE, XDG_CACHE_HOME and HOME is set, so there is no cache folder",
        )
}

/// The entry `name`, made by `make` in a folder of its own unless it is there already.
pub(crate) fn entry(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = folder()?.join(name);
    if place.exists() {
        return Ok(place);
    }
    let _lock = lock(name)?;
    if place.exists() {
        return Ok(place);
    }
    let making = place.with_extension("making");
    remove(&making)?;
    fs::create_dir_all(&making).with_context(|| format!("creating {}", making.display()))?;
    make(&making)?;
    hand_over(&making)?;
    fs::rename(&making, &place)
        .with_context(|| format!("moving {} into place", making.display()))?;
    Ok(place)
}

/// An exclusive lock named `name`, held until the file is dropped.
pub(crate) fn lock(name: &str) -> Result<File> {
    let path = folder()?.join("locks").join(name.replace('/', "-"));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    }
    let file =
        File::create(&path).with_context(|| format!("opening the lock {}", path.display()))?;
    path.parent().map_or(Ok(()), hand_over)?;
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// A short key of everything an entry is made from.
pub(crate) fn key<'a>(ingredients: impl IntoIterator<Item = &'a [u8]>) -> String {
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    for ingredient in ingredients {
        hash.update((ingredient.len() as u64).to_le_bytes());
        hash.update(ingredient);
    }
    hash.finalize()
        .iter()
        .take(10)
        .fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// Gives what root has made, a folder with all in it, to the owner of the cache. Nobody else can, or needs to.
pub fn hand_over(path: &Path) -> Result<()> {
    let owner = fs::metadata(folder()?).context("the owner of the cache folder")?;
    if Uid::effective().is_root() && owner.uid() != 0 {
        give(path, owner.uid(), owner.gid())
            .with_context(|| format!("giving {} to the owner of the cache", path.display()))?;
    }
    Ok(())
}

fn give(path: &Path, user: u32, group: u32) -> std::io::Result<()> {
    lchown(path, Some(user), Some(group))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), user, group)?;
        }
    }
    Ok(())
}

/// Removes a folder and all in it; it is fine if there is none.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
