//! The workspace's Rust files, wherever they are.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Rust files below `folder`, without folders of which `skip` is true and without cargo's own (`CACHEDIR.TAG`).
pub(crate) fn rust_files(folder: &Path, skip: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    list(folder, skip, &mut files)?;
    files.sort();
    Ok(files)
}

fn list(folder: &Path, skip: &dyn Fn(&Path) -> bool, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            if !skip(&path) && !path.join("CACHEDIR.TAG").exists() {
                list(&path, skip, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
