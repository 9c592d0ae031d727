//! Files of the workspace, wherever they are.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Rust files below `folder`, without folders of which `skip` is true and without cargo's own (`CACHEDIR.TAG`).
pub(crate) fn rust_files(folder: &Path, skip: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let is_rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    files(folder, skip, &is_rust)
}

/// Files below `place` of which `wanted` is true, as [`rust_files`] finds them; `place` itself if it is one, and none if
/// there is no such place.
pub(crate) fn files(
    place: &Path,
    skip: &dyn Fn(&Path) -> bool,
    wanted: &dyn Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if place.is_dir() {
        list(place, skip, wanted, &mut found)?;
    } else if place.is_file() && wanted(place) {
        found.push(place.to_owned());
    }
    found.sort();
    Ok(found)
}

fn list(
    folder: &Path,
    skip: &dyn Fn(&Path) -> bool,
    wanted: &dyn Fn(&Path) -> bool,
    found: &mut Vec<PathBuf>,
) -> Result<()> {
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            if !skip(&path) && !path.join("CACHEDIR.TAG").exists() {
                list(&path, skip, wanted, found)?;
            }
        } else if wanted(&path) {
            found.push(path);
        }
    }
    Ok(())
}
