//! The folder for what is costly to make: that of the test bed (`leadsman_testkit::cache`), which xtask does not link.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// `$LEADSMAN_CACHE`, else `$XDG_CACHE_HOME/leadsman`, else `~/.cache/leadsman`. It may not exist yet.
pub(crate) fn folder() -> Result<PathBuf> {
    let set = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    set("LEADSMAN_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("leadsman")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/leadsman")))
        .context(
            "none of LEADSMAN_CACHE, XDG_CACHE_HOME and HOME is set, so there is no cache folder",
        )
}
